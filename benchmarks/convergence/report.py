"""From the runs' outcomes to the figures: perplexity ratios, statistical efficiency, time to loss; as text and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import fmean, median
from typing import Any

from benchmarks._machine import Machine
from benchmarks._spread import Spread, spread, table
from benchmarks.convergence.cases import FREE, Case
from benchmarks.convergence.failures import PROCESSES
from benchmarks.convergence.policies import COSTS, configured_layout
from benchmarks.convergence.runs import Outcome
from mecefo_runtime.prediction.step_time import step_seconds

# arXiv 2510.16415, section 5: the 1B run's relative gradient error stayed below it; its tokens/s fell by so much at 7B.
PAPER_GRADIENT_ERROR = 0.6
PAPER_THROUGHPUT_DROPS = {"high": 0.0418}

Outcomes = Mapping[Case, Mapping[int, Outcome]]


@dataclass(frozen=True, slots=True)
class Curve:
    """What the number of steps is worth: (share of the steps, loss above that of all the steps), shares ascending."""

    points: tuple[tuple[float, float], ...]

    def efficiency(self, loss_above_free: float) -> float | None:
        """The share of the steps with which a failure-free run ends at this loss.

        Linear in the logarithm of the share between the runs that were made. None where none of them ended as high.
        Where none ended as low it is the longest run's share, which is then a lower bound.
        """
        if loss_above_free > self.points[0][1]:
            return None
        for (low, above_low), (high, above_high) in pairwise(self.points):
            if above_high <= loss_above_free <= above_low:
                along = (above_low - loss_above_free) / (above_low - above_high) if above_low > above_high else 0.0
                return float(low * (high / low) ** along)
        return self.points[-1][0]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one case came to, over its seeds.

    `step_ratio` is the mean predicted step time over the failure-free one's; `throughput_drop` counts tokens that
    were computed. `efficiencies` are shares of steps, one per seed, None where the loss was above all failure-free
    runs; `times_to_loss` follow, relative to the failure-free run, math.inf where an efficiency is None.
    """

    case: Case
    down_ranks: float
    degraded_ratio: float
    projected_ratio: float
    perplexity_ratios: Spread
    gradient_errors: Spread
    step_ratio: float
    throughput_drop: float
    efficiencies: tuple[float | None, ...]
    times_to_loss: Spread


def curve_of(outcomes: Outcomes) -> Curve:
    """The failure-free runs' curve, over the seeds that all their lengths have."""
    lengths = {case.length_ratio: found for case, found in outcomes.items() if case.process is None}
    seeds = set.intersection(*(set(found) for found in lengths.values()))
    base = lengths[FREE.length_ratio]
    points = [
        (ratio, fmean(found[seed].validation_loss - base[seed].validation_loss for seed in seeds))
        for ratio, found in sorted(lengths.items())
    ]
    # Noise must not make fewer steps worth more than some more of them.
    lowest = math.inf
    monotone = []
    for ratio, above in points:
        lowest = min(lowest, above)
        monotone.append((ratio, lowest))
    return Curve(tuple(monotone))


def figures_of(outcomes: Outcomes) -> list[Figures]:
    """The figures of every case with failures, in their order; of seeds that have a failure-free run."""
    curve, free = curve_of(outcomes), outcomes[FREE]
    base_seconds = step_seconds(configured_layout(), COSTS)
    found = []
    for case, by_seed in outcomes.items():
        seeds = sorted(seed for seed in by_seed if seed in free)
        if case.process is None or not seeds:
            continue
        runs = [by_seed[seed] for seed in seeds]
        above = [by_seed[seed].validation_loss - free[seed].validation_loss for seed in seeds]
        efficiencies = tuple(curve.efficiency(loss) for loss in above)
        step_ratios = [run.step_seconds / base_seconds for run in runs]
        found.append(
            Figures(
                case=case,
                down_ranks=fmean(run.down_ranks for run in runs),
                degraded_ratio=fmean(run.degraded_ratio for run in runs),
                projected_ratio=fmean(run.projected_ratio for run in runs),
                perplexity_ratios=spread(math.exp(loss) for loss in above),
                gradient_errors=spread(chain.from_iterable(run.gradient_errors for run in runs)),
                step_ratio=fmean(step_ratios),
                throughput_drop=1 - fmean((1 - r.lost_ratio) / s for r, s in zip(runs, step_ratios, strict=True)),
                efficiencies=efficiencies,
                times_to_loss=spread(
                    math.inf if efficiency is None else step_ratio / efficiency
                    for step_ratio, efficiency in zip(step_ratios, efficiencies, strict=True)
                ),
            )
        )
    return found


def report(outcomes: Outcomes, num_steps: int, samples_per_step: int, machine: Machine) -> str:
    """The figures as text."""
    curve, figures = curve_of(outcomes), figures_of(outcomes)
    worth = ", ".join(f"{ratio:.0%}: {math.exp(above) - 1:+.1%}" for ratio, above in curve.points)
    standard = [found for found in figures if found.case.length_ratio == 1]
    projected = [found for found in standard if found.case.projected_share_limit]
    standard = [found for found in standard if not found.case.projected_share_limit]
    varied = [found for found in standard if found.case.approximation is not None]
    uncorrected = [found for found in standard if found.case.correction is None and found.case.approximation is None]
    plain = [found for found in uncorrected if found.case.degraded_share_limit == 1]
    budgets = [found for found in uncorrected if found.case.policy == "mecefo"]
    corrected = [found for found in standard if found.case.correction is not None]
    longer = [found for found in figures if found.case.length_ratio != 1]
    sections = [
        f"machine: {machine}",
        f"{num_steps} steps of {samples_per_step} sequences\n"
        f"perplexity of failure-free runs with other shares of the steps: {worth}",
        _quality_table(plain),
        _speed_table(plain),
        "quality budget: at most this share of a step's samples through degraded layers\n" + _speed_table(budgets),
    ]
    if projected:
        what = "projected layers (ours): at most this share of the replicas projects a layer\n"
        sections.append(what + _quality_table(projected) + "\n\n" + _speed_table(projected))
    if corrected:
        sections.append("corrections (ours)\n" + _quality_table(corrected) + "\n\n" + _speed_table(corrected))
    if varied:
        sections.append("approximations; the default is r = 16 of 64, left-singular\n" + _quality_table(varied))
    if longer:
        sections.append("longer runs, against the failure-free run of 100% of the steps\n" + _longer_table(longer))
    return "\n\n".join(sections)


def to_document(outcomes: Outcomes, num_steps: int, samples_per_step: int, machine: Machine) -> dict[str, Any]:
    """The figures and all runs as plain JSON."""
    return {
        "machine": machine.to_dict(),
        "steps": num_steps,
        "samples_per_step": samples_per_step,
        "steps_worth": [{"steps_ratio": ratio, "loss_above": above} for ratio, above in curve_of(outcomes).points],
        "cases": [
            {
                "case": str(found.case),
                "policy": found.case.policy,
                "process": found.case.process,
                "degraded_share_limit": found.case.degraded_share_limit,
                "projected_share_limit": found.case.projected_share_limit,
                "correction": found.case.correction,
                "approximation": found.case.approximation,
                "length_ratio": found.case.length_ratio,
                "down_ranks": found.down_ranks,
                "degraded_ratio": found.degraded_ratio,
                "projected_ratio": found.projected_ratio,
                "perplexity_ratio": found.perplexity_ratios.to_dict(),
                "gradient_error": found.gradient_errors.to_dict(),
                "step_ratio": found.step_ratio,
                "throughput_drop_ratio": found.throughput_drop,
                "efficiency_ratios": list(found.efficiencies),
                "time_to_loss_ratio": found.times_to_loss.to_dict(),
            }
            for found in figures_of(outcomes)
        ],
        "runs": [
            {"case": str(case), "seed": seed} | outcome.to_dict()
            for case, by_seed in outcomes.items()
            for seed, outcome in by_seed.items()
        ],
    }


def _quality_table(figures: Sequence[Figures]) -> str:
    header = (
        "policy, process",
        "ranks down",
        "degraded",
        "projected",
        "perplexity",
        "min",
        "max",
        "n",
        "paper",
        "error",
        "max",
        "n",
    )
    rows = [
        (
            str(found.case),
            f"{found.down_ranks:.1f}",
            f"{found.degraded_ratio:.1%}",
            f"{found.projected_ratio:.1%}",
            *found.perplexity_ratios.to_text(lambda ratio: f"{ratio - 1:+.1%}"),
            _paper_perplexity(found.case) if found.case.policy in ("mecefo", "ndb") else "-",
            *_errors(found.gradient_errors),
        )
        for found in figures
    ]
    return table(header, rows)


def _speed_table(figures: Sequence[Figures]) -> str:
    header = ("policy, process", "tokens/s drop", "paper", "steps that count", "time to loss", "min", "max", "n")
    rows = [
        (
            str(found.case),
            f"{found.throughput_drop:.1%}",
            f"{PAPER_THROUGHPUT_DROPS[found.case.process]:.2%}"
            if found.case.process in PAPER_THROUGHPUT_DROPS and found.case.policy in ("mecefo", "ndb")
            else "-",
            _efficiency(found.efficiencies),
            *found.times_to_loss.to_text(lambda ratio: f"{ratio:.3f}" if math.isfinite(ratio) else "not reached"),
        )
        for found in figures
    ]
    return table(header, rows)


def _longer_table(figures: Sequence[Figures]) -> str:
    header = ("policy, process", "time", "perplexity", "min", "max", "n")
    rows = [
        (
            str(found.case),
            f"{found.step_ratio * found.case.length_ratio:.3f}",
            *found.perplexity_ratios.to_text(lambda ratio: f"{ratio - 1:+.1%}"),
        )
        for found in figures
    ]
    return table(header, rows)


def _paper_perplexity(case: Case) -> str:
    assert case.process is not None
    ratios = [ratio - 1 for ratio in PROCESSES[case.process].paper_perplexity_ratios.values()]
    return f"{min(ratios):+.2%} to {max(ratios):+.2%}"


def _errors(errors: Spread) -> tuple[str, str, str]:
    middle, _, largest, number = errors.to_text(lambda error: f"{error:.2f}")
    return middle, largest, number


def _efficiency(efficiencies: Sequence[float | None]) -> str:
    # Below all that was measured: below everything else in the order.
    middle = median(efficiency or 0.0 for efficiency in efficiencies)
    return f"{middle:.0%}" if middle else "below all"
