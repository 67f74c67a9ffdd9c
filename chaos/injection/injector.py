"""The injector: decides which fault acts, when, on which target and for how long; holds and releases the ranks.

The executors of the hosts act (see `executor`). The order of acts is a contract: resolve the target; check that it
belongs to the run; write and sync the undo record; apply; verify; emit; release; at the end of the lifetime undo,
verify the undo, close the record. Where the effect shows only in ranks that continue, they are released first.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from chaos.errors import ChaosError, InjectionError, reason_of_error
from chaos.faults.base import Emit, Fault
from chaos.faults.watch import Watch
from chaos.in_process.protocol import AgentSession, At, Came, FromAgent, Hold, Holds, Place, Release, SnapshotsOf
from chaos.injection.active import ActiveRanks, Armed, Exclusive, UndoOrder, last_of
from chaos.injection.agent_sessions import AgentSessions
from chaos.injection.joint_act import Hosts, JointAct, JointApplied
from chaos.injection.never_fired import has_passed, unfired, why_never_fired
from chaos.injection.write_watch import WriteWatch
from chaos.language.save_moment import BYTES
from chaos.language.trigger import Duration
from chaos.plan.incident import Incident
from chaos.refusals import refusal_text
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.job.traits import OF_RUNTIME, JobTraits
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import CheckpointFailed, CheckpointWritten, RankFinished
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.run_records import (
    Held,
    IncidentsPlanned,
    Injected,
    NotDue,
    Outlasted,
    Released,
    UndoFailed,
    Undone,
    Unverified,
    Verified,
    Warned,
    WithReason,
)

R = TypeVar("R", bound=WithReason)

# Ranks of one target may wait for each other in the pipeline: those that have not come to their hold this long after
# the first one did are waiting for a held one.
HOLD_GRACE_SECONDS = 1.0
WATCH_BEGINS_SECONDS = 2.0
_ENDS_OF_SAVES = (CheckpointWritten.KIND, CheckpointFailed.KIND, RankFinished.KIND)


class Injector:
    """Fires the incidents of one run, each once, whatever restarts.

    `watch` follows the job, `hosts` are where faults act. `cluster` is needed for triggers at an encoding. `traits`
    are those of the job. `may_fire` gives the reason why an incident must not fire while faults are active on the given
    ranks.
    """

    def __init__(
        self,
        incidents: Sequence[Incident],
        faults: Mapping[str, type[Fault[Any]]],
        all_ranks: frozenset[int],
        watch: Watch,
        sessions: AgentSessions,
        hosts: Hosts,
        emit: Emit,
        seed: int = 0,
        may_fire: Callable[[frozenset[int], Incident], Reason | None] | None = None,
        *,
        cluster: Cluster | None = None,
        traits: JobTraits = OF_RUNTIME,
    ) -> None:
        self._may_fire = may_fire
        self._affected = ActiveRanks()
        self._exclusive = Exclusive()
        self._order = UndoOrder()
        self._watch = watch
        self._sessions = sessions
        self._hosts = hosts
        self._order_numbers = itertools.count(1)
        self._traits = traits
        self._emit = emit
        self._faults = faults
        self._seed = seed
        self._attempt = 1
        self._writes: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._armed: list[Armed] = []
        for incident in incidents:
            self._armed.append(Armed(incident, self._fault(incident), *_witnesses(incident, all_ranks, cluster)))
        # Those whose step is yet to be committed, the next one last.
        self._ahead = sorted(
            (armed for armed in self._armed if armed.incident.trigger.step is not None),
            key=lambda armed: armed.incident.trigger.step or 0,
            reverse=True,
        )

    def start(self) -> None:
        """The job runs: the clock of incidents that fire at a time starts."""
        loop = asyncio.get_running_loop()
        for armed in self._armed:
            if armed.incident.trigger.at_seconds is not None and armed.incident.follows is None:
                armed.timer = loop.call_later(armed.incident.trigger.at_seconds, self._on_time, armed)

    def on_event(self, event: Event) -> None:
        """Follow an event of the job."""
        self._watch.feed(event)
        for executor in self._hosts.executors:
            executor.on_event(event)
        self._affected.on_event(event)
        self._end_watches(event)
        while self._ahead and (self._ahead[-1].incident.trigger.step or 0) <= self._watch.last_step:
            armed = self._ahead.pop()
            armed.was_present = any(self._sessions.has(place) for place in armed.witnesses)

    @property
    def is_striking(self) -> bool:
        """Whether an incident is under way that is to be repaired: until its injection nobody else knows of that."""
        ways = ((armed.fired, armed.incident.repair) for armed in self._armed)
        return any(fired is not None and not fired.done() and repair is not None for fired, repair in ways)

    async def finish(self) -> None:
        """The job is over, or is to be left alone at once: end what is under way, and say what never came to pass.

        Whatever one incident comes to, all others are undone as well; the first mistake is raised after that.
        """
        self._over.set()
        for executor in self._hosts.executors:
            executor.end_of_job()
        for watch in [watch for armed in self._armed for watch in armed.watching.values()]:
            watch.end()
        if self._writes:
            await asyncio.wait(self._writes)
        for armed in self._armed:
            if armed.timer is not None:
                armed.timer.cancel()
            if armed.fired is None:
                armed.fired = asyncio.get_running_loop().create_task(self._never_fired(armed))
        # All of them, whatever one of them breaks down of: each has something to undo.
        ends = [armed.fired for armed in self._armed if armed.fired is not None]
        if ends:
            await asyncio.wait(ends)
        mistakes = [mistake for end in ends if (mistake := end.exception()) is not None]
        if mistakes:
            raise mistakes[0]

    # ---- agents ----

    def connected(self, session: AgentSession) -> None:
        """An agent said hello: tell it where it is to be held."""
        self._sessions.connected(session)
        if session.attempt > self._attempt:
            self._attempt = session.attempt
            self._arm_again()
        session.send(Holds(self._holds_for(session.place)))
        for armed in self._armed:
            if armed.is_due and armed.fired is None and session.place in armed.witnesses:
                self._sessions.call(session.place)

    def closed(self, session: AgentSession) -> None:
        """An agent's connection ended; it is no longer held."""
        self._sessions.closed(session)
        if isinstance(session.place, int):
            self._watch.phases.left(session.place, self._watch.last_step)

    def on_message(self, session: AgentSession, message: FromAgent) -> None:
        """Handle a message of an agent."""
        if isinstance(message, Came):
            if isinstance(session.place, int):
                self._watch.phases.came(session.place, message)
            return
        if not isinstance(message, At):
            self._sessions.on_message(session, message)
            return
        place, step, phase = session.place, message.step, message.phase
        wanted = [armed for armed in self._armed if armed.wants(place, step, phase)]
        session.is_held = True

        def release() -> None:
            session.is_held = False
            session.send(Release(self._holds_for(place)))

        let_go = last_of(len(wanted), release)
        if not wanted:
            release()
        for armed in wanted:
            rank, node = (place, None) if isinstance(place, int) else (None, place.node)
            held = Held(incident=armed.incident.incident, phase=phase.partition("/")[0], held_rank=rank, held_node=node)
            self._emit(held, step=step)
            armed.moment = (step, phase)
            named = {"path": message.path, "num_bytes": message.num_bytes}
            armed.save = {key: value for key, value in named.items() if value is not None}
            if phase == BYTES:
                self._watch_write(armed, session, let_go)
                continue
            armed.arrived[place] = let_go
            if len(armed.arrived) >= armed.quorum:
                self._fire(armed)
            elif armed.timer is None or armed.is_due:
                armed.timer = asyncio.get_running_loop().call_later(HOLD_GRACE_SECONDS, self._fire, armed)

    def _watch_write(self, armed: Armed, session: AgentSession, let_go: Callable[[], None]) -> None:
        """The save begins: the rank continues, and is stopped from outside at the byte of the trigger."""
        process, in_save = session.process, armed.incident.trigger.in_save
        if process is not None and process.is_here and in_save is not None and in_save.num_bytes is not None:
            watch = armed.watching[session.place] = WriteWatch(process, in_save.num_bytes, armed.save.get("path"))
            task = asyncio.get_running_loop().create_task(self._follow_write(armed, session.place, watch, let_go))
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)
        else:
            let_go()

    async def _follow_write(self, armed: Armed, place: Place, watch: WriteWatch, let_go: Callable[[], None]) -> None:
        waiting = asyncio.get_running_loop().run_in_executor(None, watch.wait)
        await asyncio.to_thread(watch.has_begun.wait, WATCH_BEGINS_SECONDS)
        let_go()
        written = await waiting
        if written is None:
            armed.passed_by = max(armed.passed_by, watch.largest)
            armed.watching.pop(place, None)
            return
        if armed.fired is not None:
            watch.let_go()
            return
        armed.save = {"path": written.path, "offset": written.offset, "num_bytes": written.num_bytes}
        armed.arrived[place] = watch.let_go
        for other in armed.watching.values():
            other.end()
        self._fire(armed)

    def _end_watches(self, event: Event) -> None:
        """A save of a rank is over, or the rank is."""
        if event.kind not in _ENDS_OF_SAVES:
            return
        for armed in self._armed:
            if event.rank in armed.watching:
                armed.watching[event.rank].end()

    def _holds_for(self, place: Place) -> tuple[Hold, ...]:
        """Where whoever is at `place` is to be held, incidents that have fired left out."""
        return tuple(
            (armed.incident.trigger.step, armed.incident.trigger.announced)
            for armed in self._armed
            if armed.fired is None and place in armed.witnesses and armed.incident.trigger.at_seconds is None
        )

    def _arm_again(self) -> None:
        """A new attempt of the job's launcher begins: what is to fire at each of them, or K, is armed once more.

        It gets a number of its own. One that has not fired yet is armed as it is.
        """
        again = []
        for armed in list(self._armed):
            incident = armed.incident
            is_wanted = armed.incident.retrigger == "every-attempt" or (
                isinstance(armed.incident.retrigger, int) and armed.num_attempts < armed.incident.retrigger
            )
            if armed.fired is None or armed.is_superseded or not is_wanted or incident.trigger.step is None:
                continue
            armed.is_superseded = True
            number = max(other.incident.incident for other in self._armed) + 1
            # The job need not come to it again.
            following = replace(incident, incident=number, draw=None, is_optional=True)
            self._armed.append(
                Armed(
                    following,
                    self._fault(following),
                    armed.witnesses,
                    armed.quorum,
                    num_attempts=armed.num_attempts + 1,
                )
            )
            again.append(following.planned())
        if again:
            self._emit(IncidentsPlanned(incidents=tuple(again)))

    def _fault(self, incident: Incident) -> Fault[Any]:
        """The fault, to be asked about its kind only: it is the executors' that act."""
        kind = self._faults[incident.fault]
        return kind(kind.Parameters.model_validate(dict(incident.parameters)))

    # ---- incidents ----

    def _on_time(self, armed: Armed) -> None:
        if not armed.fault.acts_inside:
            self._fire(armed)
            return
        armed.is_due = True
        for place in armed.witnesses:
            self._sessions.call(place)

    async def _never_fired(self, armed: Armed) -> None:
        armed.release()
        incident, watch = armed.incident, self._watch
        if incident.follows is not None:
            why = Reason("first_not_verified", incident=incident.follows)
            self._emit(unfired(NotDue, incident.incident, why, why))
            return
        why = why_never_fired(
            incident,
            watch,
            armed.fault.scope,
            was_present=armed.was_present,
            passed_by=armed.passed_by,
            traits=self._traits,
        )
        if incident.is_optional or (has_passed(incident.trigger, watch) and incident.may_be_left_out):
            self._emit(unfired(NotDue, incident.incident, why, why))
        else:
            self._emit(unfired(Unverified, incident.incident, why, Reason("never_fired", why=why)))

    def _fire(self, armed: Armed) -> None:
        if armed.fired is None:
            if armed.timer is not None:
                armed.timer.cancel()
            armed.fired = asyncio.get_running_loop().create_task(self._inject(armed))

    async def _inject(self, armed: Armed) -> None:
        incident, fault = armed.incident, armed.fault
        step = armed.moment[0] if armed.moment is not None else incident.trigger.step
        if step is None and self._watch.has_begun:
            step = self._watch.last_step + 1
        try:
            reason = None if self._may_fire is None else self._may_fire(self._affected.ranks, incident)
            if reason is None and fault.exclusive is not None:
                reason = await self._exclusive.why_taken(incident, fault.exclusive)
            if reason:
                if incident.may_be_left_out:
                    # As when it was planned: what is affected longer than the plan could know is in its way.
                    self._emit(_with_reason(NotDue, incident, reason), step=step)
                    return
                raise InjectionError(Reason("not_allowed", why=reason))
            self._exclusive.begin(incident, fault.exclusive)
            seed = _seed_of(self._seed, incident.rng_stream)
            parts = self._hosts.parts(incident.target, at_tool=fault.acts_at_tool)
            act = JointAct(incident, seed, parts, self._order_numbers.__next__)
            await act.prepare()
            self._order.begin(fault)
            try:
                await act.record()
                self._affected.begin(incident)
                await self._act(armed, act, step)
            finally:
                if act.is_silent:
                    # Whether it acts on that host is unknown; no rank is held for it any longer.
                    self._release(armed, step)
                # Seen or not: what may have been done is undone.
                if act.is_recorded:
                    await self._order.uncovered(fault, lambda: self._release(armed, step))
                    await self._undo(armed, act, step)
        except ChaosError as error:
            self._emit(_with_reason(Unverified, incident, reason_of_error(error)), step=step)
        finally:
            self._affected.end(incident)
            self._exclusive.end(incident)
            self._order.end(fault)
            self._release(armed, step)

    async def _act(self, armed: Armed, act: JointAct, step: int | None) -> None:
        incident, fault = armed.incident, armed.fault
        applied = await act.apply()
        if applied.num_hosts:
            self._emit_injected(armed, applied, step)
        if applied.error is not None:
            raise applied.error
        lifetime = asyncio.create_task(self._lifetime(incident, fault, step))
        try:
            if fault.shows_when_released or applied.shows_when_released:
                self._release(armed, step)
            await self._verify(armed, act, step)
            await self._follow(incident)
            self._release(armed, step)
            if fault.lasts() and lifetime.done() and not self._over.is_set():
                longer = f"{incident.fault} on {incident.target_text or 'it'} was to last {incident.lifetime}"
                self._emit(Warned(message=f"{longer}: verifying its effect took longer"), step=step)
                self._emit(Outlasted(incident=incident.incident, planned=str(incident.lifetime)), step=step)
            await lifetime
        finally:
            lifetime.cancel()

    def _emit_injected(self, armed: Armed, applied: JointApplied, step: int | None) -> None:
        incident, fault = armed.incident, armed.fault
        in_save = incident.trigger.in_save
        self._emit(
            Injected(
                incident=incident.incident,
                fault=incident.fault,
                parameters=dict(incident.parameters),
                is_loss=incident.is_loss,
                goes_on=fault.lasts(),
                gives_notice=fault.gives_notice,
                asks_to_leave=fault.asks_to_leave,
                requeue=fault.requeue,
                is_latent=fault.is_latent,
                target=incident.target_text,
                phase=incident.trigger.phase if in_save or armed.moment is None else armed.moment[1],
                in_save=None if in_save is None else str(in_save),
                save=armed.save,
                ranks=applied.prepared.ranks,
                nodes=tuple(sorted(incident.target.nodes)),
                held_ranks=armed.held_ranks,
                held_nodes=armed.held_nodes,
                processes=tuple(owned.to_dict() for owned in applied.prepared.processes),
                links=applied.prepared.links,
            ),
            step=step,
            monotonic_seconds=applied.at_seconds,
        )

    async def _verify(self, armed: Armed, act: JointAct, step: int | None) -> None:
        seen = await act.verify()
        incident, took_effect = armed.incident.incident, seen.took_effect_seconds
        verified = Verified(incident=incident, evidence=dict(seen.evidence), took_effect_monotonic=took_effect)
        self._emit(verified, step=step)

    async def _follow(self, first: Incident) -> None:
        """Fire what follows `first`, while its ranks are held: nothing is saved in between."""
        following = [armed for armed in self._armed if armed.incident.follows == first.incident]
        for armed in following:
            self._fire(armed)
        if fired := [armed.fired for armed in following if armed.fired is not None]:
            await asyncio.wait(fired)

    async def _lifetime(self, incident: Incident, fault: Fault[Any], step: int | None) -> None:
        """Until the fault is to end: at once where it has no lifetime, at the latest with the job."""
        if not fault.lasts():
            return
        lifetime: Duration | None = incident.lifetime
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._over.wait())]
        if lifetime is not None and lifetime.seconds is not None:
            waits.append(asyncio.create_task(asyncio.sleep(lifetime.seconds)))
        elif lifetime is not None and lifetime.steps is not None:
            waits.append(asyncio.create_task(self._watch.wait_for_step((step or 1) + lifetime.steps - 1, None)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _undo(self, armed: Armed, act: JointAct, step: int | None) -> None:
        incident = armed.incident
        try:
            ended_seconds, evidence = await act.end()
        except ChaosError as error:
            self._emit(_with_reason(UndoFailed, incident, reason_of_error(error)), step=step)
        else:
            undone = Undone(incident=incident.incident, evidence=dict(evidence), ended_monotonic=ended_seconds)
            self._emit(undone, step=step)

    def _release(self, armed: Armed, step: int | None) -> None:
        if armed.arrived:
            ranks, nodes = armed.held_ranks, armed.held_nodes
            armed.release()
            self._emit(Released(incident=armed.incident.incident, ranks=ranks, nodes=nodes), step=step)


def _with_reason(kind: type[R], incident: Incident, why: Reason) -> R:
    """The event: the reason with its code, its code alone, and its sentence."""
    return kind(incident=incident.incident, reason=refusal_text(why), why=why, code=why.code)


def _witnesses(incident: Incident, all_ranks: frozenset[int], cluster: Cluster | None) -> tuple[frozenset[Place], int]:
    """Whom to hold for `incident`, and how many of them it takes."""
    if incident.follows is not None:
        return frozenset(), 1
    ranks, trigger = frozenset(incident.target.ranks), incident.trigger
    places: frozenset[Place] = ranks or all_ranks
    if trigger.at_seconds is None and trigger.phase == "encode":
        assert cluster is not None
        places = frozenset(SnapshotsOf(cluster.node_of(rank)) for rank in ranks or all_ranks)
    # A target that is no rank has no agent to hold: any will do as a witness of the step.
    return places, len(places) if ranks else 1


def _seed_of(seed: int, incident: int) -> int:
    """What an incident draws from: its own, so that another one more or less changes nothing."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{incident}:inside".encode()).digest()[:8])
