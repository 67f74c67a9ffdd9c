"""The attempts of a command's job, and its ranks and batch over time, in words and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.analysis.command.attempt_list import ENDS, ListedAttempt, cause_of
from harness.analysis.command.failure_cause import RAISED, FailureCause, cause_words
from harness.analysis.command.world import Sizes
from harness.analysis.words import count, exit_text, name_numbers, name_seconds, one_line, speed_text
from harness.judging.summary import Summary

SHOWN = 12
"""So many attempts are listed; of more the first and the last ones."""


class AttemptRow(NamedTuple):
    """One attempt in words, as the columns of a table."""

    number: str
    ranks: str
    steps: str
    new_steps: str
    loaded: str
    seconds: str
    end: str


def attempt_rows(summary: Summary) -> list[AttemptRow]:
    """The attempts of a job that had more than one; a row of dots where some are left out."""
    attempts = summary.attempt_list
    if len(attempts) < 2:
        return []
    steps = {one.attempt: one.step for one in summary.attempt_loads}
    rows = [_row(one, steps.get(one.number)) for one in attempts]
    if len(rows) <= SHOWN:
        return rows
    dots = AttemptRow(*["..."] * len(AttemptRow._fields))
    return [*rows[: SHOWN // 2], dots, *rows[-(SHOWN // 2) :]]


def _row(one: ListedAttempt, loaded_step: int | None) -> AttemptRow:
    return AttemptRow(
        number=str(one.number),
        ranks="-" if one.world_size is None else str(one.world_size),
        steps=_steps(one),
        new_steps=str(one.new_steps),
        loaded=_loaded(one) if loaded_step is None else f"the checkpoint of step {loaded_step}",
        seconds=name_seconds(one.seconds),
        end=end_words(one),
    )


def _steps(one: ListedAttempt) -> str:
    if one.first_step is None or one.last_step is None:
        # Without their numbers it is the number of new ones that is known.
        return "none" if not one.new_steps else "unknown"
    return f"{one.first_step} to {one.last_step}"


def _loaded(one: ListedAttempt) -> str:
    if one.loaded is not None:
        folder, _, name = one_line(one.loaded).rpartition("/")
        parent = folder.rpartition("/")[2]
        return f"{parent}/{name}" if parent else name
    return "not seen" if one.number > 1 else "-"


def attempt_lines(summary: Summary) -> list[str]:
    """A line for each attempt of a job that had more than one."""
    return [
        f"{one.number}: {_ranks(one.ranks)}, steps {one.steps} ({one.new_steps} new), "
        f"{one.seconds}, loaded {one.loaded}; {one.end}"
        if one.number != "..."
        else "..."
        for one in attempt_rows(summary)
    ]


def _ranks(number: str) -> str:
    return count(int(number), "rank") if number.isdecimal() else "unknown ranks"


def end_words(one: ListedAttempt) -> str:
    """How it ended: `rank 0 raised FileExistsError: ... at step 20`, or `ended by incident 0 (kill-process)`."""
    cause = cause_of(one)
    if one.end.code == "completed" and not one.new_steps and one.last_step is None:
        return "ended with exit code 0, without a step"
    if one.end.code == "failed" and cause is not None:
        return cause_words(cause)
    words = ENDS.text(one.end)
    if one.end.code == "under_fault" and cause is not None:
        return f"{words}: {cause_words(cause)}"
    return words


def fruitless_words(summary: Summary) -> str:
    """`Attempts 2 to 4 made no progress, 14.5 s: died 3 of 3 times at step 20 with FileExistsError`; empty without any.

    Those that a fault ended are not among them.
    """
    found = [one for one in summary.attempt_list if one.is_fruitless]
    if not found or not summary.fruitless_attempts:
        return ""
    alike: dict[tuple[str, str], list[ListedAttempt]] = {}
    for one in found:
        alike.setdefault((_where(one), _how(one)), []).append(one)
    said = []
    for (where, how), ones in sorted(alike.items(), key=lambda item: (-len(item[1]), item[1][0].number)):
        times = f" {len(ones)} of {len(found)} times" if len(found) > 1 else ""
        said.append(f"{how}{times} {where}")
    took = name_seconds(summary.fruitless_seconds)
    named = name_numbers("attempt", [one.number for one in found]).capitalize()
    return f"{named} made no progress, {took}: {'; '.join(said)}"


def _where(one: ListedAttempt) -> str:
    cause = cause_of(one)
    of = f" with {_kind(cause)}" if one.end.code == "failed" and cause is not None else ""
    if cause is not None and cause.step is not None:
        return f"at step {cause.step}{of}"
    return f"before the first step{of}" if one.last_step is None else f"after step {one.last_step}{of}"


def _how(one: ListedAttempt) -> str:
    cause = cause_of(one)
    if one.end.code != "failed" or cause is None:
        return {"completed": "ended with exit code 0", "by_launcher": "was ended by the launcher"}.get(
            one.end.code, "ended"
        )
    return "died"


def _kind(cause: FailureCause) -> str:
    if cause.code == RAISED and cause.exception is not None:
        return cause.exception.rpartition(".")[2]
    return "an unknown exit code" if cause.exit is None else exit_text(cause.exit)


def world_words(summary: Summary) -> str:
    """`World size 2 -> 1 for good; global batch 16 -> 8; 454 -> 242 samples per second`; empty where it stayed."""
    ranks, batch = summary.world_size, summary.global_batch_samples
    if not _has_changed(ranks):
        return ""
    is_for_good = " for good" if summary.ranks_lost_for_good and ranks.after == ranks.during else ""
    return "; ".join([f"World size {_change(ranks)}{is_for_good}", *_batch(batch), *_speed(summary)])


def _has_changed(sizes: Sizes) -> bool:
    return len({size for size in (sizes.before, sizes.during, sizes.after) if size is not None}) > 1


def _change(sizes: Sizes) -> str:
    known: Sequence[int | None] = (sizes.before, sizes.during, sizes.after)
    told = ["unknown" if one is None else str(one) for index, one in enumerate(known) if index != 1 or one is not None]
    return " -> ".join(one for index, one in enumerate(told) if index == 0 or told[index - 1] != one)


def _batch(batch: Sizes) -> Iterator[str]:
    if batch.before is None or batch.after is None:
        yield "global batch not observed"
    elif _has_changed(batch):
        yield f"global batch {_change(batch)}"
    else:
        yield f"global batch {batch.before} throughout"


def _speed(summary: Summary) -> Iterator[str]:
    speeds = summary.throughput_per_second
    if speeds.before and speeds.after:
        change = f"{speeds.after / speeds.before - 1:+.0%}".replace("-", "\N{MINUS SIGN}")
        unit = summary.throughput_unit
        yield f"{unit} per second {speed_text(speeds.before)} -> {speed_text(speeds.after)} ({change})"
