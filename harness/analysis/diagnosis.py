"""The job's diagnosis of each incident: which ranks it named as the cause, whether correctly, and how soon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    begun = sorted((incident.injected, incident.incident) for incident in incidents if incident.injected is not None)
    num_false = 0
    for record in main:
        at = record.monotonic_seconds
        for culprit in _culprits(record, [diagnosis.affected for diagnosis in found.values()]):
            if (loss := _unplanned(culprit, record, timeline.losses)) is not None:
                num_false += loss.how == FOR_NUMBERS
                continue
            before = [number for injected, number in begun if injected <= at and number in found]
            if not before:
                num_false += 1
                continue
            own = [number for number in before if culprit in found[number].affected]
            diagnosis = found[own[-1] if own else before[-1]]
            if not own and culprit not in diagnosis.named:
                num_false += 1
            diagnosis.named.add(culprit)
            if own and diagnosis.seconds is None:
                injected = next(time for time, number in begun if number == own[-1])
                diagnosis.seconds = at - injected
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


def _unplanned(culprit: Culprit, record: Record, losses: Sequence[Loss]) -> Loss | None:
    """The loss that it tells of, if it is one that no fault explains."""
    lost: Sequence[Culprit]
    match record:
        case Detected():
            lost = record.lost
        case CulpritNamed():
            lost = record.ranks
        case CoordinatorRestarted():
            lost = [COORDINATOR]
        case _:
            return None
    # Of a cut link both ends are named, of which one is lost.
    told = culprit if culprit in lost or not lost else lost[0]
    loss = next((one for one in reversed(losses) if one.lost == told and one.at <= record.monotonic_seconds), None)
    return loss if loss is not None and loss.incident is None else None


def _affected(incident: MeasuredIncident) -> frozenset[Culprit]:
    if incident.ranks:
        return frozenset(incident.ranks)
    return frozenset([COORDINATOR]) if incident.target == f"role={COORDINATOR}" else frozenset()


def _culprits(record: Record, affected: Sequence[frozenset[Culprit]]) -> Iterable[Culprit]:
    match record:
        case Detected():
            ends = frozenset[Culprit](rank for link in record.cut_links for rank in link)
            # It named the very link, or some of the links of a partition. That it did without one of the ends is its
            # answer to it, no accusation.
            is_link = ends and any(ends <= each for each in affected)
            yield from sorted(ends, key=str) if is_link else record.lost
        case CoordinatorRestarted():
            yield COORDINATOR
        case StepUnfit():
            yield from record.suspects
        case CulpritNamed():
            yield from record.ranks
