"""A rank crashes in its own training thread: a bad pointer, an abort, an exit, an exception."""

from __future__ import annotations

import asyncio
import builtins
import os
import re
import signal
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, HealError, UsageError, nearest, shown
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import Act, FaultContext, NoParameters, OwnedProcess, ParametersT
from chaos.faults.endings import Endings, Recognised, raised_to_dict
from chaos.faults.process._processes import ProcessFault, ending, see_exits
from chaos.host.process_table import disposition
from chaos.host.run_files import JOB_LOG, LOGS_FOLDER, job_log_of
from chaos.language.target import Scope
from chaos.language.validation_errors import said
from mecefo_runtime.system.command_records import RankRaised
from mecefo_runtime.system.job_records import ProcessExited
from mecefo_runtime.system.reason import Reason

# Exiting takes a process with large memory, or one that writes a core file, a while.
CRASH_SECONDS = 20.0
ENDING_SECONDS = 10.0
LIFT_SECONDS = 2.0
# The last lines of a rank's log, in which the exception that ended it stands.
LOG_TAIL_BYTES = 16384


_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class _Crash(ProcessFault[ParametersT]):
    """Begins an effect of `chaos.in_process.crash` in every rank of the target; it affects when they are let go."""

    scope: ClassVar[Scope] = "rank"
    is_loss: ClassVar[bool] = True
    acts_inside: ClassVar[bool] = True
    shows_when_released: ClassVar[bool] = True
    verify_timeout_seconds: ClassVar[float] = CRASH_SECONDS
    undo_summary: ClassVar[str] = "nothing to undo; --repair starts it again"
    has_undo: ClassVar[bool] = False
    shows_undo: ClassVar[bool] = False
    effect: ClassVar[str]

    def __init__(self, parameters: ParametersT) -> None:
        super().__init__(parameters)
        self._handles: dict[int, int] = {}

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Ready in every rank."""
        for rank in act.ranks:
            self._handles[rank], _ = await context.inside.begin(
                rank, f"chaos.in_process.crash:{self.effect}", self.parameters.model_dump(mode="json")
            )

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Wait for the end of every process, and for word of how it ended: it must be the end that was asked for."""
        try:
            seconds, codes = await see_exits(act, context, timeout_seconds, codes_within_seconds=ENDING_SECONDS)
        except EffectNotSeen as error:
            alive = [owned for owned in act.processes if owned.process.is_running()]
            raise error.because(self._why_alive(alive), "; ") from None
        wrong = [owned for owned in act.processes if not self._is_wanted(owned, codes[owned.process], context)]
        if wrong:
            ends = ", ".join(f"{owned}: {ending(codes[owned.process])}" for owned in wrong)
            raise EffectNotSeen(Reason("ended_otherwise", expected=self._what(), ends=ends))
        told = [self._told(owned, codes[owned.process], context) for owned in act.processes]
        names = ", ".join(f"{owned}: {words}" for owned, words in zip(act.processes, told, strict=True))
        return {
            "summary": f"{self._what()} on the training thread; process exit confirmed: {names}",
            "seen_in": "process table, and its exit code",
            "seconds": round(seconds, 6),
            "processes": [{**owned.to_dict(), "exit": codes[owned.process]} for owned in act.processes],
        }

    @abstractmethod
    def _wanted_code(self) -> int:
        """The exit code that it must have, negative for a signal."""

    def _is_wanted(self, owned: OwnedProcess, code: int | None, context: FaultContext) -> bool:
        """Whether a process that ended with `code` (None: nobody told) ended of this."""
        return code == self._wanted_code()

    @abstractmethod
    def _what(self) -> str:
        """What ends it, in words."""

    def _why_alive(self, alive: list[OwnedProcess]) -> str:
        return "; ".join(
            f"{owned} {disposition(owned.process, signal.Signals(-self._wanted_code()))} "
            f"{signal.Signals(-self._wanted_code()).name}"
            for owned in alive
        )

    def _told(self, owned: OwnedProcess, code: int | None, context: FaultContext) -> str:
        return ending(code)

    async def lift(self, act: Act, context: FaultContext) -> None:
        """Cancel the crash in ranks where it has not happened yet."""
        await _lift(self._handles, context)

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing to undo: ended processes stay ended, and a pending crash ended with the connection."""
        return {"undone": "nothing to undo", "processes": len(ProcessesRecord.from_json(record).processes)}


class Segfault(_Crash[NoParameters]):
    """The rank reads from address 0: SIGSEGV, as from a bug in a native extension."""

    kind: ClassVar[str] = "segfault"
    brief: ClassVar[str] = "read address 0: SIGSEGV"
    effect: ClassVar[str] = "Segfault"

    def _wanted_code(self) -> int:
        return -signal.SIGSEGV

    def _what(self) -> str:
        return "a read from address 0"


class Abort(_Crash[NoParameters]):
    """The rank calls abort(): SIGABRT, as after a failed assertion in C++."""

    kind: ClassVar[str] = "abort"
    brief: ClassVar[str] = "abort(): SIGABRT"
    effect: ClassVar[str] = "Abort"

    def _wanted_code(self) -> int:
        return -signal.SIGABRT

    def _what(self) -> str:
        return "abort()"


class ExitParameters(BaseModel):
    """How it ends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    code: int = Field(default=1, ge=0, le=255, description="exit code; 0 looks like success to a launcher")


class Exit(_Crash[ExitParameters]):
    """The rank ends at once with an exit code of your choice, without Python's clean-up."""

    kind: ClassVar[str] = "exit"
    brief: ClassVar[str] = "exit with a code of choice"
    effect: ClassVar[str] = "Exit"
    Parameters: ClassVar[type[BaseModel]] = ExitParameters

    def _wanted_code(self) -> int:
        return self.parameters.code

    def _what(self) -> str:
        return f"_exit({self.parameters.code})"

    def _why_alive(self, alive: list[OwnedProcess]) -> str:
        return "it was not allowed to end"


def _exception_name(name: object) -> str:
    if not isinstance(name, str) or not _DOTTED_NAME.fullmatch(name):
        raise UsageError(f"{shown(name)} is no exception: write RuntimeError, or a.module.ItsError")
    if "." not in name:
        known = [key for key, value in vars(builtins).items() if _is_exception(value)]
        if name not in known:
            raise UsageError(
                f"Python has no exception {name}: write one that it has, or a.module.ItsError",
                suggestion=nearest(name, known),
            )
    return name


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


class RaiseParameters(BaseModel):
    """What is raised: an exception, made of a message."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exception: Annotated[str, AfterValidator(said(_exception_name))] = Field(
        default="RuntimeError", description="a class of Python's own, or a.module.ItsError"
    )
    message: str = Field(default="injected by chaos", max_length=200, description="message of the exception")


class Raise(_Crash[RaiseParameters]):
    """An exception of your choice in the training thread, out of the step's own code."""

    kind: ClassVar[str] = "raise"
    brief: ClassVar[str] = "raise a Python exception"
    effect: ClassVar[str] = "Raise"
    Parameters: ClassVar[type[BaseModel]] = RaiseParameters

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Of a rank that ended, as of all crashes; of one that trains on, that its script caught the exception."""
        ended = asyncio.create_task(super().verify(act, context, timeout_seconds))
        caught = {
            rank: asyncio.create_task(context.inside.report(rank, handle, timeout_seconds))
            for rank, handle in self._handles.items()
        }
        try:
            waiting: set[asyncio.Task[dict[str, Any]]] = {*caught.values()}
            while waiting and not ended.done():
                await asyncio.wait({ended, *waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting = {task for task in waiting if not task.done()}
                if any(_has_result(task) for task in caught.values()):
                    return await self._judge_caught(act, context, caught, timeout_seconds)
            return await ended
        finally:
            for task in (ended, *caught.values()):
                task.cancel()
            await asyncio.gather(ended, *caught.values(), return_exceptions=True)

    async def _judge_caught(
        self,
        act: Act,
        context: FaultContext,
        caught: Mapping[int, asyncio.Task[dict[str, Any]]],
        timeout_seconds: float,
    ) -> dict[str, Any]:
        """At least one rank trains on: each of the others does, or has ended of it."""
        await asyncio.wait(caught.values(), timeout=timeout_seconds)
        handled = {rank: task.result() for rank, task in caught.items() if _has_result(task)}
        others = tuple(owned for owned in act.processes if owned.rank not in handled)
        rest = await super().verify(Act(others, act.undo_record), context, timeout_seconds) if others else {}
        went_on = ", ".join(
            f"rank {rank} continued with {told['handled_at'][1]} of step {told['handled_at'][0]}"
            for rank, told in sorted(handled.items())
        )
        summary = f"{self._what()} raised on the training thread, and the script caught it: {went_on}"
        return {
            **rest,
            "summary": "; ".join(filter(None, (summary, rest.get("summary")))),
            "seen_in": "the training thread",
            "handled_ranks": sorted(handled),
        }

    def recognises(self, act: Act, context: FaultContext, endings: Endings) -> Recognised | None:
        """That it was raised, as each rank told at that moment: who takes long to go may be ended by its launcher."""
        raised = {one.rank: one for one in endings.raised if one.is_injected and self._is_made(one)}
        if not act.ranks or not set(act.ranks) <= raised.keys():
            return None
        ends = {rank: endings.end_of(rank) for rank in act.ranks}
        names = ", ".join(f"rank {rank}, {_ended(one)}" for rank, one in ends.items())
        evidence = {
            "summary": f"{self._what()} raised on the training thread: {names}",
            "seen_in": "the training thread",
            "raised": [raised_to_dict(raised[rank]) for rank in act.ranks],
            "exits": {str(rank): None if one is None else one.exit for rank, one in ends.items()},
        }
        return Recognised(evidence, min(raised[rank].monotonic_seconds for rank in act.ranks))

    def _is_made(self, raised: RankRaised) -> bool:
        is_class = raised.exception.rpartition(".")[2] == self.parameters.exception.rpartition(".")[2]
        return is_class and self.parameters.message in raised.message

    def _wanted_code(self) -> int:
        # Of a Python program that ends of an exception.
        return 1

    def _what(self) -> str:
        return f"{self.parameters.exception}({self.parameters.message!r})"

    def _why_alive(self, alive: list[OwnedProcess]) -> str:
        return "the script caught it, or has not ended yet"

    def _is_wanted(self, owned: OwnedProcess, code: int | None, context: FaultContext) -> bool:
        # A script with an excepthook of its own, or that trains in a thread, ends otherwise: its log tells.
        return code == 1 or (code is not None and code >= 0 and bool(self._line(self._log(owned, context))))

    def _told(self, owned: OwnedProcess, code: int | None, context: FaultContext) -> str:
        log = self._log(owned, context)
        if not log.exists():
            return f"{ending(code)} (its log is not available here, so the exception cannot be confirmed)"
        if line := self._line(log):
            return f"{ending(code)}, and the log has '{line}'"
        if log.name != _own_log(owned):
            # Somebody else's script may log its errors elsewhere.
            return f"{ending(code)} (logs/{log.name} does not name the exception)"
        raise EffectNotSeen(Reason("log_names_no_crash", process=owned, ending=ending(code), expected=self._what()))

    def _log(self, owned: OwnedProcess, context: FaultContext) -> Path:
        logs = context.run_folder / LOGS_FOLDER
        own, of_node, of_all = (logs / name for name in (_own_log(owned), _node_log(owned), JOB_LOG))
        return next((log for log in (own, of_node) if log.exists()), of_all)

    def _line(self, log: Path) -> str:
        """The last line that names the exception; empty where none does."""
        name = self.parameters.exception.rpartition(".")[2]
        text = _tail(log) if log.exists() else ""
        found = [line for line in text.splitlines() if name in line and self.parameters.message in line]
        return found[-1].strip() if found else ""


def _ended(exited: ProcessExited | None) -> str:
    return "which has not ended since" if exited is None else ending(exited.exit)


def _has_result(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _own_log(owned: OwnedProcess) -> str:
    return f"rank-{owned.rank}.log"


def _node_log(owned: OwnedProcess) -> str:
    return JOB_LOG if owned.node is None else job_log_of(owned.node)


def _tail(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
        return log.read().decode(errors="replace")


async def _lift(handles: Mapping[int, int], context: FaultContext) -> None:
    """Lift in every rank, all at once: one that is held answers at once, one that is gone is gone.

    One that was let go and lives (it caught what was raised) has nothing of it left, whether it answers or not.
    """
    lifts = [context.inside.lift(rank, handle, LIFT_SECONDS) for rank, handle in handles.items()]
    failures = [found for found in await asyncio.gather(*lifts, return_exceptions=True) if found is not None]
    for failure in failures:
        if isinstance(failure, BaseException) and not isinstance(failure, HealError):
            raise failure
