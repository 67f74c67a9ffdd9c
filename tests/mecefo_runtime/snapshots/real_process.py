"""A real snapshot process of a node, and a state whose copies can be told from each other."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from mecefo_runtime.job.config import ModelConfig
from mecefo_runtime.job.protection import Protection
from mecefo_runtime.job.state_source import SnapshotSource
from mecefo_runtime.snapshots.writing import SnapshotWriter
from mecefo_runtime.state.model_state import ModelState

MODEL = ModelConfig(16, 32, num_layers=2, num_heads=2, num_key_value_heads=2, vocab_size=256)
TOKEN = "a token"
DEADLINE_SECONDS = 60.0
LINEAGE = "first"
# Serves until its standard input ends.
SERVE = """
import os, socket, sys, threading
from mecefo_runtime.job.config import SnapshotConfig
from mecefo_runtime.snapshots import process as module
from mecefo_runtime.snapshots.process import SnapshotProcess
# Whoever waits for what never comes waits longer than any test.
module.DESCRIBE_TIMEOUT_SECONDS = 600.0
listener, token, node, limit_bytes, protection = sys.argv[1:]
config = SnapshotConfig(memory_bytes=int(limit_bytes), protection=protection)
process = SnapshotProcess(socket.socket(fileno=int(listener)), token, int(node), os.getpid(), config)
threading.Thread(target=process.serve, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


class Process:
    """A snapshot process of a node."""

    def __init__(self, limit_bytes: int = 1 << 26, node: int = 3, protection: Protection = "none") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.source = SnapshotSource(node, f"{host}:{port}")
        self._arguments = [str(self._listener.fileno()), TOKEN, str(node), str(limit_bytes), protection]
        self.writers: list[SnapshotWriter] = []
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", SERVE, *self._arguments]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=[self._listener.fileno()])
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == b"ready\n"

    def end(self) -> None:
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            assert pipe is not None
            pipe.close()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.end()
        self._listener.close()


def fill(states: Sequence[ModelState], step: int) -> dict[str, Tensor]:
    """Make all of `states` what they are after `step`; returns the storage of every unit."""
    generator = torch.Generator().manual_seed(step)
    values = {name: torch.randn(unit.storage.shape, generator=generator) for name, unit in states[0].units.items()}
    for state in states:
        for name, unit in state.units.items():
            unit.storage.copy_(values[name])
    return values


def are_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether every unit is the same, bit for bit."""
    return all(torch.equal(one[name], other[name]) for name in one)
