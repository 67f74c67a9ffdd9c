"""A script that saves when it is asked to end: `preempted_training.py CHECKPOINT [--workers N] [--deaf]`.

`--workers`: its DataLoader has so many processes. `--deaf`: it ignores SIGTERM.
"""

import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

STEPS, EVERY = 40, 10


def train(checkpoint: Path, workers: int, *, is_deaf: bool) -> None:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, signal.SIG_IGN if is_deaf else lambda number, frame: asked.append(number))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    data = TensorDataset(torch.randn(4 * STEPS, 8), torch.randn(4 * STEPS, 1))
    batches = iter(DataLoader(data, batch_size=4, num_workers=workers))
    for step in range(done + 1, STEPS + 1):
        inputs, targets = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        time.sleep(0.05)
        if asked or step % EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
        if asked:
            return


if __name__ == "__main__":
    options = sys.argv[2:]
    num_workers = int(options[options.index("--workers") + 1]) if "--workers" in options else 0
    train(Path(sys.argv[1]), num_workers, is_deaf="--deaf" in options)
