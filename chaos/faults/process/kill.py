"""Signals that end processes, from outside: one rank's, or a whole node's with its supervisor."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from chaos.errors import EffectNotSeen, UsageError, nearest, shown
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import (
    VERIFY_TIMEOUT_SECONDS,
    Act,
    CommandHost,
    FaultContext,
    LauncherHost,
    NoParameters,
    OwnedProcess,
    RunContext,
)
from chaos.faults.process._power import SILENT_SECONDS, PowerLoss
from chaos.faults.process._processes import Exits, ProcessFault, ending, see_exits, send, starters_first
from chaos.host.process_table import disposition, exited
from chaos.language.quantities import SecondsText
from chaos.language.target import ResolvedTarget, Scope
from chaos.language.validation_errors import said
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

# How long to listen for how a process ended that is gone already: its parent says so.
ENDING_SECONDS = 1.0
# A job that handles a signal has so long to leave, while it takes no further step.
LEAVING_SECONDS = 40.0
# A supervisor that was asked to go has nothing to do but to go.
SUPERVISOR_SECONDS = 1.0

_STOPPING = frozenset({signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
# Their default action ends no process (signal(7)).
_HARMLESS = frozenset({signal.SIGCONT, signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH})
_NUMBER = re.compile(r"\d{1,3}")
# What a rank has started.
_CHILDREN = ("data-worker", "child")


def parse_signal(value: object) -> signal.Signals:
    """Read `SIGTERM`, `term` or `15`.

    Raises:
        UsageError: there is no such signal, or it ends no process.
    """
    number: signal.Signals | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        name = value.strip().upper()
        names = {member.name: member for member in signal.Signals}
        numbers = {str(int(member)): member for member in signal.Signals}
        number = (numbers.get(name) if _NUMBER.fullmatch(name) else None) or names.get(name) or names.get(f"SIG{name}")
        if number is None:
            raise UsageError(f"there is no signal {shown(value)}", suggestion=nearest(name, [n.lower() for n in names]))
    if number is None:
        raise UsageError(f"{shown(value)} is no signal: write SIGTERM, TERM or 15")
    if number in _STOPPING:
        raise UsageError(f"{number.name} stops a process and does not end it: use pause-process or pause-node")
    if number in _HARMLESS:
        raise UsageError(f"{number.name} ends no process: write SIGKILL, SIGTERM, SIGABRT or another that does")
    return number


SignalText = Annotated[
    signal.Signals,
    PlainValidator(said(parse_signal)),
    PlainSerializer(lambda number: signal.Signals(number).name, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "string", "examples": ["SIGKILL", "SIGTERM"]}, {"type": "integer"}]}),
]


class SignalParameters(BaseModel):
    """What ends it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    signal: SignalText = Field(
        default=signal.SIGKILL, description="by name or number; one that ends a process unless it handles it"
    )


class GraceParameters(BaseModel):
    """How suddenly it ends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grace: SecondsText | None = Field(
        default=None, description="time between SIGTERM and SIGKILL for processes that have not ended"
    )


class NodeParameters(GraceParameters):
    """How a node is lost."""

    later: ClassVar[tuple[str, ...]] = ("how", "power")
    how: Literal["processes", "power"] = Field(
        default="processes", description="`processes`: all of the job on the node; `power`: the command in `power`"
    )
    power: str | None = Field(
        default=None,
        min_length=1,
        max_length=10_000,
        description="shell command that switches off the host, run where chaos runs; {host} and {node} are filled in",
    )

    @model_validator(mode="before")
    @classmethod
    def _imply(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("power") is not None and "how" not in values:
            return {**values, "how": "power"}
        return values

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.how == "power") != (self.power is not None):
            raise ValueError("how: power needs the command in power, and how: processes has none")
        if self.power is not None and self.grace is not None:
            raise ValueError("a host that loses its power gives no grace: leave grace out")
        return self


KillParametersT = TypeVar("KillParametersT", bound=BaseModel)


class _Kill(ProcessFault[KillParametersT]):
    """Ends every process of the target; they are gone when the process table says so."""

    is_loss: ClassVar[bool] = True
    undo_summary: ClassVar[str] = "nothing to undo; --repair starts it again"
    has_undo: ClassVar[bool] = False
    shows_undo: ClassVar[bool] = False
    kills: ClassVar[bool] = True

    async def _gone(
        self, act: Act, context: FaultContext, timeout_seconds: float, sent: str, codes_within_seconds: float
    ) -> dict[str, Any]:
        seconds, codes = await see_exits(act, context, timeout_seconds, codes_within_seconds=codes_within_seconds)
        names = ", ".join(
            str(owned) if codes[owned.process] is None else f"{owned}, {ending(codes[owned.process])}"
            for owned in act.processes
        )
        evidence = {
            "summary": f"{sent}; process exit confirmed (pid and start time): {names}",
            "seen_in": "process table, by pid and start time",
            "seconds": round(seconds, 6),
            "processes": [
                {**owned.to_dict(), "state": owned.process.state(), "exit": codes[owned.process]}
                for owned in act.processes
            ],
        }
        return self._with_launchers_left(evidence)

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing to undo: ended processes stay ended."""
        return {"undone": "nothing to undo", "processes": len(ProcessesRecord.from_json(record).processes)}


class KillProcess(_Kill[SignalParameters]):
    """A signal (SIGKILL, or any other that ends it) to one rank's process; its node's other ranks stay alive."""

    kind: ClassVar[str] = "kill-process"
    brief: ClassVar[str] = "SIGKILL to one rank"
    scope: ClassVar[Scope] = "rank"
    Parameters: ClassVar[type[BaseModel]] = SignalParameters

    def __init__(self, parameters: SignalParameters) -> None:
        super().__init__(parameters)
        if parameters.signal != signal.SIGKILL:
            # It may be handled: by a rank that leaves in order with the others, by a launcher that waits for its ranks.
            # None of them may be held meanwhile.
            self.shows_when_released = True  # type: ignore[misc]
            self.asks_to_leave = True  # type: ignore[misc]

    async def apply(self, act: Act, context: FaultContext) -> None:
        """The signal, to each."""
        for owned in act.processes:
            send(owned, self.parameters.signal)

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Wait for the exit of each process, and look it up in the process table."""
        number = self.parameters.signal
        # SIGKILL leaves no choice of how to end, so the held ranks need not wait to hear it.
        codes_within_seconds = 0.0 if number == signal.SIGKILL else ENDING_SECONDS
        began = time.monotonic()
        patience_seconds = timeout_seconds if number == signal.SIGKILL else max(timeout_seconds, LEAVING_SECONDS)
        gone = asyncio.create_task(self._gone(act, context, patience_seconds, number.name, codes_within_seconds))
        try:
            while not gone.done():
                await asyncio.wait({gone}, timeout=timeout_seconds)
                if self._stays(act, context, timeout_seconds):
                    raise EffectNotSeen(Reason("still_running"))
            return {**await gone, "signal": number.name}
        except EffectNotSeen:
            alive = [owned for owned in act.processes if owned.process.is_running()]
            why = "; ".join(f"{owned} {disposition(owned.process, number)} {number.name}" for owned in alive)
            waited_seconds = timeout_seconds if number == signal.SIGKILL else round(time.monotonic() - began, 1)
            raise EffectNotSeen(Reason("still_running", seconds=waited_seconds, processes=why)) from None
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    def _stays(self, act: Act, context: FaultContext, within_seconds: float) -> bool:
        """Whether one of them runs on, and the job trains: then an end that comes later is no effect of the signal.

        Who leaves saves a checkpoint first, and torchrun (2.13) gives its ranks 30 s: nobody takes a step meanwhile.
        """
        if not any(owned.process.is_running() for owned in act.processes):
            return False
        steps = context.watch.steps
        return not steps or steps[-1].committed_seconds > time.monotonic() - within_seconds


class KillNode(_Kill[NodeParameters]):
    """SIGKILL to every process of a node, or its whole container; with `grace`, SIGTERM and time to go first.

    With `power`, a command of the site's switches off the host that the node is.
    """

    kind: ClassVar[str] = "kill-node"
    brief: ClassVar[str] = "SIGKILL to a whole node"
    scope: ClassVar[Scope] = "node"
    Parameters: ClassVar[type[BaseModel]] = NodeParameters

    def __init__(self, parameters: NodeParameters) -> None:
        super().__init__(parameters)
        self._power = None if parameters.power is None else PowerLoss(parameters.power)
        if self._power is not None:
            self.acts_at_tool = True  # type: ignore[misc]
            self.verify_timeout_seconds = VERIFY_TIMEOUT_SECONDS + SILENT_SECONDS  # type: ignore[misc]
        self._killed: set[ProcessId] = set()
        self._farewell: asyncio.Task[None] | None = None
        if parameters.grace is not None:
            # Who is to go in order must not be held while it does.
            self.shows_when_released = True  # type: ignore[misc]
            self.asks_to_leave = True  # type: ignore[misc]

    def check(self, target: ResolvedTarget, run: RunContext) -> None:
        """Only a host has a power supply."""
        if self._power is not None and not run.nodes_are_hosts:
            raise UsageError("switches off hosts, and the nodes of this run are none: leave it out", key="power")

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Every process of the node that is still running; with `power`, its ranks on the host."""
        return super().prepare(target, context) if self._power is None else self._power.prepare(target, context)

    def _candidates(self, target: ResolvedTarget, context: FaultContext) -> tuple[OwnedProcess, ...]:
        """With a grace also what the ranks of a command have started: a node's SIGTERM goes to all of its processes."""
        found = super()._candidates(target, context)
        if self.parameters.grace is None or not isinstance(context.processes, CommandHost):
            return found
        known = {owned.process for owned in found}
        ranks = {owned.rank for owned in found if owned.role == "rank"}
        own = (owned for owned in context.processes.command_processes() if owned.role in _CHILDREN)
        return (*found, *(owned for owned in own if owned.rank in ranks and owned.process not in known))

    async def apply(self, act: Act, context: FaultContext) -> None:
        """SIGKILL, whoever started the ranks first: a dead node reports no exits. With a grace period, SIGTERM first.

        A launcher gets it with its ranks: it would start them again on a node that is about to go.
        """
        if self._power is not None:
            await self._power.apply()
            return
        if self.parameters.grace is None:
            for owned in starters_first(act.processes):
                self._kill(owned)
            return
        ranks = [owned for owned in act.processes if owned.role == "rank"]
        children = [owned for owned in act.processes if owned.role in _CHILDREN]
        launchers = [owned for owned in act.processes if owned.role == "launcher"]
        # Launchers pass it on: the others are to have their own by then.
        for owned in (*ranks, *children, *launchers):
            send(owned, signal.SIGTERM)
        self._farewell = asyncio.create_task(self._see_off(act, ranks, context, self.parameters.grace))

    async def _see_off(self, act: Act, ranks: list[OwnedProcess], context: FaultContext, grace_seconds: float) -> None:
        ends_seconds = time.monotonic() + grace_seconds
        # The supervisor last, when it has told how they ended: with it the kernel ends its ranks.
        exits = Exits(ranks, context)
        try:
            await exited((owned.process for owned in ranks), grace_seconds)
            await exits.wait(min(SUPERVISOR_SECONDS, max(0.0, ends_seconds - time.monotonic())))
        finally:
            await exits.close()
        # With a container's first process, which comes last, all others in it end.
        supervisors = [owned for owned in act.processes if owned.role != "rank"]
        if time.monotonic() < ends_seconds:
            for owned in supervisors:
                # These have had their own; a second one breaks off torchrun's wait for its ranks (2.13).
                if owned.role not in ("launcher", *_CHILDREN):
                    send(owned, signal.SIGTERM)
            left_seconds = max(0.0, ends_seconds - time.monotonic())
            has_launcher = any(owned.role == "launcher" for owned in supervisors)
            patience_seconds = left_seconds if has_launcher else min(SUPERVISOR_SECONDS, left_seconds)
            await exited((owned.process for owned in supervisors), patience_seconds)
        for owned in [*supervisors, *ranks]:
            self._kill(owned)

    def _kill(self, owned: OwnedProcess) -> None:
        if send(owned, signal.SIGKILL):
            self._killed.add(owned.process)

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Wait for the exit of each process, and look it up in the process table; with a grace, after it.

        With `power`, until the host has been silent.
        """
        if self._power is not None:
            return await self._power.verify(context, timeout_seconds)
        if self.parameters.grace is None:
            evidence = await self._gone(act, context, timeout_seconds, "SIGKILL", 0.0)
            self._see_nobody_back(act, context)
            return {**evidence, "signal": "SIGKILL"}
        patience_seconds = self.parameters.grace + timeout_seconds
        sent = f"SIGTERM, and SIGKILL after a grace of {self.parameters.grace:g} s"
        evidence = await self._gone(act, context, patience_seconds, sent, ENDING_SECONDS)
        if self._farewell is not None:
            await self._farewell
        killed = [owned for owned in act.processes if owned.process in self._killed]
        went = [owned for owned in act.processes if owned.process not in self._killed]
        by_itself = ", ".join(map(str, went)) or "nobody"
        had_to_be = ", ".join(map(str, killed)) or "nobody"
        return {
            **evidence,
            "summary": f"{evidence['summary']}; ended by themselves: {by_itself}; ended by SIGKILL: {had_to_be}",
            "signal": "SIGTERM",
            "grace_seconds": self.parameters.grace,
            "went_by_themselves": [owned.process.pid for owned in went],
            "had_to_be_killed": [owned.process.pid for owned in killed],
        }

    def _see_nobody_back(self, act: Act, context: FaultContext) -> None:
        """A launcher may have started a rank again in the moment before it was killed: that one lives on."""
        host, gone = context.processes, {owned.process for owned in act.processes}
        if not isinstance(host, LauncherHost):
            return
        for owned in host.rank_processes(act.ranks):
            is_new = owned.process not in gone and owned.process.is_running()
            if is_new and owned.rank is not None and host.launcher_of(owned.rank) in gone:
                raise EffectNotSeen(Reason("started_again", process=owned))

    async def lift(self, act: Act, context: FaultContext) -> None:
        """Wait for nobody any longer."""
        if self._farewell is not None:
            self._farewell.cancel()
            await asyncio.wait({self._farewell})


class _KillAtOnce(_Kill[NoParameters]):
    """SIGKILL; who is gone comes back without a repair, or the job is over."""

    is_loss: ClassVar[bool] = False

    async def apply(self, act: Act, context: FaultContext) -> None:
        """SIGKILL to each."""
        for owned in act.processes:
            send(owned, signal.SIGKILL)

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Wait for the exit of each process, and look it up in the process table."""
        return {**await self._gone(act, context, timeout_seconds, "SIGKILL", 0.0), "signal": "SIGKILL"}


class KillJob(_KillAtOnce):
    """SIGKILL to every training process of the job at once; supervisors and launchers stay alive."""

    kind: ClassVar[str] = "kill-job"
    brief: ClassVar[str] = "SIGKILL to all ranks at once"
    scope: ClassVar[Scope] = "all-ranks"
    affects: ClassVar[str] = "every rank"
    undo_summary: ClassVar[str] = "nothing to undo; the job restarts by itself if its state was saved"


class KillSmp(_KillAtOnce):
    """SIGKILL to the process that keeps a node's snapshots, which are lost with it; the node continues training."""

    kind: ClassVar[str] = "kill-smp"
    brief: ClassVar[str] = "kill the snapshot process"
    scope: ClassVar[Scope] = "node"
    needs: ClassVar[tuple[str, ...]] = ("own-runtime", "snapshots")
    undo_summary: ClassVar[str] = "nothing to undo; the node starts another one, which has no snapshots yet"

    def _candidates(self, target: ResolvedTarget, context: FaultContext) -> tuple[OwnedProcess, ...]:
        of_nodes = context.processes.node_processes(target.nodes)
        return tuple(owned for owned in of_nodes if owned.role == "snapshots")
