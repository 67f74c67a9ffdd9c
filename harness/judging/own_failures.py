"""What a command's job did by itself, without any fault: it failed, ended too early, or lost ranks for good.

Reasons of the verdict and caveats come from the same facts, so that nothing is said twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from harness.analysis.command.attempts import COMMAND_RUNTIME
from harness.analysis.command.ended_ranks import EndedRank, FurtherStep
from harness.analysis.command.failure_cause import PIPE, FailureCause, cause_words
from harness.analysis.command.job_length import Expected
from harness.analysis.command.unseen import unseen_words
from harness.analysis.state import RunState
from harness.analysis.timeline import Timeline
from harness.analysis.words import count, exit_text, name_ranks
from mecefo_runtime.system.command_records import NoStepSeen, RankRaised
from mecefo_runtime.system.job_records import JobFailed, ProcessStarted, RankStarted


@dataclass(frozen=True, slots=True)
class OwnFailure:
    """`code` says what it is: one of a rank stands against the job, else the run proves nothing."""

    code: Literal["rank_failed", "too_short"]
    words: str

    @property
    def outcome(self) -> Literal["fail", "inconclusive"]:
        """The verdict that it speaks for."""
        return "fail" if self.code == "rank_failed" else "inconclusive"


def has_failed_by_itself(state: RunState, failed: JobFailed) -> bool:
    """Whether a job that failed did so in its training; else it never came to that, as far as anybody can see.

    A rank has reported, and a step was seen, or the command or one of its ranks says itself that it failed.
    """
    is_there = state.first_of(RankStarted) is not None or any(one.role == "rank" for one in state.of(ProcessStarted))
    is_there = is_there or state.first_of(RankRaised) is not None
    says_so = bool(failed.exit) or failed.cause is not None
    return state.num_steps()[0] > 0 or (is_there and says_so)


def no_step_words(seen: NoStepSeen) -> str:
    """Why nothing is known of a command that ended well: no training step was seen in it."""
    ended = f"the command ended with {exit_text(0)}"
    if seen.cause is not None:
        with suppress(TypeError, ValueError):
            cause = FailureCause.from_dict(seen.cause)
            printed = "printed " if cause.rank is None else ""
            hint = f" ({PIPE})" if seen.is_pipe else ""
            return f"{ended}, but {printed}{cause_words(cause)}{hint}, and no training step was seen in it"
    return f"{ended}, and {unseen_words(seen.why)}"


def own_failures(timeline: Timeline) -> Iterator[OwnFailure]:
    """What stands against a pass, although the command has ended well."""
    if timeline.runtime != COMMAND_RUNTIME or timeline.outcome != "completed":
        return
    if not timeline.is_grouped:
        for one in timeline.ended_ranks:
            if one.incident is None and one.further is not None:
                words = f"{cause_words(one.cause)}, and was not started again: {_further_words(one.further)}"
                yield OwnFailure("rank_failed", words)
                # The others are ended with it, or wait for it.
                return
    missed = timeline.length.missed
    is_failed = any(timeline.recovered(incident) is False for incident in timeline.incidents)
    if missed is not None and missed.source != "step_under_way" and not is_failed:
        words = f"the command ended by itself after step {timeline.length.step}: {_missed_words(missed)}"
        yield OwnFailure("too_short", words)


def idle_words(timeline: Timeline) -> str:
    """`: attempt 2 took no step and ended with exit code 0`, where that is how the job ended; else nothing."""
    if timeline.length.idle_attempt is None or timeline.outcome != "completed":
        return ""
    return f": attempt {timeline.length.idle_attempt} took no step and ended with exit code 0"


def own_caveats(timeline: Timeline | None) -> list[str]:
    """What a reader has to know of it beside that."""
    if timeline is None or timeline.runtime != COMMAND_RUNTIME:
        return []
    found = [f"{_ranks_words(*sizes)}." for sizes in _fewer_ranks(timeline)]
    if timeline.outcome != "completed":
        return found
    found += [_ended_words(one) for one in timeline.ended_ranks if _is_caveat(timeline, one)]
    length = timeline.length
    is_proven = timeline.steps_given_up is not None or length.missed is not None or any(own_failures(timeline))
    if length.step is not None and not length.is_told and not is_proven:
        hint = "Give --steps, or a fault-free baseline (--baseline-run)."
        if length.other_world_size is not None:
            hint = f"The fault-free baseline ran with {count(length.other_world_size, 'rank')}. Give --steps."
        found.append(f"Nothing says how long the job should be: it ended by itself after step {length.step}. {hint}")
    return found


def _is_caveat(timeline: Timeline, one: EndedRank) -> bool:
    if one.incident is not None:
        # What a fault takes is told with it.
        return False
    return timeline.is_grouped or one.further is None


def _fewer_ranks(timeline: Timeline) -> Iterator[tuple[int, int]]:
    """(from, to) where the job went on with fewer ranks to its end."""
    sizes = [one.world_size for one in timeline.attempts if one.world_size is not None]
    if timeline.is_grouped or any(one.further is not None and one.incident is not None for one in timeline.ended_ranks):
        before = sizes[-1] if sizes else timeline.num_ranks or 0
        gone = sum(one.further is not None for one in timeline.ended_ranks)
        if gone and before > gone:
            yield before, before - gone
    elif sizes and sizes[-1] < max(sizes):
        yield max(sizes), sizes[-1]


def _ranks_words(before: int, after: int) -> str:
    return f"Ranks: {before} -> {after} for good. The job went on with fewer, and did not get them back"


def _ended_words(one: EndedRank) -> str:
    words = cause_words(one.cause)
    left = "no step was left" if one.is_known else "whether steps were left is not known"
    if one.further is not None:
        left = _further_words(one.further)
    return f"{words[0].upper()}{words[1:]}, which no fault explains; the command ended with {exit_text(0)}: {left}."


def _further_words(further: FurtherStep) -> str:
    match further.source:
        case "rank":
            return f"{name_ranks([further.rank or 0])} came to step {further.step}"
        case "job":
            return f"the job came to step {further.step}"
        case source:
            return _told_words(source, further.step)


def _missed_words(missed: Expected) -> str:
    if missed.source == "earlier_attempt":
        return f"attempt {missed.attempt} had come to step {missed.step}"
    return _told_words(missed.source, missed.step)


def _told_words(source: str, step: int) -> str:
    return f"job.steps is {step}" if source == "job.steps" else f"the fault-free baseline came to step {step}"
