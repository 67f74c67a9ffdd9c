"""Keeps a coordinator running on one address, by a child of every rank that shares the first rank's host.

The first rank's keeper begins. It dies with its rank, and its coordinator with it; then the address is free, and of the
keepers that stand by one gets it: that they do not get it together the kernel sees to. The new coordinator learns from
the ranks where they are.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mecefo_runtime.job.config import JOB_FAILED
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.launch.sinks import connect_sink
from mecefo_runtime.membership.coordinator import run_coordinator
from mecefo_runtime.membership.coordinator_checkpoint import CoordinatorCheckpoint
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.process import ProcessId, start_child
from mecefo_runtime.system.wire import parse_address

# After so many coordinators in a row that heard of no further step, there is not another one.
MAX_FRUITLESS_COORDINATORS = 4
# How often a keeper that stands by looks whether the address is free.
STANDBY_POLL_SECONDS = 0.1


def listen(host: str, port: int = 0) -> socket.socket | None:
    """A listener at the address; None when another process already listens there.

    Raises:
        OSError: it is no address of this host, or cannot be had for another reason.
    """
    try:
        return socket.create_server((host, port), backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise


def start_keeper(environment: RankEnvironment, listener: socket.socket, log: Path) -> None:
    """Keep a coordinator running on `listener` until the job or this rank has ended."""
    _start(environment, lambda: listener, log)


def start_standby(environment: RankEnvironment, log: Path) -> None:
    """Start a coordinator as soon as no other rank runs one; does nothing when its address is of another host."""
    host, port = parse_address(environment.coordinator)
    try:
        if (listener := listen(host, port)) is not None:
            listener.close()
    except OSError:
        return

    def wait() -> socket.socket:
        while (listener := listen(host, port)) is None:
            time.sleep(STANDBY_POLL_SECONDS)
        return listener

    _start(environment, wait, log)


def _start(environment: RankEnvironment, wait: Callable[[], socket.socket], log: Path) -> None:
    """Keep a coordinator running, in processes of their own, with the listener that `wait` returns.

    When that comes to nothing, this process is ended: without a coordinator no job comes to its end, and a launcher
    ends the other ranks when one has failed.
    """
    rank = os.getpid()
    # The keeper's own output goes to the log.
    errors = os.dup(sys.stderr.fileno())

    def keep() -> int:
        checkpoint = CoordinatorCheckpoint()
        try:
            listener = wait()

            def coordinate() -> int:
                emitter = Emitter(connect_sink(environment.events), "coordinator", attempt=1)
                return run_coordinator(environment.job, listener, environment.token, emitter, checkpoint)

            code = keep_coordinator(lambda: start_child("coordinator", log, coordinate), checkpoint)
            report = _crash_report(code, log)
        except OSError as error:
            code, report = 1, f"no coordinator can be started: {error.strerror}"
        if code not in (0, JOB_FAILED):
            os.write(errors, f"mecefo_runtime: {report}\n".encode())
            os.kill(rank, signal.SIGTERM)
        # Until this rank is gone nobody who stands by takes the end of the job for the loss of its coordinator.
        while True:
            signal.pause()

    start_child("keeper", log, keep)
    os.close(errors)


def keep_coordinator(start: Callable[[], ProcessId], checkpoint: CoordinatorCheckpoint) -> int:
    """Keep a coordinator running, which `start` forks; returns the exit code of the last one.

    Any but 0 and JOB_FAILED: MAX_FRUITLESS_COORDINATORS in a row crashed or were killed and heard of no further step.
    """
    num_fruitless, known = 0, checkpoint.step
    while True:
        code = os.waitstatus_to_exitcode(os.waitpid(start().local_pid, 0)[1])
        if code in (0, JOB_FAILED):
            return code
        num_fruitless = num_fruitless + 1 if checkpoint.step == known else 0
        known = checkpoint.step
        if num_fruitless >= MAX_FRUITLESS_COORDINATORS:
            return code


def _crash_report(code: int, log: Path) -> str:
    end = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    where = "give --coordinator-log FILE to see why" if log == Path(os.devnull) else f"see {log}"
    times = f"{MAX_FRUITLESS_COORDINATORS} times in a row"
    return f"the coordinator crashed {times}, the last time {end}, and no step was committed meanwhile: {where}"
