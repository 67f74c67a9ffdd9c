"""In what a fault that took effect is milder than what it stands for: a job that passes has not passed the latter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.analysis.command.attempts import COMMAND_RUNTIME
from harness.analysis.timeline import Timeline
from harness.judging.summary import IncidentSummary, Summary

_CHECKPOINT = "checkpoint"
_TOLD = 5
"""So many incidents are told of one by one."""


def milder_faults(summary: Summary, timeline: Timeline | None) -> list[str]:
    """A caveat for each."""
    if timeline is None or timeline.runtime != COMMAND_RUNTIME:
        return []
    found = [words for incident in summary.incidents if incident.verified for words in _of(incident)]
    more = len(found) - _TOLD
    return found[:_TOLD] + ([f"The same holds for {more} more of the faults."] if more > 0 else [])


def _of(incident: IncidentSummary) -> Iterator[str]:
    name = f"Incident {incident.incident} ({incident.fault})"
    if incident.phase == _CHECKPOINT:
        save = "a save" if incident.step is None else f"the save of step {incident.step}"
        yield (
            f"{name} came before the first byte of {save} was written: a fault in the middle of the write is not "
            "covered by this run."
        )
    evidence = incident.evidence
    if isinstance(evidence, Mapping) and evidence.get("ranks_only"):
        yield (
            f"{name} reached the ranks of the node only: their launcher serves other nodes too and was left running. "
            "With a real node its launcher is lost."
        )
