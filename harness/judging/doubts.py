"""Why the log of a run may not tell all of it, or not what the run wrote, and what is left open then.

What a missing line could have made of a run is inconclusive: figures, and failures of which the opposite was perhaps
told. What a line says that is there stays: a job that died of a fault, a loss that is not finite, what was left behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise

from harness.analysis.job_traits import read_traits
from harness.analysis.state import RunState
from harness.judging.summary import GateResult, Summary
from harness.store.agreement import RUN_STARTED, contradictions_of_start, wrong_number
from mecefo_runtime.system.events import BASELINE_JOB, MAIN_JOB, Event
from mecefo_runtime.system.job_records import JobStarted
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.run_records import Aborted, IncidentsPlanned, RunEnded, RunStarted

_NAMED_LINES = 5


def doubts_of(events: Sequence[Event], state: RunState, unreadable: Sequence[int]) -> Iterator[Reason]:
    """The doubts; none of a log that is whole up to its last event, in whatever order its `events` are."""
    if unreadable:
        # One of them may have told of a loss, or of something that was not undone.
        yield Reason("lines_unreadable", lines=unreadable[:_NAMED_LINES], number=len(unreadable))
    if state.num_unread:
        yield Reason("events_not_understood", number=state.num_unread)
    starts = [event for event in events if event.kind == RUN_STARTED]
    if not starts:
        yield Reason("head_missing")
    if (num_runs := sum(1 for _ in state.of(RunStarted))) > 1:
        yield Reason("several_runs", number=num_runs)
    for start in starts[:1]:
        yield from contradictions_of_start(start.fields)
    is_under_way = state.first_of(JobStarted) is not None or state.first_of(RunEnded) is not None
    if starts and is_under_way and state.first_of(IncidentsPlanned) is None:
        yield Reason("plan_missing")
    ends = [event for event in events if event.kind == RunEnded.KIND]
    miscounted = list(wrong_number(len(events) + len(unreadable), ends[-1] if ends else None))
    yield from miscounted
    if not unreadable and not miscounted:
        yield from _gaps(state)


def _gaps(state: RunState) -> Iterator[Reason]:
    """Steps without a record amid those of one membership, which takes every step: the record is missing."""
    for job in (MAIN_JOB, BASELINE_JOB):
        started = state.first_of(JobStarted, job)
        if started is None or not read_traits(started).has_planned_steps:
            # A script may leave out steps, or number them as it likes.
            continue
        steps = sorted(state.last_steps(job, state.num_steps(job)[0]), key=lambda one: one.step)
        # Not number by number: a damaged one may be any.
        gaps = [
            range(one.step + 1, after.step)
            for one, after in pairwise(steps)
            if one.epoch == after.epoch and one.step + 1 < after.step
        ]
        if gaps:
            which = [*islice(chain.from_iterable(gaps), _NAMED_LINES)]
            yield Reason("steps_missing", job=job, steps=which, number=sum(gap.stop - gap.start for gap in gaps))


def left_open(gates: Sequence[GateResult], aborted: Aborted | None) -> list[GateResult]:
    """The answers to the gates of a log that is in doubt; what the run itself saw fail has failed."""
    seen_to_fail = None if aborted is None else aborted.gate
    return [
        gate
        if gate.passed is None or (gate.passed is False and gate.expression == seen_to_fail)
        else gate.left_open(Reason("log_in_doubt"))
        for gate in gates
    ]


def without_failures(summary: Summary) -> Summary:
    """The same, but that nothing is said not to have recovered: the step after it is perhaps what is missing."""
    # What a job does wrong to the end is in lines that are there.
    incidents = (one if one.violations else replace(one, recovered=one.recovered or None) for one in summary.incidents)
    return replace(summary, incidents=tuple(incidents))
