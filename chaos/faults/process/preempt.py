"""A preemption of the whole job: a notice, a grace, SIGKILL for what still runs, and the command started again."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, WithJsonSchema

from chaos.errors import EffectNotSeen, TargetNotFound, UsageError, nearest, shown
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import Act, CommandHost, FaultContext, OwnedProcess, RunContext
from chaos.faults.process._processes import Exits, ProcessFault, require_here, send, signal_name
from chaos.faults.process.kill import parse_signal
from chaos.host.process_table import exited, parent_of, signal_masks
from chaos.language.quantities import SecondsText
from chaos.language.target import ResolvedTarget, Scope
from chaos.language.validation_errors import said
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

GRACE_SECONDS = 30.0
# Time for killed processes to leave the process table.
KILLED_SECONDS = 5.0
# How soon a process that was started in the grace is found.
LOOK_AGAIN_SECONDS = 0.5
# For the exit codes of ranks that are gone.
CODES_SECONDS = 1.0
RECEIVERS = ("all", "launcher", "pid1", "slurm-step", "slurm-batch", "slurm-cancel", "rank=N")
_RANK = re.compile(r"rank=(\d{1,6})")
# What ends with the first process: a container, and all that a batch script has started (proctrack/cgroup).
_ENDS_WITH_FIRST = ("pid1", "slurm-batch")
_CHILDREN = (
    ("data-worker", "DataLoader worker", "DataLoader workers"),
    ("child", "other process", "other processes"),
)
_SHELLS = frozenset({"sh", "ash", "bash", "dash", "ksh", "mksh", "zsh"})


def parse_notice(value: object) -> signal.Signals:
    """As `parse_signal`; SIGKILL leaves no time.

    Raises:
        UsageError: a process cannot handle it.
    """
    number = parse_signal(value)
    if number == signal.SIGKILL:
        raise UsageError("SIGKILL is not a notice: write SIGTERM, SIGUSR1 or another, or use kill-job")
    return number


def parse_receivers(value: object) -> str:
    """Read who gets the notice.

    Raises:
        UsageError: it is none of `RECEIVERS`.
    """
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in RECEIVERS[:-1] or _RANK.fullmatch(text):
        return text
    raise UsageError(
        f"{shown(value)} is nobody who gets a notice: write {', '.join(RECEIVERS)}", suggestion=nearest(text, RECEIVERS)
    )


NoticeText = Annotated[
    signal.Signals,
    PlainValidator(said(parse_notice)),
    PlainSerializer(lambda number: signal.Signals(number).name, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "string", "examples": ["SIGTERM", "SIGUSR1"]}, {"type": "integer"}]}),
]
ReceiversText = Annotated[
    str,
    PlainValidator(said(parse_receivers)),
    WithJsonSchema(
        {"type": "string", "pattern": "^(all|launcher|pid1|slurm-step|slurm-batch|slurm-cancel|rank=[0-9]{1,6})$"}
    ),
]


class PreemptParameters(BaseModel):
    """The notice, its receivers, the grace and the requeue."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    signal: NoticeText = Field(default=signal.SIGTERM, description="the notice, by name or number")
    grace: SecondsText = Field(
        default=GRACE_SECONDS, description="time from the notice to SIGKILL for all processes that still run"
    )
    deliver: ReceiversText = Field(default="all", description=f"who gets the notice: {', '.join(RECEIVERS)}")
    skew: SecondsText | None = Field(
        default=None, description="time between the notices to the first and to the last rank; default: none"
    )
    requeue: int = Field(
        default=1, ge=0, le=1, description="1: the same command is started again when it has ended; 0: it is not"
    )


@dataclass(slots=True)
class Notice:
    """The notice to one process, `delay_seconds` after the first one; `action` is its disposition before it."""

    owned: OwnedProcess
    delay_seconds: float = 0.0
    action: str = ""
    is_sent: bool = False
    is_dropped: bool = False
    is_pending: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As evidence."""
        return {
            **self.owned.to_dict(),
            "delay_seconds": self.delay_seconds,
            "action": self.action,
            "sent": self.is_sent,
            "dropped": self.is_dropped,
            "pending": self.is_pending,
        }


class Preempt(ProcessFault[PreemptParameters]):
    """A notice, a grace, SIGKILL to all processes of the command that still run, and the same command started again.

    Who gets the notice, `deliver`:

    - `all`: every process of the command, as when a host is shut down, such as a spot instance, or systemd stops a unit
      (systemd.kill(5), KillMode=control-group; systemd-shutdown(8)).
    - `launcher`: what has started the ranks. torchrun passes SIGTERM on to the process group of each rank, DataLoader
      workers included, and sends SIGKILL after 30 s; SIGUSR1 and SIGUSR2 only with `--signals-to-handle` (torch 2.13,
      `distributed/elastic/multiprocessing/subprocess_handler/subprocess_handler.py`: `close`; `api.py`: `start`).
    - `pid1`: the first process alone, as the kubelet does (Kubernetes, Pod Lifecycle: termination). The kernel drops a
      signal for which a first process has no handler, and when it ends all others end (pid_namespaces(7)).
    - `slurm-step`: the tasks of the job's steps, which `srun` has started, neither their children nor the batch shell:
      `scancel --signal=TERM JOB` and `sbatch --signal=USR1@60` (tried with Slurm 22.05; the children of tasks get no
      signal but SIGKILL, `src/plugins/proctrack/cgroup/proctrack_cgroup.c`: `proctrack_p_signal`). Without Slurm a task
      is what the command's own process, if that is a shell, has started, else that process.
    - `slurm-batch`: the batch shell alone: `scancel --batch --signal=TERM JOB`, and `sbatch --signal=B:USR1@60`. bash
      runs a trap only when the program in its foreground has ended (bash(1), Signals). When the batch shell ends,
      slurmstepd kills what it has started.
    - `slurm-cancel`: the tasks and the batch shell: `scancel JOB`, a time limit, a preemption (tried with 22.05).
    - `rank=N`: the process of one rank.
    """

    kind: ClassVar[str] = "preempt"
    brief: ClassVar[str] = "notice, grace, kill, requeue"
    scope: ClassVar[Scope] = "all-ranks"
    affects: ClassVar[str] = "the whole job"
    needs: ClassVar[tuple[str, ...]] = ("command",)
    undo_summary: ClassVar[str] = "nothing to undo; the same command is started again (requeue)"
    has_undo: ClassVar[bool] = False
    shows_undo: ClassVar[bool] = False
    kills: ClassVar[bool] = True
    # Who is to leave in order must not be held while it does.
    shows_when_released: ClassVar[bool] = True
    asks_to_leave: ClassVar[bool] = True
    Parameters: ClassVar[type[BaseModel]] = PreemptParameters

    def __init__(self, parameters: PreemptParameters) -> None:
        super().__init__(parameters)
        self.requeue = parameters.requeue  # type: ignore[misc]
        self._notices: list[Notice] = []
        self._ranks: dict[ProcessId, str] = {}
        self._first: tuple[OwnedProcess, ...] = ()
        self._shells: set[ProcessId] = set()
        self._killed: dict[ProcessId, OwnedProcess] = {}
        self._gone_seconds: dict[ProcessId, float] = {}
        self._began_seconds = 0.0
        self._ended_seconds: float | None = None
        self._exits: Exits | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    def check(self, target: ResolvedTarget, run: RunContext) -> None:
        """Refuse a rank that the job does not have, and a notice that would come after the end."""
        named = _RANK.fullmatch(self.parameters.deliver)
        if named is not None and int(named[1]) >= run.cluster.num_ranks:
            raise UsageError(f"the job has no rank {named[1]}: it has {run.cluster.num_ranks}", key="deliver")
        if (self.parameters.skew or 0.0) > self.parameters.grace:
            raise UsageError("the last rank would be killed before its notice: write a skew below grace", key="skew")

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """All that runs of the command; which of it gets the notice is decided here, too."""
        host = context.processes
        if not isinstance(host, CommandHost):
            raise TargetNotFound(Reason("nothing_running", target=target))
        running = tuple(owned for owned in host.command_processes() if owned.process.is_running())
        require_here(running)
        self._first = host.first_processes()
        self._shells = {owned.process for owned in running if _is_shell(owned.process)}
        receivers = self._receivers(running)
        if not running or not receivers:
            raise TargetNotFound(Reason("nobody_to_notify", deliver=self.parameters.deliver))
        ranks = sorted(target.ranks)
        # Launchers last: they pass it on, and the others are to have their own by then, as when a scheduler sends it.
        in_order = sorted(receivers, key=lambda owned: (owned.role == "launcher", owned.role != "rank"))
        self._notices = [Notice(owned, self._delay_seconds(owned, ranks)) for owned in in_order]
        return Act(running, ProcessesRecord.of(running).to_json())

    def _receivers(self, running: Sequence[OwnedProcess]) -> list[OwnedProcess]:
        first = {owned.process for owned in self._first}
        deliver = self.parameters.deliver
        if (named := _RANK.fullmatch(deliver)) is not None:
            return [owned for owned in running if owned.role == "rank" and owned.rank == int(named[1])]
        if deliver == "launcher":
            launchers = [one for one in running if one.role == "launcher" and one.process not in self._shells]
            return launchers or [one for one in running if one.process in first]
        if deliver in ("pid1", "slurm-batch"):
            return [owned for owned in running if owned.process in first]
        if deliver in ("slurm-step", "slurm-cancel"):
            shells = first & self._shells if deliver == "slurm-cancel" else set()
            return [owned for owned in running if owned.process in self._tasks_of(running) | shells]
        return list(running)

    def _tasks_of(self, running: Sequence[OwnedProcess]) -> set[ProcessId]:
        """What Slurm calls a task: started by slurmstepd, which is not of the run; else what stands for one."""
        first = {owned.process for owned in self._first}
        parents = {owned.process: parent_of(owned.process) for owned in running}
        by_slurm = {one for one, parent in parents.items() if one not in first and parent not in parents}
        return by_slurm or {one for one, parent in parents.items() if parent in first & self._shells} or first

    def _delay_seconds(self, owned: OwnedProcess, ranks: Sequence[int]) -> float:
        if not self.parameters.skew or owned.rank not in ranks or len(ranks) < 2:
            return 0.0
        return self.parameters.skew * ranks.index(owned.rank) / (len(ranks) - 1)

    async def apply(self, act: Act, context: FaultContext) -> None:
        """The notice to those that get it first; the others, the grace and its end follow by themselves."""
        number = self.parameters.signal
        ranks = [owned for owned in act.processes if owned.role == "rank"]
        self._ranks = {owned.process: _action(owned.process, number) for owned in ranks}
        self._exits = Exits(ranks, context)
        # It must listen before there can be an end.
        await asyncio.sleep(0)
        # Looked up for all before the first gets it: a launcher passes it on within a millisecond.
        for notice in self._notices:
            notice.action = _action(notice.owned.process, number)
        self._began_seconds = time.monotonic()
        for notice in self._notices:
            if not notice.delay_seconds:
                self._notify(notice)
        self._tasks = [asyncio.create_task(self._note_end(owned.process)) for owned in act.processes]
        self._tasks.append(asyncio.create_task(self._take_away(context)))

    def _notify(self, notice: Notice) -> None:
        number = self.parameters.signal
        if self.parameters.deliver == "pid1" and notice.action == "default":
            notice.is_dropped = True
        else:
            notice.is_sent = send(notice.owned, number)

    async def _note_end(self, process: ProcessId) -> None:
        while await exited((process,), 3600.0):
            pass
        self._gone_seconds[process] = time.monotonic() - self._began_seconds

    async def _take_away(self, context: FaultContext) -> None:
        assert isinstance(context.processes, CommandHost)
        late = sorted((one for one in self._notices if one.delay_seconds), key=lambda one: one.delay_seconds)
        ends_seconds = self._began_seconds + self.parameters.grace
        while left := _running(context.processes):
            now = time.monotonic()
            while late and self._began_seconds + late[0].delay_seconds <= now:
                self._notify(late.pop(0))
            first_is_gone = self.parameters.deliver in _ENDS_WITH_FIRST and not _any_running(self._first)
            if now >= ends_seconds or first_is_gone:
                break
            for notice in self._notices:
                notice.is_pending = notice.is_sent and _is_pending(notice.owned.process, self.parameters.signal)
            due_seconds = min((ends_seconds, *(self._began_seconds + one.delay_seconds for one in late[:1])))
            await exited((owned.process for owned in left), min(LOOK_AGAIN_SECONDS, max(0.0, due_seconds - now)))
        self._ended_seconds = time.monotonic() - self._began_seconds
        deadline = time.monotonic() + KILLED_SECONDS
        # A launcher starts ranks again, and must not do so while its node is taken away.
        while (left := _running(context.processes)) and time.monotonic() < deadline:
            for owned in sorted(left, key=lambda owned: owned.role not in ("launcher", "child")):
                if send(owned, signal.SIGKILL):
                    self._killed.setdefault(owned.process, owned)
            await exited((owned.process for owned in left), LOOK_AGAIN_SECONDS)

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Wait until all processes of the command have ended, after the notice or by SIGKILL."""
        if not self._tasks:
            await asyncio.sleep(min(timeout_seconds, LOOK_AGAIN_SECONDS))
            names = ", ".join(str(owned) for owned in act.processes if owned.process.is_running())
            raise EffectNotSeen(Reason("still_running", seconds=timeout_seconds, processes=names))
        with suppress(TimeoutError):
            patience_seconds = self.parameters.grace + KILLED_SECONDS + timeout_seconds
            await asyncio.wait_for(asyncio.shield(self._tasks[-1]), patience_seconds)
        assert isinstance(context.processes, CommandHost) and self._exits is not None
        if left := _running(context.processes):
            names = ", ".join(map(str, left))
            raise EffectNotSeen(Reason("still_running", seconds=timeout_seconds, processes=names))
        await self._exits.wait(CODES_SECONDS)
        ranks = [self._end_of(owned) for owned in act.processes if owned.role == "rank"]
        await self._exits.close()
        killed = [owned.to_dict() for owned in self._killed.values()]
        return {
            "summary": self._summary(ranks),
            "seen_in": "process table, by pid and start time",
            "signal": signal_name(self.parameters.signal),
            "deliver": self.parameters.deliver,
            "grace_seconds": self.parameters.grace,
            "skew_seconds": self.parameters.skew or 0.0,
            "used_seconds": None if self._ended_seconds is None else round(self._ended_seconds, 6),
            "notices": [notice.to_dict() for notice in self._notices],
            "ranks": ranks,
            "killed": killed,
            "started_in_grace": sum(one not in {owned.process for owned in act.processes} for one in self._killed),
        }

    def _end_of(self, owned: OwnedProcess) -> dict[str, Any]:
        assert self._exits is not None
        own = next((one for one in self._notices if one.owned.process == owned.process and one.is_sent), None)
        seconds = self._gone_seconds.get(owned.process)
        return {
            "rank": owned.rank,
            "pid": owned.process.pid,
            "action": self._ranks.get(owned.process, ""),
            "notified": own is not None,
            "exit": self._exits.code(owned.process),
            "killed": owned.process in self._killed,
            "seconds": None if seconds is None else round(seconds, 6),
        }

    def _summary(self, ranks: Sequence[Mapping[str, Any]]) -> str:
        name = signal_name(self.parameters.signal)
        sent = self._counted([notice.owned for notice in self._notices if notice.is_sent])
        words = [f"{name} to {sent}" if sent else f"{name} reached no process"]
        if dropped := [notice.owned for notice in self._notices if notice.is_dropped]:
            words.append(f"the kernel drops it for a first process without a handler: {self._counted(dropped)}")
        used = "" if self._ended_seconds is None else f" after {self._ended_seconds:.2f} s"
        killed = self._counted(list(self._killed.values()))
        words.append(f"SIGKILL{used} to {killed}" if killed else f"all had ended{used}, so SIGKILL to none")
        ends = sorted({_ending_words(one) for one in ranks})
        by_end = [f"{_ranks_words([one['rank'] for one in ranks if _ending_words(one) == end])} {end}" for end in ends]
        return "; ".join([*words, *by_end])

    def _counted(self, processes: Sequence[OwnedProcess]) -> str:
        """`launcher (pid 4), ranks 0 and 1, 4 DataLoader workers`; empty for none."""
        shells = [owned for owned in processes if owned.process in self._shells]
        others = [owned for owned in processes if owned.process not in self._shells]
        ranks = [owned.rank for owned in others if owned.role == "rank"]
        names = [f"shell (pid {owned.process.pid})" for owned in shells]
        names += [str(owned) for owned in others if owned.role == "launcher"]
        names += [_ranks_words(ranks)] if ranks else []
        for role, one, several in _CHILDREN:
            if num := sum(owned.role == role for owned in others):
                names.append(f"{num} {one if num == 1 else several}")
        return ", ".join(names)

    async def lift(self, act: Act, context: FaultContext) -> None:
        """Stop waiting for processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._exits is not None:
            await self._exits.close()

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing to undo: ended processes stay ended."""
        return {"undone": "nothing to undo", "processes": len(ProcessesRecord.from_json(record).processes)}


def _running(host: CommandHost) -> list[OwnedProcess]:
    return [owned for owned in host.command_processes() if owned.process.is_running()]


def _any_running(processes: Sequence[OwnedProcess]) -> bool:
    return any(owned.process.is_running() for owned in processes)


def _action(process: ProcessId, number: signal.Signals) -> str:
    """`ignored`, `blocked`, `handler` or `default`: what a process does with a signal; empty when it is gone."""
    masks, bit = signal_masks(process), 1 << (number - 1)
    words = {"SigIgn": "ignored", "SigBlk": "blocked", "SigCgt": "handler"}
    return next((word for name, word in words.items() if masks.get(name, 0) & bit), "default" if masks else "")


def _is_pending(process: ProcessId, number: signal.Signals) -> bool:
    masks, bit = signal_masks(process), 1 << (number - 1)
    return bool((masks.get("SigPnd", 0) | masks.get("ShdPnd", 0)) & bit)


def _is_shell(process: ProcessId) -> bool:
    with suppress(OSError):
        name = Path(f"/proc/{process.local_pid}/comm").read_text(encoding="utf-8", errors="replace")
        return name.strip() in _SHELLS
    return False


def _ranks_words(ranks: Sequence[int | None]) -> str:
    numbers = sorted(rank for rank in ranks if rank is not None)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if numbers else "no rank"


def _ending_words(rank: Mapping[str, Any]) -> str:
    code = rank["exit"]
    if rank["killed"]:
        return "ended by SIGKILL"
    if code is None:
        return "ended, with an unknown exit code"
    return f"ended by {signal_name(-code)}" if code < 0 else f"left with exit code {code}"
