"""How many ranks a command's job had, and how many samples they took in a step, before, during and after faults.

An elastic launcher starts the job again with fewer or more ranks. Where each rank keeps its own batch size, a
step is then of another number of samples: steps per second of the two are not comparable, samples per second are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from harness.analysis.command.attempts import Attempt, AttemptsOfProcesses
from harness.analysis.steps import WORK_UNITS, CommittedStep, Steps
from mecefo_runtime.system.command_records import StepSeen
from mecefo_runtime.system.record import Record

_ROW_BYTES = 8
"""Of the digest of a row; see `StepSeen.batches`."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A number before the first fault, the least one of the attempts after it, and that of the last attempt.

    None: not known. Without a fault there is no `during`.
    """

    before: int | None = None
    during: int | None = None
    after: int | None = None


def read_batches(main: Iterable[Record], attempts: Sequence[Attempt]) -> Mapping[int, int]:
    """By attempt: how many samples all ranks together took in most of its steps, of those that every rank showed.

    Samples are the rows that the model is called with. Ranks that are called with the same ones (tensor parallelism)
    count once.
    """
    sizes = {one.number: one.world_size for one in attempts}
    if not sizes:
        return {}
    belongs = AttemptsOfProcesses(main)
    # By attempt and step, each rank's batches.
    seen: dict[int, dict[int, dict[int, tuple[str, ...]]]] = {}
    for record in main:
        if isinstance(record, StepSeen) and record.batches and record.step is not None and record.rank is not None:
            number = belongs.of(record.pid, record.monotonic_seconds)
            if number in sizes:
                seen.setdefault(number, {}).setdefault(record.step, {})[record.rank] = record.batches
    found: dict[int, int] = {}
    for number, steps in seen.items():
        whole = [set(ranks.values()) for ranks in steps.values() if len(ranks) == sizes[number]]
        counted = Counter(sum(num_rows(batches) for batches in different) for different in whole)
        usual = [(times, rows) for rows, times in counted.items() if rows]
        if usual:
            found[number] = max(usual)[1]
    return found


def num_rows(batches: Iterable[str]) -> int:
    """How many rows the digests of `StepSeen.batches` are of, by the length of their base64."""
    return sum((len(batch) // 4 * 3 - batch.count("=")) // _ROW_BYTES for batch in batches)


def weighed(steps: Steps, batches: Mapping[int, int], *, always: bool = False) -> Steps:
    """The same with the samples of each step as its work, where steps alone are not comparable.

    So it is where the script shows neither tokens nor samples, and the attempts have different batches, all known; with
    `always` also where they have the same.
    """
    if not _can_be_weighed(steps, batches, 1 if always else 2):
        return steps

    def weigh(some: Sequence[CommittedStep]) -> tuple[CommittedStep, ...]:
        return tuple(replace(step, work=float(batches[step.epoch])) for step in some)

    return Steps(weigh(steps.first), weigh(steps.redone), WORK_UNITS[1], steps.cuts)


def _can_be_weighed(steps: Steps, batches: Mapping[int, int], num_sizes: int) -> bool:
    """Whether the job counts steps, and those of its attempts are known to be of that many sizes or more."""
    if steps.unit != WORK_UNITS[2] or len(set(batches.values())) < num_sizes:
        return False
    epochs = {step.epoch for step in steps.every}
    return epochs <= batches.keys() and len({batches[epoch] for epoch in epochs}) >= num_sizes


def steps_may_differ(steps: Steps, attempts: Sequence[Attempt], batches: Mapping[int, int]) -> bool:
    """Whether the job counts steps, and it is not known whether those of all attempts are of as many samples.

    With another number of ranks they may be of more or fewer.
    """
    if steps.unit != WORK_UNITS[2]:
        return False
    trained = [one for one in attempts if one.last_step is not None]
    sizes = {one.world_size for one in trained}
    return len(sizes) > 1 and not all(one.number in batches for one in trained)


def read_sizes(of_attempts: Sequence[tuple[float, int | None]], first_injected: float | None) -> Sizes:
    """`of_attempts`: when each attempt began, and its number of ranks or samples."""
    if not of_attempts:
        return Sizes()
    until = inf if first_injected is None else first_injected
    before = [size for began, size in of_attempts if began <= until]
    later = [size for began, size in of_attempts if began > until]
    first = before[-1] if before and first_injected is not None else of_attempts[0][1]
    return Sizes(
        before=first,
        # Without a later attempt the number of ranks stays.
        during=None if first_injected is None else _least(later or before[-1:]),
        after=of_attempts[-1][1],
    )


def _least(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return min(known) if known and len(known) == len(sizes) else None
