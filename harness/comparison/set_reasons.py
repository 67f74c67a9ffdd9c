"""The reasons of the verdict of a set of runs: each code, and its sentence."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.words import count
from harness.judging.gate_reasons import gate_text
from mecefo_runtime.system.reason import Made, Reason, Table


def set_text(reason: Reason) -> str:
    """The sentence of a reason."""
    return SET_REASONS.text(reason)


def median_gate_text(gate: str, why: Reason) -> str:
    """The answer of a gate on the median; for an expression that cannot be parsed only the error."""
    return gate_text(why) if why.code == NO_GATE else f"gate '{gate}' {gate_text(why)}"


NO_GATE = "not_evaluated"


def _run(run: int, why: str) -> str:
    return f"run {run}: {why}"


def _strategy_run(strategy: str, why: str, run: int | None = None) -> str:
    return f"{strategy}{'' if run is None else f', round {run}'}: {why}"


def what_ran(rounds: int, strategies: Sequence[Sequence[object]]) -> str:
    """How many rounds of each strategy are done: `of 3 rounds, exact ran 2, ndb ran none`."""
    done = (f"{label} ran {runs or 'none'}" for label, runs in strategies)
    return f"of {count(rounds, 'round')}, {', '.join(done)}"


def _interrupted(rounds: int, strategies: Sequence[Sequence[object]]) -> str:
    return f"interrupted: {what_ran(rounds, strategies)}"


def _ended_early(rounds: int, strategies: Sequence[Sequence[object]]) -> str:
    return f"ended early: {what_ran(rounds, strategies)}"


def _nothing_in_common(here: Sequence[str], reference: Sequence[str]) -> str:
    ours, theirs = (", ".join(side) for side in (here, reference))
    return f"they have nothing in common: {ours} here, {theirs} in the reference"


def _worse(figure: str, now: str, base: str, noise: str, strategy: str | None = None) -> str:
    return f"{_of(strategy)}{figure} got worse: {now}, in the reference {base} (noise {noise})"


def _undecided(why: str, strategy: str | None = None) -> str:
    return f"{_of(strategy)}{why}"


def _of(strategy: str | None) -> str:
    return "" if strategy is None else f"{strategy}: "


SET_REASONS = Table(
    {
        "median_passed": "all {runs} runs completed, and every gate passed for the median",
        "all_ran": "every strategy ran in every round",
        "not_worse": "no decisive figure got worse by more than the noise and the tolerance",
        "run": Made(_run, "run {run}: {why}"),
        "gate_failed": Made(median_gate_text, "gate '{gate}' {why}"),
        "gate_undecided": Made(median_gate_text, "gate '{gate}' {why}"),
        "runs_missing": "interrupted: {started} of {runs} runs were started",
        "strategy_run": Made(_strategy_run, "{strategy}, round {run}: {why}"),
        "rounds_interrupted": Made(_interrupted, "interrupted: of {rounds} rounds, {strategies}"),
        "rounds_ended_early": Made(_ended_early, "ended early: of {rounds} rounds, {strategies}"),
        "nothing_in_common": Made(
            _nothing_in_common, "they have nothing in common: {here} here, {reference} in the reference"
        ),
        "other_experiment": "{difference}; --anyway compares them anyway",
        "got_worse": Made(_worse, "{strategy}: {figure} got worse: {now}, in the reference {base} (noise {noise})"),
        "not_decided": Made(_undecided, "{strategy}: {why}"),
    }
)
