"""A real snapshot process of a node, and a state whose copies can be told from each other."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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
# Forks a process for each message, which has the arguments and brings the three descriptors, and answers with its pid:
# what all of them need is imported once. Each serves until its standard input ends. A line on it is a step: from
# that one on, it says so and stops when it encodes.
FORK_SERVER = """
import json, os, signal, socket, sys, threading
from mecefo_runtime.job.config import SnapshotConfig
from mecefo_runtime.snapshots import peer, process as module, reports
from mecefo_runtime.snapshots.messages import (SnapshotsHello)
from mecefo_runtime.snapshots.process import SnapshotProcess
# Whoever waits for what never comes waits longer than any test.
module.DESCRIBE_TIMEOUT_SECONDS = 600.0
# No test waits for the next report.
reports.REPORT_SECONDS = 0.05

def serve(listener, token, node, limit_bytes, protection, connect_seconds, coordinator):
    peer.CONNECT_TIMEOUT_SECONDS = connect_seconds
    held_steps = []
    def announce(step, phase):
        if held_steps and step >= held_steps[0]:
            print(f"{phase} of step {step}", flush=True)
            threading.Event().wait()
    config = SnapshotConfig(memory_bytes=limit_bytes, protection=protection)
    process = SnapshotProcess(socket.socket(fileno=listener), token, node, os.getpid(), config, announce)
    threading.Thread(target=process.serve, daemon=True).start()
    if coordinator:
        process.attend(coordinator, token)
    print("ready", flush=True)
    for line in sys.stdin:
        held_steps.append(int(line))
        print("noted", flush=True)

server = socket.socket(fileno=int(sys.argv[1]))
# The kernel reaps them.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    arguments, descriptors, _, _ = socket.recv_fds(server, 65536, 3)
    if not arguments:
        break
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        server.close()
        listener, standard_input, standard_output = descriptors
        os.dup2(standard_input, 0)
        os.dup2(standard_output, 1)
        os.close(standard_input)
        os.close(standard_output)
        try:
            serve(listener, *json.loads(arguments))
        finally:
            os._exit(0)
    for descriptor in descriptors:
        os.close(descriptor)
    server.sendall(pid.to_bytes(4))
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


@functools.cache
def _fork_server() -> socket.socket:
    """The connection to the process that forks; it ends with this one."""
    ours, its = socket.socketpair()
    with its:
        command = [sys.executable, "-c", FORK_SERVER, str(its.fileno())]
        process = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class Child:
    """A process that the fork server has started, with pipes as its standard input and output."""

    def __init__(self, listener: int, arguments: Sequence[object]) -> None:
        read_end, write_end = os.pipe()
        self.stdin = os.fdopen(write_end, "wb")
        out_read_end, out_write_end = os.pipe()
        self.stdout = os.fdopen(out_read_end, "rb")
        server = _fork_server()
        socket.send_fds(server, [json.dumps(arguments).encode()], [listener, read_end, out_write_end])
        self.pid = int.from_bytes(server.recv(4, socket.MSG_WAITALL))
        self._descriptor = os.pidfd_open(self.pid)
        os.close(read_end)
        os.close(out_write_end)

    def send_signal(self, number: signal.Signals) -> None:
        signal.pidfd_send_signal(self._descriptor, number)

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        if self._descriptor < 0:
            return
        with suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)
        select.select([self._descriptor], [], [])
        os.close(self._descriptor)
        self._descriptor = -1
        self.stdin.close()
        self.stdout.close()


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
        self._arguments = [TOKEN, node, limit_bytes, protection, connect_seconds, coordinator]
        self.writers: list[SnapshotWriter] = []
        self.start()

    def start(self) -> None:
        with self._address.listen() as listener:
            self.child = Child(listener.fileno(), self._arguments)
        assert self.child.stdout.readline() == b"ready\n"

    def hold(self, step: int) -> None:
        """From now on it stops for good in the middle of encoding this step, or a later one."""
        self.child.stdin.write(f"{step}\n".encode())
        self.child.stdin.flush()
        assert self.next_line() == "noted"

    def next_line(self) -> str:
        """What it says next."""
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
        self.child.end()

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
