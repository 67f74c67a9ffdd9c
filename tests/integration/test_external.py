"""Somebody else's job under `chaos run FAULT -- COMMAND`: what the launcher does about the fault, told and judged."""

import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from mecefo_runtime.system.events import BASELINE_JOB
from mecefo_runtime.system.process import ProcessId
from tests.integration.runs import ChaosRun, assert_nothing_left, read_run, run_chaos

pytestmark = pytest.mark.external

HERE = Path(__file__).parent
FOLLOWER = (sys.executable, str(HERE / "follower.py"))
TRAINING = str(HERE / "external_training.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
NOTHING_APPLIED = """
import sys
if "mecefo_chaos.cli.main" in " ".join(sys.argv + sys.orig_argv):
    from chaos.faults.process.kill import KillProcess
    async def apply(self, act, host):
        return
    KillProcess.apply = apply
    KillProcess.verify_timeout_seconds = 0.5
"""


def again_and_again(*command):
    """A launcher of three attempts."""
    return ("sh", "-c", 'for attempt in 1 2 3; do "$@" && exit 0; done; exit 1', "sh", *command)


def of_rank(run, kind):
    return [event for event in run.of(kind) if event.fields.get("role") == "rank"]


class TestAnotherLauncher:
    """Whatever starts the ranks, with a script that takes its steps in no time."""

    def test_a_job_that_dies_is_a_result(self, tmp_path):
        run = run_chaos(tmp_path, "kill-process", "--at", "step=8", command=(*FOLLOWER, "20"))
        assert (run.exit_code, run.summary["verdict"]) == (1, "fail")
        (incident,) = run.summary["incidents"]
        assert incident["verified"] and incident["recovered"] is False and incident["recovery_seconds"] is None
        assert run.summary["steps_committed"] == 7
        (failed,) = (gate for gate in run.summary["gates"] if gate["passed"] is False)
        assert failed["expression"] == "unrecovered_incidents == 0" and failed["builtin"]
        assert "killed by SIGKILL" in run.of("job_failed")[0].fields["reason"]

    def test_a_job_that_dies_behind_a_pipe_has_not_come_to_its_end(self, tmp_path):
        run = run_chaos(
            tmp_path, "kill-process", "--at", "step=8", command=("sh", "-c", '"$@" | cat', "sh", *FOLLOWER, "20")
        )
        if of_rank(run, "process_exited")[0].fields["exit"] is None:
            pytest.skip("this kernel does not tell how the child of another process ended")
        assert (run.exit_code, run.summary["verdict"]) == (1, "fail")
        (failed,) = run.of("job_failed")
        assert failed.fields["reason"].startswith("rank 0 was killed by SIGKILL at step 8")
        assert "none of its ranks completed" in failed.fields["reason"]
        assert "pipefail" in failed.fields["reason"]

    def test_a_job_that_is_started_again_recovers_and_its_repeated_steps_are_counted(self, tmp_path):
        command = again_and_again(*FOLLOWER, "30", "--resume-from", str(tmp_path / "step"))
        run = run_chaos(tmp_path, "kill-process", "--at", "step=13", command=command)
        assert run.exit_code == 0, run.summary["reasons"]
        summary = run.summary
        (incident,) = summary["incidents"]
        assert (summary["attempts"], incident["attempt"], incident["recovery_attempt"]) == (2, 1, 2)
        # Its checkpoint is of step 10: 11 and 12 are done again, 13 is the first that had not been.
        assert (incident["recovery_step"], summary["steps_repeated"], summary["steps_lost"]) == (11, 2, 2)
        assert 0 < incident["recovery_seconds"] < incident["progress_seconds"]
        assert summary["steps_committed"] == 30
        # Fired once: the second attempt was not held at step 13.
        assert len(run.of("held")) == len(run.of("injected")) == 1
        assert len({event.fields["started_pid"] for event in of_rank(run, "process_started")}) == 2
        # The figures add up, and those that nobody can know are none.
        badput = summary["badput_seconds"]
        assert summary["productive_seconds"] + sum(badput.values()) == pytest.approx(summary["wall_clock_seconds"])
        assert badput["restart"] > 0 and badput["repeated_work"] > 0 and badput["regroup"] == 0
        assert summary["throughput_unit"] == "samples" and summary["throughput_per_second"]["before"] > 0
        assert set(summary["throughput_tokens_per_second"].values()) == {None}
        unknown = ("steps_planned", "samples_lost", "strategy", "baseline_loss", "final_loss", "layout_changes")
        assert {summary[key] for key in unknown} == {None}
        # The control of the two runs at once, below.
        assert (run.of("run_overlapped"), summary["overlapping_runs"]) == ([], [])
        assert not any("shared the machine" in one for one in summary["caveats"])

    def test_an_attempt_that_somebody_else_ends_is_charged_to_no_fault(self, tmp_path):
        # It waits in step 40, the first time that it comes so far.
        waiting = ("--resume-from", str(tmp_path / "step"), "--wait-in", "40")
        command = again_and_again(*FOLLOWER, "45", *waiting)
        with ChaosRun(tmp_path, ["run", "kill-process", "--at", "step=13", "--json"], command=command) as chaos:
            chaos.wait_for("attempt_started", attempt_number=2)
            chaos.wait_for("step_committed", step=39)
            second = chaos.wait_for("process_started", role="rank", rank_attempt=2)
            os.kill(second.fields["started_pid"], signal.SIGKILL)
            exit_code = chaos.wait()
            run = read_run(chaos.folder, exit_code, chaos.stderr)
            assert_nothing_left(chaos, run.events)
        assert (exit_code, run.summary["verdict"]) == (0, "pass"), run.summary["reasons"]
        assert run.summary["attempts"] == 3
        (loss,) = run.summary["unplanned_losses"]
        assert (loss["ranks"], loss["mixed_with"]) == ([0], [])
        (incident,) = run.summary["incidents"]
        assert (incident["attempt"], incident["recovery_attempt"]) == (1, 2)
        assert run.summary["badput_seconds"]["unplanned"] > 0
        assert incident["badput_seconds"]["unplanned"] == 0

    @pytest.mark.nightly
    def test_a_baseline_that_somebody_else_disturbs_is_compared_with_nothing(self, tmp_path):
        checkpoint = tmp_path / "checkpoint"
        command = again_and_again(sys.executable, TRAINING, "200", str(checkpoint))
        options = ("run", "none", "--baseline-run", "--reset", f"rm -f {checkpoint}", "--json")
        with ChaosRun(tmp_path, options, command=command) as chaos:
            chaos.wait_for("step_committed", step=20, job=BASELINE_JOB)
            started = chaos.wait_for("process_started", role="rank", job=BASELINE_JOB)
            os.kill(started.fields["started_pid"], signal.SIGKILL)
            exit_code = chaos.wait()
            run = read_run(chaos.folder, exit_code, chaos.stderr)
            assert_nothing_left(chaos, run.events)
        assert (exit_code, run.summary["baseline_outcome"]) == (0, "completed"), run.summary["reasons"]
        assert (run.summary["slowdown_ratio"], run.summary["baseline_work_per_second"]) == (None, None)
        assert run.summary["unplanned_losses"] == []
        (said,) = (caveat for caveat in run.summary["caveats"] if "disturbed" in caveat)
        assert "rank 0 was lost after step" in said

    def test_a_fault_that_does_nothing_is_inconclusive(self, tmp_path):
        run = run_chaos(tmp_path, "kill-process", "--at", "step=8", command=(*FOLLOWER, "20"), patch=NOTHING_APPLIED)
        assert (run.exit_code, run.summary["steps_committed"]) == (5, 20), run.summary["reasons"]
        assert "still running" in run.one("unverified").fields["reason"]

    def test_two_runs_at_once_say_so(self, tmp_path):
        state, go = tmp_path / "first" / "state", tmp_path / "go"
        state.mkdir(parents=True, mode=0o700)
        (tmp_path / "second").mkdir()
        # Runs of one user share the registry.
        (tmp_path / "second" / "state").symlink_to(state)
        command = ("sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.05; done; exec "$@"', str(go), *FOLLOWER, "5")
        arguments = ["run", "none", "--json"]
        with (
            ChaosRun(tmp_path / "first", arguments, command=command) as first,
            ChaosRun(tmp_path / "second", arguments, command=command) as second,
        ):
            seen = [run.wait_for("run_overlapped").fields["folder"] for run in (first, second)]
            go.touch()
            done = [read_run(run.folder, run.wait(), run.stderr) for run in (first, second)]
        assert seen == [str(second.folder), str(first.folder)]
        for run, other in zip(done, reversed(done), strict=True):
            assert run.exit_code == 0, run.summary["reasons"]
            (told,) = run.summary["overlapping_runs"]
            assert (told["folder"], told["uid"]) == (str(other.folder), os.geteuid())
            assert told["until_seconds"] is None or told["until_seconds"] > told["from_seconds"] >= 0
            (caveat,) = (one for one in run.summary["caveats"] if "shared the machine" in one)
            assert str(other.folder) in caveat

    @pytest.mark.nightly
    def test_the_launcher_is_a_target(self, tmp_path):
        options = ("kill-process", "--at", "step=8", "--on", "role=launcher")
        run = run_chaos(tmp_path, *options, command=again_and_again(*FOLLOWER, "2000"))
        assert run.exit_code == 1
        (launcher,) = run.one("injected").fields["processes"]
        assert (launcher["role"], launcher["rank"]) == ("launcher", None)
        (started,) = (event for event in run.of("process_started") if event.fields["role"] == "launcher")
        assert launcher["pid"] == started.fields["started_pid"]

    def test_a_command_that_fails_before_the_fault_says_its_last_words(self, tmp_path):
        command = (sys.executable, "-c", "raise SystemExit('the corpus\\nis not there')")
        run = run_chaos(tmp_path, "kill-process", "--at", "step=8", command=command)
        assert (run.exit_code, run.summary["verdict"]) == (3, "error")
        assert "exit code 1; the last lines of logs/job.log: the corpus | is not there" in run.summary["reasons"][0]

    def test_a_command_that_trains_nothing_is_told_what_to_do(self, tmp_path):
        run = run_chaos(tmp_path, "kill-process", "--at", "step=8", command=(*FOLLOWER, "1", "--silent"))
        assert (run.exit_code, run.summary["verdict"]) == (5, "inconclusive")
        assert "no optimizer step of PyTorch was seen" in run.summary["reasons"][0]
        assert "chaos.agent.step()" in run.summary["reasons"][0]

    def test_nobody_waits_for_ever_for_a_first_step(self, tmp_path):
        tmp_path.joinpath("e.yaml").write_text(
            "name: silent\nfaults: [{kind: kill-process, at: step=8}]\n"
            "job: {runtime: command, command: [sleep, '600'], startup_timeout: 1s}\n"
        )
        run = run_chaos(tmp_path, "e.yaml")
        assert run.exit_code == 3
        assert "in 1 s no optimizer step" in run.summary["reasons"][0]

    def test_what_the_command_left_running_is_ended(self, tmp_path):
        command = (*FOLLOWER, "20", "--stubborn")
        run = run_chaos(tmp_path, "kill-process", "--at", "step=800", command=command)
        assert run.of("residue")[0].fields["processes"] == []

    @pytest.mark.nightly
    def test_an_interrupt_ends_what_takes_no_sigterm(self, tmp_path):
        options = ["run", "kill-process", "--at", "step=80000"]
        with ChaosRun(tmp_path, options, command=(*FOLLOWER, "100000", "--stubborn")) as run:
            run.wait_for("step_committed", step=3)
            run.process.send_signal(signal.SIGINT)
            assert run.wait() == 2
            assert_nothing_left(run)

    @pytest.mark.nightly
    def test_and_what_has_an_environment_of_its_own(self, tmp_path):
        script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
        options = ["run", "kill-process", "--at", "step=8"]
        with ChaosRun(tmp_path, options, command=("env", "-i", sys.executable, "-c", script)) as run:
            started = run.wait_for("process_started", role="launcher")
            while "ready" not in (run.folder / "logs/job.log").read_text():
                time.sleep(0.05)
            run.process.send_signal(signal.SIGINT)
            assert run.wait() == 2
            assert not ProcessId(started.fields["started_pid"], started.fields["start_ticks"]).is_running()

    def test_the_command_does_not_outlive_chaos(self, tmp_path):
        with ChaosRun(tmp_path, ["run", "kill-process", "--at", "step=80000"], command=(*FOLLOWER, "100000")) as run:
            run.wait_for("step_committed", step=3)
            run.process.kill()
            run.wait()
            assert_nothing_left(run)


# Under torchrun: tests/smoke/test_product.py. As another user: test_other_user.py.
@pytest.mark.nightly
def test_plain_python_that_is_killed_dies(tmp_path):
    command = (sys.executable, TRAINING, "30", str(tmp_path / "c.pt"))
    run = run_chaos(tmp_path, "kill-process", "--at", "step=8", command=command)
    assert (run.exit_code, run.summary["steps_committed"]) == (1, 7)
    assert run.summary["incidents"][0]["recovered"] is False
    assert not any(later.step <= earlier.step for earlier, later in pairwise(run.of("step_committed")))


def test_a_process_of_the_same_number_from_another_run_is_not_ours(tmp_path):
    """That the mark tells runs apart: two jobs side by side, and the end of one leaves the other alone."""
    options = ["run", "kill-process", "--at", "step=80000"]
    with (
        ChaosRun(tmp_path / "one", options, command=(*FOLLOWER, "100000")) as one,
        ChaosRun(tmp_path / "two", options, command=(*FOLLOWER, "100000")) as two,
    ):
        of_one = one.wait_for("process_started", role="rank")
        two.wait_for("step_committed", step=3)
        two.process.send_signal(signal.SIGINT)
        assert two.wait() == 2
        assert ProcessId(of_one.fields["started_pid"], of_one.fields["start_ticks"]).is_running()


UNSHARE = ("unshare", "--time", "--monotonic", "300", "--boottime", "300")


def test_a_job_with_another_clock_has_the_same_figures_with_their_uncertainty(tmp_path):
    if shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make time namespaces here")
    command = (*UNSHARE, *again_and_again(sys.executable, TRAINING, "14", str(tmp_path / "checkpoint.pt")))
    run = run_chaos(tmp_path, "kill-process", "--at", "step=8", command=command)
    assert (run.exit_code, run.summary["verdict"]) == (0, "pass")
    (incident,) = run.summary["incidents"]
    assert incident["recovered"] and 0.0 < incident["uncertainty_seconds"]["recovery_seconds"] < 1.0
    assert incident["phase_order_valid"] and run.summary["wall_clock_seconds"] < 250.0
    assert run.of("clock_sampled")[0].fields["offset_seconds"] == pytest.approx(-300.0, abs=1.0)
    begin, end = (run.of(kind)[0].monotonic_seconds for kind in ("run_started", "run_ended"))
    steps = run.of("step_committed")
    assert all(begin < step.fields["began_monotonic"] < step.monotonic_seconds < end for step in steps)
    assert {round(step.origin.raw["monotonic"] - step.monotonic_seconds) for step in steps} == {300}
