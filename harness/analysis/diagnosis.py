"""The job's diagnosis of each incident: which ranks it named as the cause, whether correctly, and how soon."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from harness.analysis.attribution import COORDINATOR, FOR_NUMBERS, Culprit, Loss
from harness.analysis.incident import MeasuredIncident
from harness.analysis.timeline import Timeline
from mecefo_runtime.system.job_records import CoordinatorRestarted, CulpritNamed, Detected, StepUnfit
from mecefo_runtime.system.record import Record

Score = Literal["right", "partly", "wrong", "none"]
"""`right`: it named all that was affected, and nobody else. `partly`: some of it. `wrong`: somebody else as well, or
only. `none`: nobody."""


@dataclass(slots=True)
class Diagnosis:
    """Whom the job named for one incident.

    `seconds` is injection -> the first naming of an affected rank (or of the coordinator), None when there was none.
    """

    affected: frozenset[Culprit]
    named: set[Culprit] = field(default_factory=set)
    seconds: float | None = None
    how: str | None = None

    @property
    def score(self) -> Score:
        """The score of the diagnosis."""
        if not self.named:
            return "none"
        if self.named - self.affected:
            return "wrong"
        return "right" if self.named == self.affected else "partly"


@dataclass(frozen=True, slots=True)
class Diagnoses:
    """Of all verified incidents that affected somebody. Ratios are None where there is nothing to count.

    `recall_ratio`: share of the affected that was named. `precision_ratio`: share of the named that was affected;
    `num_false` namings came before any fault, or named somebody whom no fault active had affected.
    """

    by_incident: Mapping[int, Diagnosis]
    num_false: int
    recall_ratio: float | None
    precision_ratio: float | None


def diagnose(main: Iterable[Record], timeline: Timeline) -> Diagnoses:
    """Compare what the main job named with the injected faults; `main` holds its records by time.

    A rank that is named counts for the incident that affected it last before; one that no incident has affected counts
    against the incident injected last, which is what the job tried to explain. That it noticed a loss which no fault
    explains is no diagnosis at all, unless the job itself sent the rank away for nothing.
    """
    incidents = timeline.incidents
    found = {
        incident.incident: Diagnosis(affected)
        for incident in incidents
        if incident.injected is not None and incident.verified is not None and (affected := _affected(incident))
    }
    begun = _Begun(
        sorted(
            (incident.injected, incident.incident)
            for incident in incidents
            if incident.injected is not None and incident.incident in found
        ),
        found,
    )
    losses = _Losses(timeline.losses)
    ends = {one.rank: one.at_seconds for one in timeline.ended_ranks if one.incident is None}
    num_false = 0
    for record in main:
        at, lost = record.monotonic_seconds, _lost(record)
        for culprit in _culprits(record, begun):
            if isinstance(culprit, int) and at >= ends.get(culprit, inf):
                # It failed without any fault, at the end of a command that went well.
                continue
            if lost is not None and (loss := losses.unplanned(culprit, lost, at)) is not None:
                num_false += loss.how == FOR_NUMBERS
                continue
            last = begun.last(at)
            if last is None:
                num_false += 1
                continue
            own = begun.last_of(culprit, at)
            diagnosis = found[last[1] if own is None else own[1]]
            if own is None and culprit not in diagnosis.named:
                num_false += 1
            diagnosis.named.add(culprit)
            if own is not None and diagnosis.seconds is None:
                diagnosis.seconds = at - own[0]
                diagnosis.how = (record.how if isinstance(record, Detected | CulpritNamed) else None) or record.kind
    num_affected = sum(len(diagnosis.affected) for diagnosis in found.values())
    num_right = sum(len(diagnosis.affected & diagnosis.named) for diagnosis in found.values())
    num_named = num_right + num_false
    return Diagnoses(
        found,
        num_false,
        recall_ratio=num_right / num_affected if num_affected else None,
        precision_ratio=num_right / num_named if num_named else None,
    )


class _Begun:
    """When which of the incidents that count were injected, and whom they affected."""

    def __init__(self, begun: Sequence[tuple[float, int]], found: Mapping[int, Diagnosis]) -> None:
        self._every = begun
        self._of: dict[Culprit, list[tuple[float, int]]] = {}
        for injected, number in begun:
            for culprit in found[number].affected:
                self._of.setdefault(culprit, []).append((injected, number))
        self._together: dict[frozenset[Culprit], bool] = {}

    def last(self, at: float) -> tuple[float, int] | None:
        """The one that was injected last by then."""
        return _last_by(self._every, at)

    def last_of(self, culprit: Culprit, at: float) -> tuple[float, int] | None:
        """The same of those that affected `culprit`."""
        return _last_by(self._of.get(culprit, ()), at)

    def affect_all(self, culprits: frozenset[Culprit]) -> bool:
        """Whether one incident affected all of them."""
        known = self._together.get(culprits)
        if known is None:
            each = sorted((self._of.get(culprit, ()) for culprit in culprits), key=len)
            known = bool(each) and bool(set(each[0]).intersection(*each[1:]))
            self._together[culprits] = known
        return known


def _last_by(begun: Sequence[tuple[float, int]], at: float) -> tuple[float, int] | None:
    number = bisect_right(begun, (at, inf))
    return begun[number - 1] if number else None


class _Losses:
    """The losses of a job, by who was lost."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        self._of: dict[Culprit, list[Loss]] = {}
        for loss in sorted(losses, key=lambda loss: loss.at):
            self._of.setdefault(loss.lost, []).append(loss)

    def unplanned(self, culprit: Culprit, lost: Mapping[Culprit, None], at: float) -> Loss | None:
        """The loss of which it was told then, if it is one that no fault explains."""
        # Of a cut link both ends are named, of which one is lost.
        told = culprit if culprit in lost or not lost else next(iter(lost))
        own = self._of.get(told, ())
        number = bisect_right(own, at, key=lambda loss: loss.at)
        loss = own[number - 1] if number else None
        return loss if loss is not None and loss.incident is None else None


def _lost(record: Record) -> Mapping[Culprit, None] | None:
    """Who is lost by `record`, in its order; None of one that tells of no loss."""
    match record:
        case Detected():
            return dict.fromkeys(record.lost)
        case CulpritNamed():
            return dict.fromkeys(record.ranks)
        case CoordinatorRestarted():
            return {COORDINATOR: None}
        case _:
            return None


def _affected(incident: MeasuredIncident) -> frozenset[Culprit]:
    if incident.ranks:
        return frozenset(incident.ranks)
    return frozenset([COORDINATOR]) if incident.target == f"role={COORDINATOR}" else frozenset()


def _culprits(record: Record, begun: _Begun) -> Iterable[Culprit]:
    match record:
        case Detected():
            ends = frozenset[Culprit](rank for link in record.cut_links for rank in link)
            # It named the very link, or some of the links of a partition. That it did without one of the ends is its
            # answer to it, no accusation.
            is_link = ends and begun.affect_all(ends)
            yield from sorted(ends, key=str) if is_link else record.lost
        case CoordinatorRestarted():
            yield COORDINATOR
        case StepUnfit():
            yield from record.suspects
        case CulpritNamed():
            yield from record.ranks
