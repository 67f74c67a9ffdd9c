"""A real snapshot process of a node, and a state whose copies can be told from each other."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from mecefo_runtime.job.config import ModelConfig
from mecefo_runtime.job.protection import Protection
from mecefo_runtime.job.state_source import SnapshotSource
from mecefo_runtime.snapshots import writing
from mecefo_runtime.snapshots.peer import CONNECT_TIMEOUT_SECONDS
from mecefo_runtime.snapshots.writing import SnapshotWriter
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.system.address import ReservedAddress

# On a busy machine a process may take longer to answer than a rank that trains waits for it.
writing.CONNECT_TIMEOUT_SECONDS = 30.0

MODEL = ModelConfig(16, 32, num_layers=2, num_heads=2, num_key_value_heads=2, vocab_size=256)
TOKEN = "a token"
DEADLINE_SECONDS = 60.0
LINEAGE = "first"
# Serves until its standard input ends. A line on it is a step: from that one on, it says so and stops when it encodes.
SERVE = """
import os, socket, sys, threading
from mecefo_runtime.job.config import SnapshotConfig
from mecefo_runtime.snapshots import peer, process as module
from mecefo_runtime.snapshots.messages import (SnapshotsHello)
from mecefo_runtime.snapshots.process import SnapshotProcess
# Whoever waits for what never comes waits longer than any test.
module.DESCRIBE_TIMEOUT_SECONDS = 600.0
listener, token, node, limit_bytes, protection, connect_seconds, coordinator = sys.argv[1:]
peer.CONNECT_TIMEOUT_SECONDS = float(connect_seconds)
held_steps = []
def announce(step, phase):
    if held_steps and step >= held_steps[0]:
        print(f"{phase} of step {step}", flush=True)
        threading.Event().wait()
config = SnapshotConfig(memory_bytes=int(limit_bytes), protection=protection)
process = SnapshotProcess(socket.socket(fileno=int(listener)), token, int(node), os.getpid(), config, announce)
threading.Thread(target=process.serve, daemon=True).start()
if coordinator:
    process.attend(coordinator, token)
print("ready", flush=True)
for line in sys.stdin:
    held_steps.append(int(line))
    print("noted", flush=True)
"""


class Closes(Protocol):
    def close(self) -> None: ...


ClosesT = TypeVar("ClosesT", bound=Closes)


def started(make: Callable[..., ClosesT]) -> Iterator[Callable[..., ClosesT]]:
    """A fixture's `make`, whose things are closed afterwards."""
    made: list[ClosesT] = []

    def start(*arguments: object, **settings: object) -> ClosesT:
        made.append(make(*arguments, **settings))
        return made[-1]

    yield start
    for one in made:
        one.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


class Process:
    """A snapshot process of a node."""

    def __init__(
        self,
        limit_bytes: int = 1 << 26,
        node: int = 3,
        protection: Protection = "none",
        connect_seconds: float = CONNECT_TIMEOUT_SECONDS,
        coordinator: str = "",
    ) -> None:
        self._address = ReservedAddress("127.0.0.1")
        self.source = SnapshotSource(node, str(self._address))
        self._arguments = [TOKEN, str(node), str(limit_bytes), protection, str(connect_seconds), coordinator]
        self.writers: list[SnapshotWriter] = []
        self.start()

    def start(self) -> None:
        pipe = subprocess.PIPE
        with self._address.listen() as listener:
            descriptor = listener.fileno()
            command = [sys.executable, "-c", SERVE, str(descriptor), *self._arguments]
            self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=[descriptor])
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == b"ready\n"

    def hold(self, step: int) -> None:
        """From now on it stops for good in the middle of encoding this step, or a later one."""
        assert self.child.stdin is not None
        self.child.stdin.write(f"{step}\n".encode())
        self.child.stdin.flush()
        assert self.next_line() == "noted"

    def next_line(self) -> str:
        """What it says next."""
        assert self.child.stdout is not None
        return self.child.stdout.readline().decode().strip()

    def damage(self, kept: Tensor) -> None:
        """Flip a bit of what it keeps of this."""
        content, damaged = kept.numpy().tobytes(), 0
        for path in Path(f"/proc/{self.child.pid}/fd").iterdir():
            if str(path.readlink()).startswith("/memfd:snapshots"):
                with path.open("rb+") as memory:
                    place = memory.read().find(content)
                    if place >= 0:
                        memory.seek(place + len(content) // 2)
                        memory.write(bytes([content[len(content) // 2] ^ 1]))
                        damaged += 1
        assert damaged == 1

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
        self._address.close()


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
