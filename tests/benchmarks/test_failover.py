import json
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from benchmarks._machine import Machine
from benchmarks.failover import (
    KINDS,
    PHASES,
    collect,
    experiment_of,
    is_recovered_in_time,
    main,
    read_failover,
    report,
    to_document,
)
from harness.judging.summarize import summarize
from tests.benchmarks.limits import TIMEOUT_SECONDS
from tests.harness import synthetic
from tests.harness.synthetic import Fault

MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")


def failover(**fault):
    return read_failover(summarize(synthetic.run(faults=(Fault(repair_steps=None, **fault),))), 0.01)


@pytest.mark.unit
@pytest.mark.parametrize("kind", KINDS)
def test_the_runs_differ_in_their_targets(kind):
    from harness.run.preparation import check

    targets = {str(check(experiment_of(kind, seed, quick=False))[1][0].target) for seed in range(10)}
    assert len(targets) > 1


@pytest.mark.unit
def test_the_phases_are_the_recovery():
    run = failover()
    assert run.failure is None
    assert list(run.phases_seconds) == list(PHASES)
    assert sum(run.phases_seconds.values()) == pytest.approx(run.recovery_seconds)
    assert run.phases_seconds["detection"] == pytest.approx(synthetic.DETECT_SECONDS)
    assert run.phases_seconds["isolate"] == pytest.approx(
        synthetic.ISOLATE_SECONDS - synthetic.DETECT_SECONDS, abs=6e-3
    )
    assert run.phases_seconds["transfer"] == pytest.approx(synthetic.TRANSFER_SECONDS)
    assert run.step_seconds == pytest.approx(0.1)


@pytest.mark.unit
def test_a_run_that_did_not_recover_never_recovers():
    runs = [failover(), failover(recovers=False)]
    assert runs[1].failure is not None and runs[1].failure.startswith("did not recover: ")
    document = to_document(runs, MACHINE, "kill-node", quick=False)
    assert document["num_recovered"] == 1
    assert document["recovery_seconds"]["n"] == 2
    assert document["recovery_seconds"]["max"] is None and document["recovery_seconds"]["values"][1] is None
    json.dumps(document, allow_nan=False)
    text = report(runs, MACHINE, "kill-node", quick=False)
    assert f"seed {runs[1].seed}, {runs[1].target}: FAILED: did not recover" in text
    assert "recovered: 1 of 2 runs" in text
    assert "never" in next(line for line in text.splitlines() if line.startswith("injected -> committed "))


@pytest.mark.unit
def test_a_kill_that_did_not_take_effect_says_nothing_about_recovery():
    runs = [failover(), failover(fires=False)]
    assert runs[1].failure is not None and runs[1].failure.startswith("the kill did not take effect: ")
    assert collect(runs, lambda run: run.recovery_seconds).num_values == 1
    assert "recovered: 1 of 2 runs" in report(runs, MACHINE, "kill-node", quick=False)
    assert "FAILED: the kill did not take effect" in report(runs, MACHINE, "kill-node", quick=False)


@pytest.mark.unit
def test_aims_are_counted_over_all_runs():
    text = report([failover(), failover(recovers=False)], MACHINE, "kill-node", quick=False)
    assert "aim: detection under 100 ms: " in text
    assert "aim: regroup + transfer under 500 ms: 1 of 2 runs" in text
    in_time = is_recovered_in_time(failover())
    assert f"aim: injected -> committed within 1.2 usual steps and 200 ms: {int(in_time)} of 2 runs" in text


@pytest.mark.unit
@pytest.mark.parametrize(("recovery_seconds", "is_in_time"), [(0.31, True), (0.33, False), (None, False)])
def test_a_recovery_in_time_is_measured_by_the_usual_step(recovery_seconds, is_in_time):
    run = replace(failover(), recovery_seconds=recovery_seconds, step_seconds=0.1)
    assert is_recovered_in_time(run) is is_in_time


@pytest.mark.unit
def test_the_comparison_with_the_peers_leaves_no_choice_of_kinds():
    answer = CliRunner().invoke(main, ["--peers", "--kind", "kill-node"])
    assert answer.exit_code == 2
    assert "leave out --kind" in answer.output


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_quick(kind, tmp_path):
    command = [sys.executable, "-m", "benchmarks.failover", "--json", "--quick", "--kind", kind, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["num_recovered"] == len(document["runs"]) == len(list(tmp_path.glob("*/2*/events.jsonl"))) == 2
    for run in document["runs"]:
        assert sum(run["phases_seconds"].values()) == pytest.approx(run["recovery_seconds"], abs=1e-4)
        assert run["step_seconds"] > 0
