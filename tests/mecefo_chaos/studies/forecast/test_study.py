"""A cluster's study: the order of its strategies, what decides it, and how it is shown."""

from __future__ import annotations

import json

import pytest

from mecefo_chaos.cli.main import run_cli
from mecefo_chaos.studies.forecast.cluster_file import load
from mecefo_chaos.studies.forecast.page import render
from mecefo_chaos.studies.forecast.study import study
from mecefo_chaos.studies.forecast.text import to_text

pytestmark = pytest.mark.unit

CLUSTER = """\
name: small <&> "quoted"
device: a100-350m
cluster: {nodes: 4, gpus_per_node: 2, data_parallel: 4, pipeline: 2}
training: {microbatches_per_replica: 8, steps: 1000}
failures: {every: 1h, repair: 1h}
recovery: {restart: 2min, replacement: 1min}
checkpoint: {save: 20s}
strategies: [mecefo, exact, checkpoint, bamboo]
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


@pytest.fixture(scope="module")
def found(path):
    return study(load(path), hours=40, seed=3, num_replications=2)


def test_strategies_are_in_the_order_of_their_time_to_the_loss(found):
    times = [found.time_to_loss(answer.forecast) for answer in found.answers]
    assert times == sorted(times) and len(times) == 4
    assert found.best is found.answers[0].forecast


def test_each_strategy_saves_as_often_as_is_best_for_it(found):
    by_name = {answer.forecast.policy.name: answer for answer in found.answers}
    restarting, surviving = by_name["checkpoint"], by_name["mecefo"]
    assert restarting.best_interval_seconds < surviving.best_interval_seconds
    assert restarting.forecast.checkpoint_interval_seconds == restarting.best_interval_seconds


def test_inputs_that_decide_are_told_first(found):
    changes = [abs(one.change_ratio) for one in found.sensitivities]
    assert changes == sorted(changes, reverse=True)
    by_input = {(one.input, one.factor): one for one in found.sensitivities}
    assert by_input["compute time", 2.0].change_ratio > 0.5
    assert by_input["time between failures", 0.5].change_ratio > 0 > by_input["time between failures", 2.0].change_ratio
    assert {"repair time", "checkpoint save time", "link bandwidth"} <= {one.input for one in found.sensitivities}


def test_text_has_a_line_for_each_strategy_and_ends_in_one_sentence(found):
    text = to_text(found)
    for name in ("mecefo", "exact", "checkpoint", "bamboo"):
        assert any(line.startswith(f"  {name} ") for line in text.splitlines())
    assert "docs/explanation/convergence.md" in text
    assert text.rpartition("\n\n")[2].startswith(f"{found.best.policy} is soonest at the failure-free loss")


def test_the_page_stands_alone(found):
    page = render(found)
    assert "small &lt;&amp;&gt;" in page and "<&>" not in page
    assert "<script" not in page and "http://" not in page.replace("http://www.w3.org", "")
    assert page.count("<svg") == 8, "each picture for a screen and for a phone"


def test_the_command_prints_text_json_and_a_page(path, tmp_path, capsys):
    page = tmp_path / "page.html"
    options = ["--hours", "20", "--repeat", "1", "--no-sensitivity"]
    assert run_cli(["forecast", str(path), *options, "--html", str(page)]) == 0
    assert "checkpoint" in capsys.readouterr().out and page.read_text().startswith("<!DOCTYPE html>")
    assert run_cli(["forecast", str(path), *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["best"]["name"] in ("mecefo", "exact", "checkpoint", "bamboo")
    for one in document["strategies"]:
        total = one["productive_seconds"] + sum(one["lost_seconds"].values())
        assert total == pytest.approx(one["wall_clock_seconds"])
    assert run_cli(["forecast", str(path), *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document


def test_the_example_can_be_forecast(tmp_path, capsys):
    assert run_cli(["forecast", "--example"]) == 0
    path = tmp_path / "c.yaml"
    path.write_text(capsys.readouterr().out)
    assert load(path).job.cluster.num_ranks == 32


def test_a_users_mistake_ends_with_4_and_without_a_traceback(path, tmp_path, capsys):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(CLUSTER.replace("nodes: 4", "nodes: 5"))
    for arguments in (
        [],
        [str(wrong)],
        [str(tmp_path / "none")],
        [str(path), "--example"],
        [str(path), "--hours", "x"],
    ):
        assert run_cli(["forecast", *arguments]) == 4
        out, err = capsys.readouterr()
        assert out == "" and "Traceback" not in err and err
