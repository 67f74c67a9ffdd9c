"""torchft: data parallelism over gloo whose survivors agree on a new quorum and go on in the same processes.

This file is the command lines, and, as `-m benchmarks.peers.torchft_ddp RANK`, one replica group of one rank. torchft
is no dependency of ours: https://github.com/meta-pytorch/torchft, BSD.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.peers.job import Peer, PeerJob
from benchmarks.peers.records import Recorder

INSTALL = "pip install torchft -c constraints.txt"
LIGHTHOUSE = "lighthouse"
START_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Settings:
    """The lighthouse's options by their own names, and the time-outs that its replicas are given.

    `gloo_timeout_seconds` bounds a collective in which a peer died without anybody noticing; `timeout_seconds` is the
    Manager's, for its calls. Its `heartbeat_interval` stays at the default of 100 ms.
    """

    quorum_tick_ms: int
    join_timeout_ms: int
    heartbeat_timeout_ms: int
    gloo_timeout_seconds: float
    timeout_seconds: float = 30.0

    def __str__(self) -> str:
        return (
            f"quorum tick {self.quorum_tick_ms} ms, join timeout {self.join_timeout_ms} ms, "
            f"heartbeat timeout {self.heartbeat_timeout_ms} ms, gloo timeout {self.gloo_timeout_seconds:g} s"
        )


# Lighthouse as in torchft's README (heartbeat timeout: its default), gloo's time-out as in its train_ddp.py.
RECOMMENDED = Settings(100, 10_000, 5_000, 5.0)
# Ten of the replicas' heartbeats, which its authors call fine (https://github.com/meta-pytorch/torchft/issues/35), and
# the rest as short as a step of this job allows on two shared cores.
QUICK = Settings(10, 1_000, 1_000, 1.0)


def is_installed() -> bool:
    """Whether this Python has torchft."""
    return importlib.util.find_spec("torchft") is not None


def peer(name: str, settings: Settings) -> Peer:
    """A peer: torchft with these settings."""
    return Peer(name, asdict(settings), workers, services)


def services(job: PeerJob) -> list[list[str]]:
    """What runs beside the replicas: the lighthouse."""
    return [[sys.executable, "-m", "benchmarks.peers.torchft_ddp", LIGHTHOUSE]]


def workers(job: PeerJob) -> list[list[str]]:
    """One process per replica group."""
    return [[sys.executable, "-m", "benchmarks.peers.torchft_ddp", str(rank)] for rank in range(job.num_ranks)]


def main() -> None:
    """Run what the first argument names: the lighthouse, or the replica group of that number."""
    job = PeerJob.from_environment()
    if sys.argv[1] == LIGHTHOUSE:
        serve(job)
    else:
        train(job, int(sys.argv[1]))


def serve(job: PeerJob) -> None:
    """Be the lighthouse, on a free port that the replicas find in the job's folder."""
    coordination: Any = importlib.import_module("torchft.coordination")
    settings = Settings(**job.settings)
    server = coordination.LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=1,
        join_timeout_ms=settings.join_timeout_ms,
        quorum_tick_ms=settings.quorum_tick_ms,
        heartbeat_timeout_ms=settings.heartbeat_timeout_ms,
    )
    port = server.address().rpartition(":")[2]
    partial = job.folder / f"{LIGHTHOUSE}.partial"
    partial.write_text(port)
    partial.replace(job.folder / LIGHTHOUSE)
    signal.pause()


def train(job: PeerJob, rank: int) -> None:
    """Train as one replica group."""
    from torch._C._distributed_c10d import TCPStore

    from benchmarks.peers.replica import Replica

    torchft: Any = importlib.import_module("torchft")
    settings = Settings(**job.settings)
    recorder = Recorder(job.folder, rank, 0)
    replica = Replica(job, rank)

    def load_state(state: dict[str, Any]) -> None:
        replica.model.load_state_dict(state["model"])
        replica.optimizer.load_state_dict(state["optimizer"])

    def save_state() -> dict[str, Any]:
        return {"model": replica.model.state_dict(), "optimizer": replica.optimizer.state_dict()}

    wait_for(job.folder, LIGHTHOUSE, 1)
    port = (job.folder / LIGHTHOUSE).read_text()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager: Any = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=settings.gloo_timeout_seconds)),
        load_state_dict=load_state,
        state_dict=save_state,
        min_replica_size=1,
        replica_id=f"replica_{rank}",
        timeout=timedelta(seconds=settings.timeout_seconds),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=f"http://127.0.0.1:{port}",
        hostname="127.0.0.1",
        init_sync=False,  # all build the same weights from the seed
    )
    optimizer: Any = torchft.Optimizer(manager, replica.optimizer)
    # Before all heartbeat, a quorum would be one without the others.
    (job.folder / f"ready-{rank}").touch()
    wait_for(job.folder, "ready-*", job.num_ranks)
    while manager.current_step() < job.config.steps:
        began = time.monotonic()
        optimizer.zero_grad()
        step = manager.current_step() + 1
        if rank == job.victim and step == job.fault_step:
            recorder.kill(step)
        loss = replica.compute(step, replica.model, nullcontext)
        # All gradients at once, as its DistributedDataParallel has them in one bucket. That one raises an
        # AssertionError in every survivor (torchft 0.2.0, ddp.py, `assert fut._fut`): gloo's wait raises at a death.
        gradients = replica.gradients()
        manager.allreduce(gradients).wait()
        replica.take_gradients(gradients)
        replica.prepare_update(step)
        optimizer.step()
        committed = time.monotonic() if manager.current_step() == step else None
        recorder.attempt(step, began, committed, manager.num_participants(), loss)
    # Not through the interpreter's end: torchft's threads have no part in the measurement any more.
    os._exit(0)


def wait_for(folder: Path, pattern: str, num_files: int) -> None:
    """Return when so many files in `folder` match `pattern`.

    Raises:
        TimeoutError: they did not come.
    """
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while len(list(folder.glob(pattern))) < num_files:
        if time.monotonic() > deadline:
            raise TimeoutError(f"there were no {num_files} files {pattern} within {START_TIMEOUT_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()
