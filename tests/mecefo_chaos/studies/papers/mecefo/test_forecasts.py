"""The forecasts with this version are what this version forecasts; memory; perplexity."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from mecefo_chaos.studies.papers.mecefo.claims import PROCESSES
from mecefo_chaos.studies.papers.mecefo.forecasted import averaged_drops, forecast_cell
from mecefo_chaos.studies.papers.mecefo.forecasts import shipped_forecasts
from mecefo_chaos.studies.papers.mecefo.memory import EXAMINED, memory_of
from mecefo_chaos.studies.papers.mecefo.perplexity import POLICIES, parse_rows, read_convergence, shipped_convergence
from mecefo_chaos.studies.papers.mecefo.setting import Cell, cells
from mecefo_chaos.studies.papers.rules import MIN_RUNS

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[5]


def test_there_is_one_for_every_cell():
    forecasts = shipped_forecasts()
    assert [one.cell for one in forecasts.cells] == list(cells())
    assert all(forecasts.averaged_of(cell) is not None for cell in cells() if is_letter(cell))


def is_letter(cell):
    return (cell.method, cell.process) == ("mecefo-paper", "high")


@pytest.mark.parametrize("method", ["mecefo-speed", "mecefo-paper", "bamboo-like"])
def test_they_are_what_is_forecast_now(method):
    cell = Cell("350m", "high", "8x4", 8, method)
    told, now = shipped_forecasts().of(cell), forecast_cell(cell)
    # If this fails, `python -m mecefo_chaos.studies.papers.mecefo` writes them anew.
    assert told is not None and now.settled == pytest.approx(told.settled, abs=2e-5)
    assert now.with_events == pytest.approx(told.with_events, abs=2e-5)
    if method == "mecefo-paper":
        assert averaged_drops(cell) == pytest.approx(dict(shipped_forecasts().averaged)[cell], abs=2e-5)


def test_replicas_that_do_not_wait_lose_less_than_those_that_do():
    cell = Cell("7b", "high", "8x4", 8, "mecefo-paper")
    told = shipped_forecasts().of(cell)
    assert told is not None and averaged_drops(cell, 1, 20)[0] < told.settled[0] / 2


def test_plain_neighbour_do_both_is_out_of_memory_with_large_microbatches_and_the_techniques_are_not():
    by_key = {(one.shape, one.sequences_per_microbatch): one for one in memory_of("7b")}
    assert not by_key["4x8", 32].fits("exact") and by_key["4x8", 8].fits("exact")
    assert not by_key["8x4", 16].fits("exact") and by_key["8x4", 4].fits("exact")
    assert all(one.fits(method) for one in by_key.values() for method in EXAMINED if method != "exact")
    assert all(one.fits("exact") for one in memory_of("350m"))


def test_the_perplexities_are_those_that_the_document_shows():
    printed = parse_rows((ROOT / "docs/explanation/convergence.md").read_text().splitlines())
    shipped = shipped_convergence()
    assert list(shipped.rows) == printed
    assert shipped.of("mecefo", "high") is not None and shipped.of("mecefo", "never") is None


def test_what_the_benchmark_printed_can_be_given(tmp_path):
    path = tmp_path / "printed.txt"
    # Both with and without the column of projected layers.
    path.write_text(
        "mecefo, high  3.9  25.5%  +6.1%  +4.4%  +6.7%  3  +1.60% to +2.19%  0.42  1.03  59\n"
        "mecefo, mid, budget 0.0%, r = 1  3.9  0.0%  26.0%  -0.7%  -0.9%  +1.2%  3  +1.60% to +2.19%  0.19  0.33  57\n"
        "exact, low  1.7  0.0%  0.0%  +0.0%  +0.0%  +0.0%  3  -  -  -  0\n"
    )
    degraded, projected, exact = read_convergence(path).rows
    assert (degraded.policy, degraded.median_ratio, degraded.greatest_ratio, degraded.num_seeds) == (
        *("mecefo", 0.061, 0.067, 3),
    )
    assert (degraded.median_error_ratio, degraded.greatest_error_ratio, degraded.num_errors) == (0.42, 1.03, 59)
    assert (projected.policy, projected.process) == ("mecefo, budget 0.0%, r = 1", "mid")
    assert (projected.median_ratio, projected.least_ratio, projected.greatest_ratio) == (-0.007, -0.009, 0.012)
    assert (projected.greatest_error_ratio, projected.num_errors) == (0.33, 57)
    assert (exact.greatest_ratio, exact.greatest_error_ratio, exact.num_errors) == (0.0, None, 0)


def test_every_method_that_is_judged_by_its_perplexity_has_one():
    shipped = shipped_convergence()
    for policy, process in product(POLICIES.values(), PROCESSES):
        row = shipped.of(policy, process)
        assert row is not None and row.num_seeds >= MIN_RUNS and row.num_errors
