"""Runs a peer's processes to their end or to a deadline, and leaves none of them behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.peers.job import Peer, PeerJob
from benchmarks.peers.records import Attempt, Kill, find_recovery, read_records
from mecefo_runtime.system.process import ProcessId

ROOT = Path(__file__).resolve().parents[2]
# Eight processes that import torch on two busy cores.
START_DEADLINE_SECONDS = 180.0
# A restart that hung in gloo's connectFullMesh has been seen to come back after 109 s.
RECOVERY_DEADLINE_SECONDS = 150.0
# From the recovery to the last step, and from there to the end of the processes.
REST_DEADLINE_SECONDS = 60.0
FAREWELL_SECONDS = 5.0
# Seldom enough to leave the cores to the job; all times are the ranks' own.
_POLL_SECONDS = 0.25
# As our ranks: one thread each, on loopback.
_AS_OURS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run_peer(peer: Peer, job: PeerJob) -> tuple[Kill | None, list[Attempt], str | None]:
    """Run `job` as `peer` does, to its end or a deadline; returns (kill, attempts, why it did not reach the end)."""
    job.folder.mkdir(parents=True, exist_ok=True)
    services = peer.services(job)
    environment = {**job.to_environment(), **peer.environment, **_AS_OURS}
    with running([*services, *peer.workers(job)], environment, job.folder) as processes:
        failure = watch(processes[len(services) :], job.folder, job.config.steps)
    return *read_records(job.folder), failure


@contextmanager
def running(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], folder: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start `commands` in sessions of their own, output in `folder`; on leaving, kill what is left of them."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for index, command in enumerate(commands):
            with (folder / f"process-{index}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "benchmarks.peers.bound", str(os.getpid()), *command],
                        cwd=ROOT,
                        env={**os.environ, **environment},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        for process in processes:
            _kill_tree(process)
        for process in processes:
            process.wait()


def watch(processes: Sequence[subprocess.Popen[bytes]], folder: Path, last_step: int) -> str | None:
    """Wait until the job has committed `last_step` and its processes have had time to end; returns why it did not."""
    began = time.monotonic()
    recovered_at: float | None = None
    while True:
        kill, attempts = read_records(folder)
        if any(attempt.step == last_step and attempt.committed_seconds is not None for attempt in attempts):
            _wait_for_all(processes, FAREWELL_SECONDS)
            return None
        now = time.monotonic()
        if kill is None:
            if now - began > START_DEADLINE_SECONDS:
                return f"it did not get to the kill within {START_DEADLINE_SECONDS:.0f} s"
        elif recovered_at is None and find_recovery(kill, attempts).first is not None:
            recovered_at = now
        elif recovered_at is None and now - kill.at_seconds > RECOVERY_DEADLINE_SECONDS:
            return f"no new step within {RECOVERY_DEADLINE_SECONDS:.0f} s of the kill"
        elif recovered_at is not None and now - recovered_at > REST_DEADLINE_SECONDS:
            return f"it was not done {REST_DEADLINE_SECONDS:.0f} s after it had recovered"
        if all(process.poll() is not None for process in processes):
            return f"its processes ended with {[process.returncode for process in processes]}"
        time.sleep(_POLL_SECONDS)


def _wait_for_all(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill `process` and all that it started, also what has a session of its own."""
    if process.poll() is not None:
        return
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(ProcessLookupError):
                ProcessId.of(child.pid).signal(signal.SIGKILL)
    process.kill()
