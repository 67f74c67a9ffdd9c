"""What the scripts of this folder share: a log of what really happened, data, and saves that are whole or absent."""

import json
import os
import time
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

KIND, BUG = os.environ.get("KIND", ""), os.environ.get("BUG", "")
STEPS, EVERY, BATCH = 44, 10, 8
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log(event, step=None, **more):
    """One line of `truth.jsonl`."""
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    line = {"t": time.monotonic(), "rank": RANK, "pid": os.getpid(), "start": start, "step": step, "event": event}
    with Path("truth.jsonl").open("a") as file:
        file.write(json.dumps({**line, **more}) + "\n")


class Numbers(Dataset):
    """Sample `i` is a function of `i`, and of noise from the global generator where it is augmented."""

    def __init__(self, size, is_augmented=False):
        self.size, self.is_augmented = size, is_augmented

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        x = torch.randn(16, generator=torch.Generator().manual_seed(i))
        y = x.sum(0, keepdim=True).sin()
        return i, x + 0.1 * torch.randn(16) if self.is_augmented else x, y


def net(dropout=0.1, norm=False):
    """A small model."""
    return nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32) if norm else nn.Tanh(), nn.Dropout(dropout), nn.Linear(32, 1)
    )


def checksum(model):
    """Of the bits of its parameters."""
    total = 0
    for parameter in model.parameters():
        total = zlib.crc32(parameter.detach().numpy().tobytes(), total)
    return total


def put(value, path):
    """Save it under a temporary name, and rename it."""
    torch.save(value, f"{path}.new")
    Path(f"{path}.new").replace(path)
