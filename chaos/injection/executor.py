"""Where a fault acts: the executor of a host looks, prepares, records, applies, verifies, lifts and undoes there.

The injector decides which fault, when, on which target, and when it ends; it holds and releases ranks. It never
touches a process, a file or a rule: it sends orders. Ledger, watchdog and residue audit belong to the executor's host.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from chaos.errors import ChaosError, EffectNotSeen, HealError, InjectionError
from chaos.faults.base import Act, Fault, FaultContext
from chaos.faults.endings import Endings, Recognised
from chaos.host.job_step import ends_with_step
from chaos.injection.orders import (
    Answer,
    Applied,
    Apply,
    Lift,
    Lifted,
    Look,
    Looked,
    Order,
    Prepare,
    Prepared,
    Record,
    Recorded,
    Refused,
    Undo,
    Undone,
    Verified,
    Verify,
    word_of,
)
from chaos.language.target import ResolvedTarget
from chaos.undo.bounds import changed_paths
from chaos.undo.guard import Farewell, Guard
from chaos.undo.lease import LEASE_SECONDS
from chaos.undo.ledger import Ledger
from chaos.undo.run_registry import OpenRun
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.reason import Reason

# What was about to be seen when the job ended is waited for this long.
LAST_WORDS_SECONDS = 0.5
# How long an order that is under way may take before everything is ended.
ORDER_PATIENCE_SECONDS = 5.0
# So many orders are kept with their answers, for those that come twice.
KEPT_ORDERS = 4096

# How far the executor is with one incident. `ended`: it was lifted and undone without an order.
State = Literal["looked", "prepared", "recorded", "applied", "lifted", "undone", "ended"]
_REQUIRED: Mapping[type[Order], tuple[State, ...]] = {
    Prepare: ("looked",),
    Record: ("prepared",),
    Apply: ("recorded",),
    Verify: ("applied", "ended"),
    Lift: ("recorded", "applied", "ended"),
    Undo: ("recorded", "lifted", "ended"),
}


class FaultExecutor(Protocol):
    """Acts on one host."""

    @property
    def host(self) -> str:
        """The name of the host."""
        ...

    async def obey(self, order: Order) -> Answer:
        """Carry out one order; one that comes again is not carried out again, and gets the same answer.

        Raises:
            Exception: a mistake in a fault's code, which is not one of `chaos.errors`.
        """
        ...

    def on_event(self, event: Event) -> None:
        """An event of the job, which the injector has read."""
        ...

    def end_of_job(self) -> None:
        """The job is over: nothing more of it can be waited for."""
        ...


@dataclass(slots=True)
class _Incident:
    """One incident on this host."""

    kind: str
    fault: Fault[Any]
    target: ResolvedTarget
    state: State = "looked"
    act: Act = field(default_factory=Act)
    # When `apply` began, and when the fault is to end (CLOCK_MONOTONIC seconds).
    began_seconds: float = 0.0
    ends_seconds: float | None = None
    verification: asyncio.Task[dict[str, Any]] | None = None
    # Of what was ended without an order.
    ended_seconds: float | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    # Held while the fault is applied, lifted or undone.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_active(self) -> bool:
        """Whether its entry in the ledger is open."""
        return self.state in ("recorded", "applied", "lifted")


@dataclass(slots=True)
class _Obeyed:
    """An order and its answer. `is_answered` is there if the same order came again before the answer."""

    order: Order
    answer: Answer | None = None
    is_answered: asyncio.Event | None = None


class LocalExecutor:
    """Acts on this host, for a job in the `context` that `attend` is given, and keeps `ledger`."""

    def __init__(
        self,
        faults: Mapping[str, type[Fault[Any]]],
        ledger: Ledger,
        context: FaultContext | None = None,
        *,
        host: str = "this host",
    ) -> None:
        self.host = host
        self._faults = faults
        self._ledger = ledger
        self._context = context
        self._job_is_over = False
        # Done when the job is over; created by the first wait for it.
        self._end_of_job: asyncio.Future[None] | None = None
        self._incidents: dict[int, _Incident] = {}
        # By number, in the sequence in which they came.
        self._orders: dict[int, _Obeyed] = {}
        self._oldest_known = 0
        self._is_closed = False

    def attend(self, context: FaultContext) -> None:
        """A job is about to start, on which faults act through `context`."""
        self._context = context
        self._job_is_over, self._end_of_job = False, None

    def on_event(self, event: Event) -> None:
        """Nothing to do: the watch in the context is the injector's own, or `Serving` feeds it."""

    def end_of_job(self) -> None:
        """See `FaultExecutor.end_of_job`."""
        self._job_is_over = True
        if self._end_of_job is not None and not self._end_of_job.done():
            self._end_of_job.set_result(None)

    def _wait_for_end(self) -> asyncio.Future[None]:
        if self._end_of_job is None:
            self._end_of_job = asyncio.get_running_loop().create_future()
            if self._job_is_over:
                self._end_of_job.set_result(None)
        return self._end_of_job

    async def obey(self, order: Order) -> Answer:
        """See `FaultExecutor.obey`."""
        if (known := self._orders.get(order.id)) is not None:
            return await self._again(order, known)
        if order.id < self._oldest_known:
            return Refused.because(Reason("order_too_old", order=order.id))
        entry = self._orders[order.id] = _Obeyed(order)
        if len(self._orders) > KEPT_ORDERS:
            oldest = next(iter(self._orders))
            self._oldest_known = max(self._oldest_known, oldest + 1)
            del self._orders[oldest]
        try:
            entry.answer = await self._carry_out(order)
        except ChaosError as error:
            entry.answer = Refused.of(error)
        except Exception as error:
            entry.answer = Refused.of(ChaosError(repr(error)))
            raise
        finally:
            if entry.is_answered is not None:
                entry.is_answered.set()
        return entry.answer

    async def _again(self, order: Order, known: _Obeyed) -> Answer:
        """The answer to an order that came before, and may still be under way."""
        if known.order != order:
            return Refused.because(Reason("order_differs", order=order.id))
        if known.answer is None:
            if known.is_answered is None:
                known.is_answered = asyncio.Event()
            await known.is_answered.wait()
        return known.answer or Refused.because(Reason("order_cancelled", order=order.id))

    async def _carry_out(self, order: Order) -> Answer:
        if self._is_closed:
            raise InjectionError(Reason("executor_closed", host=self.host))
        if isinstance(order, Look):
            return await self._look(order)
        incident = self._incidents.get(order.incident)
        state = "unknown" if incident is None else incident.state
        if incident is None or incident.state not in _REQUIRED[type(order)]:
            raise InjectionError(self._out_of_order(order, state))
        match order:
            case Prepare():
                return self._prepare(incident)
            case Record():
                return self._record(order.incident, incident)
            case Apply():
                return await self._apply(order, incident)
            case Verify():
                return await self._verify(order.incident, incident)
            case Lift():
                return await self._lift(incident)
            case Undo():
                return await self._undo(order.incident, incident)

    # ---- the orders ----

    async def _look(self, order: Look) -> Looked:
        if order.incident in self._incidents:
            raise InjectionError(self._out_of_order(order, self._incidents[order.incident].state))
        if order.fault not in self._faults:
            raise InjectionError(Reason("fault_not_installed", fault=order.fault, host=self.host))
        kind = self._faults[order.fault]
        fault = kind(kind.Parameters.model_validate(dict(order.parameters)))
        fault.seed = order.seed
        self._incidents[order.incident] = _Incident(order.fault, fault, order.target)
        await fault.look(order.target, self._there)
        return Looked()

    def _prepare(self, incident: _Incident) -> Prepared:
        incident.act = act = incident.fault.prepare(incident.target, self._there)
        if incident.fault.outlives_processes(act) and ends_with_step():
            raise InjectionError(Reason("watchdog_ends_with_step", fault=incident.kind))
        incident.state = "prepared"
        return Prepared(act.processes, act.links)

    def _record(self, number: int, incident: _Incident) -> Recorded:
        record = incident.act.undo_record
        self._ledger.prepare(number, incident.kind, record, changed_paths(type(incident.fault), record))
        incident.state = "recorded"
        return Recorded()

    async def _apply(self, order: Apply, incident: _Incident) -> Applied:
        async with incident.lock:
            # From here on it may be active, whatever `apply` comes to.
            incident.state = "applied"
            incident.began_seconds = time.monotonic()
            at_seconds = await incident.fault.apply(incident.act, self._there)
            if order.lifetime_seconds is not None and incident.fault.lasts():
                incident.ends_seconds = time.monotonic() + order.lifetime_seconds
        # Not when it was asked for: a link is probed before its rules are added, and programs start for them.
        took_effect = incident.began_seconds if at_seconds is None else at_seconds
        return Applied(took_effect, incident.fault.shows_when_released)

    async def _verify(self, number: int, incident: _Incident) -> Verified:
        if incident.state == "ended":
            raise EffectNotSeen(Reason("ended_before_verified"))
        # Not in `_apply`: the event that says so comes first, and does not wait for the disk.
        self._ledger.applied(number, incident.kind)
        try:
            return Verified(await self._seen(incident))
        except EffectNotSeen as error:
            recognised = await self._recognised(incident)
            if recognised is not None:
                return Verified(recognised.evidence, recognised.at_seconds)
            if (why := incident.fault.why_unseen(incident.act, self._there)) is not None:
                raise error.because(why) from None
            raise

    async def _seen(self, incident: _Incident) -> dict[str, Any]:
        fault, act = incident.fault, incident.act
        verification = asyncio.create_task(fault.verify(act, self._there, fault.verify_timeout_seconds))
        incident.verification = verification
        either: tuple[asyncio.Future[Any], ...] = (verification, self._wait_for_end())
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not verification.done() and fault.lasts():
                # What is still active must not wait; but of a job that just ended the last words are on their way.
                await asyncio.wait({verification}, timeout=LAST_WORDS_SECONDS)
                if not verification.done():
                    raise EffectNotSeen(Reason("run_ended_before_verified"))
            if not verification.done():
                await asyncio.wait({verification})
            if verification.cancelled():
                raise EffectNotSeen(Reason("ended_before_verified"))
            return verification.result()
        finally:
            verification.cancel()
            with suppress(asyncio.CancelledError, ChaosError):
                await verification

    async def _recognised(self, incident: _Incident) -> Recognised | None:
        """The fault's own evidence that it ended ranks before its effect could be verified; None: it did not."""
        fault, act, watch = incident.fault, incident.act, self._there.watch
        recognised = fault.recognises(act, self._there, Endings.since(incident.began_seconds, watch.endings))
        if recognised is None and fault.shows_when_released and not self._job_is_over:
            # Who waited for a rank that is gone may still have to say so. Nobody is held meanwhile.
            await asyncio.wait({self._wait_for_end()}, timeout=LAST_WORDS_SECONDS)
            recognised = fault.recognises(act, self._there, Endings.since(incident.began_seconds, watch.endings))
        return recognised

    async def _lift(self, incident: _Incident) -> Lifted:
        if incident.state == "ended":
            return Lifted(incident.ended_seconds)
        async with incident.lock:
            if incident.verification is not None:
                incident.verification.cancel()
            # What was only recorded has nothing to lift.
            is_applied, fault = incident.state == "applied", incident.fault
            try:
                ended_seconds = await fault.lift(incident.act, self._there) if is_applied else None
            except Exception as error:
                # What the record says is undone all the same; the entry stays pending until the processes are gone.
                fault.undo(incident.act.undo_record)
                if isinstance(error, ChaosError):
                    raise
                raise HealError(Reason("end_broke_down", fault=incident.kind, error=repr(error))) from error
            incident.state = "lifted"
        return Lifted(ended_seconds)

    async def _undo(self, number: int, incident: _Incident) -> Undone:
        if incident.state == "ended":
            return Undone(incident.evidence)
        async with incident.lock:
            record = incident.act.undo_record
            evidence = self._ledger.undo(number, incident.kind, record, incident.fault.undo)
            incident.state = "undone"
        return Undone(evidence)

    def _out_of_order(self, order: Order, state: str) -> Reason:
        number, word = order.incident, word_of(order)
        return Reason("out_of_order", incident=number, order=word, state=state, host=self.host)

    @property
    def _there(self) -> FaultContext:
        if self._context is None:
            raise InjectionError(Reason("no_job_on_host", host=self.host))
        return self._context

    # ---- without an order ----

    async def end_all(self) -> dict[int, str | None]:
        """Nobody will send orders any more: lift and undo all that is active, the newest first.

        Returns the incidents, and for each why it could not be undone, None where it was. Later orders are refused.
        """
        self._is_closed = True
        return await self._end(lambda incident: True)

    async def end_overdue(self) -> dict[int, str | None]:
        """The same for what is active for longer than its lifetime: the order to end it does not arrive."""
        now = time.monotonic()
        return await self._end(lambda incident: incident.ends_seconds is not None and incident.ends_seconds <= now)

    async def _end(self, is_due: Callable[[_Incident], bool]) -> dict[int, str | None]:
        ended: dict[int, str | None] = {}
        for number, incident in reversed(list(self._incidents.items())):
            if incident.is_active and is_due(incident):
                try:
                    await self._end_one(number, incident)
                except Exception as error:
                    ended[number] = str(error) if isinstance(error, ChaosError) else repr(error)
                else:
                    ended[number] = None
        return ended

    async def _end_one(self, number: int, incident: _Incident) -> None:
        fault, record = incident.fault, incident.act.undo_record
        if incident.verification is not None:
            incident.verification.cancel()
        try:
            await asyncio.wait_for(incident.lock.acquire(), ORDER_PATIENCE_SECONDS)
        except TimeoutError:
            # What does not return may still change something: the entry stays open, to be undone once more.
            fault.undo(record)
            raise HealError(Reason("order_not_returned", fault=incident.kind)) from None
        try:
            if not incident.is_active:
                return
            try:
                if incident.state == "applied":
                    incident.ended_seconds = await fault.lift(incident.act, self._there)
            except Exception:
                # As with an order: something may still be active inside a rank.
                fault.undo(record)
                raise
            incident.evidence = self._ledger.undo(number, incident.kind, record, fault.undo)
            incident.state = "ended"
        finally:
            incident.lock.release()


class HostExecutor(LocalExecutor):
    """The executor of a run on this host, with all that the host keeps for the run.

    That is its entry in the registry, its ledger, the watchdog with its lease, and the residue audit; see `Guard` for
    the arguments.
    """

    def __init__(
        self,
        faults: Mapping[str, type[Fault[Any]]],
        folder: Path,
        logs: Path,
        *,
        folders: Sequence[Path] = (),
        engine: str | None = None,
        run: str | None = None,
        host: str = "this host",
        keeps_processes: bool = False,
        on_lapse: Callable[[str], None],
        on_loss: Callable[[str, bool], None],
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._guard = Guard(
            folder,
            logs,
            folders=folders,
            engine=engine,
            run=run,
            keeps_processes=keeps_processes,
            on_lapse=on_lapse,
            on_loss=on_loss,
            lease_seconds=lease_seconds,
        )
        super().__init__(faults, self._guard.ledger, host=host)

    @property
    def run(self) -> OpenRun:
        """The run as it is registered on this host."""
        return self._guard.run

    def open(self, *, has_watchdog: bool) -> None:
        """Before the first process is started and the first fault is due; see `Guard.open`.

        Raises:
            EnvironmentFailure: the run cannot be registered, or its watchdog not be started.
        """
        self._guard.open(has_watchdog=has_watchdog)

    async def ready(self) -> None:
        """Until faults may be injected.

        Raises:
            EnvironmentFailure: the watchdog does not come up.
        """
        await self._guard.ready()

    def note_hosts(self, hosts: Sequence[str], reached_by: str) -> None:
        """Something of the run may be on other hosts, too; see `Guard.note_hosts`."""
        self._guard.note_hosts(hosts, reached_by)

    async def close(self, *, ends_processes: bool = True, is_clean_elsewhere: bool = True) -> Farewell:
        """After the job was stopped: undo what is pending, end its processes on this host, and audit what is left."""
        return await self._guard.close(
            self._faults, ends_processes=ends_processes, is_clean_elsewhere=is_clean_elsewhere
        )
