"""Forks and starts others in the middle of its training; they train too, and are no ranks."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn


def train(num_steps):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).mean().backward()
        optimizer.step()


if sys.argv[1:] == ["apart"]:
    train(2)
    print("apart", flush=True)
    sys.exit()
train(2)
pid = os.fork()
if pid == 0:
    train(2)
    sockets = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_socket()]
    # Goes through the exit handlers, as a rank does.
    sys.exit(8 if sockets else 7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
subprocess.run([sys.executable, __file__, "apart"], check=True)
train(2)
