"""Each restart of a command: where it continues, and how its training differs from the one before.

Two comparisons, without a second run (design: a *repeated step* is one that two attempts took):

- steps: the last pass of each step against the newest pass before it, rank by rank;
- states: what was saved against what the ranks have before their first step.

Losses and parameters after a step say that something differs, not what; they are judged only where two undisturbed
passes of a step agreed (this run and its baseline before the fault, or two starts from one checkpoint).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, isfinite

from harness.analysis.contained import charge
from harness.analysis.resume.differences import (
    FOLLOWS,
    Compared,
    Difference,
    History,
    Kind,
    compare_states,
    compare_steps,
)
from harness.analysis.resume.observed import Observed
from mecefo_runtime.system.command_records import CheckpointBegun, StepSeen
from mecefo_runtime.system.reason import Reason

Passes = dict[int, dict[int, tuple[StepSeen, int]]]
"""By rank and step the newest pass of the attempts before, and which attempt's it is."""
# So many steps must have been taken twice, undisturbed, before their agreement says anything.
MIN_STEPS_OF_PAIR = 3
# Two undisturbed passes whose losses differ by more than this do not agree.
MAX_SPREAD = 1e-3
# Their spread is that of few steps.
_SPREAD_FACTOR = 4.0
# Why the batches of steps that were taken twice are not compared.
_OPEN = frozenset({"batches_not_seen", "content_may_change"})


@dataclass(frozen=True, slots=True)
class Resume:
    """One restart: attempt `attempt` continues after the step `resumed_after`; `against` says what it is compared with.

    `aligned_by` is how that step is known: `parameters`, or `checkpoint` (the one that was loaded); None: nothing is
    compared, and `unknown` says why. `steps` is the number of steps that were compared, `kinds` what was compared, and
    `unobserved` why something was not. `differences` has the judged ones first.
    """

    attempt: int
    resumed_after: int | None = None
    against: str = "before"
    aligned_by: str | None = None
    unknown: Reason | None = None
    steps: int = 0
    kinds: tuple[Kind, ...] = ()
    unobserved: tuple[Reason, ...] = ()
    differences: tuple[Difference, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether a change may have been missed: nothing was compared, or not the batches of steps taken twice."""
        return not self.kinds or any(one.code in _OPEN for one in self.unobserved)

    @property
    def judged(self) -> tuple[Difference, ...]:
        """The differences that make another training."""
        return tuple(one for one in self.differences if one.is_judged)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """By how much losses and parameters of two undisturbed passes differed; None: there was no such pair."""

    loss: float | None = None
    parameters_agree: bool | None = None


@dataclass(slots=True)
class Pair:
    """Two undisturbed passes."""

    losses: list[float] = field(default_factory=list)
    sums: list[bool] = field(default_factory=list)

    def add(
        self, one: Observed, other: Observed, pairs: Iterable[tuple[tuple[int, int], tuple[int, int], int]]
    ) -> None:
        """Look at the steps (place in `one`, place in `other`, step)."""
        for place, second, step in pairs:
            charge()
            first, last = one.steps.get(place, {}).get(step), other.steps.get(second, {}).get(step)
            if first is not None and last is not None and first.loss is not None and last.loss is not None:
                self.losses.append(_deviation(first.loss, last.loss))
            a, b = one.sums.get(place, {}).get(step), other.sums.get(second, {}).get(step)
            if a is not None and b is not None:
                self.sums.append(a.sums == b.sums)

    @property
    def tolerance(self) -> Tolerance:
        """What they show."""
        worst = max(self.losses, default=inf)
        is_enough = len(self.losses) >= MIN_STEPS_OF_PAIR and worst <= MAX_SPREAD
        return Tolerance(
            loss=_SPREAD_FACTOR * worst if is_enough else None,
            parameters_agree=all(self.sums) if len(self.sums) >= MIN_STEPS_OF_PAIR else None,
        )


def read_resumes(
    main: Observed, attempts: Sequence[int], baseline: Observed | None, first_fault_seconds: float | None
) -> tuple[Resume, ...]:
    """One for each restart that came to a step, and one for the whole run against its fault-free baseline.

    `attempts` are the numbers of those of the main job that took steps, in their order.
    """
    pair = _undisturbed(main, attempts, baseline, first_fault_seconds)
    found: list[Resume] = []
    passes: Passes = {}
    for index, attempt in enumerate(attempts):
        if index:
            found.append(_resume(main, attempts[:index], attempt, passes, pair))
        _add_passes(main, attempt, passes)
    if baseline is not None and baseline.steps and attempts and first_fault_seconds is not None:
        found.append(_against_baseline(main, attempts[-1], passes, baseline, first_fault_seconds, pair))
    return tuple(found)


def _undisturbed(
    main: Observed, attempts: Sequence[int], baseline: Observed | None, first_fault_seconds: float | None
) -> Tolerance:
    pair = Pair()
    if baseline is not None and baseline.attempts and first_fault_seconds is not None:
        twin = baseline.attempts[0]
        for (attempt, rank), steps in main.steps.items():
            own = [step for step, seen in steps.items() if seen.monotonic_seconds < first_fault_seconds]
            pair.add(main, baseline, (((attempt, rank), (twin, rank), step) for step in own))
    # Starts from one checkpoint.
    by_step: dict[int, list[int]] = {}
    for attempt in attempts[1:]:
        after, _, _ = _place(main, attempts, attempt)
        if after is not None:
            by_step.setdefault(after, []).append(attempt)
    for after, some in by_step.items():
        for one, other in pairwise(some):
            for rank in main.ranks(one):
                common = main.steps[one, rank].keys() & main.steps.get((other, rank), {}).keys()
                own = [step for step in common if step > after]
                pair.add(main, main, (((one, rank), (other, rank), step) for step in own))
    return pair.tolerance


def _place(main: Observed, attempts: Sequence[int], attempt: int) -> tuple[int | None, str | None, Reason | None]:
    """After which step an attempt continues, how that is known, and why it is not."""
    ranks = [rank for rank in main.ranks(attempt) if (attempt, rank) in main.entered]
    if not ranks:
        return None, None, Reason("not_entered")
    by_parameters = {main.entered[attempt, rank].step for rank in ranks}
    counted = {one.resumed_after for rank in ranks if (one := main.counted.get((attempt, rank))) is not None} - {None}
    if by_parameters and None not in by_parameters:
        if len(by_parameters) > 1:
            return None, None, Reason("ranks_apart", steps=sorted(step for step in by_parameters if step is not None))
        return next(iter(by_parameters)), "parameters", None
    loaded = main.step_loaded(attempt)
    if loaded is not None and (not counted or counted == {loaded}):
        return loaded, "checkpoint", None
    return None, None, Reason("not_aligned")


def _resume(main: Observed, earlier: Sequence[int], attempt: int, passes: Passes, pair: Tolerance) -> Resume:
    after, aligned_by, unknown = _place(main, earlier, attempt)
    if after is None or aligned_by is None:
        return Resume(attempt, unknown=unknown)
    compared, unobserved = Compared(), []
    sizes = _sizes(main, (*earlier[-1:], attempt))
    is_resized = len(sizes) > 1
    if is_resized:
        unobserved.append(Reason("world_size_changed", sizes=sorted(sizes)))
    if after and not is_resized:
        _compare_states(main, earlier, attempt, after, compared)
    history = History(
        [seen for steps in passes.values() for seen, _ in steps.values()],
        [
            (steps[step][0], seen)
            for rank, steps in passes.items()
            for step, seen in main.steps.get((attempt, rank), {}).items()
            if step > after and step in steps
        ],
    )
    for rank in main.ranks(attempt):
        own, groups = main.steps[attempt, rank], main.groups(attempt, rank)
        for step in sorted(own):
            known = passes.get(rank, {}).get(step)
            if known is None or step <= after:
                continue
            charge(len(own[step].batches) + 4)
            seen, from_attempt = known
            settings = main.groups(from_attempt, rank).get(step, ""), groups.get(step, "")
            is_like = not is_resized and len(_sizes(main, (from_attempt, attempt))) < 2
            compare_steps(rank, seen, own[step], settings, history if is_like else None, compared)
            if not is_like:
                continue
            _compare_results(main, (from_attempt, rank), main, (attempt, rank), step, pair, compared)
    if compared.steps and not is_resized:
        unobserved += _batches_not_compared(compared)
    return Resume(
        attempt,
        after,
        aligned_by=aligned_by,
        steps=len(compared.steps),
        kinds=tuple(sorted(compared.kinds)),
        unobserved=tuple(unobserved),
        differences=compared.differences(),
    )


def _batches_not_compared(compared: Compared) -> list[Reason]:
    contents = compared.found.get(("content", False), [])
    if any(one.after is None for one in contents):
        return [Reason("content_may_change")]
    return [] if "batches" in compared.kinds else [Reason("batches_not_seen")]


def _sizes(main: Observed, attempts: Iterable[int]) -> set[int]:
    """The numbers of ranks of these attempts, as far as they are known."""
    return {size for number in attempts if (size := main.world_sizes.get(number)) is not None}


def _add_passes(main: Observed, attempt: int, passes: Passes) -> None:
    """The passes of an attempt take the place of those before."""
    for rank in main.ranks(attempt):
        own = main.steps[attempt, rank]
        charge(len(own))
        passes.setdefault(rank, {}).update({step: (seen, attempt) for step, seen in own.items()})


def _compare_states(main: Observed, earlier: Sequence[int], attempt: int, after: int, into: Compared) -> None:
    saved: dict[int, CheckpointBegun] = {}
    replicated = _replicated(main, earlier)
    for number in earlier:
        for (of_attempt, rank), saves in main.saves.items():
            if of_attempt == number:
                newest = [one for one in saves if one.step == after and one.parameters]
                if newest:
                    saved[rank] = newest[-1]
    for rank in main.ranks(attempt):
        entered = main.entered.get((attempt, rank))
        if entered is not None and saved:
            compare_states(rank, saved.get(rank), saved.values(), entered, after + 1, into, replicated)


def _replicated(main: Observed, earlier: Sequence[int]) -> frozenset[Kind]:
    """What all ranks were seen to hold alike before: the state of one of them then stands for that of the others."""
    found: set[Kind] = {"optimizer_steps", "scaler"}
    for attempt in earlier:
        ranks = main.ranks(attempt)
        entered = {one.parameters for rank in ranks if (one := main.entered.get((attempt, rank))) is not None}
        if len(ranks) > 1 and len(entered) == 1 and "" not in entered:
            found.add("parameters")
        sums = [main.sums.get((attempt, rank), {}) for rank in ranks]
        common = set.intersection(*map(set, sums)) if len(sums) > 1 else set()
        charge(len(common))
        if common and all(len({own[step].sums for own in sums}) == 1 for step in common):
            found |= {"parameters", "optimizer"}
    return frozenset(found)


def _compare_results(
    one: Observed,
    place: tuple[int, int],
    other: Observed,
    second: tuple[int, int],
    step: int,
    pair: Tolerance,
    into: Compared,
) -> None:
    """Losses and parameters of two passes of a step."""
    before, after = one.steps[place][step], other.steps[second][step]
    if before.loss is not None and after.loss is not None:
        limit = 0.0 if pair.loss is None else pair.loss
        is_same = _deviation(before.loss, after.loss) <= limit
        into.saw(
            "loss",
            None
            if is_same
            else Difference(
                "loss", step, (second[1],), is_judged=pair.loss is not None, before=before.loss, after=after.loss
            ),
        )
    a, b = one.sums.get(place, {}).get(step), other.sums.get(second, {}).get(step)
    if a is not None and b is not None:
        is_judged = pair.parameters_agree is True
        into.saw(
            "parameters",
            None if a.sums == b.sums else Difference("parameters", step, (second[1],), is_judged=is_judged),
        )


def _against_baseline(
    main: Observed, last_attempt: int, passes: Passes, baseline: Observed, first_fault_seconds: float, pair: Tolerance
) -> Resume:
    """The steps after the first fault, in their last pass, against those of the baseline."""
    twin = baseline.attempts[0]
    compared, undisturbed, unobserved = Compared(), Compared(), []
    history = History(
        [seen for rank in baseline.ranks(twin) for seen in baseline.steps[twin, rank].values()],
        [
            (theirs, steps[step][0])
            for rank, steps in passes.items()
            for step, theirs in baseline.steps.get((twin, rank), {}).items()
            if step in steps
        ],
    )
    if set(passes) != set(baseline.ranks(twin)):
        unobserved.append(Reason("world_size_changed", sizes=[len(baseline.ranks(twin)), len(passes)]))
        passes = {}
    for rank, steps in passes.items():
        theirs, groups = baseline.steps[twin, rank], baseline.groups(twin, rank)
        for step in sorted(steps.keys() & theirs.keys()):
            seen, attempt = steps[step]
            into = undisturbed if seen.monotonic_seconds < first_fault_seconds else compared
            charge(len(seen.batches) + 4)
            settings = groups.get(step, ""), main.groups(attempt, rank).get(step, "")
            compare_steps(rank, theirs[step], seen, settings, history, into)
            _compare_results(baseline, (twin, rank), main, (attempt, rank), step, pair, into)
    # A script without a fixed seed differs from itself: that is no effect of the fault.
    agreed = undisturbed.kinds - {kind for kind, judged in undisturbed.found if judged or kind in FOLLOWS}
    kinds = compared.kinds & agreed
    unlike = sorted(kind for kind, _ in compared.found if kind not in agreed)
    if unlike:
        unobserved.append(Reason("undisturbed_differ", kinds=unlike))
    nothing = Reason("undisturbed_differ" if compared.steps else "no_common_steps")
    return Resume(
        last_attempt,
        against="baseline",
        aligned_by="step",
        unknown=None if kinds else nothing,
        steps=len(compared.steps),
        kinds=tuple(sorted(kinds)),
        unobserved=tuple(unobserved),
        differences=tuple(
            replace(one, is_judged=one.is_judged and one.kind in agreed) for one in compared.differences()
        ),
    )


def _deviation(before: float, after: float) -> float:
    if before == after or (before != before and after != after):
        return 0.0
    if not (isfinite(before) and isfinite(after)):
        return inf
    return abs(after - before) / max(abs(before), 1e-12)
