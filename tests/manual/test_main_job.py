"""The README's output of the main job is what a terminal shows of that run today.

After a change of the report, or for new figures: `chaos run kill-node --at step=500`, copy the run's `summary.json` to
`main-job.json` in this folder, and its lines and sections into the README (without the chart of the speed over time).
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from harness.judging.summary import read_summary
from harness.report import terminal
from harness.report.wording import approximation_words
from tests.integration.runs import REPOSITORY

pytestmark = pytest.mark.unit

SUMMARY = read_summary(json.loads((Path(__file__).parent / "main-job.json").read_text()))
README = (REPOSITORY / "README.md").read_text()
BLOCK = re.search(r"<!-- main job output -->\n```text\n(.*?)```\n<!-- end of main job output -->", README, re.DOTALL)


def test_the_sections_are_those_of_the_report():
    stream = io.StringIO()
    terminal.render(SUMMARY, (), Console(file=stream, width=80, color_system=None))
    lines, *sections = BLOCK[1].rstrip("\n").split("\n\n")
    verdict = lines.partition("kill-node: ")
    assert f"{verdict[1]}{verdict[2]}" in stream.getvalue()
    assert [section.partition("\n")[0] for section in sections][1:] == [
        "Training speed (tokens per second)",
        "Loss",
        "Approximation",
    ]
    for section in sections:
        assert f"\n{section}\n" in stream.getvalue(), section


def test_the_figures_in_its_lines_are_those_of_the_run():
    (incident,) = SUMMARY.incidents
    assert f"recovered from kill-node on node 3 in {incident.recovery_seconds:.2f} s" in BLOCK[1]
    assert f"job completed with {SUMMARY.steps_committed} steps committed" in BLOCK[1]


def test_the_main_job_says_how_much_it_approximated_and_what_speed_would_have_led_to():
    found = SUMMARY.approximation
    assert (found.approximated_layers, found.quality, found.other.quality) == (0, "auto", "speed")
    assert found.other.degraded_layers > 0
    assert found.other.predicted_drop_ratio < found.predicted_drop_ratio
    assert approximation_words(SUMMARY) in re.sub(r"\s+", " ", BLOCK[1])
