"""Preemptions of a script's own job: in time or not, with a notice that arrives or not, started again or not."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.integration.runs import run_chaos

pytestmark = pytest.mark.external

TRAINING = str(Path(__file__).parent / "preempted_training.py")


def preempt(tmp_path, *options, script=(), shell=False):
    command = (sys.executable, TRAINING, str(tmp_path / "c.pt"), *script)
    if shell:
        # Not the shell's last command, which it would become.
        command = ("bash", "-c", f"{shlex.join(command)}; exit $?")
    return run_chaos(tmp_path, "preempt", "--at", "step=15", *options, command=command)


def preemption_of(run):
    (incident,) = run.summary["incidents"]
    return incident["preemption"]


def test_a_script_that_saves_in_the_grace_loses_nothing(tmp_path):
    run = preempt(tmp_path, "--gate", "steps_lost == 0", "--gate", "notice_to_checkpoint_seconds < 20")
    assert run.exit_code == 0, run.summary["reasons"]
    found = preemption_of(run)
    (notice,) = run.of("injected")
    saved = next(one for one in run.of("checkpoint_written") if one.monotonic_seconds > notice.monotonic_seconds)
    assert found["checkpoint_step"] == found["resumed_after"] == found["last_step"] == saved.step
    assert found["notice_to_checkpoint_seconds"] == pytest.approx(saved.monotonic_seconds - notice.monotonic_seconds)
    assert (found["steps_lost"], found["ranks_left_in_order"], found["ranks_reached"]) == (0, [0], [0])
    assert [one.fields["signal"] for one in run.of("signal_arrived")] == ["SIGTERM"]
    (again,) = run.of("command_requeued")
    assert (again.fields["exit"], run.summary["attempts"]) == (0, 2)
    assert not run.of("orphans_ended")


def test_a_notice_that_ends_data_workers_ends_the_rank_before_it_has_saved(tmp_path):
    run = preempt(tmp_path, "--gate", "steps_lost == 0", script=("--workers", "1"))
    assert run.exit_code == 1
    found = preemption_of(run)
    assert (found["ranks_failed"], found["checkpoints_after_notice"], found["resumed_after"]) == ([0], 0, 10)
    assert found["steps_lost"] == run.summary["steps_lost"] > 0
    assert "DataLoader worker" in found["raised"][0]["message"]
    assert "notice_ended_data_workers" in {one["code"] for one in run.summary["caveat_codes"]}


@pytest.mark.nightly
def test_a_notice_to_a_shell_does_not_reach_the_script(tmp_path):
    run = preempt(tmp_path, "-p", "deliver=pid1", "-p", "grace=300ms", shell=True)
    assert run.exit_code == 0, run.summary["reasons"]
    found = preemption_of(run)
    assert (found["ranks_not_reached"], found["ranks_killed"], found["notices_dropped"]) == ([0], [0], 1)
    assert found["grace_used_seconds"] == 0.3
    assert not run.of("signal_arrived")
    assert "notice_not_reached" in {one["code"] for one in run.summary["caveat_codes"]}


@pytest.mark.nightly
def test_a_script_that_ignores_it_and_is_not_started_again_has_died(tmp_path):
    """The negative control."""
    run = preempt(tmp_path, "-p", "grace=300ms", "-p", "requeue=0", script=("--deaf",))
    assert run.exit_code == 1
    found = preemption_of(run)
    assert (found["ranks_killed"], found["is_requeued"], found["steps_lost"]) == ([0], False, None)
    assert not run.of("command_requeued")
    assert [one["recovered"] for one in run.summary["incidents"]] == [False]
