"""Every verdict turns with the figures that are printed beside it, and no figure is printed that turns none."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest

from mecefo_chaos.studies.papers.mecefo.claims import PROCESSES, THROUGHPUT
from mecefo_chaos.studies.papers.mecefo.fault_free import FaultFree, Speed
from mecefo_chaos.studies.papers.mecefo.findings import findings
from mecefo_chaos.studies.papers.mecefo.forecasted import Forecasted
from mecefo_chaos.studies.papers.mecefo.forecasts import Forecasts
from mecefo_chaos.studies.papers.mecefo.gates import PART_WORDS, gates_of, wanted_gates
from mecefo_chaos.studies.papers.mecefo.memory import EXAMINED, Memory
from mecefo_chaos.studies.papers.mecefo.perplexity import POLICIES, Convergence, Perplexity
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, MICROBATCHES, SHAPES, Cell, cells
from mecefo_chaos.studies.papers.mecefo.verdicts import TOLERANCE, row_of
from mecefo_chaos.studies.papers.rules import MIN_RUNS
from mecefo_runtime.system.json_values import to_json
from tests.mecefo_chaos.studies.papers.mecefo.made import results_of, run_of

pytestmark = pytest.mark.unit

Figures = Mapping[tuple[str, object], float]
SETTINGS = list(product(SHAPES, MICROBATCHES, (False, True)))
JOBS = ("one job", "another job")
CAPACITY = 80.0


def drop_key(method, shape, number, is_exposed):
    return "drop", Cell("7b", "high", shape, number, method, is_exposed)


def letter_key(shape, number):
    return "averaged", Cell("7b", "high", shape, number, "mecefo-paper")


# By figure: a value with which its claim holds, and one with which it does not.
SIDES: Mapping[tuple[str, object], tuple[float, float]] = {
    **{drop_key(method, *setting): (0.01, 0.09) for method in ("mecefo", "mecefo-speed") for setting in SETTINGS},
    **{drop_key(other, *setting): (0.2, 0.02) for other in ("bamboo-like", "oobleck-like") for setting in SETTINGS},
    **{letter_key(shape, number): (0.04, 0.2) for shape in SHAPES for number in MICROBATCHES},
    **{
        ("memory", (shape, method)): (90.0, 40.0) if method == "exact" else (40.0, 90.0)
        for shape in SHAPES
        for method in EXAMINED
    },
    **{("perplexity", (policy, process)): (0.0, 0.5) for policy in POLICIES.values() for process in PROCESSES},
    **{
        ("error", (POLICIES[method], process)): (0.2, 1.1)
        for method in ("mecefo", "mecefo-speed")
        for process in PROCESSES
    },
    **{("speed", job): (1.0, 0.9) for job in JOBS},
}
GOOD = {key: holds for key, (holds, _) in SIDES.items()}
BAD = {key: fails for key, (_, fails) in SIDES.items()}


def found_with(figures: Figures, n: int = 5):
    """The findings, where every figure has this median, a narrow range and this n."""
    forecasts = tuple(
        Forecasted(cell, spread(value), spread(value), 1000.0, 0.0, n)
        for (kind, cell), value in figures.items()
        if kind == "drop"
    )
    averaged = tuple(
        (cell, (value, *spread(value))[-n:]) for (kind, cell), value in figures.items() if kind == "averaged"
    )
    memory = tuple(
        Memory(
            "7b",
            shape,
            sequences,
            int(CAPACITY * 1e9),
            10**10,
            {method: int(figures["memory", (shape, method)] * 1e9) for method in EXAMINED},
        )
        for shape in SHAPES
        for sequences in (1, 2)
    )
    rows = tuple(
        Perplexity(
            policy, process, *spread(value), n, figures.get(("error", of), 0.1), figures.get(("error", of), 0.1), n
        )
        for (kind, of), value in figures.items()
        if kind == "perplexity"
        for policy, process in [of]
    )
    speeds = tuple(Speed(job, *spread(value), n) for (kind, job), value in figures.items() if kind == "speed")
    return {
        one.claim: one
        for one in findings(
            memory,
            Convergence("2026-01-02", "a command", "a model", rows),
            Forecasts(forecasts, averaged),
            FaultFree("2026-01-02", "a command", "a machine", speeds),
        )
    }


def spread(value: float) -> tuple[float, float, float]:
    return value, value - 0.001, value + 0.001


HOLDING = found_with(GOOD)


def turned_by(key) -> dict[str, str]:
    """The verdicts that are others when this one figure is on the other side."""
    moved = found_with({**GOOD, key: BAD[key]})
    return {claim: one.verdict for claim, one in moved.items() if one.verdict != HOLDING[claim].verdict}


TURNED = {key: turned_by(key) for key in SIDES}


@pytest.mark.parametrize("claim", HOLDING)
def test_a_claim_holds_with_figures_that_hold_and_fails_with_figures_that_do_not(claim):
    assert HOLDING[claim].verdict == "reproduced"
    assert found_with(BAD)[claim].verdict == "not reproduced"


@pytest.mark.parametrize("claim", HOLDING)
def test_a_single_figure_across_the_limit_turns_the_verdict(claim):
    turning = [key for key, claims in TURNED.items() if claim in claims]
    assert turning, "no figure turns this verdict: it is not computed from any"
    for key in turning:
        moved = found_with({**GOOD, key: BAD[key]})[claim]
        assert moved.figures != HOLDING[claim].figures and moved.ours != HOLDING[claim].ours
        assert moved.verdict in ("not reproduced", "cannot be decided here")


@pytest.mark.parametrize("key", SIDES, ids=str)
def test_every_figure_turns_a_verdict(key):
    assert TURNED[key]


@pytest.mark.parametrize("claim", HOLDING)
def test_every_finding_shows_its_rule_and_its_figures(claim):
    finding = HOLDING[claim]
    assert finding.rule and finding.figures
    assert all(figure.least <= figure.median <= figure.greatest and figure.n for figure in finding.figures)


MEASURED = [
    claim for claim in HOLDING if not claim.startswith(("plain neighbour", "the job fits", "the relative error"))
]


@pytest.mark.parametrize("figures", [GOOD, BAD], ids=["holding", "failing"])
@pytest.mark.parametrize("claim", MEASURED)
def test_fewer_runs_than_show_a_range_decide_nothing(claim, figures):
    assert found_with(figures, MIN_RUNS - 1)[claim].verdict == "cannot be decided here"


def test_what_was_not_measured_is_not_checked():
    nothing = findings((), Convergence("", "", "", ()), Forecasts((), ()), FaultFree("", "", "", ()))
    assert len(nothing) == len(HOLDING)
    assert {one.verdict for one in nothing} == {"not checked"}


GATES = list(wanted_gates())


def gate_with(gate, drops, elsewhere=0.5):
    """That gate where its own cell has runs of these drops, and every other one another."""
    runs = [run_of(gate.cell, seed, drop, event_seconds=0.0) for seed, drop in enumerate(drops, start=1)]
    others = {other.cell for other in GATES} - {gate.cell}
    runs += [run_of(cell, seed, elsewhere) for cell in others for seed in range(1, 6)]
    results = results_of(*runs)
    rows = [row_of(cell, None, results) for cell in {gate.cell, *others}]
    (found,) = [one for one in gates_of(rows) if one.name == gate.name]
    return found


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_gate_is_decided_by_the_runs_of_its_own_cell(gate):
    below, above = gate.limit - 0.002, gate.limit + 0.002
    assert gate_with(gate, [below] * 3).passed is True
    assert gate_with(gate, [above] * 3, elsewhere=0.0).passed is False
    assert gate_with(gate, [below, below, above]).passed is None
    assert gate_with(gate, [below] * (MIN_RUNS - 1)).passed is None
    nothing = gate_with(gate, [])
    assert (nothing.passed, nothing.figure, nothing.verdict) == (None, None, "not checked")


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
def test_a_gate_has_value_range_and_n_of_one_cell(gate):
    found = gate_with(gate, [0.001, 0.002, 0.004])
    assert (found.figure.least, found.figure.median, found.figure.greatest) == pytest.approx((0.001, 0.002, 0.004))
    document = to_json(found.gate)
    assert [document[key] for key in ("least", "value", "greatest", "num_seeds")] == [
        found.figure.least,
        found.figure.median,
        found.figure.greatest,
        3,
    ]
    assert (document["cell"], document["part"] in PART_WORDS) == (gate.cell.key, True)


CLAIMED = [cell for cell in cells() if cell.process == "high" and METHODS[cell.method].claimed_by]


@pytest.mark.parametrize("cell", CLAIMED, ids=lambda cell: cell.key)
def test_the_verdict_on_a_drop_turns_with_the_figure_of_its_row(cell):
    system = METHODS[cell.method].claimed_by
    claimed = THROUGHPUT[system, cell.size].drop_ratio

    def verdict(low: float, high: float, n: int = 5) -> str:
        forecast = Forecasted(cell, (low, low, high), (low, low, high), 1000.0, 0.0, n)
        row = row_of(cell, forecast, {})
        assert row.basis == "forecast" and (row.figure.least, row.figure.greatest, row.figure.n) == (low, high, n)
        return row.verdict

    above, below = claimed + TOLERANCE + 0.001, claimed - TOLERANCE - 0.001
    assert verdict(claimed, claimed) == "reproduced"
    assert verdict(above, above) == "not reproduced"
    assert verdict(claimed, above) == "cannot be decided here"
    assert verdict(below, below) == ("better than the paper" if system == "MeCeFO" else "not reproduced")
    assert verdict(claimed, claimed, MIN_RUNS - 1) == "cannot be decided here"


def test_the_reason_of_an_undecided_speed_is_that_of_its_figures():
    (claim,) = [claim for claim in HOLDING if claim.startswith("no overhead")]
    assert "fewer than 3 rounds" in found_with(GOOD, MIN_RUNS - 1)[claim].reason
    mixed = found_with({**GOOD, ("speed", JOBS[0]): 0.98})[claim]
    assert mixed.verdict == "cannot be decided here" and "some rounds are below 0.98, some above" in mixed.reason
