"""Every figure and verdict of the document is what `chaos paper mecefo` shows with the figures of this version."""

from __future__ import annotations

from pathlib import Path

import pytest

from mecefo_chaos.studies.papers.mecefo.check import check
from mecefo_chaos.studies.papers.mecefo.fault_free import shipped_fault_free
from mecefo_chaos.studies.papers.mecefo.forecasts import shipped_forecasts
from mecefo_chaos.studies.papers.mecefo.perplexity import shipped_convergence
from mecefo_chaos.studies.papers.mecefo.results import shipped_results
from tests.mecefo_chaos.studies.papers.mecefo.document import emulated_lines, finding_lines, forecast_lines
from tests.mecefo_chaos.studies.papers.mecefo.made import UNDILATED

pytestmark = pytest.mark.unit

DOCUMENT = Path(__file__).parents[5] / "docs/explanation/papers.md"


@pytest.fixture(scope="module")
def shipped():
    return check(shipped_results(), shipped_forecasts(), shipped_convergence(), UNDILATED, shipped_fault_free())


@pytest.mark.parametrize("table", [forecast_lines, emulated_lines, finding_lines], ids=lambda table: table.__name__)
def test_a_table_has_the_rows_that_follow_from_the_figures(table, shipped):
    # If this fails, print the lines of `table` and put them into the document.
    lines = list(table(shipped))
    assert "\n".join(lines) in DOCUMENT.read_text()


def test_what_the_document_says_of_the_gates(shipped):
    text = " ".join(DOCUMENT.read_text().split())
    decided = [gate for gate in shipped.evidence.gates if gate.passed is not None]
    assert len(shipped.gates) == 20 and "Three of 20 gates are decided, and pass" in text
    assert [gate.passed for gate in decided] == [True] * 3
    assert {gate.cell.method for gate in decided} == {"mecefo-speed"} and "No gate of the default is decided" in text
    (gate,) = [gate for gate in decided if gate.cell.shape == "4x8"]
    assert "holds up to 3.3 s for each loss or rejoin" in gate.reason and "holds up to 3.3 s for each loss" in text


def test_what_the_document_says_of_the_rows_of_the_default(shipped):
    verdicts = {
        shape: [
            row.verdict
            for row in shipped.evidence.rows
            if (row.cell.size, row.cell.process, row.cell.shape, row.cell.method) == ("7b", "high", shape, "mecefo")
        ]
        for shape in ("4x8", "8x4")
    }
    assert verdicts["4x8"] == ["better than the paper"] * 4
    assert sorted(verdicts["8x4"]) == ["cannot be decided here", *["not reproduced"] * 3]
