"""A data-parallel training on the CPU: `ddp.py STEPS FOLDER`, in which it keeps its checkpoints and resumes from them.

Each step sleeps for SECONDS; EVERY is the number of steps from one checkpoint to the next; TIMEOUT is the number of
seconds after which a collective operation fails. Rank 0 prints each step.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import ranks  # type: ignore[import-not-found]
import torch
import torch.distributed as dist

ranks.leave_compiler_out()


def train(steps: int, folder: Path) -> None:
    """Train, from the newest checkpoint on."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    newest, done = folder / "newest.pt", 0
    if newest.exists():
        state = torch.load(newest)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    rank, every = dist.get_rank(), int(os.environ.get("EVERY", "5"))
    for step in range(done + 1, steps + 1):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        inputs = torch.randn(16, 64, generator=generator)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f} at {time.time():.3f}", flush=True)
            if step % every == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, folder / "new.pt")
                (folder / "new.pt").replace(newest)
        time.sleep(float(os.environ.get("SECONDS", "0.05")))


def main() -> None:
    """Join the others, and train."""
    torch.set_num_threads(1)
    ranks.take_rank()
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(os.environ.get("TIMEOUT", "60"))))
    train(int(sys.argv[1]), Path(sys.argv[2]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
