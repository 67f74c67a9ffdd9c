"""The Trainer of Lightning, with validation and accumulation: lightned.py [ACCUMULATION]."""

import logging
import sys
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATION = int(sys.argv[1]) if len(sys.argv) > 1 else 1
warnings.simplefilter("ignore")
logging.disable(logging.INFO)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch):
        print("training step", flush=True)
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        print("train_loss", self.trainer.callback_metrics["train_loss"].item(), flush=True)

    def validation_step(self, batch):
        x, y = batch
        self.log("validation", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


inputs = torch.randn(48, 4)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
trainer = lightning.Trainer(
    accelerator="cpu",
    max_steps=6,
    accumulate_grad_batches=ACCUMULATION,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
trainer.fit(Model(), DataLoader(data, batch_size=8), DataLoader(data, batch_size=16))
