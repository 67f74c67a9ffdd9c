"""Planned repairs that were not complete when the job ended, and whether they should have been.

A job that has lost ranks for good is not the one that the experiment asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.incident import MeasuredIncident
from harness.analysis.timeline import Timeline
from mecefo_runtime.system.reason import Reason

# A repair that is due so shortly before the last commit may not have been begun in time.
_SLACK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class UnfinishedRepair:
    """A repair that brought not all ranks back; `had_time`: it should have."""

    why: Reason
    had_time: bool


def unfinished_repairs(timeline: Timeline) -> list[UnfinishedRepair]:
    """The unfinished repairs of a completed job; for other jobs the outcome is unknown."""
    if timeline.outcome != "completed":
        return []
    seen = (incident for incident in timeline.incidents if incident.verified is not None and incident.missing)
    return [found for incident in seen if (found := _unfinished(incident, timeline)) is not None]


def _unfinished(incident: MeasuredIncident, timeline: Timeline) -> UnfinishedRepair | None:
    if incident.repair_started is not None:
        seconds = timeline.ended_seconds - incident.repair_started
        steps = timeline.steps.first
        # What it took all ranks to come up at the start of the job.
        startup_seconds = steps[0].began_seconds - timeline.started_seconds if steps else seconds
        return UnfinishedRepair(_why(incident, "began", began_seconds=seconds), seconds > startup_seconds)
    if incident.repair_steps is not None:
        due = (incident.step or 0) + incident.repair_steps
        # After its last step nobody has to come back any more.
        is_due = due <= timeline.last_step and due < (timeline.steps_planned or due + 1)
        after: dict[str, float | None] = {"after_steps": incident.repair_steps, "step": incident.step}
    elif incident.repair_seconds is not None:
        due_seconds = (incident.injected or 0.0) + incident.repair_seconds
        is_due = due_seconds + _SLACK_SECONDS < timeline.steps.first[-1].committed_seconds
        after = {"after_seconds": incident.repair_seconds}
    elif incident.is_loss or incident.undone is None or incident.undone >= timeline.ended_seconds:
        # Nobody was to come back.
        return None
    else:
        return UnfinishedRepair(_why(incident, "never"), had_time=False)
    return UnfinishedRepair(_why(incident, "missed" if is_due else "later", **after), is_due)


def _why(incident: MeasuredIncident, due: str, **when: float | None) -> Reason:
    """`due`: the repair `began`, was due and `missed`, was due `later` than the end, or was `never` to come."""
    return Reason(
        "repair_unfinished",
        incident=incident.incident,
        fault=incident.fault,
        target=incident.target,
        ranks=incident.missing,
        due=due,
        **when,
    )
