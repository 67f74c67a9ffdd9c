"""The forecasts with this version are what this version forecasts; memory; perplexity."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.papers.mecefo.forecasted import averaged_drop, forecast_cell
from harness.papers.mecefo.forecasts import shipped_forecasts
from harness.papers.mecefo.memory import memory_of
from harness.papers.mecefo.perplexity import parse_rows, read_convergence, shipped_convergence
from harness.papers.mecefo.setting import Cell, cells

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[4]


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
    # If this fails, `python -m harness.papers.mecefo` writes them anew.
    assert told is not None and now.settled == pytest.approx(told.settled, abs=2e-5)
    assert now.with_events == pytest.approx(told.with_events, abs=2e-5)
    if method == "mecefo-paper":
        assert averaged_drop(cell) == pytest.approx(shipped_forecasts().averaged_of(cell), abs=2e-5)


def test_replicas_that_do_not_wait_lose_less_than_those_that_do():
    cell = Cell("7b", "high", "8x4", 8, "mecefo-paper")
    told = shipped_forecasts().of(cell)
    assert told is not None and averaged_drop(cell, 20) < told.settled[0] / 2


def test_plain_neighbour_do_both_is_out_of_memory_with_large_microbatches_and_the_techniques_are_not():
    by_key = {(one.shape, one.sequences_per_microbatch): one for one in memory_of("7b")}
    assert not by_key["4x8", 32].fits("exact") and by_key["4x8", 8].fits("exact")
    assert not by_key["8x4", 16].fits("exact") and by_key["8x4", 4].fits("exact")
    assert all(one.fits(method) for one in by_key.values() for method in ("mecefo-paper", "mecefo"))
    assert all(one.fits("exact") for one in memory_of("350m"))


def test_the_perplexities_are_those_that_the_document_shows():
    printed = parse_rows((ROOT / "docs/explanation/convergence.md").read_text().splitlines())
    shipped = shipped_convergence()
    assert list(shipped.rows) == printed
    assert shipped.of("mecefo", "high") is not None and shipped.of("mecefo", "never") is None


def test_what_the_benchmark_printed_can_be_given(tmp_path):
    path = tmp_path / "printed.txt"
    path.write_text("mecefo, high  3.9  25.5%  +6.1%  +4.4%  +6.7%  3  +1.60% to +2.19%  0.42  1.03  59\n")
    (row,) = read_convergence(path).rows
    assert (row.policy, row.median_ratio, row.greatest_ratio, row.num_seeds) == ("mecefo", 0.061, 0.067, 3)


_FIGURE = r"(\S+)%"
ROW = re.compile(
    rf"^\| (\d) x (\d) \| `([\w-]+)`[^|]*\| [\d.]+% \| {_FIGURE} / {_FIGURE} \| {_FIGURE} / {_FIGURE} \| {_FIGURE} \|",
    re.MULTILINE,
)


def test_the_forecasts_in_the_document_are_those_that_came_along():
    rows = ROW.findall((ROOT / "docs/explanation/papers.md").read_text())
    assert len(rows) == 10
    forecasts = shipped_forecasts()
    for data_parallel, pipeline, method, *told in rows:
        shape = f"{data_parallel}x{pipeline}"
        few, many, exposed = (
            forecasts.of(Cell("7b", "high", shape, number, method, is_exposed))
            for number, is_exposed in ((8, False), (32, False), (32, True))
        )
        settled, whole = [few.settled[0], many.settled[0]], [few.with_events[0], many.with_events[0]]
        expected = [*settled, *whole, exposed.with_events[0]]
        assert [float(text) for text in told] == pytest.approx([100 * value for value in expected], abs=0.051)
