from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks._machine import Machine
from benchmarks.saving.jobs import BUSY, IDLE, JobRun, step_ratios
from benchmarks.saving.nodes import Save
from benchmarks.saving.parts import MEMCPY, STAGING
from benchmarks.snapshots import Results, least_interval_seconds, ours, report, saving_document, to_document
from tests.benchmarks.limits import TIMEOUT_SECONDS

MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")
COMMAND = "python -m benchmarks.snapshots"


def results() -> Results:
    found = Results(state_bytes=256 << 20)
    found.parts = {MEMCPY: [10e9, 8e9, 12e9], STAGING: [9.5e9, 4e9, 11e9]}
    found.saves = {
        ours("xor"): [Save(0.008, 0.25), Save(0.01, 0.3), Save(0.009, 0.2)],
        "torch.save": [Save(0.09, 0.09), Save(0.1, 0.1), Save(0.08, 0.08)],
    }
    found.saved_bytes = dict.fromkeys(found.saves, 64 << 20)
    found.restores = {"snapshots": [0.2, 0.3]}
    runs = [(IDLE, "none", 0.2), (IDLE, "xor", 0.201), (BUSY, "none", 0.1), (BUSY, "xor", 0.11)]
    found.jobs = [JobRun(job, condition, 0, seconds, None) for job, condition, seconds in runs]
    found.jobs.append(JobRun(BUSY, "pq", 0, None, "3 of 4 steps committed"))
    return found


@pytest.mark.unit
def test_a_save_follows_the_budget_and_the_save_before():
    assert least_interval_seconds(0.01, 0.3, 0.01) == pytest.approx(1.0)
    assert least_interval_seconds(0.01, 3.0, 0.01) == pytest.approx(3.0)


@pytest.mark.unit
def test_ratios_are_of_the_same_round():
    runs = [
        JobRun(IDLE, c, n, s, None)
        for n, (a, b) in enumerate([(1.0, 1.1), (2.0, 2.4)])
        for c, s in (("none", a), ("xor", b))
    ]
    runs.append(JobRun(IDLE, "xor", 2, 9.0, None))
    assert step_ratios(runs, IDLE, "xor").values == pytest.approx((1.1, 1.2))


@pytest.mark.unit
def test_the_report_says_how_much_more_often_and_which_aims_are_missed():
    lines = report(results(), MACHINE, 0.1, COMMAND).splitlines()
    assert "aim: staging at least 90% of memcpy: met (91.7%)" in lines
    assert "aim: step time, xor, at most 1.01 times: met (1.0050)" in lines
    (other,) = [line.split() for line in lines if line.startswith("torch.save")]
    # 90 ms of stopped time beside 9 ms, and with it the interval.
    assert other[-4:] == ["10.0", "9.00", "s", "10.0"]
    assert f"{BUSY}, round 1, pq: FAILED: 3 of 4 steps committed" in lines


@pytest.mark.unit
def test_what_others_read_has_both_times_of_every_way():
    document = json.loads(json.dumps(saving_document(results(), MACHINE, COMMAND), allow_nan=False))
    assert document["command"] == COMMAND and document["machine"] == str(MACHINE)
    assert document["methods"]["torch.save"]["stopped_seconds"] == 0.09
    assert document["methods"][ours("xor")]["total_seconds"] == 0.25
    json.dumps(to_document(results(), MACHINE, 0.1, COMMAND), allow_nan=False)


@pytest.mark.nightly
def test_every_part_runs_and_is_one_document(tmp_path):
    saving = tmp_path / "saving.json"
    command = [sys.executable, "-m", "benchmarks.snapshots", "--quick", "--json", "--saving", str(saving)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["saving"]["methods"] == json.loads(saving.read_text())["methods"]
    assert set(document["step_ratios"]) == {IDLE, BUSY}
    assert all(ratio["n"] for of_job in document["step_ratios"].values() for ratio in of_job.values())
