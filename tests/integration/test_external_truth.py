"""Somebody else's job: nothing passes that went wrong in silence, and what is not known is said to be unknown."""

import sys
from pathlib import Path

import pytest

from tests.integration.runs import run_chaos

pytestmark = pytest.mark.external

HERE = Path(__file__).parent
RESUMING = str(HERE.parent / "external/scripts/resuming.py")
LOADING = (sys.executable, str(HERE / "loading.py"))
TWO_RANKS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def training(folder, steps):
    """The command of a data-parallel training that goes on from its checkpoint."""
    return (*TWO_RANKS, str(HERE / "external_training.py"), str(steps), str(folder / "checkpoint.pt"))


def test_a_replica_that_is_wrong_to_the_end_fails_though_no_loss_shows_it(tmp_path):
    """One element of one rank, a thousandth larger."""
    parameters = ("-p", "where=parameters", "-p", "factor=1.001", "-p", "elements=1", "-p", "tensor=weight")
    run = run_chaos(
        tmp_path, "scale", "--at", "step=8,phase=commit", "--on", "rank=1", *parameters, command=training(tmp_path, 16)
    )
    (incident,) = run.summary["incidents"]
    assert incident["verified"] and incident["recovered"] is False
    assert incident["violations"] == ["replicas_differ"] and incident["continued_seconds"] > 0
    assert (run.exit_code, run.summary["verdict"], run.summary["diverged_units"]) == (1, "fail", 1)
    assert run.summary["reasons"][0].startswith("weight of rank 1 differs from the other replicas' since step ")
    assert run.summary["steps_committed"] == 16 and run.summary["first_non_finite_loss_step"] is None


@pytest.mark.nightly
def test_the_fault_free_baseline_begins_where_the_job_did_after_a_reset(tmp_path):
    reset = ("--reset", f"rm -f {tmp_path}/checkpoint.pt")
    gates = ("--gate", "slowdown < 500%", "--gate", "loss_deviation < 1%")
    run = run_chaos(tmp_path, "none", "--baseline-run", *reset, *gates, command=training(tmp_path, 20))
    assert (run.exit_code, run.summary["verdict"]) == (0, "pass"), run.summary["reasons"]
    assert run.summary["reasons"][0].startswith("no fault was planned")
    assert (run.summary["steps_committed"], run.summary["baseline_steps_committed"]) == (20, 20)
    assert run.summary["loss_deviation_ratio"] == pytest.approx(0.0, abs=1e-9)
    assert run.summary["slowdown_ratio"] > -1
    assert [gate["passed"] for gate in run.summary["gates"]] == [True] * 3
    assert [event.job for event in run.events if event.kind == "job_reset"] == ["main", "twin"]


def test_a_job_that_resumes_without_its_optimizer_is_counted_on_and_its_kept_losses_are_compared(tmp_path):
    """SGD, whose momentum is forgotten: the loss of the steps that are done again is not that of the first time."""
    command = ("sh", "-c", 'for i in 1 2; do "$@" && exit 0; done; exit 1', "sh", sys.executable, RESUMING, "sgd", "10")
    options = ("--at", "step=10", "--baseline-run", "--reset", "rm -f state.pt", "--gate", "steps_lost <= 1")
    gates = ("--gate", "loss_curve_max_deviation <= 1%")
    run = run_chaos(tmp_path, "kill-process", *options, *gates, command=command)
    # Saved after step 8: 9 is done again, and 10 is the first that had not been.
    known = {key: run.summary[key] for key in ("steps_committed", "steps_lost", "steps_repeated", "attempts")}
    assert [event.job for event in run.events if event.kind == "job_reset"] == ["main", "twin"]
    assert run.summary["baseline_steps_committed"] == 10
    assert known == {"steps_committed": 10, "steps_lost": 1, "steps_repeated": 1, "attempts": 2}
    assert run.summary["incidents"][0]["recovery_step"] == 9
    assert [gate["passed"] for gate in run.summary["gates"]] == [True, False, True], run.summary["gates"]
    assert run.exit_code == 1
    assert any("continued without the state of its optimizer" in caveat for caveat in run.summary["caveats"])
    # Step 9 itself had the same parameters; what it made of them is another state.
    losses = [(event.step, event.fields["loss"]) for event in run.of("step_committed") if event.job == "main"]
    assert losses[8] == losses[9] and [step for step, _ in losses] == [*range(1, 10), 9, 10]


@pytest.mark.nightly
def test_without_a_reset_the_fault_free_baseline_has_nothing_left_to_do_and_that_is_said(tmp_path):
    run = run_chaos(tmp_path, "none", "--baseline-run", command=training(tmp_path, 5))
    assert run.summary["baseline_loss"] is None
    assert any("--reset" in caveat for caveat in run.summary["caveats"]), run.summary["caveats"]


def test_a_worker_of_a_loader_is_killed_and_the_script_dies_of_it(tmp_path):
    run = run_chaos(tmp_path, "kill-data-worker", "--at", "step=8", "-p", "worker=1", command=(*LOADING, "40"))
    (incident,) = run.summary["incidents"]
    assert incident["verified"] and "DataLoader worker of rank 0" in incident["evidence"]["summary"]
    assert run.exit_code == 1
    assert "RuntimeError: DataLoader worker" in run.summary["reasons"][0]


@pytest.mark.nightly
def test_workers_that_are_slow_are_hidden_by_what_was_fetched_ahead(tmp_path):
    run = run_chaos(
        tmp_path, "slow-data-worker", "--at", "step=30", "--for", "2s", "-p", "factor=3", command=(*LOADING, "400")
    )
    (incident,) = run.summary["incidents"]
    assert incident["verified"], incident["unverified_reason"]
    assert len(incident["evidence"]["processes"]) == 2 and run.exit_code == 0


@pytest.mark.nightly
def test_a_loader_without_workers_is_no_target(tmp_path):
    run = run_chaos(tmp_path, "kill-data-worker", "--at", "step=3", command=training(tmp_path, 6))
    assert run.exit_code == 5 and "num_workers=0" in run.summary["reasons"][0]


@pytest.mark.nightly
def test_an_exception_that_is_caught_was_raised_and_handled(tmp_path):
    raised = ("raise", "--at", "step=8", "-p", "exception=OverflowError")
    run = run_chaos(tmp_path, *raised, command=(*LOADING, "30", "caught"))
    assert (run.exit_code, run.summary["steps_committed"]) == (0, 30)
    assert "the script caught it" in run.summary["incidents"][0]["evidence"]["summary"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("truncate-checkpoint", "cut from"),
        ("flip-checkpoint-bit", "flipped"),
        ("remove-checkpoint-shard", "it is not there"),
        ("hide-checkpoint", "symbolic links"),
    ],
)
def test_a_script_is_started_again_with_a_damaged_checkpoint(tmp_path, kind, seen):
    """It saves after step 15, loses that checkpoint in step 18, and dies in step 19."""
    (tmp_path / "torn.yaml").write_text(
        "name: torn\n"
        f"job:\n  runtime: command\n  command: {[*TWO_RANKS, '--max-restarts', '1', *training(tmp_path, 40)[6:]]}\n"
        # torchrun (2.13) gives a second attempt the first one's addresses without it.
        "  environment: {TORCH_DISABLE_SHARE_RDZV_TCP_STORE: '1'}\n"
        f"faults:\n  - {{kind: {kind}, at: step=18}}\n  - {{kind: kill-process, on: rank=1, at: step=19}}\n"
    )
    run = run_chaos(tmp_path, str(tmp_path / "torn.yaml"))
    first, second = run.summary["incidents"]
    assert first["verified"] and second["verified"]
    assert seen in first["evidence"]["summary"] and "of step 15" in first["evidence"]["summary"]
    if kind == "remove-checkpoint-shard":
        # It does not miss what is not there, and begins anew: it passes, and that is said first.
        assert run.summary["steps_from_scratch"] == 18 and "step 1" in run.summary["reasons"][0]
    elif kind != "flip-checkpoint-bit":
        # It reads what is there, and dies of it.
        assert run.exit_code == 1 and "Error: " in run.summary["reasons"][0]
        assert "connectFullMesh" not in run.summary["reasons"][0]


@pytest.mark.nightly
def test_steps_are_read_from_a_log_where_no_optimizer_is_seen(tmp_path):
    script = 'for i in $(seq 1 40); do sleep 0.05; echo "step $i loss 0.$i"; done'
    pattern = ("--step-from", "step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)")
    run = run_chaos(
        tmp_path, "pause-process", "--at", "step=20", "--for", "1s", *pattern, command=("bash", "-c", script)
    )
    assert (run.exit_code, run.summary["steps_committed"]) == (0, 40), run.summary["reasons"]
    assert run.summary["incidents"][0]["recovery_seconds"] > 1.0
    inside = run_chaos(tmp_path / "inside", "set-nan", "--at", "step=5", *pattern, command=("bash", "-c", script))
    assert inside.exit_code == 5 and "nothing can be done inside" in inside.summary["reasons"][0]
