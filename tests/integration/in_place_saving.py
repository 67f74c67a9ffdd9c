"""A training script that overwrites its only checkpoint, on a slow disk: `in_place_saving.py STEPS CHECKPOINT`."""

import os
import sys
import time
from pathlib import Path

import torch


class SlowFile:
    """Waits within each write after the first ones, as a full cache does."""

    def __init__(self, file):
        self.file = file
        self.num_writes = 0

    def write(self, data):
        self.num_writes += 1
        if self.num_writes == 6:
            self.file.flush()
            time.sleep(1.0)
        return self.file.write(data)

    def flush(self):
        self.file.flush()


def main(steps, checkpoint):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < steps:
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 5 == 0 and os.environ["RANK"] == "0":
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            with checkpoint.open("wb") as file:
                torch.save(state, SlowFile(file))
    del model
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
