"""A small `chaos` that is killed at a chosen moment, and the look at whether anything is left of what it did.

Its injector, ledger, watchdog and faults are the real ones, and so are the processes and files that it strikes; only
the training job is not there.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import resource
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos import state
from chaos.desk import Channel, Desk
from chaos.faults import registry
from chaos.faults.base import Fault, Host, OwnedProcess
from chaos.guard import Guard
from chaos.heal import heal
from chaos.injector import Injector
from chaos.ledger import Ledger, read_ledger
from chaos.residue.processes import processes_of
from chaos.schedule import Incident
from chaos.state import OpenRun
from chaos.target import ResolvedTarget
from chaos.trigger import Duration, Trigger
from chaos.watch import Watch
from mecefo_runtime.events import Event
from mecefo_runtime.process import ProcessId, start_child

# Between "record written" and "record struck", in the order in which they come; the last is just after.
POINTS = ("recorded", "applied", "noted", "verified", "lifted", "undone", "struck")
CLEAN_WITHIN_SECONDS = 15.0
_POLL_SECONDS = 0.005
_LIFETIME = Duration(seconds=0.05)
_STEP, _STEP_SECONDS = 20, 0.02
_VERIFY_TIMEOUT_SECONDS = 10.0
_RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class Trial:
    """One death of `chaos`. `seconds` from it until nothing was left, infinite if that never came.

    `was_reached`: the injector came to the point at all; where it did not, the trial says nothing.
    """

    kind: str
    point: str
    was_reached: bool
    seconds: float


@dataclass(slots=True)
class Stage:
    """What a fault strikes: two processes, one of which plays a rank and the other its supervisor, and a checkpoint."""

    folder: Path
    checkpoints: Path | None
    processes: list[ProcessId] = field(default_factory=list)
    before: object = None

    def owned(self) -> tuple[OwnedProcess, ...]:
        """The processes, the rank first."""
        rank, supervisor = self.processes
        return OwnedProcess("rank", rank, rank=0, node=0), OwnedProcess("supervisor", supervisor, node=0)

    def look(self) -> object:
        """Everything that a fault may have changed, to be compared with what it was."""
        processes = [_look_at(process.pid) for process in self.processes]
        checkpoints = self.checkpoints
        files = sorted(checkpoints.rglob("*")) if checkpoints is not None else []
        return processes, {str(file): _digest(file) for file in files}


@contextmanager
def set_stage(folder: Path, checkpoints: Path | None = None) -> Iterator[Stage]:
    """A stage in `folder`, with a copy of `checkpoints`; it is struck when this is left."""
    folder.mkdir(parents=True)
    if checkpoints is not None:
        checkpoints = Path(shutil.copytree(checkpoints, folder / "checkpoints", symlinks=True))
    stage = Stage(folder, checkpoints)
    try:
        log = folder / "processes.log"
        stage.processes += [start_child("chaos-target", log, _idle) for _ in range(2)]
        stage.before = stage.look()
        yield stage
    finally:
        for process in stage.processes:
            process.signal(signal.SIGKILL)
            os.waitpid(process.pid, 0)


def run_trial(
    stage: Stage, kind: str, point: str, *, number: signal.Signals = signal.SIGKILL, has_watchdog: bool = True
) -> tuple[Trial, OpenRun | None]:
    """Let `chaos` inject `kind` and send itself `number` at `point`; wait until nothing is left, at most 15 s.

    Returns the trial, and the run where the injector came to the point.
    """
    process = start_child("chaos-trial", stage.folder / "chaos.log", lambda: _conduct(stage, kind, point, has_watchdog))
    died = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) == -number
    began = time.monotonic()
    if not died:
        return Trial(kind, point, False, math.inf), None
    run = OpenRun.from_json((stage.folder / _RUN_FILE).read_text())
    while what_is_left(stage, run):
        if time.monotonic() - began > CLEAN_WITHIN_SECONDS:
            return Trial(kind, point, True, math.inf), run
        time.sleep(_POLL_SECONDS)
    return Trial(kind, point, True, time.monotonic() - began), run


def heal_trial(stage: Stage, kind: str, point: str) -> tuple[Trial, bool]:
    """As `run_trial`, with the watchdog killed first, and `chaos heal` in its place once the death was seen.

    Returns the trial, and whether anything was left for it to undo.
    """
    process = start_child("chaos-trial", stage.folder / "chaos.log", lambda: _conduct(stage, kind, point, True, True))
    if os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) != -signal.SIGKILL:
        return Trial(kind, point, False, math.inf), False
    run = OpenRun.from_json((stage.folder / _RUN_FILE).read_text())
    was_left = bool(read_ledger(run.ledger).pending)
    began = time.monotonic()
    heal(run)
    seconds = math.inf if what_is_left(stage, run) else time.monotonic() - began
    return Trial(kind, point, True, seconds), was_left


def what_is_left(stage: Stage, run: OpenRun) -> list[str]:
    """What is not as it was before the run, in words; empty when all is."""
    left = []
    if read_ledger(run.ledger).pending:
        left.append("a pending entry in the ledger")
    if stage.look() != stage.before:
        left.append(f"{stage.look()} instead of {stage.before}")
    if processes_of(run.run):
        left.append("processes of the run")
    if run.is_watched():
        left.append("the watchdog")
    if any(entry.run is not None and entry.run.run == run.run for entry in state.registered()):
        left.append("the run's entry among those under way")
    absent = {path for entry in read_ledger(run.ledger).entries for path in entry.absent}
    return left + [path for path in sorted(absent) if os.path.lexists(path)]


class _InnerRank:
    """Begins and ends effects without a rank that they would be in."""

    async def begin(self, rank: int, effect: str, arguments: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        return 1, {"padded_ratio": 1.0}

    async def report(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        return {}

    async def lift(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        return {"gone": True}


class _Processes:
    def __init__(self, owned: tuple[OwnedProcess, ...]) -> None:
        self._owned = owned

    def rank_processes(self, ranks: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        return tuple(one for one in self._owned if one.rank in ranks)

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        return tuple(one for one in self._owned if one.node in nodes)

    def role_processes(self, role: str) -> tuple[OwnedProcess, ...]:
        return ()


def _idle() -> int:
    while True:
        signal.pause()


def _conduct(stage: Stage, kind: str, point: str, has_watchdog: bool, kills_watchdog: bool = False) -> int:
    asyncio.run(_inject(stage, kind, point, has_watchdog, kills_watchdog))
    return 0


async def _inject(stage: Stage, kind: str, point: str, has_watchdog: bool, kills_watchdog: bool) -> None:
    fault = registry()[kind]
    # What can be seen here at all is seen soon: there is no job whose steps would have to be waited for.
    fault.verify_timeout_seconds = min(fault.verify_timeout_seconds, _VERIFY_TIMEOUT_SECONDS)
    guard = Guard(stage.folder, stage.folder, on_lapse=print, on_loss=print, lease_seconds=3.0)
    guard.open(has_watchdog=has_watchdog)
    await guard.ready()
    (stage.folder / _RUN_FILE).write_text(guard.run.to_json())
    watch = Watch()
    host = Host(_Processes(stage.owned()), _InnerRank(), watch, stage.folder, stage.checkpoints)
    is_node, is_checkpoint = fault.scope == "node", str(fault.scope) == "checkpoint"
    incident = Incident(
        incident=0,
        fault=kind,
        is_loss=fault.is_loss,
        parameters={},
        target=ResolvedTarget(ranks=() if is_checkpoint else (0,), nodes=(0,) if is_node else ()),
        target_text="the stage",
        trigger=Trigger(step=_STEP, phase="forward"),
        repair=None,
        lifetime=_LIFETIME if fault.has_lifetime else None,
    )
    seen: list[str] = []

    def note(kind: str, **_: Any) -> None:
        seen.append(kind)

    injector = Injector(
        [incident],
        registry(),
        frozenset({0}),
        host,
        Desk(),
        guard.ledger,
        note,
    )
    _die_at(point, fault, guard if kills_watchdog else None)
    injector.start()
    training = asyncio.create_task(_train(injector, watch))
    channel = Channel(0, 0, 1, stage.owned()[0].process, lambda message: None)
    while watch.last_step < _STEP - 1:
        await asyncio.sleep(_STEP_SECONDS)
    injector.connected(channel)
    injector.on_message(channel, {"type": "at", "step": _STEP, "phase": "forward"})
    while not {"undone", "undo_failed"} & set(seen) and "unverified" not in seen:
        await asyncio.sleep(0.01)
    training.cancel()
    with suppress(asyncio.CancelledError):
        await training
    await injector.finish()
    await guard.close(registry())


async def _train(injector: Injector, watch: Watch) -> None:
    """The job's steps, for faults that look at them."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(_STEP_SECONDS)
        now = time.monotonic()
        fields = {"began_monotonic": began, "committed_monotonic": now}
        injector.on_event(Event("step_committed", "rank", now, now, 0, step=watch.last_step + 1, fields=fields))


def _die_at(point: str, fault: type[Fault[Any]], guard: Guard | None) -> None:
    """Have this process end itself at `point`; where a guard is given, its watchdog first."""

    def reach(name: str) -> None:
        if name != point:
            return
        if guard is not None and guard.run.watchdog is not None:
            guard.run.watchdog.signal(signal.SIGKILL)
            while guard.run.is_watched():
                time.sleep(_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    write: Any = Ledger._write

    def written(ledger: Ledger, incident: int, name: str, entry_state: str, record: Mapping[str, Any]) -> None:
        write(ledger, incident, name, entry_state, record)
        reach({"prepared": "recorded", "applied": "noted", "struck": "struck"}[entry_state])

    def after(act: Callable[..., Awaitable[Any]], name: str) -> Any:
        async def done(*arguments: Any) -> Any:
            result = await act(*arguments)
            reach(name)
            return result

        return done

    undo: Any = fault.undo

    def undone(cls: type[Fault[Any]], record: Mapping[str, Any]) -> dict[str, Any]:
        evidence: dict[str, Any] = undo(record)
        reach("undone")
        return evidence

    changed: dict[str, Any] = {
        "apply": after(fault.apply, "applied"),
        "verify": after(fault.verify, "verified"),
        "lift": after(fault.lift, "lifted"),
        "undo": classmethod(undone),
    }
    for name, act in changed.items():
        setattr(fault, name, act)
    setattr(Ledger, "_write", written)  # noqa: B010


def _look_at(pid: int) -> object:
    """What may be changed about a process from outside: whether its threads are stopped, limits, control groups."""
    stats = [path.read_text().rpartition(")")[2].split() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    limits = [resource.prlimit(pid, which) for which in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    return [stat[0] in "Tt" for stat in stats], limits, Path(f"/proc/{pid}/cgroup").read_text()


def _digest(path: Path) -> str:
    if path.is_symlink():
        return f"link to {path.readlink()}"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
