"""A data-parallel training over hosts, for the benchmark: `_cluster_training.py STEPS FOLDER STEP_SECONDS`.

It resumes from its checkpoint, which it writes at every tenth step. Rank 0 appends the time at which each step began to
`began.txt`: its own record, with chaos and without it. Under `srun` or `chaos run --hosts` alone it takes its rank from
their variables.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_SAVE_EVERY = 10


def take_rank() -> None:
    """Set what torch.distributed reads, where no torchrun did; MASTER_ADDR and MASTER_PORT are given."""
    given = os.environ
    if "RANK" not in given:
        given["RANK"] = given.get("SLURM_PROCID") or given["NODE_RANK"]
        given["WORLD_SIZE"] = given.get("SLURM_NTASKS") or given["NNODES"]


def train(num_steps: int, folder: Path, step_seconds: float) -> None:
    """From the newest checkpoint to the last step; each sleeps for `step_seconds` beside its work."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    checkpoint, done = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
    is_first = dist.get_rank() == 0
    # Each line at once: a rank that is killed has written all.
    with (folder / "began.txt" if is_first else Path(os.devnull)).open("a", buffering=1) as began:
        for step in range(done + 1, num_steps + 1):
            began.write(f"{time.monotonic()}\n")
            inputs = torch.randn(16, 64)
            optimizer.zero_grad()
            (model(inputs) - inputs).square().mean().backward()
            optimizer.step()
            time.sleep(step_seconds)
            if is_first and step % _SAVE_EVERY == 0:
                saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(saved, folder / "new.pt")
                (folder / "new.pt").replace(checkpoint)


if __name__ == "__main__":
    torch.set_num_threads(1)
    take_rank()
    dist.init_process_group("gloo")
    train(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
    dist.barrier()
    dist.destroy_process_group()
