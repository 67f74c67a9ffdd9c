"""A small `chaos` that is killed at a chosen moment, and the look at whether anything is left of what it did.

Its injector, control server, ledger, watchdog and faults are the real ones, and so are the processes, agent and files
that they affect; only the training is not there.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._undo_rank import WRITING, in_force, invite, start_node
from chaos.faults import registry
from chaos.faults.base import Fault, FaultContext, OwnedProcess
from chaos.faults.watch import Watch
from chaos.host.process_table import thread_names
from chaos.host.run_processes import processes_of
from chaos.in_process.hang import WITNESS_NAME
from chaos.injection.agent_sessions import AgentSessions
from chaos.injection.executor import HostExecutor
from chaos.injection.injector import Injector
from chaos.injection.joint_act import Hosts
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Duration, Trigger
from chaos.plan.incident import Incident
from chaos.undo import run_registry
from chaos.undo.heal import heal
from chaos.undo.ledger import Ledger, read_ledger
from chaos.undo.run_registry import OpenRun
from harness.control.control_server import ControlServer
from mecefo_runtime.system.process import ProcessId, start_child
from mecefo_runtime.system.record import Record

# Between "record written" and "record affected", in the order in which they come; the last is just after.
POINTS = ("recorded", "applied", "noted", "verified", "lifted", "undone", "struck")
CLEAN_WITHIN_SECONDS = 15.0
_POLL_SECONDS = 0.005
_LIFETIME = Duration(seconds=0.05)
_STEP = 20
_VERIFY_TIMEOUT_SECONDS = 10.0
# From the start of the injector to the end of the incident. Twenty steps of the rank take about a second.
_INCIDENT_SECONDS = 60.0
_RUN_FILE = "run.json"
# What would take long, or much of the machine, at its usual size.
_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "leak-memory": {"limit": "32MiB", "block": "4MiB"},
    "fill-disk": {"size": "16MiB"},
    "slow-data": {"delay": "50ms"},
    "slow-checkpoint": {"delay": "50ms"},
}


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
    """What a fault affects: a rank, its supervisor, and a checkpoint. `is_loss`: the rank may be gone after it."""

    folder: Path
    checkpoints: Path | None
    processes: list[ProcessId] = field(default_factory=list)
    before: Mapping[str, object] = field(default_factory=dict)
    is_loss: bool = False

    def owned(self) -> tuple[OwnedProcess, ...]:
        """The processes, the rank first."""
        rank, supervisor = self.processes
        return OwnedProcess("rank", rank, rank=0, node=0), OwnedProcess("supervisor", supervisor, node=0)

    def look(self) -> dict[str, object]:
        """Everything that a fault may have changed, to be compared with what it was."""
        names = [str(owned) for owned in self.owned()]
        found = {name: _look_at(process) for name, process in zip(names, self.processes, strict=True)}
        # Before its first step, nothing is active in it.
        found["in force in the rank"] = in_force(self.folder) or [0, 1.0]
        if self.is_loss and found[names[0]] is None:
            found |= {name: self.before[name] for name in (names[0], "in force in the rank")}
        if self.checkpoints is not None:
            # Folders may be moved while they are looked at: os.walk, unlike Path.rglob, does not mind.
            walk = os.walk(self.checkpoints)
            paths = sorted(Path(folder, name) for folder, folders, files in walk for name in (*folders, *files))
            found |= {str(path): _digest(path) for path in paths if _is_kept(path)}
        return found

    def changes(self) -> list[str]:
        """What is not as it was, in words."""
        now = self.look()
        return [
            f"{name}: {now.get(name, 'not there')} instead of {self.before.get(name, 'not there')}"
            for name in sorted(now.keys() | self.before.keys())
            if now.get(name) != self.before.get(name)
        ]


@contextmanager
def set_stage(folder: Path, checkpoints: Path | None = None) -> Iterator[Stage]:
    """A stage in `folder`, with a copy of `checkpoints`; it is affected when this is left."""
    folder.mkdir(parents=True)
    if checkpoints is not None:
        checkpoints = Path(shutil.copytree(checkpoints, folder / "checkpoints", symlinks=True))
    stage = Stage(folder, checkpoints)
    try:
        stage.processes += start_node(folder, checkpoints)
        stage.before = stage.look()
        yield stage
    finally:
        for process in stage.processes:
            process.signal(signal.SIGKILL)
        for _, supervisor in [stage.processes] if stage.processes else []:
            os.waitpid(supervisor.pid, 0)


def run_trial(
    stage: Stage, kind: str, point: str, *, number: signal.Signals = signal.SIGKILL, has_watchdog: bool = True
) -> tuple[Trial, OpenRun | None]:
    """Let `chaos` inject `kind` and send itself `number` at `point`; wait until nothing is left, at most 15 s.

    Returns the trial, and the run where the injector came to the point.
    """
    stage.is_loss = registry()[kind].is_loss
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
    stage.is_loss = registry()[kind].is_loss
    process = start_child("chaos-trial", stage.folder / "chaos.log", lambda: _conduct(stage, kind, point, True, True))
    if os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) != -signal.SIGKILL:
        return Trial(kind, point, False, math.inf), False
    run = OpenRun.from_json((stage.folder / _RUN_FILE).read_text())
    was_left = bool(read_ledger(run.ledger).pending)
    began = time.monotonic()
    heal(run)
    while what_is_left(stage, run):
        # A rank that was let go ends what is active in it at its next phase.
        if time.monotonic() - began > CLEAN_WITHIN_SECONDS:
            return Trial(kind, point, True, math.inf), was_left
        time.sleep(_POLL_SECONDS)
    seconds = time.monotonic() - began
    return Trial(kind, point, True, seconds), was_left


def what_is_left(stage: Stage, run: OpenRun) -> list[str]:
    """What is not as it was before the run, in words; empty when all is."""
    left = []
    if read_ledger(run.ledger).pending:
        left.append("a pending entry in the ledger")
    left += stage.changes()
    if processes_of(run.run):
        left.append("processes of the run")
    if run.is_watched():
        left.append("the watchdog")
    if any(entry.run is not None and entry.run.run == run.run for entry in run_registry.registered()):
        left.append("the run's entry among those under way")
    absent = {path for entry in read_ledger(run.ledger).entries for path in entry.absent}
    return left + [path for path in sorted(absent) if os.path.lexists(path)]


class _Processes:
    def __init__(self, owned: tuple[OwnedProcess, ...]) -> None:
        self._owned = owned

    def rank_processes(self, ranks: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        return tuple(one for one in self._owned if one.rank in ranks)

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        return tuple(one for one in self._owned if one.node in nodes)

    def role_processes(self, role: str) -> tuple[OwnedProcess, ...]:
        return ()


def _conduct(stage: Stage, kind: str, point: str, has_watchdog: bool, kills_watchdog: bool = False) -> int:
    asyncio.run(_inject(stage, kind, point, has_watchdog, kills_watchdog))
    return 0


async def _inject(stage: Stage, kind: str, point: str, has_watchdog: bool, kills_watchdog: bool) -> None:
    fault = registry()[kind]
    # What can be seen here at all is seen soon: there is no job whose steps would have to be waited for.
    fault.verify_timeout_seconds = min(fault.verify_timeout_seconds, _VERIFY_TIMEOUT_SECONDS)
    executor = HostExecutor(registry(), stage.folder, stage.folder, on_lapse=print, on_loss=print, lease_seconds=3.0)
    executor.open(has_watchdog=has_watchdog)
    await executor.ready()
    (stage.folder / _RUN_FILE).write_text(executor.run.to_json())
    sessions = AgentSessions()
    context = FaultContext(_Processes(stage.owned()), sessions, Watch(), stage.folder, stage.checkpoints)
    is_node, is_checkpoint = fault.scope == "node", str(fault.scope) == "checkpoint"
    incident = Incident(
        incident=0,
        fault=kind,
        is_loss=fault.is_loss,
        parameters=_PARAMETERS.get(kind, {}),
        target=ResolvedTarget(ranks=() if is_checkpoint else (0,), nodes=(0,) if is_node else ()),
        target_text="the stage",
        trigger=Trigger(step=_STEP, phase="forward"),
        repair=None,
        lifetime=_LIFETIME if fault.has_lifetime else None,
    )
    seen: list[str] = []

    def note(record: Record, **_: Any) -> None:
        seen.append(record.KIND)

    executor.attend(context)
    hosts = Hosts([executor])
    injector = Injector([incident], registry(), frozenset({0}), context.watch, sessions, hosts, note)
    _die_at(point, fault, executor if kills_watchdog else None)
    control = ControlServer(injector.on_event)
    control.agents = injector
    await control.open()
    injector.start()
    invite(stage.folder, control.address)
    async with asyncio.timeout(_INCIDENT_SECONDS):
        while not {"undone", "undo_failed"} & set(seen) and "unverified" not in seen:
            await asyncio.sleep(0.01)
    await injector.finish()
    await control.close()
    await executor.close()


def _die_at(point: str, fault: type[Fault[Any]], executor: HostExecutor | None) -> None:
    """Have this process end itself at `point`; where an executor is given, its watchdog first."""

    def reach(name: str) -> None:
        if name != point:
            return
        if executor is not None and executor.run.watchdog is not None:
            executor.run.watchdog.signal(signal.SIGKILL)
            while executor.run.is_watched():
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


def _look_at(process: ProcessId) -> object:
    """What may be changed about a process from outside, None when it is gone.

    Whether its threads are stopped, its limits, its control groups, and whether its interpreter's lock is watched.
    """
    pid = process.pid
    try:
        stats = [path.read_text().rpartition(")")[2].split() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        limits = [resource.prlimit(pid, which) for which in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
        groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    if not process.is_running():
        return None
    is_watched = any(name.startswith(WITNESS_NAME) for name in thread_names(process).values())
    return any(stat[0] in "Tt" for stat in stats), limits, groups, is_watched


def _is_kept(path: Path) -> bool:
    """Whether a file is there to stay, and not what the rank is just writing."""
    return not path.name.startswith(WRITING)


def _digest(path: Path) -> str:
    try:
        if path.is_symlink():
            return f"link to {path.readlink()}"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    except OSError:
        # Whoever undoes has just moved it to its place, or away from ours.
        return "gone"
