"""A training with `fully_shard` on the CPU: `fsdp2.py STEPS FOLDER`, in which it keeps its checkpoints.

It resumes from the newest of them. Each step sleeps for SECONDS; every EVERY steps
all ranks write a checkpoint. Rank 0 prints each step.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import ranks  # type: ignore[import-not-found]
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard


class Saved:
    """Model and optimizer, as `torch.distributed.checkpoint` wants them."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """What is saved."""
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what was loaded."""
        set_state_dict(
            self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


def train(steps: int, folder: Path) -> None:
    """Train, from the newest checkpoint on."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(2)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    newest, done = folder / "newest", 0
    if newest.exists():
        done = int(newest.read_text())
        load({"training": Saved(model, optimizer)}, checkpoint_id=folder / f"step-{done}")
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
            save({"training": Saved(model, optimizer)}, checkpoint_id=folder / f"step-{step}")
            if rank == 0:
                # Only a checkpoint that is whole has a name.
                (folder / "new").write_text(str(step))
                (folder / "new").replace(newest)
        time.sleep(float(os.environ.get("SECONDS", "0.05")))


def main() -> None:
    """Join the others, and train."""
    torch.set_num_threads(1)
    ranks.take_rank()
    dist.init_process_group("gloo")
    train(int(sys.argv[1]), Path(sys.argv[2]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
