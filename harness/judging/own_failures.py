"""What a command's job did by itself, without any fault: it failed, ended too early, or lost ranks for good.

Reasons of the verdict and caveats come from the same facts, so that nothing is said twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from harness.analysis.command.ended_ranks import EndedRank, FurtherStep
from harness.analysis.command.job_length import Expected
from harness.analysis.state import RunState
from harness.analysis.timeline import Timeline
from mecefo_runtime.system.command_records import RankRaised
from mecefo_runtime.system.job_records import JobFailed, ProcessStarted, RankStarted
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.reason import Reason

RANK_FAILED = "rank_failed"


@dataclass(frozen=True, slots=True)
class OwnFailure:
    """One of a rank (`rank_failed`) stands against the job; with another the run proves nothing (`too_short`)."""

    why: Reason

    @property
    def outcome(self) -> Literal["fail", "inconclusive"]:
        """The verdict that it speaks for."""
        return "fail" if self.why.code == RANK_FAILED else "inconclusive"


def has_failed_by_itself(state: RunState, failed: JobFailed) -> bool:
    """Whether a job that failed did so in its training; else it never came to that, as far as anybody can see.

    A rank has reported, and a step was seen, or the command or one of its ranks says itself that it failed.
    """
    is_there = state.first_of(RankStarted) is not None or any(one.role == "rank" for one in state.of(ProcessStarted))
    is_there = is_there or state.first_of(RankRaised) is not None
    says_so = bool(failed.exit) or failed.cause is not None
    return state.num_steps()[0] > 0 or (is_there and says_so)


def own_failures(timeline: Timeline) -> Iterator[OwnFailure]:
    """What stands against a pass, although the command has ended well."""
    if not timeline.traits.is_user_script or timeline.outcome != "completed":
        return
    if not timeline.is_grouped:
        for one in timeline.ended_ranks:
            if one.incident is None and one.further is not None:
                yield OwnFailure(Reason(RANK_FAILED, cause=to_json(one.cause), why=_further(one.further)))
                # The others are ended with it, or wait for it.
                return
    missed = timeline.length.missed
    is_failed = any(timeline.recovered(incident) is False for incident in timeline.incidents)
    if missed is not None and missed.source != "step_under_way" and not is_failed:
        yield OwnFailure(Reason("too_short", step=timeline.length.step, why=_missed(missed)))


def idle_attempt(timeline: Timeline) -> Reason | None:
    """The last attempt, where it took no step and ended well, and so did the job; else None."""
    if timeline.length.idle_attempt is None or timeline.outcome != "completed":
        return None
    return Reason("idle_attempt", attempt=timeline.length.idle_attempt)


def own_caveats(timeline: Timeline | None) -> list[Reason]:
    """What a reader has to know of it beside that."""
    if timeline is None or not timeline.traits.is_user_script:
        return []
    found = [Reason("fewer_ranks", before=before, after=after) for before, after in fewer_ranks(timeline)]
    if timeline.outcome != "completed":
        return found
    found += [_rank_ended(one) for one in timeline.ended_ranks if _is_caveat(timeline, one)]
    length = timeline.length
    is_proven = timeline.steps_given_up is not None or length.missed is not None or any(own_failures(timeline))
    if length.step is not None and not length.is_told and not is_proven:
        found.append(Reason("length_unknown", step=length.step, baseline_ranks=length.other_world_size))
    return found


def _rank_ended(one: EndedRank) -> Reason:
    further = None if one.further is None else _further(one.further)
    return Reason("rank_ended", cause=to_json(one.cause), known=one.is_known or None, further=further)


def _is_caveat(timeline: Timeline, one: EndedRank) -> bool:
    if one.incident is not None:
        # What a fault takes is told with it.
        return False
    return timeline.is_grouped or one.further is None


def fewer_ranks(timeline: Timeline) -> Iterator[tuple[int, int]]:
    """(from, to) where the job went on with fewer ranks to its end."""
    sizes = [one.world_size for one in timeline.attempts if one.world_size is not None]
    if timeline.is_grouped or any(one.further is not None and one.incident is not None for one in timeline.ended_ranks):
        before = sizes[-1] if sizes else timeline.num_ranks or 0
        gone = sum(one.further is not None for one in timeline.ended_ranks)
        if gone and before > gone:
            yield before, before - gone
    elif sizes and sizes[-1] < max(sizes):
        yield max(sizes), sizes[-1]


_FURTHER: Mapping[str, str] = {
    "rank": "rank_came_further",
    "job": "job_came_further",
    "job.steps": "more_steps_planned",
    "baseline": "baseline_came_further",
    "earlier_attempt": "earlier_attempt_came_further",
}
"""What says that steps were to come: the code of the fact, by its source."""


def _further(further: FurtherStep) -> Reason:
    rank = (further.rank or 0) if further.source == "rank" else None
    return Reason(_FURTHER.get(further.source, _FURTHER["baseline"]), step=further.step, rank=rank)


def _missed(missed: Expected) -> Reason:
    return Reason(_FURTHER.get(missed.source, _FURTHER["baseline"]), step=missed.step, attempt=missed.attempt)
