"""The gates, which decide the exit code: that the closed form, the product's code and real processes say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mecefo_chaos.studies.papers.reft.odds import Odds, Pooled, least_likely, pooled_draws
from mecefo_chaos.studies.papers.reft.real.draws import Draw
from mecefo_chaos.studies.papers.reft.real.rungs import RUNGS, RungRun
from mecefo_chaos.studies.papers.reft.schemes import SMALL
from mecefo_chaos.studies.papers.rules import MIN_RUNS, Measured, always, every, passed_of
from mecefo_chaos.studies.papers.verdicts import Gate
from mecefo_chaos.studies.papers.views import NOT_KNOWN, measured_text

MIN_DRAWS, MIN_DRAWS_EACH = 200, 40
# A cell with fewer draws does not show a difference of a sixth.
MIN_SAMPLED = 100
# Less likely than this for the whole of a column, a difference is none of chance.
MIN_LIKELIHOOD = 0.01
# With a snapshot after every step: the one under way, and the step in which it happened.
MAX_STEPS_LOST = 2
MAX_LOSS_DEVIATION_RATIO = 1e-3


def gates_of(
    enumerated: tuple[int, int], odds: Sequence[Odds], draws: Sequence[Draw], runs: Sequence[RungRun]
) -> tuple[Gate, ...]:
    """All of them; `enumerated` are (sets of lost nodes that were judged otherwise, sets tried)."""
    return (_enumerated(*enumerated), _drawn(odds), _right(draws), _lived(odds, draws), *_of_runs(runs))


def _enumerated(wrong: int, tried: int) -> Gate:
    return Gate(
        "the closed form counts the sets of lost nodes that the product's code survives",
        passed_of(always(tried - wrong, tried)),
        f"{wrong} differ",
        "0",
        tried,
        "every set of eight nodes under every protection",
    )


def _drawn(odds: Sequence[Odds]) -> Gate:
    least = least_likely(odds)
    name = "losses drawn by chance survive as often as the closed form says"
    limit = f"at least {MIN_LIKELIHOOD:g}"
    if least is None:
        return Gate(name, None, NOT_KNOWN, limit, 0, "nothing was drawn")
    cell, value = least
    assert cell.drawn is not None
    sample = cell.drawn
    low, high = sample.interval
    is_enough = sample.num_draws >= MIN_SAMPLED
    num_cells = sum(one.drawn is not None for one in odds)
    return Gate(
        name,
        value >= MIN_LIKELIHOOD if is_enough else None,
        f"p = {value:.2f}",
        limit,
        sample.num_draws,
        f"the least likely of {num_cells} cells, by exact binomial tests, times their number: {_words(cell)}, "
        f"{sample.ratio:.3f} ({low:.2f} to {high:.2f}) where {cell.closed:.3f} is expected"
        + ("" if is_enough else f"; {MIN_SAMPLED} draws of a cell would decide it"),
    )


def _words(cell: Odds) -> str:
    lost = f"k={cell.num_lost}" if cell.num_lost is not None else f"after {cell.time_ratio:g} eta"
    return f"{cell.scheme} on {cell.num_nodes} nodes, {lost}"


def _too_few(draws: Sequence[Draw]) -> str:
    least = min(sum(draw.scheme == scheme.name for draw in draws) for scheme in SMALL)
    if len(draws) >= MIN_DRAWS and least >= MIN_DRAWS_EACH:
        return ""
    return (
        f"{len(draws)} draws of {MIN_DRAWS}, {least} of {MIN_DRAWS_EACH} of the rarest: --draws {MIN_DRAWS} makes them"
    )


def _right(draws: Sequence[Draw]) -> Gate:
    wrong = [draw for draw in draws if not draw.is_right]
    reason = _too_few(draws)
    passed = False if wrong else None if reason else True
    first = next((f"; draw {draw.number}, {draw.scheme}: {draw.outcome}, {draw.reason}" for draw in wrong), "")
    return Gate(
        "real processes: restored bit for bit, or refused, as the product's code says",
        passed,
        f"{len(wrong)} are wrong",
        "0",
        len(draws),
        f"{reason}{first}".removeprefix("; "),
    )


def _lived(odds: Sequence[Odds], draws: Sequence[Draw]) -> Gate:
    pooled = pooled_draws(odds)
    name, limit = "real processes survive as often as the closed form says", f"at least {MIN_LIKELIHOOD:g}"
    if not pooled:
        return Gate(name, None, NOT_KNOWN, limit, 0, _too_few(draws))
    worst = min(pooled, key=lambda one: one.likelihood)
    value = min(1.0, worst.likelihood * len(pooled))
    reason = _too_few(draws)
    return Gate(
        name,
        None if reason else value >= MIN_LIKELIHOOD,
        f"p = {value:.2f}",
        limit,
        worst.num_draws,
        reason or f"the least likely of {len(pooled)} protections, times their number: {_pooled_words(worst)}",
    )


def _pooled_words(pooled: Pooled) -> str:
    return f"{pooled.scheme}, {pooled.num_survived} survived where {pooled.expected:.1f} are expected"


def _of_runs(runs: Sequence[RungRun]) -> tuple[Gate, ...]:
    fewest = min(sum(run.rung == rung for run in runs) for rung in RUNGS)
    few = "" if fewest >= MIN_RUNS else f"{fewest} of {MIN_RUNS} runs of a rung: --runs {MIN_RUNS} makes them"
    wrong = [run for run in runs if run.served != run.expected]
    first = next((f"{run.rung}, seed {run.seed}: {run.served} instead of {run.expected}" for run in wrong), "")
    deviations: dict[str, Sequence[float]] = {
        rung: [
            run.max_loss_deviation_ratio
            for run in runs
            if run.expected == rung and run.max_loss_deviation_ratio is not None
        ]
        for rung in RUNGS
        if rung != "stop"
    }
    return (
        Gate(
            "real runs: state comes from the highest source that is left",
            False if wrong else None if few else True,
            f"{len(wrong)} from another",
            "0",
            len(runs),
            first or few,
        ),
        _each_at_most("steps lost where a peer lives", _steps_lost(runs, "peer"), 0, "g", few),
        _each_at_most(
            "steps lost where the state comes from memory, a snapshot after every step",
            _steps_lost(runs, "snapshot", "parity"),
            MAX_STEPS_LOST,
            "g",
            few or "two intervals: the snapshot under way, and the step",
        ),
        _each_at_most(
            "losses after a recovery are those of a run without a fault, relative deviation",
            deviations,
            MAX_LOSS_DEVIATION_RATIO,
            ".1e",
            few,
        ),
    )


def _steps_lost(runs: Sequence[RungRun], *rungs: str) -> Mapping[str, Sequence[float]]:
    return {
        rung: [run.steps_lost for run in runs if run.expected == rung and run.steps_lost is not None] for rung in rungs
    }


def _each_at_most(name: str, by_rung: Mapping[str, Sequence[float]], limit: float, form: str, reason: str) -> Gate:
    """A gate that each run has to pass; n is that of the rung with the fewest runs, for it decides."""
    verdict = every(always(sum(value <= limit for value in values), len(values)) for values in by_rung.values())
    value = "; ".join(f"{rung} {measured_text(Measured.of(values), form)}" for rung, values in by_rung.items())
    return Gate(
        name,
        passed_of(verdict),
        value,
        f"{limit:g} in every run",
        min(len(values) for values in by_rung.values()),
        reason,
    )
