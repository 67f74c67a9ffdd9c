import json
import subprocess
import sys

import pytest

from benchmarks._machine import Machine
from benchmarks.dilation import (
    CONDITIONS,
    Condition,
    Measurement,
    busy_over_idle,
    busy_over_idle_per_cpu_second,
    idle_over_idle,
    job_of,
    plan_rounds,
    report,
    to_document,
)
from tests.benchmarks.limits import TIMEOUT_SECONDS

MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")
DILATED_IDLE, DILATED_BUSY, IDLE, BUSY = CONDITIONS


def run(round_number, condition, speed, failure=None, cpu_seconds=10.0):
    return Measurement(
        round_number=round_number,
        condition=condition,
        dilation_ratio=5.71 if condition.dilation == "auto" else 1.0,
        tokens_per_second=speed,
        compute_cpu_seconds=None if speed is None else cpu_seconds,
        others_cores=0.02,
        busy_loop_ratio=0.8 if condition.is_busy else None,
        failure=failure,
    )


def measured():
    speeds = {DILATED_IDLE: (100, 110), DILATED_BUSY: (99, 110), IDLE: (200, 160), BUSY: (100, 120)}
    return [run(i + 1, condition, speed) for condition, row in speeds.items() for i, speed in enumerate(row)]


@pytest.mark.unit
def test_every_round_has_every_condition_and_none_is_always_first():
    rounds = plan_rounds(4)
    assert all(sorted(map(str, conditions)) == sorted(map(str, CONDITIONS)) for conditions in rounds)
    positions = {condition: sum(conditions.index(condition) for conditions in rounds) for condition in CONDITIONS}
    assert len(set(positions.values())) == 1


@pytest.mark.unit
def test_the_conditions_differ_in_nothing_but_dilation():
    dilated, plain = job_of("auto", 20), job_of("off", 20)
    assert dilated.job.model_copy(update={"dilation": "off"}) == plain.job
    assert not dilated.faults and not plain.faults and not dilated.twin and not plain.twin


@pytest.mark.unit
def test_busy_is_compared_with_idle_of_the_same_round():
    assert busy_over_idle(measured(), "auto").values == pytest.approx((0.99, 1.0))
    assert busy_over_idle(measured(), "off").values == pytest.approx((0.5, 0.75))


@pytest.mark.unit
def test_what_the_work_cost_in_cpu_time_can_be_divided_out():
    measurements = [run(1, DILATED_IDLE, 100, cpu_seconds=10.0), run(1, DILATED_BUSY, 80, cpu_seconds=12.5)]
    assert busy_over_idle(measurements, "auto").median == pytest.approx(0.8)
    assert busy_over_idle_per_cpu_second(measurements, "auto").median == pytest.approx(1.0)


@pytest.mark.unit
def test_the_order_of_the_runs_does_not_matter():
    assert busy_over_idle(measured()[::-1], "off") == busy_over_idle(measured(), "off")
    assert idle_over_idle(measured()[::-1], "off") == idle_over_idle(measured(), "off")


@pytest.mark.unit
def test_the_noise_is_idle_over_the_idle_before():
    assert idle_over_idle(measured(), "auto").values == pytest.approx((1.1,))
    assert idle_over_idle(measured(), "off").values == pytest.approx((0.8,))


@pytest.mark.unit
def test_a_failed_run_is_named_and_takes_its_pair_with_it():
    runs = [m for m in measured() if (m.round_number, m.condition) != (1, BUSY)]
    runs.append(run(1, BUSY, None, failure="3 of 45 steps committed: it hung"))
    assert busy_over_idle(runs, "off").values == pytest.approx((0.75,))
    assert "round 1, not dilated, one core busy: FAILED: 3 of 45 steps committed: it hung" in report(runs, MACHINE, 45)
    assert [found["failure"] for found in to_document(runs, MACHINE, 45)["runs"] if found["failure"]] == [
        "3 of 45 steps committed: it hung"
    ]


@pytest.mark.unit
def test_the_report_names_the_figures_and_the_machine():
    lines = report(measured(), MACHINE, 45).splitlines()
    assert lines[0] == "machine: 2 cores, a CPU, Python 3.11, torch 2.13"
    assert lines[1] == "job: the default one without faults, 45 steps; dilated means x5.71"
    assert [line.split()[-5:] for line in lines if line.startswith("busy / idle, ")] == [
        # As it is, and per CPU second, of which every run here took as many.
        ["dilated", "0.995", "0.990", "1.000", "2"],
        ["dilated", "0.995", "0.990", "1.000", "2"],
        ["dilated", "0.625", "0.500", "0.750", "2"],
        ["dilated", "0.625", "0.500", "0.750", "2"],
    ]


@pytest.mark.unit
def test_the_document_is_plain_json():
    document = json.loads(json.dumps(to_document(measured(), MACHINE, 45), allow_nan=False))
    assert document["tokens_per_second"][str(Condition("off", True))]["values"] == [100, 120]
    assert document["ratios"]["dilated"]["busy_over_idle"]["median"] == pytest.approx(0.995)
    assert document["job"]["steps"] == 45


@pytest.mark.nightly
def test_quick(tmp_path):
    command = [sys.executable, "-m", "benchmarks.dilation", "--json", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["runs"]) == len(CONDITIONS) == len(list(tmp_path.glob("*/2*/events.jsonl")))
    for found in document["runs"]:
        assert found["tokens_per_second"] > 0
        assert (found["dilation_ratio"] > 1) is (found["condition"]["dilation"] == "auto")
        assert (found["busy_loop_ratio"] is not None) is found["condition"]["is_busy"]
        # Without this, "busy" would say nothing: the loop must really have taken its core.
        assert found["busy_loop_ratio"] is None or found["busy_loop_ratio"] > 0.01
