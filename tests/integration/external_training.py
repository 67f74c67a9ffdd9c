"""A training script of somebody else's, which knows nothing of chaos: `foreign_training.py STEPS CHECKPOINT`.

Under torchrun it is data parallel; it goes on from its checkpoint, which it writes at every fifth step.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def train(steps: int, checkpoint: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: torch.nn.Module = torch.nn.Linear(8, 1)
    if "RANK" in os.environ:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=4)
    while step < steps:
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            time.sleep(0.01)
            if step % 5 == 0 and int(os.environ.get("RANK", "0")) == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)
            if step == steps:
                break


def main() -> None:
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    # The model goes before its group: see tests/external/scripts/ddp.py.
    train(int(sys.argv[1]), Path(sys.argv[2]))
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
