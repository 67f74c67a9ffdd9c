"""In what a fault that took effect is milder than what it stands for: a job that passes has not passed the latter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.analysis.timeline import Timeline
from harness.judging.summary import IncidentSummary, Summary
from mecefo_runtime.system.reason import Reason

_CHECKPOINT = "checkpoint"
_TOLD = 5
"""So many incidents are told of one by one."""


def milder_faults(summary: Summary, timeline: Timeline | None) -> list[Reason]:
    """A caveat for each."""
    if timeline is None or not timeline.traits.is_user_script:
        return []
    found = [caveat for incident in summary.incidents if incident.verified for caveat in _of(incident)]
    more = len(found) - _TOLD
    return found[:_TOLD] + ([Reason("more_milder_faults", number=more)] if more > 0 else [])


def _of(incident: IncidentSummary) -> Iterator[Reason]:
    if incident.phase == _CHECKPOINT and incident.in_save is None:
        yield Reason("before_the_save", incident=incident.incident, fault=incident.fault, step=incident.step)
    evidence = incident.evidence
    if isinstance(evidence, Mapping) and evidence.get("ranks_only"):
        yield Reason("ranks_only", incident=incident.incident, fault=incident.fault)
