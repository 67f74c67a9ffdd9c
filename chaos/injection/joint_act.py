"""One incident on all of its hosts: prepared and recorded on all of them before it is applied on any.

If one host refuses, no host keeps the fault: the others undo what they have recorded. The incident is verified only if
every host has seen its part. A silent host counts as one that refuses; it undoes without an order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from chaos.errors import ChaosError, TargetNotFound
from chaos.injection.executor import FaultExecutor
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
)
from chaos.language.target import ResolvedTarget
from chaos.plan.incident import Incident
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.reason import Reason

_AnswerT = TypeVar("_AnswerT", bound=Answer)


class Hosts:
    """The executors of a run, and which of them acts on which part of a target.

    `host_of_node` gives the host of a node of `cluster`; a single executor has all nodes. A target without ranks (a
    checkpoint) belongs to the first executor. A role goes to all of them: the one that has its process acts.
    """

    def __init__(
        self,
        executors: Sequence[FaultExecutor],
        cluster: Cluster | None = None,
        host_of_node: Callable[[int], str] | None = None,
    ) -> None:
        self.executors = tuple(executors)
        self._cluster = cluster
        self._host_of_node = host_of_node

    def parts(
        self, target: ResolvedTarget, *, at_tool: bool = False
    ) -> tuple[tuple[FaultExecutor, ResolvedTarget], ...]:
        """Each executor that has a part of `target`, with that part; `at_tool`: the first executor has all of it."""
        if len(self.executors) == 1 or at_tool:
            return ((self.executors[0], target),)
        if target.role is not None:
            return tuple((executor, target) for executor in self.executors)
        if not (target.ranks or target.nodes):
            return ((self.executors[0], target),)
        assert self._cluster is not None and self._host_of_node is not None, "several hosts have nodes"
        host_of, node_of = self._host_of_node, self._cluster.node_of
        parts = []
        for executor in self.executors:
            here = tuple(rank for rank in target.ranks if host_of(node_of(rank)) == executor.host)
            nodes = tuple(node for node in target.nodes if host_of(node) == executor.host)
            if here or nodes:
                links = tuple(link for link in target.links if set(link) & set(here))
                parts.append((executor, replace(target, ranks=here, nodes=nodes, links=links)))
        return tuple(parts)


@dataclass(slots=True, eq=False)
class _Part:
    """The part of one host, and what is known of it."""

    executor: FaultExecutor
    target: ResolvedTarget
    prepared: Prepared = field(default_factory=Prepared)
    is_recorded: bool = False
    is_applied: bool = False
    is_silent: bool = False


_Answers = dict[_Part, Answer | Exception]


@dataclass(frozen=True, slots=True)
class JointApplied:
    """The fault as it was applied: on how many hosts, on which processes and links, and when it first took effect.

    `error` is why it was not applied on all of them; None: it was. `shows_when_released`: see `Applied`.
    """

    num_hosts: int
    prepared: Prepared
    at_seconds: float
    error: Exception | None
    shows_when_released: bool = False


class JointAct:
    """One incident on its hosts; `number` gives each order its number. The fault draws from `seed`."""

    def __init__(
        self,
        incident: Incident,
        seed: int,
        parts: Iterable[tuple[FaultExecutor, ResolvedTarget]],
        number: Callable[[], int],
    ) -> None:
        self._incident = incident
        self._seed = seed
        self._number = number
        self._parts = [_Part(executor, target) for executor, target in parts]
        # Verifications whose result is not needed: another host has refused.
        self._abandoned: set[asyncio.Task[Answer | Exception]] = set()

    @property
    def is_recorded(self) -> bool:
        """Whether a host has written an undo record."""
        return any(part.is_recorded for part in self._parts)

    @property
    def is_silent(self) -> bool:
        """Whether one of the hosts is silent."""
        return any(part.is_silent for part in self._parts)

    async def prepare(self) -> None:
        """Look and prepare on every host. Nothing is changed.

        Raises:
            ChaosError: one of them refused.
        """
        incident, seed = self._incident, self._seed

        def look(part: _Part) -> Order:
            return Look(self._number(), incident.incident, incident.fault, part.target, incident.parameters, seed)

        if not self._parts:
            raise TargetNotFound(Reason("no_host_of_target", target=str(incident.target)))
        self._expect(Looked, await self._ask(self._parts, look))
        answers = await self._ask(self._parts, lambda part: Prepare(self._number(), incident.incident))
        if incident.target.role is not None:
            # Whoever plays the role is on one host; the others have nothing of it.
            absent = {part for part, answer in answers.items() if _is_absent(answer)}
            if len(absent) < len(self._parts):
                self._parts = [part for part in self._parts if part not in absent]
                answers = {part: answers[part] for part in self._parts}
        for part, prepared in self._expect(Prepared, answers):
            part.prepared = prepared

    async def record(self) -> None:
        """Have every host write the undo record.

        Raises:
            ChaosError: one of them refused; others may have recorded, see `is_recorded`.
        """
        answers = await self._ask(self._parts, lambda part: Record(self._number(), self._incident.incident))
        for part, answer in answers.items():
            part.is_recorded = isinstance(answer, Recorded)
        self._expect(Recorded, answers)

    async def apply(self) -> JointApplied:
        """Apply it on every host, at the same time."""
        lifetime = self._incident.lifetime
        seconds = None if lifetime is None else lifetime.seconds
        answers = await self._ask(self._parts, lambda part: Apply(self._number(), self._incident.incident, seconds))
        applied = {part: answer for part, answer in answers.items() if isinstance(answer, Applied)}
        for part in applied:
            part.is_applied = True
        error: Exception | None = None
        try:
            self._expect(Applied, answers)
        except Exception as refusal:
            error = refusal
        links = dict.fromkeys(link for part in applied for link in part.prepared.links)
        processes = tuple(owned for part in applied for owned in part.prepared.processes)
        at_seconds = min((answer.at_seconds for answer in applied.values()), default=0.0)
        shows_when_released = any(answer.shows_when_released for answer in applied.values())
        prepared = Prepared(processes, tuple(links))
        return JointApplied(len(applied), prepared, at_seconds, error, shows_when_released)

    async def verify(self) -> Verified:
        """Wait until every host has seen the effect of its part.

        Raises:
            ChaosError: one of them has not; the others are not waited for.
        """

        def verify(part: _Part) -> Order:
            return Verify(self._number(), self._incident.incident)

        if len(self._parts) == 1:
            ((_, verified),) = self._expect(Verified, await self._ask(self._parts, verify))
            return verified
        waits = {asyncio.create_task(self._answer(part, verify(part))): part for part in self._parts}
        pending, answers = set(waits), _Answers()
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            answers |= {waits[task]: task.result() for task in done}
            self._abandoned = pending
            self._expect(Verified, answers)
        verified_by = [(part.executor.host, answers[part]) for part in self._parts]
        evidence = {host: dict(answer.evidence) for host, answer in verified_by if isinstance(answer, Verified)}
        summaries = "; ".join(f"{host}: {seen.get('summary', 'seen')}" for host, seen in evidence.items())
        times = [answer.took_effect_seconds for _, answer in verified_by if isinstance(answer, Verified)]
        return Verified(
            {"summary": summaries, "hosts": evidence}, min((time for time in times if time is not None), default=None)
        )

    async def end(self) -> tuple[float | None, Mapping[str, Any]]:
        """Lift and undo on every host that has recorded; returns when it was active no longer, and the evidence.

        Raises:
            ChaosError: one host could not, or is silent. All others have undone.
        """
        number = self._incident.incident
        recorded = [part for part in self._parts if part.is_recorded]
        lifts = await self._ask(recorded, lambda part: Lift(self._number(), number))
        if self._abandoned:
            await asyncio.wait(self._abandoned)
        lifted = {part: answer for part, answer in lifts.items() if isinstance(answer, Lifted)}
        undos = await self._ask(list(lifted), lambda part: Undo(self._number(), number)) if lifted else {}
        self._expect(Lifted, lifts)
        undone = self._expect(Undone, undos)
        times = [answer.ended_seconds for answer in lifted.values() if answer.ended_seconds is not None]
        evidence = {part.executor.host: dict(answer.evidence) for part, answer in undone}
        if len(self._parts) == 1:
            (own,) = evidence.values()
            return max(times, default=None), own
        return max(times, default=None), {"hosts": evidence}

    # ---- orders ----

    async def _ask(self, parts: Sequence[_Part], order_of: Callable[[_Part], Order]) -> _Answers:
        if len(parts) == 1:
            # Not as a task: nothing may get its turn between the answer and what the injector does about it.
            return {parts[0]: await self._answer(parts[0], order_of(parts[0]))}
        orders = [(part, order_of(part)) for part in parts]
        answers = await asyncio.gather(*(self._answer(part, order) for part, order in orders))
        return dict(zip(parts, answers, strict=True))

    async def _answer(self, part: _Part, order: Order) -> Answer | Exception:
        """The answer of the host, or the exception that the fault raised: the other hosts still get their orders."""
        try:
            answer = await part.executor.obey(order)
        except Exception as error:
            return error
        part.is_silent = part.is_silent or (isinstance(answer, Refused) and answer.kind == "silent")
        return answer

    def _expect(self, kind: type[_AnswerT], answers: _Answers) -> list[tuple[_Part, _AnswerT]]:
        """The answers, which are all of that kind.

        Raises:
            ChaosError: one is a refusal.
            Exception: one is a mistake in the fault, which comes first.
        """
        for answer in answers.values():
            if isinstance(answer, Exception):
                raise answer
        for part, answer in answers.items():
            if isinstance(answer, Refused):
                raise answer.error(part.executor.host if len(self._parts) > 1 else "")
        expected: list[tuple[_Part, _AnswerT]] = [
            (part, answer) for part, answer in answers.items() if isinstance(answer, kind)
        ]
        if len(expected) < len(answers):
            raise ChaosError(f"an executor did not answer with {kind.__name__}")
        return expected


def _is_absent(answer: Answer | Exception) -> bool:
    return isinstance(answer, Refused) and answer.kind == "target-not-found"
