"""Verdicts and gates, by made-up results."""

from __future__ import annotations

import pytest

from harness.papers.mecefo.check import check
from harness.papers.mecefo.emulated import with_events
from harness.papers.mecefo.forecasts import shipped_forecasts
from harness.papers.mecefo.perplexity import shipped_convergence
from harness.papers.mecefo.setting import Cell
from harness.papers.mecefo.verdicts import bearable_event_seconds, emulated_of, gates_of, row_of
from tests.harness.papers.mecefo.made import NO_FORECASTS, UNDILATED, cell_of, results_of, run_of

pytestmark = pytest.mark.unit

SEEDS = range(1, 6)


def checked(*runs):
    return check(results_of(*runs), NO_FORECASTS, shipped_convergence(), UNDILATED)


def all_runs(settled_drop=0.001, event_seconds=1.0, seeds=SEEDS):
    cells = [cell_of("4x8"), cell_of("8x4"), cell_of("4x8", "350m"), cell_of("4x8", "1b")]
    return [run_of(cell, seed, settled_drop, event_seconds) for cell in cells for seed in seeds]


def test_with_nothing_emulated_nothing_is_decided():
    found = checked()
    assert [gate.passed for gate in found.gates] == [None] * 6
    assert found.exit_code == 5
    forecast = check({}, shipped_forecasts(), shipped_convergence(), UNDILATED)
    assert forecast.exit_code == 5, "a forecast is no proof"


def test_runs_that_keep_to_the_limits_pass():
    found = checked(*all_runs())
    assert [gate.passed for gate in found.gates] == [True] * 6
    assert found.exit_code == 0


def test_one_that_does_not_fails_though_others_are_undecided():
    found = checked(*[run_of(cell_of("4x8"), seed, settled_drop=0.006) for seed in SEEDS])
    assert [gate.passed for gate in found.gates] == [False, True, None, None, None, None]
    assert found.exit_code == 1


def test_the_cost_of_events_counts_in_its_own_gate_alone():
    slow = checked(*all_runs(event_seconds=20.0))
    assert [gate.passed for gate in slow.gates] == [True, False, True, True, False, True]


def test_too_few_seeds_decide_nothing_at_7b():
    found = checked(*all_runs(seeds=range(1, 4)))
    assert [gate.passed for gate in found.gates] == [None, None, None, None, True, True]
    assert "3 of 5 seeds" in found.gates[0].reason


@pytest.mark.parametrize("how", ["overrun_ratio", "unrest_ratio"])
def test_a_run_on_a_machine_that_was_too_busy_does_not_count(how):
    busy = run_of(cell_of(), 1, settled_drop=0.5, **{how: 0.06})
    assert emulated_of(cell_of(), results_of(busy)) is None
    both = emulated_of(cell_of(), results_of(busy, run_of(cell_of(), 2, settled_drop=0.01)))
    assert both is not None and both.seeds == (2,)
    assert both.settled.median == pytest.approx(0.01)


def test_the_worst_number_of_microbatches_decides():
    good = [run_of(cell_of(), seed) for seed in SEEDS]
    bad = [run_of(cell_of(num_microbatches=32), seed, settled_drop=0.03) for seed in SEEDS]
    assert checked(*good).gates[0].passed is True
    assert checked(*good, *bad).gates[0].passed is False


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
    row = row_of(cell_of(), None, results_of(run_of(cell_of(), 1, settled_drop=drop, event_seconds=0.0)))
    assert (row.verdict, row.paper.drop_ratio) == (verdict, 0.0418)
    assert row_of(cell_of(), None, {}).verdict == "cannot be decided here"


def test_what_the_paper_does_not_say_has_no_verdict():
    for cell in (Cell("7b", "mid", "4x8", 32, "mecefo-speed"), cell_of(method="exact")):
        assert row_of(cell, None, {}).verdict == "no claim"


def test_a_cost_of_events_that_can_be_borne_is_just_borne():
    seconds = bearable_event_seconds(0.002, 0.01, cell_of())
    assert with_events(0.002, seconds, 1800) == pytest.approx(0.01)
    assert bearable_event_seconds(0.02, 0.01, cell_of()) == 0
    assert gates_of([])[0].passed is None
