"""The injector: holds the target at its trigger, acts from outside, makes sure that it happened, lets go.

The order of acts is a contract: resolve the target; check that it is ours; write and sync the undo record; apply;
verify; emit; release; at the end of the lifetime undo, verify the undo, strike the record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from chaos.errors import ChaosError
from chaos.faults.base import Act, Fault, ProcessHost
from chaos.ledger import Ledger
from chaos.schedule import Incident

# Ranks of one target may wait for each other in the pipeline: those that have not come to their hold this long after
# the first one did are waiting for a held one.
HOLD_GRACE_SECONDS = 1.0
VERIFY_TIMEOUT_SECONDS = 5.0


class Emit(Protocol):
    """Emits an event as the injector."""

    def __call__(
        self, kind: str, *, step: int | None = None, monotonic_seconds: float | None = None, **fields: Any
    ) -> object:
        """See `mecefo_runtime.events.Emitter.emit`."""
        ...


@dataclass(slots=True)
class _Armed:
    """An incident and how far it is."""

    incident: Incident
    fault: Fault[Any]
    # Whom to hold, and how many of them must be held before it fires.
    witnesses: frozenset[int]
    quorum: int
    arrived: dict[int, Callable[[], None]] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    fired: asyncio.Task[None] | None = None


class Injector:
    """Fires the incidents of one run, each once, whatever restarts."""

    def __init__(
        self,
        incidents: Sequence[Incident],
        faults: Mapping[str, type[Fault[Any]]],
        all_ranks: frozenset[int],
        host: ProcessHost,
        ledger: Ledger,
        emit: Emit,
    ) -> None:
        self._host = host
        self._ledger = ledger
        self._emit = emit
        self._last_step: int | None = None
        self._armed: list[_Armed] = []
        for incident in incidents:
            kind = faults[incident.fault]
            fault = kind(kind.Parameters.model_validate(dict(incident.parameters)))
            ranks = frozenset(incident.target.ranks)
            # A target that is no rank has no agent to hold: any rank will do as a witness of the step.
            witnesses, quorum = (ranks, len(ranks)) if ranks else (all_ranks, 1)
            self._armed.append(_Armed(incident, fault, witnesses, quorum))

    def holds_for(self, rank: int) -> list[tuple[int, str]]:
        """Where `rank` is to be held, incidents that have fired left out."""
        return [
            (armed.incident.trigger.step, armed.incident.trigger.phase)
            for armed in self._armed
            if armed.fired is None and rank in armed.witnesses and armed.incident.trigger.step is not None
        ]

    def start(self) -> None:
        """The job runs: incidents at a time start to count."""
        loop = asyncio.get_running_loop()
        for armed in self._armed:
            if armed.incident.trigger.at_seconds is not None:
                armed.timer = loop.call_later(armed.incident.trigger.at_seconds, self._fire, armed)

    def on_step(self, step: int) -> None:
        """The job committed `step`; an incident at a time belongs to the step after it."""
        self._last_step = step

    def on_at(self, rank: int, step: int, phase: str, release: Callable[[], None]) -> None:
        """`rank` waits at (step, phase) until `release` is called."""
        wanted = [
            armed
            for armed in self._armed
            if armed.fired is None
            and rank in armed.witnesses
            and (armed.incident.trigger.step, armed.incident.trigger.phase) == (step, phase)
        ]
        let_go = _last_of(len(wanted), release)
        if not wanted:
            release()
        for armed in wanted:
            self._emit("held", step=step, incident=armed.incident.incident, phase=phase, held_rank=rank)
            armed.arrived[rank] = let_go
            if len(armed.arrived) >= armed.quorum:
                self._fire(armed)
            elif armed.timer is None:
                armed.timer = asyncio.get_running_loop().call_later(HOLD_GRACE_SECONDS, self._fire, armed)

    async def finish(self) -> None:
        """The job is over: wait for what is under way, and say what never came to pass."""
        for armed in self._armed:
            if armed.timer is not None:
                armed.timer.cancel()
            if armed.fired is not None:
                await armed.fired
                continue
            armed.fired = asyncio.get_running_loop().create_task(self._never_fired(armed))
            await armed.fired

    async def _never_fired(self, armed: _Armed) -> None:
        for release in armed.arrived.values():
            release()
        self._emit(
            "unverified",
            incident=armed.incident.incident,
            reason=f"never fired: the job ended before {armed.incident.target_text} came to {armed.incident.trigger}",
        )

    def _fire(self, armed: _Armed) -> None:
        if armed.fired is None:
            if armed.timer is not None:
                armed.timer.cancel()
            armed.fired = asyncio.get_running_loop().create_task(self._inject(armed))

    async def _inject(self, armed: _Armed) -> None:
        incident, fault = armed.incident, armed.fault
        step = incident.trigger.step if incident.trigger.step is not None else (self._last_step or 0) + 1
        try:
            act = fault.prepare(incident.target, self._host)
            self._ledger.prepare(incident.incident, incident.fault, act.undo_record)
            try:
                await self._act(armed, act, step)
            finally:
                # Seen or not: what may have been done is undone.
                self._undo(armed, act, step)
        except ChaosError as error:
            self._emit("unverified", step=step, incident=incident.incident, reason=str(error))
        finally:
            released = sorted(armed.arrived)
            for release in armed.arrived.values():
                release()
            armed.arrived.clear()
            self._emit("released", step=step, incident=incident.incident, ranks=released)

    async def _act(self, armed: _Armed, act: Act, step: int) -> None:
        incident, fault = armed.incident, armed.fault
        applied = time.monotonic()
        fault.apply(act)
        self._emit(
            "injected",
            step=step,
            monotonic_seconds=applied,
            incident=incident.incident,
            fault=incident.fault,
            is_loss=incident.is_loss,
            target=incident.target_text,
            phase=incident.trigger.phase,
            ranks=sorted({owned.rank for owned in act.processes if owned.rank is not None}),
            nodes=sorted(incident.target.nodes),
            held_ranks=sorted(armed.arrived),
            processes=[owned.to_dict() for owned in act.processes],
        )
        self._ledger.applied(incident.incident, incident.fault)
        evidence = await fault.verify(act, VERIFY_TIMEOUT_SECONDS)
        self._emit("verified", step=step, incident=incident.incident, evidence=evidence)

    def _undo(self, armed: _Armed, act: Act, step: int) -> None:
        incident, fault = armed.incident, armed.fault
        try:
            evidence = fault.undo(act.undo_record)
            self._ledger.strike(incident.incident, incident.fault)
        except ChaosError as error:
            self._emit("undo_failed", step=step, incident=incident.incident, reason=str(error))
        else:
            self._emit("undone", step=step, incident=incident.incident, evidence=evidence)


def _last_of(count: int, release: Callable[[], None]) -> Callable[[], None]:
    """Calls `release` when it is called for the last of `count` times: as often as incidents hold the rank."""
    calls = 0

    def let_go() -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            release()

    return let_go
