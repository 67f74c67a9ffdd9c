"""`chaos gates`: the metrics that a gate can be set on, and what a gate or a metric means."""

import json

import pytest

from harness.judging.gates import Gate
from harness.judging.metrics import METRICS
from harness.judging.series import SERIES
from mecefo_chaos.cli.main import run_cli

pytestmark = pytest.mark.unit


def told(capsys, *arguments, code=0):
    assert run_cli(["gates", *arguments]) == code
    return " ".join("".join(capsys.readouterr()).split())


def test_a_metric_has_its_unit_its_meaning_and_an_example(capsys):
    text = told(capsys, "recovery")
    for words in ("recovery_seconds", "[s, ms, min]", "fault to the first step", "'recovery_seconds <= 5s'"):
        assert words in text


@pytest.mark.parametrize("name", [*METRICS, *SERIES])
def test_the_example_of_each_is_a_gate_on_it(capsys, name):
    rows = json.loads(told(capsys, name, "--json"))
    assert {row["name"] for row in rows} == {name}
    assert [Gate.parse(row["example"]).metric.name for row in rows] == [name] * len(rows)


def test_a_figure_and_a_series_of_one_name_are_both_told(capsys):
    rows = json.loads(told(capsys, "step_seconds", "--json"))
    assert [row["kind"] for row in rows] == ["run", "series"]


def test_gates_and_metrics_side_by_side(capsys):
    rows = json.loads(told(capsys, "goodput", "recovery < 5", "--json"))
    assert rows[0]["example"].startswith("goodput_ratio >= ")
    assert (rows[1]["metric"], rows[1]["threshold"]) == ("recovery_seconds", 5)


@pytest.mark.parametrize("wrong", ["recovry", "recovry < 5"])
def test_what_is_none_gets_the_nearest_word(capsys, wrong):
    assert "did you mean 'recovery'?" in told(capsys, wrong, code=4)


def test_without_an_argument_all_are_listed(capsys):
    text = told(capsys)
    assert all(name in text for name in (*METRICS, *SERIES))
