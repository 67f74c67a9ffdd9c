"""The benchmark of the analysis, without its long logs."""

import json
from pathlib import Path

import pytest

from benchmarks.analysis import Cost, lines, to_dict, to_text, write_log
from harness.judging.stored import judge
from harness.store.log import parse_line

pytestmark = pytest.mark.unit


def test_its_log_is_as_long_as_asked_and_is_understood(tmp_path: Path):
    assert all(parse_line(line.encode()) is not None for line in lines(2_000))
    summary, events = judge(write_log(tmp_path / "run", 2_000))
    assert 1_900 < len(events) < 2_100
    assert (summary.attempts, len(summary.incidents), summary.status) == (5, 4, "completed")
    assert all(incident.recovered for incident in summary.incidents)
    assert not any("could not be computed" in reason for reason in summary.reasons)


def test_the_ratio_is_that_of_the_rounds():
    costs = {
        "report": {
            "here": [Cost(1.0, 1.0, 10), Cost(2.0, 2.0, 10), Cost(9.0, 9.0, 10)],
            "beside": [Cost(2.0, 2.0, 20), Cost(8.0, 8.0, 20), Cost(10.0, 10.0, 20)],
        }
    }
    here, beside = (line.split() for line in to_text(costs, 1_000).splitlines()[1:])
    assert "0.500" in here and "0.500" not in beside
    assert json.loads(json.dumps(to_dict(costs, 1_000)))["costs"]["report"]["here"][1]["cpu_seconds"] == 2.0
