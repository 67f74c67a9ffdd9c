"""The gates, which decide the exit code: that the closed form, the product's code and real processes say the same."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from harness.papers.reft.odds import Odds, enumeration_difference, least_likelihood
from harness.papers.reft.real.draws import Draw
from harness.papers.reft.real.rungs import RUNGS, RungRun
from harness.papers.reft.schemes import SMALL
from harness.papers.verdicts import Gate

MIN_DRAWS, MIN_DRAWS_EACH, MIN_RUNS = 200, 40, 3
# Less likely than this for the whole of a column, a difference is none of chance.
MIN_LIKELIHOOD = 0.01
# With a snapshot after every step: the one under way, and the step in which it happened.
MAX_STEPS_LOST = 2
MAX_LOSS_DEVIATION_RATIO = 1e-3


def gates_of(odds: Sequence[Odds], draws: Sequence[Draw], runs: Sequence[RungRun]) -> tuple[Gate, ...]:
    """All of them."""
    return (_enumerated(), _drawn(odds), _right(draws), _lived(odds, draws), *_of_runs(runs))


def _enumerated() -> Gate:
    wrong, tried = enumeration_difference()
    return Gate(
        "the closed form counts the sets of lost nodes that the product's code survives",
        wrong == 0,
        f"{wrong} differ",
        "0",
        tried,
        "every set of eight nodes under every protection",
    )


def _drawn(odds: Sequence[Odds]) -> Gate:
    pairs = [(one.drawn, one.closed) for one in odds if one.drawn is not None]
    value = least_likelihood(pairs)
    return Gate(
        "losses drawn by chance survive as often as the closed form says",
        None if value is None else value >= MIN_LIKELIHOOD,
        "-" if value is None else f"p = {value:.2f}",
        f"at least {MIN_LIKELIHOOD:g}",
        sum(sample.num_draws for sample, _ in pairs),
        f"the worst of {len(pairs)} exact binomial tests, times their number",
    )


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
    pairs = [(one.lived, one.closed) for one in odds if one.lived is not None]
    value = least_likelihood(pairs)
    reason = _too_few(draws)
    return Gate(
        "real processes survive as often as the closed form says",
        None if value is None or reason else value >= MIN_LIKELIHOOD,
        "-" if value is None else f"p = {value:.2f}",
        f"at least {MIN_LIKELIHOOD:g}",
        sum(sample.num_draws for sample, _ in pairs),
        reason or f"the worst of {len([s for s, _ in pairs if s.num_draws])} exact binomial tests, times their number",
    )


def _of_runs(runs: Sequence[RungRun]) -> tuple[Gate, ...]:
    fewest = min(sum(run.rung == rung for run in runs) for rung in RUNGS)
    few = "" if fewest >= MIN_RUNS else f"{fewest} of {MIN_RUNS} runs of a rung: --runs {MIN_RUNS} makes them"
    wrong = [run for run in runs if run.served != run.expected]
    first = next((f"{run.rung}, seed {run.seed}: {run.served} instead of {run.expected}" for run in wrong), "")
    by_memory = [run for run in runs if run.expected in ("snapshot", "parity") and run.steps_lost is not None]
    by_peer = [run.steps_lost for run in runs if run.expected == "peer" and run.steps_lost is not None]
    lost = [run.steps_lost for run in by_memory if run.steps_lost is not None]
    deviations = [run.max_loss_deviation_ratio for run in runs if run.max_loss_deviation_ratio is not None]

    def decided(values: Sequence[float], holds: bool) -> bool | None:
        return None if few or not values else holds

    return (
        Gate(
            "real runs: state comes from the highest source that is left",
            False if wrong else None if few else True,
            f"{len(wrong)} from another",
            "0",
            len(runs),
            first or few,
        ),
        Gate(
            "steps lost where a peer lives",
            decided(by_peer, max(by_peer, default=0) == 0),
            f"at most {max(by_peer, default=0)}",
            "0",
            len(by_peer),
            few,
        ),
        Gate(
            "steps lost where the state comes from memory, a snapshot after every step",
            decided(lost, median(lost or [0]) <= MAX_STEPS_LOST),
            f"median {median(lost or [0]):g}, at most {max(lost, default=0)}",
            f"median {MAX_STEPS_LOST}",
            len(lost),
            few or "two intervals: the snapshot under way, and the step",
        ),
        Gate(
            "losses after a recovery are those of a run without a fault",
            decided(deviations, max(deviations, default=0.0) <= MAX_LOSS_DEVIATION_RATIO),
            f"{max(deviations, default=0.0):.1e} apart at most",
            f"{MAX_LOSS_DEVIATION_RATIO:g}",
            len(deviations),
            few,
        ),
    )
