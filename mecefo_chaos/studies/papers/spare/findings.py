"""The paper's claims, each with our finding and the verdict, which follows from the figures; and open questions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from mecefo_chaos.studies.papers.rules import (
    NOT_CHECKED,
    UNDECIDED,
    Measured,
    at_most,
    every,
    figures_of,
    less_than,
    mean_and_worst_at_most,
    within,
)
from mecefo_chaos.studies.papers.spare.claims import (
    CLAIMS,
    CONTROLLER_SECONDS,
    DEPTH_ERROR_RATIO,
    DEPTH_SIMULATED_ERROR_RATIO,
    ENDURANCE_ERROR_RATIO,
    GAIN_RATIOS,
    REPORTED_APART,
    SIZES,
    Scheme,
)
from mecefo_chaos.studies.papers.spare.closed_forms import best_redundancy, endured, mean_depth
from mecefo_chaos.studies.papers.spare.endurance import Endurance
from mecefo_chaos.studies.papers.spare.gates import MAX_ERROR_RATIOS, row_verdict
from mecefo_chaos.studies.papers.spare.tables import ClaimRow, CurvePoint, Sensitivity, best_point
from mecefo_chaos.studies.papers.verdicts import Finding, Open, Verdict
from mecefo_chaos.studies.papers.views import measured_text
from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.stacks.rectlr import original_stacks, reorder

_SUMMARY = "a summary; the text was not at hand"
_TABLE = "the authors' table"
# This check's own: times no further apart count as the same.
_SAME_RATIO = 0.02
# Points that a gain may be outside of what is claimed: the authors' own rows are outside by as much.
_GAIN_MARGIN = 0.02
_NUM_REORDERINGS = 15
_BOTH = "it holds as a mean and as the worst, since our summaries do not say which it is"


@dataclass(frozen=True, slots=True)
class Beyond:
    """A cell that is beyond the limit of its claim."""

    claim: str
    cell: str
    error: Measured
    limit: float


def findings(
    cases: Sequence[Endurance],
    rows: Sequence[ClaimRow],
    points: Sequence[CurvePoint],
    sensitive: Sequence[Sensitivity],
    controller: Measured | None,
) -> tuple[Finding, ...]:
    """All of them, with the source of each claim; `controller` are the seconds of one reordering."""
    return (
        *_of_closed_forms(cases),
        _of_simulated_depth(points),
        _of_best(points),
        _of_best_replication(points),
        _of_period(sensitive),
        *map(_of_row, rows),
        _of_other_rows(points),
        _of_recomputations(rows),
        *_of_gain(sensitive),
        _of_controller(controller),
    )


def beyond(cases: Sequence[Endurance], rows: Sequence[ClaimRow], points: Sequence[CurvePoint]) -> tuple[Beyond, ...]:
    """Every cell that is beyond the limit of its claim, in its median or in a seed."""
    found = [
        Beyond(name, f"N={case.num_groups} r={case.redundancy}", error, limit)
        for name, limit, attribute in (
            ("failures endured", ENDURANCE_ERROR_RATIO, "error_ratio"),
            ("mean depth, drawn", DEPTH_ERROR_RATIO, "depth_error_ratio"),
        )
        for case in cases
        if (error := Measured.of([getattr(case, attribute)])) is not None
    ]
    found += [
        Beyond("mean depth, simulated", cell, error, DEPTH_SIMULATED_ERROR_RATIO)
        for cell, error in _depth_errors(points).items()
    ]
    found += [
        Beyond(f"{name}, {row.claim.scheme}", f"N={row.claim.num_groups} r={row.claim.redundancy}", error, limit)
        for row in rows
        for limit in (MAX_ERROR_RATIOS[row.claim.scheme],)
        for name, error in row.errors().items()
        if error is not None
    ]
    return tuple(one for one in found if max(-one.error.least, one.error.greatest) > one.limit)


def _of_closed_forms(cases: Sequence[Endurance]) -> Iterator[Finding]:
    for claim, limit, errors in (
        (
            "failures endured before a wipe-out: Gamma(1/r)/r N^(1-1/r)",
            ENDURANCE_ERROR_RATIO,
            {(case.num_groups, case.redundancy): case.error_ratio for case in cases},
        ),
        (
            "mean depth of a step: the mean of ceil(N/(N-k))",
            DEPTH_ERROR_RATIO,
            {(case.num_groups, case.redundancy): case.depth_error_ratio for case in cases},
        ),
    ):
        sizes = [abs(error) for error in errors.values()]
        worst = max(errors, key=lambda cell: abs(errors[cell]), default=(0, 0))
        by_size = {
            f"N={size}": [abs(error) for (num_groups, _), error in errors.items() if num_groups == size]
            for size in dict.fromkeys(num_groups for num_groups, _ in errors)
        }
        yield Finding(
            claim,
            f"within {limit:.2%} of Monte-Carlo ({_SUMMARY})",
            f"absolute error {fmean(sizes):.2%} in the mean over {len(sizes)} pairs of N and r ("
            + ", ".join(f"{name}: {fmean(some):.2%}" for name, some in by_size.items())
            + f"), at worst {errors[worst]:+.1%} at N={worst[0]} r={worst[1]}; "
            f"{sum(size > limit for size in sizes)} pairs are beyond {limit:.2%}"
            if sizes
            else "not drawn",
            mean_and_worst_at_most(sizes, limit),
            "of which pairs the paper's figure is, our summaries do not say",
            _BOTH,
            figures_of({name: Measured.of(some) for name, some in by_size.items()}),
        )


def _depth_errors(points: Sequence[CurvePoint]) -> dict[str, Measured]:
    """The closed form's error by cell, of every seed."""
    found = {}
    for point in points:
        closed = mean_depth(point.num_groups, endured(point.num_groups, point.redundancy))
        error = Measured.of(closed / depth - 1 for depth in point.depths)
        if point.scheme == "spare" and error is not None:
            found[f"N={point.num_groups} r={point.redundancy}"] = error
    return found


def _of_simulated_depth(points: Sequence[CurvePoint]) -> Finding:
    errors = _depth_errors(points)
    limit = DEPTH_SIMULATED_ERROR_RATIO
    sizes = [abs(error.median) for error in errors.values()]
    worst = max(errors, key=lambda cell: abs(errors[cell].median), default="")
    verdict = mean_and_worst_at_most(sizes, limit)
    return Finding(
        "the mean depth holds in the simulation",
        f"within {limit:.0%} ({_SUMMARY})",
        f"{fmean(sizes):.1%} apart in the mean over {len(sizes)} pairs of N and r, at worst "
        f"{measured_text(errors[worst], '+.1%')} at {worst}; {sum(size > limit for size in sizes)} pairs are beyond "
        f"{limit:.0%}"
        if sizes
        else _NOT_SIMULATED,
        verdict if all(error.has_range for error in errors.values()) or not sizes else UNDECIDED,
        "layers of a step, without patch compute: how the paper counts that, our summaries do not say. The closed "
        "form counts every number of failures alike, but the more groups are lost, the longer it takes until the next",
        _BOTH,
        figures_of(errors),
    )


_NOT_SIMULATED = "not simulated: --simulate 3 makes it"


def _of_best(points: Sequence[CurvePoint]) -> Finding:
    """The closed form's number of copies against the best one here, of the same seeds."""
    cells: dict[str, Measured | None] = {}
    best_here = []
    for num_groups in SIZES:
        best = best_point(points, "spare", num_groups)
        closed = _point(points, "spare", num_groups, best_redundancy(num_groups))
        if best is not None:
            best_here.append(f"{best.redundancy}")
        cells[f"N={num_groups}"] = None if best is None or closed is None else _longer(closed.times, best.times)
    theory = ", ".join(f"{best_redundancy(num_groups)}" for num_groups in SIZES)
    seen = ", ".join(f"{claim.redundancy}" for claim in CLAIMS if claim.scheme == "spare" and claim.availability_ratio)
    return Finding(
        f"floor(log2 N + 0.833) copies take within {_SAME_RATIO:.0%} of the least time to train",
        f"{theory} are best for N of 200, 600, 1,000; {seen} in its simulation ({_SUMMARY})",
        f"{', '.join(best_here)} are best here; the closed form's take longer by "
        + ", ".join(f"{measured_text(one, '+.1%')} at {name}" for name, one in cells.items())
        if best_here
        else _NOT_SIMULATED,
        every(at_most(one, _SAME_RATIO) for one in cells.values()),
        f"the minimum is flat, so that the best number itself is not decided by {_num_seeds(points)} seeds; "
        f"{_SAME_RATIO:.0%} is this check's own limit",
        f"at every N the closed form's number takes at most {_SAME_RATIO:.0%} longer than the best, in every seed",
        figures_of(cells),
    )


def _point(points: Sequence[CurvePoint], scheme: Scheme, num_groups: int, redundancy: int) -> CurvePoint | None:
    key = (scheme, num_groups, redundancy)
    return next((one for one in points if (one.scheme, one.num_groups, one.redundancy) == key), None)


def _num_seeds(points: Sequence[CurvePoint]) -> int:
    return min((len(point.times) for point in points), default=0)


def _longer(ones: Sequence[float], others: Sequence[float]) -> Measured | None:
    """By how much longer the ones take, of the same seeds."""
    return Measured.of(one / other - 1 for one, other in zip(ones, others, strict=False))


def _of_best_replication(points: Sequence[CurvePoint]) -> Finding:
    cells: dict[str, Measured | None] = {}
    verdicts: list[Verdict] = []
    best_here = []
    for num_groups in SIZES:
        mine = [one for one in points if (one.scheme, one.num_groups) == ("replication", num_groups)]
        three = _point(points, "replication", num_groups, 3)
        best = best_point(points, "replication", num_groups)
        if best is None:
            verdicts.append(NOT_CHECKED)
            continue
        others = [one for one in mine if one.redundancy != best.redundancy]
        # The one that decides: its least time is the nearest.
        second = min(others, key=lambda one: min(one.times), default=None)
        best_here.append(
            f"N={num_groups}: r={best.redundancy} {measured_text(Measured.of(best.times), '.2f')}"
            + ("" if second is None else f", r={second.redundancy} {measured_text(Measured.of(second.times), '.2f')}")
        )
        for one in mine:
            cells[f"N={num_groups} r={one.redundancy}"] = Measured.of(one.times)
            if one.redundancy != 3:
                verdicts.append(less_than(None if three is None else Measured.of(three.times), Measured.of(one.times)))
    return Finding(
        "the best redundancy of replication is 3",
        f"3 ({_SUMMARY})",
        f"the best and the nearest other number: {'; '.join(best_here)}" if best_here else _NOT_SIMULATED,
        every(verdicts),
        f"simulated from 2 to 6 copies, {_num_seeds(points)} seeds each; each copy more costs a layer in every step",
        "at every N all seeds with 3 copies take less time than all seeds with any other number",
        figures_of(cells),
    )


def _of_period(sensitive: Sequence[Sensitivity]) -> Finding:
    """Against saving twice and half as often; no other period is simulated."""
    by_assumed = {(one.assumed, one.num_groups): one for one in sensitive}
    cells: dict[str, Measured | None] = {}
    for num_groups in SIZES:
        for factor in ("0.5", "2"):
            ours = by_assumed.get(("", num_groups))
            other = by_assumed.get((f"period_factor={factor}", num_groups))
            for name in ("spare", "replication"):
                cells[f"{name}, N={num_groups}, {factor} Tc*"] = (
                    None
                    if ours is None or other is None
                    else _longer(getattr(other, f"{name}_times"), getattr(ours, f"{name}_times"))
                )
    known = {name: one for name, one in cells.items() if one is not None}
    least = min(known, key=lambda name: known[name].least, default="")
    return Finding(
        "saving every Tc* = Ts + sqrt(Ts^2 + 2 Ts (Tf + Tr)) takes no longer than saving twice or half as often, "
        f"within {_SAME_RATIO:.0%}",
        f"it is best ({_SUMMARY})",
        f"the other period takes longer in every seed in {sum(one.least > 0 for one in known.values())} of "
        f"{len(cells)} cells; least: {measured_text(known[least], '+.1%')} at {least}"
        if known
        else _NOT_SIMULATED,
        every(_not_much_less(one) for one in cells.values()),
        "whether Tc* is the best of all periods is not checked. Where another does as well, wipe-outs are rarer than "
        "the closed form has it, or so many that saves hardly count",
        f"in every cell and every seed the other period takes no more than {_SAME_RATIO:.0%} less time",
        figures_of(cells),
    )


def _not_much_less(longer: Measured | None) -> Verdict:
    if longer is None:
        return NOT_CHECKED
    return at_most(Measured(-longer.median, -longer.greatest, -longer.least, longer.n), _SAME_RATIO)


def _of_row(row: ClaimRow) -> Finding:
    claim, limit = row.claim, MAX_ERROR_RATIOS[row.claim.scheme]
    has_availability = claim.availability_ratio is not None
    theirs = f"{claim.time_ratio:.2f}" + (f", {claim.availability_ratio:.1%}" if has_availability else "")
    ours = measured_text(row.time_ratio, ".2f")
    if has_availability:
        ours += f", {measured_text(row.availability_ratio, '.1%')}"
    errors = "; ".join(f"{name} {measured_text(one, '+.1%')}" for name, one in row.errors().items())
    return Finding(
        f"time to train{' and availability' if has_availability else ''}, {claim.words}",
        f"{theirs} ({_TABLE})",
        f"{ours}; apart: {errors}" if row.num_seeds else _NOT_SIMULATED,
        row_verdict(row),
        "the reading of the simulation was chosen by its fit to these rows, so that this is no independent test; the "
        "limit is this check's own",
        f"every seed is within {limit:.0%} of the authors' figure",
        figures_of(row.errors()),
    )


def _of_other_rows(points: Sequence[CurvePoint]) -> Finding:
    known = {(claim.scheme, claim.num_groups, claim.redundancy) for claim in CLAIMS}
    others = [one for one in points if (one.scheme, one.num_groups, one.redundancy) not in known]
    reported = ", ".join(f"{cell} by {low:.0%} to {high:.0%}" for cell, low, high in REPORTED_APART)
    return Finding(
        "the authors' other rows",
        "not at hand",
        f"{len(others)} more cells are simulated and not compared",
        NOT_CHECKED,
        f"a reader who has forty of the authors' rows reports as apart: {reported}",
    )


def _of_recomputations(rows: Sequence[ClaimRow]) -> Finding:
    best = [row for row in rows if row.claim.scheme == "spare" and row.claim.availability_ratio is not None]
    return Finding(
        "how often shards are computed again",
        "not at hand",
        "patches in a job: "
        + ", ".join(
            f"{measured_text(row.num_patches, '.0f')} at N={row.claim.num_groups} r={row.claim.redundancy}"
            for row in best
        ),
        NOT_CHECKED,
        "a patch is one more layer after failures are seen in a step, for all shards that are missing then; the "
        "authors' recomputations are another count, so that the two are not compared",
    )


def _of_gain(sensitive: Sequence[Sensitivity]) -> Iterator[Finding]:
    low, high = GAIN_RATIOS
    for assumed, words in (
        ("", "the default reading: each group restarts by itself, and again when it fails meanwhile"),
        ("recovery=absorb", "failures during a restart have no effect"),
        ("recovery=global_restart", "any failure during a restart begins it again for all"),
    ):
        mine = {f"N={one.num_groups}": one for one in sensitive if one.assumed == assumed}
        cells = {name: one.gain for name, one in mine.items()}
        is_simulated = any(one.spare_times or not one.spare_is_over for one in mine.values())
        verdicts = [
            UNDECIDED if one is None and is_simulated else within(one, low - _GAIN_MARGIN, high + _GAIN_MARGIN)
            for one in cells.values()
        ]
        yield Finding(
            f"SPARe takes {low:.0%} to {high:.0%} less time than replication; {words}",
            f"{low:.0%} to {high:.0%} (abstract); {_claimed_gains()} in {_TABLE}",
            ", ".join(f"{name}: {_gain(one)}" for name, one in mine.items()) if is_simulated else _NOT_SIMULATED,
            every(verdicts),
            _why(assumed, cells, sensitive),
            f"at every N all seeds are within {low:.0%} to {high:.0%}, or {_GAIN_MARGIN * 100:.0f} points outside of "
            "it, as the authors' own rows are",
            figures_of(cells),
        )


def _claimed_gains() -> str:
    times = {(claim.scheme, claim.num_groups): claim.time_ratio for claim in CLAIMS if claim.availability_ratio}
    gains = (1 - times["spare", size] / times["replication", size] for size in SIZES)
    return ", ".join(f"{gain:.1%}" for gain in gains)


def _gain(one: Sensitivity) -> str:
    if one.gain is None:
        return "neither comes to an end" if not one.spare_is_over and not one.replication_is_over else "-"
    return (
        f"{measured_text(one.gain, '.1%')}, {measured_text(Measured.of(one.spare_times), '.2f')} against "
        f"{measured_text(Measured.of(one.replication_times), '.2f')}"
    )


def _why(assumed: str, cells: Mapping[str, Measured | None], sensitive: Sequence[Sensitivity]) -> str:
    if assumed == "recovery=absorb":
        return "a restart takes 3,600 s then, and not the time until the last of all groups has had 3,600 s without one"
    if assumed == "recovery=global_restart":
        return "a failure every 300 s leaves hardly any 3,600 s without one; given up at a hundred times the time"
    absorbed = {f"N={one.num_groups}": one.gain_ratio for one in sensitive if one.assumed == "recovery=absorb"}
    less = [
        one.median - other
        for name, one in cells.items()
        if one is not None and (other := absorbed.get(name)) is not None
    ]
    if not less:
        return "what depends on the recovery was not simulated"
    return (
        f"this reading of the recovery was chosen by its fit to the authors' rows; {min(less) * 100:.0f} to "
        f"{max(less) * 100:.0f} points of the gain depend on it: see the next two"
    )


def controller_seconds() -> Measured | None:
    """Seconds in which the runtime's controller reorders 1,000 groups after the loss of a third of them."""
    num_groups, redundancy = SIZES[-1], best_redundancy(SIZES[-1])
    stacks = original_stacks(Placement.of(num_groups, redundancy))
    generator = np.random.default_rng(1)
    taken = []
    for _ in range(_NUM_REORDERINGS):
        alive = np.ones(num_groups, dtype=np.bool_)
        alive[generator.choice(num_groups, num_groups // 3, replace=False)] = False
        begun = time.perf_counter()
        reorder(stacks, alive)
        taken.append(time.perf_counter() - begun)
    return Measured.of(taken)


def _of_controller(taken: Measured | None) -> Finding:
    return Finding(
        f"the controller takes at most {CONTROLLER_SECONDS:g} s for about 1,000 groups",
        f"under {CONTROLLER_SECONDS:g} s ({_SUMMARY})",
        f"{measured_text(taken, '.1f', 1000)} ms for N={SIZES[-1]} r={best_redundancy(SIZES[-1])}, a third of "
        "the groups lost at once",
        at_most(taken, CONTROLLER_SECONDS),
        "the runtime's own, measured just now on this machine; other losses: `python -m benchmarks.rectlr`",
        f"it takes at most {CONTROLLER_SECONDS:g} s every time",
        figures_of({"controller, seconds": taken}),
    )


OPEN: tuple[Open, ...] = (
    Open(
        "what a restart of 600,000 GPUs is: whether groups restart one by one, and what a failure meanwhile means",
        "logs of restarts at that scale; the gain depends on it: see the claims",
    ),
    Open(
        "whether the errors that the paper gives are means or the worst, and of which pairs of N and r",
        "its full text",
    ),
    Open(
        "the authors' rows beyond the ten that are compared, and how they count recomputations",
        "their results",
    ),
    Open(
        "what it costs to hold r shards of data a group, and to load them",
        "a run on real storage; the paper's simulation and this one take it to be free",
    ),
    Open(
        "failures that come together: racks, switches, bad batches",
        "a failure log; here each group has a clock of its own, as in the paper",
    ),
    Open(
        "the paper's own semantics where its summaries are silent: how patch compute is counted, what is one draw of "
        "jitter, when clocks begin",
        "its full text or its simulator; assumptions are named, and each is varied above",
    ),
)
