"""Verdicts and gates, by made-up results."""

from __future__ import annotations

import pytest

from mecefo_chaos.studies.papers.mecefo.check import check
from mecefo_chaos.studies.papers.mecefo.emulated import with_events
from mecefo_chaos.studies.papers.mecefo.forecasts import shipped_forecasts
from mecefo_chaos.studies.papers.mecefo.gates import bearable_event_seconds, gates_of, wanted_gates
from mecefo_chaos.studies.papers.mecefo.perplexity import shipped_convergence
from mecefo_chaos.studies.papers.mecefo.setting import Cell
from mecefo_chaos.studies.papers.mecefo.verdicts import emulated_of, row_of
from tests.mecefo_chaos.studies.papers.mecefo.made import (
    FAULT_FREE,
    NO_FORECASTS,
    UNDILATED,
    cell_of,
    results_of,
    run_of,
)

pytestmark = pytest.mark.unit

SEEDS = range(1, 6)


def checked(*runs):
    return check(results_of(*runs), NO_FORECASTS, shipped_convergence(), UNDILATED, FAULT_FREE)


def all_runs(settled_drop=0.001, event_seconds=1.0, seeds=SEEDS):
    cells = {gate.cell for gate in wanted_gates()}
    return [run_of(cell, seed, settled_drop, event_seconds) for cell in cells for seed in seeds]


def passed_of(found, cell):
    """By part, whether the gates of `cell` pass."""
    return {gate.part: gate.passed for gate in found.evidence.gates if gate.cell == cell}


def test_with_nothing_emulated_nothing_is_decided():
    found = checked()
    assert {gate.passed for gate in found.gates} == {None}
    assert found.exit_code == 5
    forecast = check({}, shipped_forecasts(), shipped_convergence(), UNDILATED, FAULT_FREE)
    assert forecast.exit_code == 5, "a forecast is no proof"


def test_runs_that_keep_to_the_limits_pass():
    found = checked(*all_runs())
    assert {gate.passed for gate in found.gates} == {True}
    assert found.exit_code == 0


def test_one_that_does_not_fails_though_others_are_undecided():
    found = checked(*[run_of(cell_of("4x8"), seed, settled_drop=0.006) for seed in SEEDS])
    assert passed_of(found, cell_of("4x8")) == {"settled": False, "with_events": True}
    assert {gate.passed for gate in found.evidence.gates if gate.cell != cell_of("4x8")} == {None}
    assert found.exit_code == 1


def test_runs_on_both_sides_of_a_limit_decide_nothing():
    found = checked(*[run_of(cell_of("4x8"), seed, settled_drop=0.003 + 0.001 * seed) for seed in SEEDS])
    assert passed_of(found, cell_of("4x8")) == {"settled": None, "with_events": True}


def test_the_cost_of_events_counts_in_its_own_gate_alone():
    slow = checked(*all_runs(event_seconds=20.0))
    assert passed_of(slow, cell_of("4x8")) == {"settled": True, "with_events": False}
    assert passed_of(slow, cell_of("8x4")) == {"settled": True, "with_events": True}


def test_too_few_seeds_decide_nothing():
    found = checked(*all_runs(seeds=range(1, 3)))
    assert {gate.passed for gate in found.gates} == {None}
    assert "2 of 3 runs" in found.gates[0].reason
    assert {gate.passed for gate in checked(*all_runs(seeds=range(1, 4))).gates} == {True}


@pytest.mark.parametrize("how", ["overrun_ratio", "unrest_ratio"])
def test_a_run_on_a_machine_that_was_too_busy_does_not_count(how):
    busy = run_of(cell_of(), 1, settled_drop=0.5, **{how: 0.06})
    assert emulated_of(cell_of(), results_of(busy)) is None
    both = emulated_of(cell_of(), results_of(busy, run_of(cell_of(), 2, settled_drop=0.01)))
    assert both is not None and both.seeds == (2,)
    assert both.settled.median == pytest.approx(0.01)


def test_value_range_and_n_of_a_gate_are_of_the_same_cell():
    many = cell_of(num_microbatches=32)
    good = [run_of(cell_of(), seed, settled_drop=0.001) for seed in SEEDS]
    found = checked(*good, run_of(many, 1, settled_drop=0.03))
    assert passed_of(found, cell_of()) == {"settled": True, "with_events": True}
    # One run does not fail a gate, and it does not borrow the n of another cell.
    assert passed_of(found, many) == {"settled": None, "with_events": None}
    (gate,) = [gate for gate in found.evidence.gates if gate.cell == many and gate.part == "settled"]
    assert gate.figure.n == 1 and gate.figure.median == pytest.approx(0.03)
    bad = [run_of(many, seed, settled_drop=0.03) for seed in SEEDS]
    assert passed_of(checked(*good, *bad), many) == {"settled": False, "with_events": False}


def test_the_default_strategy_is_held_to_the_papers_drop_with_hidden_and_exposed_communication():
    gates = [gate for gate in wanted_gates() if gate.cell.method == "mecefo" and gate.cell.size == "7b"]
    assert {gate.limit for gate in gates} == {0.0418} and {gate.source for gate in gates} == {"paper"}
    assert len({gate.cell for gate in gates}) == len(gates) == 8
    assert {gate.cell.is_exposed for gate in gates} == {False, True}


def test_drops_are_against_the_twin_where_there_is_one():
    from dataclasses import replace

    run = run_of(cell_of(), 1, settled_drop=0.0)
    twin = replace(run_of(cell_of(), None), free_step_seconds=3.6)
    alone, beside = (emulated_of(cell_of(), results_of(*runs)) for runs in ((run,), (run, twin)))
    assert alone is not None and alone.settled.median == pytest.approx(0) and not alone.has_twin
    assert beside is not None and beside.settled.median == pytest.approx(0.1) and beside.has_twin


@pytest.mark.parametrize(
    ("drop", "verdict"), [(0.001, "better than the paper"), (0.04, "reproduced"), (0.08, "not reproduced")]
)
def test_a_verdict_says_on_which_side_of_the_paper_we_are(drop, verdict):
    runs = [run_of(cell_of(), seed, settled_drop=drop, event_seconds=0.0) for seed in (1, 2, 3)]
    row = row_of(cell_of(), None, results_of(*runs))
    assert (row.verdict, row.basis, row.paper.drop_ratio) == (verdict, "emulated", 0.0418)
    assert row_of(cell_of(), None, results_of(*runs[:2])).verdict == "cannot be decided here"
    assert row_of(cell_of(), None, {}).verdict == "not checked"


def test_a_forecast_decides_a_row_until_there_are_enough_runs():
    forecast = shipped_forecasts().of(cell_of())
    runs = [run_of(cell_of(), seed, settled_drop=0.3) for seed in SEEDS]
    few, enough = (row_of(cell_of(), forecast, results_of(*runs[:num])) for num in (2, 3))
    assert (few.basis, few.figure, few.verdict) == ("forecast", forecast.drop, "better than the paper")
    assert (enough.basis, enough.verdict) == ("emulated", "not reproduced")


def test_what_the_paper_does_not_say_has_no_verdict():
    for cell in (Cell("7b", "mid", "4x8", 32, "mecefo-speed"), cell_of(method="exact")):
        assert row_of(cell, None, {}).verdict == "no claim"


def test_a_cost_of_events_that_can_be_borne_is_just_borne():
    seconds = bearable_event_seconds(0.002, 0.01, cell_of())
    assert with_events(0.002, seconds, 1800) == pytest.approx(0.01)
    assert bearable_event_seconds(0.02, 0.01, cell_of()) == 0
    assert gates_of([])[0].passed is None
