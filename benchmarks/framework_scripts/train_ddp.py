"""Plain DistributedDataParallel: torchrun --nproc-per-node 2 --max-restarts 1 train_ddp.py FOLDER."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from step_log import StepLog
from tiny_gpt import SAVE_EVERY, STEPS, TinyGPT, batch_of, loss_of
from torch.nn.parallel import DistributedDataParallel


def train(folder: Path) -> None:
    """From the newest checkpoint to the last step."""
    checkpoint, rank, log = folder / "checkpoint.pt", dist.get_rank(), StepLog(folder, dist.get_rank())
    torch.manual_seed(0)
    model = DistributedDataParallel(TinyGPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    done = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
        log.resumed(done)
    for step in range(done + 1, STEPS + 1):
        log.began(step)
        ids = batch_of(step, rank)
        loss = loss_of(model(ids[:, :-1]), ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.done(step, loss.item())
        if rank == 0 and step % SAVE_EVERY == 0:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(saved, folder / "new.pt")
            (folder / "new.pt").replace(checkpoint)
    log.ended(STEPS, model.parameters())


dist.init_process_group("gloo")
train(Path(sys.argv[1]))
dist.destroy_process_group()
