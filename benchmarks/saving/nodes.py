"""Real snapshot processes, one for each of a few nodes, and in this process the rank of each of them, with one state.

`python -m benchmarks.saving.nodes LISTENER TOKEN NODE PROTECTION BYTES` is such a process; it serves until its standard
input ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from mecefo_runtime.job.config import JobConfig, ModelConfig, SnapshotConfig
from mecefo_runtime.job.layout import Cluster, configured_layout
from mecefo_runtime.job.protection import NUM_PARITIES, ParityHeld, Protection, groups_of, rebuildable
from mecefo_runtime.job.state_source import Offer, Share, SnapshotSource, Version, plan_pieces
from mecefo_runtime.snapshots.process import SnapshotProcess
from mecefo_runtime.snapshots.reading import fetch_pieces
from mecefo_runtime.snapshots.writing import SnapshotWriter
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.staging import SLICE_BYTES
from mecefo_runtime.state.units import UnitState
from mecefo_runtime.system.process import begin_session, give_way
from mecefo_runtime.system.wire import new_token

LINEAGE = "benchmark"
NUM_NODES = 4
# 22 M parameters: with both moments 256 MiB.
MODEL = ModelConfig(512, 1376, 7, 8, 8, 256)
QUICK_MODEL = ModelConfig(128, 352, 4, 4, 4, 256)
DEADLINE_SECONDS = 120.0
POLL_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Save:
    """What one save took: the training of one rank was stopped so long, and after so long all of it was safe."""

    stopped_seconds: float
    total_seconds: float


class Nodes:
    """`num_nodes` nodes, on each a snapshot process and a rank; all ranks hold the whole state, and copy a share each.

    A context; the ranks' state is the same memory.
    """

    def __init__(self, protection: Protection, model: ModelConfig = MODEL, num_nodes: int = NUM_NODES) -> None:
        self._token = new_token()
        job = JobConfig(model, num_nodes, 1, data_parallel=num_nodes, pipeline=1)
        self.layout = configured_layout(
            Cluster(num_nodes, 1, num_nodes, 1, num_layers=model.num_layers, num_microbatches=num_nodes)
        )
        self._job = job
        self.protection = protection
        units: dict[str, UnitState] = {}
        self._states = []
        for rank in range(num_nodes):
            self._states.append(ModelState(job, self.layout, rank, units, 0))
            units = self._states[0].units
        self.state: Mapping[str, Tensor] = {name: unit.storage for name, unit in units.items()}
        self.num_bytes = sum(storage.nbytes for storage in self.state.values())
        # Two buffers, and as much parity as there can be, for this version and the next.
        self._limit_bytes = 8 * self.num_bytes
        self._children: list[subprocess.Popen[bytes]] = []
        self._addresses: dict[int, str] = {}
        self._writers: list[SnapshotWriter] = []
        self._step = 0
        self.warnings: list[str] = []

    def __enter__(self) -> Self:
        for node in range(len(self._states)):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                host, port = listener.getsockname()
                self._addresses[node] = f"{host}:{port}"
                arguments = (str(listener.fileno()), self._token, str(node), self.protection, str(self._limit_bytes))
                command = [sys.executable, "-m", "benchmarks.saving.nodes", *arguments]
                child = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[listener.fileno()]
                )
            self._children.append(child)
        for child in self._children:
            assert child.stdout is not None
            child.stdout.readline()
        for rank, state in enumerate(self._states):
            writer = SnapshotWriter(self._addresses[rank], self._token, rank, 1, self.warnings.append)
            writer.enter(state, LINEAGE, (rank,), self._addresses)
            self._writers.append(writer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers:
            writer.close()
        for child in self._children:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()

    def save(self) -> Save:
        """A snapshot of all ranks; one rank copies after the other, and all processes are at work on these cores.

        Raises:
            RuntimeError: it is not complete, or not protected, in time.
        """
        self._step += 1
        num_slices = self.num_bytes // len(self._writers) // SLICE_BYTES
        began = time.perf_counter()
        stopped = [_copy(writer, self._step, num_slices) for writer in self._writers]
        deadline = began + DEADLINE_SECONDS
        while any(writer.stored_step != self._step for writer in self._writers):
            if self.warnings or time.perf_counter() > deadline:
                raise RuntimeError(f"no snapshot: {'; '.join(self.warnings) or 'it took too long'}")
            time.sleep(POLL_SECONDS)
        total_seconds = time.perf_counter() - began
        for writer in self._writers:
            writer.agree(self._step)
        return Save(max(stopped), total_seconds)

    def restore(self, lost: Collection[int] = ()) -> tuple[float, int]:
        """Put the whole newest state together without the nodes `lost`, whose processes must have ended.

        Returns (seconds, bytes), without the time that it takes to touch new memory.

        Raises:
            RuntimeError: what comes back is not what was saved, or there is not everything.
        """
        version = Version(self._step, LINEAGE)
        shares = {
            node: {unit: frozenset({Share(node, len(self._states))}) for unit in self.state} for node in self._addresses
        }
        alive = [node for node in self._addresses if node not in lost]
        offers = [Offer(version, SnapshotSource(node, self._addresses[node]), shares[node]) for node in alive]
        groups = groups_of(self._addresses, self.protection, len(self._addresses))
        held = {
            node: [ParityHeld(version, group, shares) for group in groups if group.num_parities and node in group.nodes]
            for node in alive
        }
        offers += rebuildable(held, self._addresses)
        pieces, missing = plan_pieces(self.layout, offers, {rank: self.state for rank in self._addresses if rank})
        if missing:
            raise RuntimeError(f"{len(missing)} units cannot be put together")
        units = {name: UnitState(name, self._job, is_to_come=True) for name in self.state}
        for unit in units.values():
            unit.storage.zero_()
        seconds, num_bytes = fetch_pieces(pieces, version, units, self._token)
        if not all(torch.equal(unit.storage, self.state[name]) for name, unit in units.items()):
            raise RuntimeError("what came back is not what was saved")
        return seconds, num_bytes

    def kill(self, nodes: Sequence[int]) -> None:
        """End these nodes' processes."""
        for node in nodes:
            self._children[node].kill()
            self._children[node].wait()


def _copy(writer: SnapshotWriter, step: int, num_slices: int) -> float:
    """All that the rank does for a snapshot, as it does it between its compute segments; returns the seconds."""
    began = time.perf_counter()
    writer.begin(step + 1)
    for _ in range(num_slices):
        writer.advance()
    writer.finish()
    return time.perf_counter() - began


def main() -> None:
    """Serve."""
    listener, token, node, protection, limit_bytes = sys.argv[1:]
    config = SnapshotConfig(memory_bytes=int(limit_bytes), protection=_protection(protection))
    begin_session()
    give_way()
    process = SnapshotProcess(socket.socket(fileno=int(listener)), token, int(node), os.getpid(), config)
    threading.Thread(target=process.serve, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


def _protection(name: str) -> Protection:
    return next(protection for protection in NUM_PARITIES if protection == name)


if __name__ == "__main__":
    main()
