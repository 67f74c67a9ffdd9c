"""The Trainer of Lightning with `ckpt_path`, validation, and a checkpoint every ten steps."""

import logging
import warnings
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from parts import BUG, EVERY, STEPS, Numbers, log, net
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

warnings.simplefilter("ignore")
logging.disable(logging.INFO)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net(dropout=0.0)

    def training_step(self, batch):
        ids, x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.samples, self.loss = ids.tolist(), loss.item()
        return loss

    def on_train_batch_start(self, batch, index):
        log("begin", self.global_step + 1)

    def on_train_batch_end(self, outputs, batch, index):
        log("done", self.global_step, loss=self.loss, samples=self.samples)

    def validation_step(self, batch):
        _, x, y = batch
        self.log("validation", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / 120)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


torch.set_num_threads(1)
lightning.seed_everything(3, verbose=False)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_steps=STEPS,
    callbacks=[ModelCheckpoint("saved", "{step}", every_n_train_steps=EVERY, save_top_k=-1)],
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
found = sorted(Path("saved").glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))
if found:
    log("resumed", int(found[-1].stem.split("=")[1]))
# At the end of an epoch, from which Lightning continues as it was. BUG=middle: in the middle of one, whose batches
# it gives again.
samples = Numbers(480 if BUG == "middle" else 8 * EVERY)
sampler = DistributedSampler(samples, 1, 0, seed=5)
trainer.fit(
    Model(),
    DataLoader(samples, batch_size=8, sampler=sampler),
    DataLoader(Numbers(24), batch_size=8),
    ckpt_path=found[-1] if found else None,
)
log("finished")
