import json
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks._machine import Machine
from benchmarks.repeatability import (
    QUICK_STEPS,
    STRATEGIES,
    WAYS,
    Measurement,
    drop_range_points,
    experiment_of,
    report,
    seeds_in_order,
    step_range_ratio,
    to_document,
)
from tests.benchmarks.limits import TIMEOUT_SECONDS

MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")
SHARED = WAYS[0].name


def run(name, drop_ratio, *, seed=0, step_seconds=0.2, failure=None):
    return Measurement(name, seed, False, drop_ratio, step_seconds, 0.01, 0.02, failure)


def measured():
    repeated = [run(way.name, drop) for way in WAYS for drop in (0.101, 0.105)]
    seeds = [
        run(name, drop, seed=seed) for seed in (0, 1) for name, drop in zip(STRATEGIES, (0.1, 0.2, 0.3), strict=True)
    ]
    return [*repeated, *seeds]


@pytest.mark.unit
def test_what_is_compared_differs_in_nothing_else():
    rated, measured_pacing = (experiment_of(pacing, "mecefo", 3, QUICK_STEPS) for pacing in ("rated", "measured"))
    assert rated.job.model_copy(update={"pacing": "measured"}) == measured_pacing.job
    assert rated.faults == measured_pacing.faults
    assert not rated.twin


@pytest.mark.unit
def test_the_ranges_are_from_least_to_greatest_of_the_runs_that_came_to_their_end():
    runs = [run(SHARED, 0.10, step_seconds=0.2), run(SHARED, 0.112, step_seconds=0.202), run("ndb", 0.9)]
    runs.append(replace(run(SHARED, None, failure="killed"), step_seconds=None))
    assert drop_range_points(runs, SHARED) == pytest.approx(1.2)
    assert step_range_ratio(runs, SHARED) == pytest.approx(0.002 / 0.201)
    assert drop_range_points(runs, "exact") is step_range_ratio(runs, "exact") is None


@pytest.mark.unit
@pytest.mark.parametrize(
    ("worse", "num_ordered"),
    [(run("exact", 0.3, seed=2), 3), (run("exact", 0.2, seed=2), 2), (run("exact", None, seed=2, failure="killed"), 2)],
)
def test_a_seed_is_in_order_where_each_strategy_is_better_than_the_next(worse, num_ordered):
    runs = [*measured(), run("mecefo", 0.1, seed=2), run("ndb", 0.2, seed=2), worse]
    assert seeds_in_order(runs) == (num_ordered, 3)


@pytest.mark.unit
def test_a_run_that_failed_is_shown_as_failed_and_a_missed_aim_as_missed():
    text = report(measured(), MACHINE, QUICK_STEPS)
    assert text.count("met: ") == 3
    worse = [*measured(), run(SHARED, 0.2, step_seconds=0.21), run("ndb", None, seed=7, failure="killed")]
    text = report(worse, MACHINE, QUICK_STEPS)
    assert text.count("MISSED: ") == 3
    assert "ndb, seed 7: FAILED: killed" in text


@pytest.mark.unit
def test_the_document_is_json_with_every_run():
    document = json.loads(json.dumps(to_document(measured(), MACHINE, QUICK_STEPS)))
    assert len(document["runs"]) == 10
    assert document["figures"][SHARED]["drop_range_points"] == pytest.approx(0.4)
    assert (document["seeds_in_order"], document["num_seeds"]) == (2, 2)


@pytest.mark.nightly
def test_it_measures_real_runs(tmp_path):
    command = [sys.executable, "-m", "benchmarks.repeatability", "--json", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["runs"]) == 7
    assert all(one["drop_ratio"] is not None and one["failure"] is None for one in document["runs"])
