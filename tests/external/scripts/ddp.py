"""Data-parallel training under torchrun, which resumes from its checkpoint: ddp.py [STEPS] [zero]."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 6
CHECKPOINT = Path("checkpoint.pt")


def train():
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10)))
    if "zero" in sys.argv:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
    for step in range(done + 1, STEPS + 1):
        ids = torch.randint(10, (4, 6))
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
        if rank == 0 and "zero" not in sys.argv:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(saved, "next.pt")
            Path("next.pt").rename(CHECKPOINT)


def main():
    dist.init_process_group("gloo")
    # In a function of its own, so that the model is gone before its group. PyTorch (2.13) waits for ever, now and then,
    # where the model is the last to hold the group: it then takes the group down with the interpreter's lock in its
    # hand, which gloo's threads may need to let go of what they did last.
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
