"""How often each sample was used in the history that a job kept: twice, or never, within an epoch of its sampler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.contained import charge
from harness.analysis.resume.differences import is_complete, rows_in
from harness.analysis.resume.observed import Observed
from harness.analysis.resume.resumes import Resume
from mecefo_runtime.system.command_records import SamplerSeen, StepSeen
from mecefo_runtime.system.reason import Reason


@dataclass(frozen=True, slots=True)
class Samples:
    """Of all epochs that were seen: samples that were used once too often, and, of complete epochs, never.

    `size` is the number of samples of an epoch, over all ranks. None: not known, and `unknown` says why.
    """

    repeated: int | None = None
    missed: int | None = None
    size: int | None = None
    unknown: Reason | None = None
    why_not_missed: Reason | None = None


class _Undecided(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.reason = Reason(code)


def count_samples(main: Observed, attempts: Sequence[int], resumes: Sequence[Resume]) -> Samples:
    """Count for the main job, whose restarts are `resumes`.

    Without indices the content of a sample stands for it, where the same step had the same content twice, and no
    content came twice in an epoch before the first restart.
    """
    try:
        return _count(main, attempts, [one for one in resumes if one.against == "before"])
    except _Undecided as undecided:
        return Samples(unknown=undecided.reason)


def _count(main: Observed, attempts: Sequence[int], resumes: Sequence[Resume]) -> Samples:
    if not attempts:
        raise _Undecided("no_steps_seen")
    if any(one.aligned_by is None for one in resumes):
        raise _Undecided("not_aligned")
    if len({len(main.ranks(number)) for number in attempts}) > 1:
        raise _Undecided("world_size_changed")
    sampler = _sampler(main, attempts)
    ranks = main.ranks(attempts[0])
    history = _kept(main, attempts, resumes)
    first = {rank: dict(main.steps[attempts[0], rank]) for rank in ranks}
    by_index = all(seen.indices for steps in history.values() for seen in steps.values())
    if not by_index and not _is_content_stable(main, resumes):
        raise _Undecided("content_may_change")
    assert sampler.num_samples is not None
    size = sampler.num_samples - (sampler.drops or 0) + (sampler.padding or 0)
    groups: list[Sequence[int]] = [ranks] if sampler.is_shared else [[rank] for rank in ranks]
    repeated = missed = num_complete = 0
    for group in groups:
        if _is_unlike(first, group, size, by_index=by_index) or any(
            is_complete_epoch and _excess(used, sampler) < 0
            for used, is_complete_epoch in _epochs(first, group, size, by_index=by_index)
        ):
            raise _Undecided("epochs_of_other_length")
        if any(
            _excess(used, sampler if done else None) > 0
            for used, done in _epochs(first, group, size, by_index=by_index)
        ):
            raise _Undecided("repeats_by_itself")
        for used, is_complete_epoch in _epochs(history, group, size, by_index=by_index):
            repeated += max(0, _excess(used, sampler if is_complete_epoch else None))
            if is_complete_epoch:
                num_complete += 1
                missed += max(0, sampler.num_samples - len(used) - (sampler.drops or 0))
    return Samples(
        repeated=repeated,
        missed=missed if num_complete else None,
        size=sampler.num_samples * (1 if sampler.is_shared else len(ranks)),
        why_not_missed=None if num_complete else Reason("epoch_not_complete"),
    )


def _sampler(main: Observed, attempts: Sequence[int]) -> SamplerSeen:
    """That of all ranks and attempts.

    Raises:
        _Undecided: there is none, or it is not known what an epoch of it is.
    """
    seen = {
        (one.sampler, one.num_samples, one.is_shared, one.has_replacement, one.padding, one.drops)
        for (attempt, _), one in main.samplers.items()
        if attempt in attempts
    }
    if not seen:
        raise _Undecided("no_sampler")
    if len(seen) > 1:
        raise _Undecided("several_samplers")
    sampler = next(one for (attempt, _), one in main.samplers.items() if attempt in attempts)
    if sampler.has_replacement:
        raise _Undecided("with_replacement")
    if not sampler.num_samples or sampler.has_replacement is None or sampler.padding is None or sampler.drops is None:
        raise _Undecided("sampler_not_known")
    return sampler


def _kept(main: Observed, attempts: Sequence[int], resumes: Sequence[Resume]) -> Mapping[int, Mapping[int, StepSeen]]:
    """By rank and step the pass that the job kept: a restart discards what came after the step that it goes back to.

    Raises:
        _Undecided: a step in between was not seen, or not all of its batches.
    """
    found: dict[int, dict[int, StepSeen]] = {
        rank: dict(main.steps[attempts[0], rank]) for rank in main.ranks(attempts[0])
    }
    for resume in resumes:
        for rank, steps in found.items():
            for step in [step for step in steps if step > (resume.resumed_after or 0)]:
                del steps[step]
            steps.update(main.steps.get((resume.attempt, rank), {}))
    for steps in found.values():
        charge(len(steps))
        if steps and (min(steps) != 1 or len(steps) != max(steps)):
            raise _Undecided("steps_not_seen")
        if not all(map(is_complete, steps.values())):
            raise _Undecided("batches_not_seen")
    return found


def _is_content_stable(main: Observed, resumes: Sequence[Resume]) -> bool:
    """Whether the same step had the same content in two passes."""
    return any(
        "batches" in one.kinds and not any(other.kind in ("batches", "content") for other in one.differences)
        for one in resumes
    )


def _keys(seen: StepSeen, *, by_index: bool) -> list[list[Hashable]]:
    """The samples of each batch of a step."""
    if by_index:
        return [list(indices) for indices in seen.indices]
    rows, found, start = rows_in(seen), [], 0
    for text in seen.batches:
        number = len(text.rstrip("=")) * 3 // 4 // 8
        found.append(list(rows[start : start + number]))
        start += number
    return found  # type: ignore[return-value]


def _drawn(
    history: Mapping[int, Mapping[int, StepSeen]], group: Sequence[int], *, by_index: bool
) -> Iterator[Hashable]:
    """The samples in the order in which the ranks of `group` used them together."""
    for step in sorted(history[group[0]]):
        own = [_keys(history[rank][step], by_index=by_index) for rank in group if step in history[rank]]
        for number in range(max((len(batches) for batches in own), default=0)):
            for batches in own:
                if number < len(batches):
                    charge(len(batches[number]))
                    yield from batches[number]


def _epochs(
    history: Mapping[int, Mapping[int, StepSeen]], group: Sequence[int], size: int, *, by_index: bool
) -> Iterator[tuple[Counter[Hashable], bool]]:
    """How often each sample was used in each epoch of `size` draws, and whether the epoch is complete."""
    used: Counter[Hashable] = Counter()
    number = 0
    for sample in _drawn(history, group, by_index=by_index):
        used[sample] += 1
        number += 1
        if number == size:
            yield used, True
            used, number = Counter(), 0
    if number:
        yield used, False


def _excess(used: Counter[Hashable], sampler: SamplerSeen | None) -> int:
    """Number of repeated uses, without those that the sampler itself makes in a complete epoch."""
    return used.total() - len(used) - (0 if sampler is None else sampler.padding or 0)


def _is_unlike(first: Mapping[int, Mapping[int, StepSeen]], group: Sequence[int], size: int, *, by_index: bool) -> bool:
    """Whether the first attempt, which nothing had disturbed, began an epoch elsewhere than after `size` draws."""
    number = 0
    for step, seen in sorted(first[group[0]].items()):
        if seen.begins_epoch and number % size:
            return True
        if step > 1 and not seen.begins_epoch and number and number % size == 0:
            return True
        for rank in group:
            own = first[rank].get(step)
            number += 0 if own is None else sum(len(batch) for batch in _keys(own, by_index=by_index))
    return False
