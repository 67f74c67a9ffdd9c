"""`chaos paper mecefo --emulate` with 32 real ranks, and `chaos paper reft --draws --runs`."""

from __future__ import annotations

import json

import pytest

from mecefo_chaos.cli.main import run_cli
from mecefo_chaos.studies.papers.mecefo.results import read_results

pytestmark = pytest.mark.nightly


def test_what_is_emulated_is_what_is_forecast_for_the_same_ranks(tmp_path, capsys):
    only = ["--only", "350m,4x8,mecefo-speed", "--seeds", "1", "--time-scale", "1"]
    code = run_cli(["paper", "mecefo", "--emulate", *only, "--results", str(tmp_path), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == document["exit_code"]
    results = read_results(tmp_path)
    assert [seed for _, seed in results] == [1, None]
    (run,) = [result.run for (_, seed), result in results.items() if seed is not None]
    # Both within what a busy machine adds.
    assert abs(run.settled_drop_ratio() - run.predicted_drop_ratio) < 0.1
    assert run.num_events > 3 and 1 < run.mean_down < 10


def test_what_is_really_lost_survives_as_the_products_code_says_and_every_rung_serves(tmp_path, capsys):
    measured = ["--draws", "60", "--runs", "1", "--seed", "5", "--results", str(tmp_path)]
    code = run_cli(["paper", "reft", *measured, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == document["exit_code"] == 0
    draws, runs = document["measured"]["draws"], document["measured"]["runs"]
    assert len(draws) == 60 and {draw["outcome"] for draw in draws} == {"restored", "refused"}
    assert all((draw["outcome"] == "restored") == draw["survives"] for draw in draws)
    assert {run["served"] for run in runs} == {"peer", "snapshot", "parity", "checkpoint", "stop"}
    assert all(run["served"] == run["expected"] for run in runs)
