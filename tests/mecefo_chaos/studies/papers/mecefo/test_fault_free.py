"""The speed without failures: the figures of this version are those of the document, and the benchmark's are read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks._machine import describe_machine
from benchmarks.fault_free import DEFAULT_JOB, MIN_SPEED_RATIO, SHAPES, to_document
from benchmarks.plain.agent import AgentCost
from mecefo_chaos.studies.papers.mecefo import findings
from mecefo_chaos.studies.papers.mecefo.fault_free import read_fault_free, shipped_fault_free
from mecefo_runtime.job.config import QUALITIES

pytestmark = pytest.mark.unit

DOCUMENT = Path(__file__).parents[5] / "docs/explanation/benchmarks.md"


def test_the_shipped_figures_are_those_of_the_document():
    (line,) = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| **speed, ours / plain**")]
    figures = re.findall(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", line)
    shipped = shipped_fault_free().rows
    assert [row.shape for row in shipped] == [shape.name for shape in SHAPES]
    assert [(row.median_ratio, row.least_ratio, row.greatest_ratio, row.num_rounds) for row in shipped] == [
        (*map(float, one), 6) for one in figures
    ]


def test_the_benchmark_measures_the_default_strategy_with_the_limit_of_the_rule():
    assert DEFAULT_JOB.strategy == "mecefo"
    assert (DEFAULT_JOB.degraded_share_limit, DEFAULT_JOB.projected_share_limit) == QUALITIES["auto"]
    assert MIN_SPEED_RATIO == findings.MIN_SPEED_RATIO


def test_what_the_benchmark_prints_is_read(tmp_path):
    document = to_document([], SHAPES, AgentCost(2e-7, 1e-7), describe_machine(), 0.0)
    path = tmp_path / "printed.json"
    path.write_text(json.dumps(document))
    assert read_fault_free(path).rows == ()
    document["shapes"][0]["ratios"]["speed, ours / plain"] = {"median": 1.0, "min": 0.5, "max": 2.0, "n": 3}
    path.write_text(json.dumps(document))
    (row,) = read_fault_free(path).rows
    assert (row.shape, row.median_ratio, row.least_ratio, row.greatest_ratio, row.num_rounds) == (
        *(SHAPES[0].name, 1.0, 0.5, 2.0, 3),
    )
