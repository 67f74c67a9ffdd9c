"""A rank and its supervisor as the undo sweep affects them: real processes with the real agent, and no training.

The rank announces its steps, paces what it computes, writes to the checkpoint folder, and reports as ranks do; the
supervisor tells how it ended. Both wait for a `chaos` to say where it listens, and outlive it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from chaos.in_process.agent import Agent
from chaos.language.trigger import PHASES
from mecefo_runtime.system.dilation import Pacer
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import SocketSink
from mecefo_runtime.system.job_records import CheckpointFailed, ProcessExited, StepCommitted
from mecefo_runtime.system.process import ProcessId, start_child
from mecefo_runtime.system.wire import connect, encode

# What is being written, which is no checkpoint yet.
WRITING = ".writing-"
_ADDRESS_FILE, _RANK_FILE, _BOARD_FILE = "address.json", "rank.json", "board.json"
_WAIT_SECONDS = 0.01
_CONNECT_SECONDS = 10.0
_COMPUTE_SECONDS = 0.002
_PACE_RATIO = 2.0
_CHECKPOINT_EVERY = 5
_COMPUTING = ("forward", "backward")


class _Subject:
    """What effects reach: a pacer. They look for nothing else in a rank that has no model."""

    def __init__(self) -> None:
        self.pacer = Pacer(_PACE_RATIO)


def start_node(folder: Path, checkpoints: Path | None) -> tuple[ProcessId, ProcessId]:
    """Start a supervisor, our child, and its rank: (rank, supervisor). They write to files in `folder` alone."""
    supervisor = start_child("chaos-target", folder / "processes.log", lambda: _supervise(folder, checkpoints))
    path = folder / _RANK_FILE
    while not path.exists():
        time.sleep(_WAIT_SECONDS)
    return ProcessId(*json.loads(path.read_text())), supervisor


def invite(folder: Path, address: str) -> None:
    """Tell them where events and agents are listened to."""
    _put(folder / _ADDRESS_FILE, address)


def in_force(folder: Path) -> list[float] | None:
    """The number of effects in the rank and its pacer's slow-down factor, after its last step; None before it."""
    path = folder / _BOARD_FILE
    return json.loads(path.read_text()) if path.exists() else None


def _supervise(folder: Path, checkpoints: Path | None) -> int:
    rank = start_child("chaos-rank", folder / "processes.log", lambda: _train(folder, checkpoints))
    _put(folder / _RANK_FILE, [rank.pid, rank.start_ticks])
    code = os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1])
    _emitter(_invitation(folder), "supervisor").emit(ProcessExited(exited_pid=rank.pid, exit=code))
    while True:
        time.sleep(3600.0)


def _train(folder: Path, checkpoints: Path | None) -> int:
    address = _invitation(folder)
    agent, subject = Agent(address, rank=0, node=0, attempt=1), _Subject()
    agent.expose(subject)  # type: ignore[arg-type]
    emitter = _emitter(address, "rank")
    step = 0
    while True:
        step += 1
        began = time.monotonic()
        for phase in PHASES:
            if phase == "checkpoint":
                emitter.emit(StepCommitted(began_monotonic=began, committed_monotonic=time.monotonic()), step=step)
            agent.announce(step, phase)
            if phase in _COMPUTING:
                with subject.pacer:
                    _compute()
        if checkpoints is not None and step % _CHECKPOINT_EVERY == 0:
            _save(checkpoints, step, emitter)
        _put(folder / _BOARD_FILE, [len(agent._effects), subject.pacer.slow_factor])


def _compute() -> None:
    end = time.thread_time() + _COMPUTE_SECONDS
    while time.thread_time() < end:
        pass


def _save(checkpoints: Path, step: int, emitter: Emitter) -> None:
    """Write to the folder as a checkpoint does, and say, in the runtime's words, when that fails."""
    path = checkpoints / f"{WRITING}{step}"
    try:
        path.write_bytes(b"state")
    except OSError as error:
        emitter.emit(CheckpointFailed(reason=str(error.strerror), was_skipped=False), step=step)
    finally:
        path.unlink(missing_ok=True)


def _invitation(folder: Path) -> str:
    path = folder / _ADDRESS_FILE
    while not path.exists():
        time.sleep(_WAIT_SECONDS)
    return str(json.loads(path.read_text()))


def _emitter(address: str, source: str) -> Emitter:
    connection = connect(address, _CONNECT_SECONDS)
    connection.settimeout(None)
    connection.sendall(encode({"role": "events"}))
    return Emitter(SocketSink(connection), source, rank=0, node=0)


def _put(path: Path, value: object) -> None:
    """Write a file that is there whole or not at all."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(json.dumps(value))
    partial.replace(path)
