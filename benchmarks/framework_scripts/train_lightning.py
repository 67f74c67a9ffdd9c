"""Lightning: torchrun --nproc-per-node 2 --max-restarts 1 train_lightning.py FOLDER."""

import os
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from step_log import StepLog
from tiny_gpt import BATCH_SIZE, SAVE_EVERY, STEPS, TinyGPT, batch_of, loss_of
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    """The language model with its loss and optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = TinyGPT()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """The loss of one batch."""
        (ids,) = batch
        return loss_of(self.gpt(ids[:, :-1]), ids[:, 1:])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Stamps(Callback):
    """Writes the script's own record."""

    def __init__(self, log: StepLog) -> None:
        self.stamps = log

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Tells where it continues from."""
        if trainer.global_step:
            self.stamps.resumed(trainer.global_step)

    def on_train_batch_start(self, trainer: lightning.Trainer, *_: object) -> None:
        """The batch has been loaded already."""
        self.stamps.began(trainer.global_step + 1)

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        """The count has been raised."""
        self.stamps.done(trainer.global_step)

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Every rank has the whole model."""
        self.stamps.ended(trainer.global_step, module.parameters())


def newest(folder: Path) -> Path | None:
    """The checkpoint with the most steps."""
    return max(folder.glob("step=*.ckpt"), key=lambda path: int(path.stem.removeprefix("step=")), default=None)


folder = Path(sys.argv[1])
torch.manual_seed(0)
sequences = torch.cat([batch_of(step, rank) for step in range(STEPS) for rank in range(2)])
saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=SAVE_EVERY, save_top_k=-1)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["WORLD_SIZE"]),
    strategy="ddp",
    max_steps=STEPS,
    callbacks=[Stamps(StepLog(folder, int(os.environ["RANK"]))), saving],
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(sequences), batch_size=BATCH_SIZE), ckpt_path=newest(folder))
torch.distributed.destroy_process_group()
