"""The strategy checkpoint, with real processes: all ranks end, all restart, and the time and the steps are told."""

from __future__ import annotations

import pytest

from tests.integration.runs import (
    PATIENT,
    ChaosRun,
    Finished,
    assert_holders_agree,
    assert_nothing_left,
    assert_time_adds_up,
    read_run,
    run_chaos,
    saved_before,
)

pytestmark = pytest.mark.integration

STEPS = 24
EVERY = 8
JOB = (
    *("--nodes", "2", "--gpus-per-node", "2", "--dilation", "off", "--strategy", "checkpoint"),
    *("--steps", str(STEPS), "--microbatches-per-replica", "1"),
)


def assert_restarted(run: Finished, at: int, since: int) -> None:
    """That a loss at step `at` ended every rank, and that all went on from `since`, the newest checkpoint."""
    assert (run.summary["verdict"], run.exit_code) == ("pass", 0), run.summary["reasons"]
    summary = run.summary
    injected = run.one("injected").monotonic_seconds
    (restarting,) = run.of("restarting")
    (started_again,) = run.of("restart_started")
    first = {e.fields["started_rank"]: e for e in run.of("process_started") if e.fields.get("rank_attempt") == 1}
    exited = [e for e in run.of("process_exited") if e.fields.get("rank_attempt") == 1]
    again = [e for e in run.of("process_started") if e.fields.get("rank_attempt", 1) > 1]
    assert {e.fields["started_rank"] for e in again} == set(range(4)) == set(first)
    assert all(injected < restarting.monotonic_seconds < e.monotonic_seconds for e in again)
    ended = {e.fields["exited_rank"]: e.monotonic_seconds for e in exited}
    # Not before `restart_started`: on a busy machine a supervisor tells of an end later than it can be seen.
    survivors = set(range(4)) - set(run.one("injected").fields["ranks"])
    assert ended.keys() >= survivors
    starts = [e for e in again if e.fields["started_rank"] in survivors]
    assert all(ended[e.fields["started_rank"]] < e.monotonic_seconds for e in starts), "a survivor went on"
    assert restarting.monotonic_seconds < started_again.monotonic_seconds
    committed = [e.step for e in run.of("step_committed") if not e.fields["repeated"]]
    redone = list(range(since + 1, at))
    assert committed == [*range(1, at), *redone, *range(at, STEPS + 1)]
    assert summary["steps_lost"] == summary["steps_repeated"] == len(redone)
    assert (summary["samples_lost"], summary["steps_committed"]) == (0, STEPS)
    assert [gate["expression"] for gate in summary["gates"]] == ["samples_lost == 0", "unrecovered_incidents == 0"]
    assert_time_adds_up(summary)
    assert_time_adds_up(summary["incidents"][0])
    badput = summary["badput_seconds"]
    # A death is told at once; a silence takes its two seconds, within which some machines start all ranks again.
    is_told = run.of("detected")[0].fields["how"] != "heartbeat"
    assert badput["restart"] > (badput["detection"] if is_told else 0)
    assert (summary["badput_seconds"]["repeated_work"] > 0) or not redone
    (incident,) = summary["incidents"]
    assert incident["recovery_seconds"] <= incident["progress_seconds"]
    assert incident["phase_order_valid"]
    assert summary["throughput_drop_ratio"] > 0.9
    assert any("forked from a process" in caveat for caveat in summary["caveats"])
    assert_holders_agree(run)


def test_a_lost_node_ends_all_and_they_go_on_from_the_checkpoint_with_the_same_losses(tmp_path):
    fault = ("kill-node", "--at", "step=12", "--repair", "3steps")
    run = run_chaos(tmp_path, *fault, *JOB, "--checkpoint-every", str(EVERY), patch=saved_before(12, EVERY))
    assert_restarted(run, at=12, since=EVERY)
    (restored,) = run.of("checkpoint_restored")
    assert restored.step == EVERY
    assert run.summary["loss_deviation_ratio"] < 1e-5
    assert run.summary["loss_curve_max_deviation_ratio"] < 1e-5
    losses: dict[int, set[float]] = {}
    for event in run.of("step_committed"):
        losses.setdefault(event.step, set()).add(round(event.fields["loss"], 4))
    assert all(len(found) == 1 for found in losses.values()), "a step done again came to another loss"


def test_an_interrupted_wait_for_the_repair_leaves_nothing(tmp_path):
    arguments = ["run", "kill-node", "--at", "step=6", "--repair", "10min", *JOB, "--no-twin"]
    with ChaosRun(tmp_path, arguments) as run:
        run.wait_for("isolated")
        run.process.terminate()
        assert run.wait() == 2
        finished = read_run(run.folder, 2)
        assert_nothing_left(run, finished.events)
    assert not finished.of("restart_started")


def test_a_repair_that_never_comes_is_refused(tmp_path):
    with ChaosRun(tmp_path, ["run", "kill-node", "--at", "step=6", "--repair", "none", *JOB]) as run:
        assert run.wait() == 4
        assert "would wait for ever" in run.stderr


def reason_of_failure(tmp_path, patch: str) -> str:
    """Of a job whose rank 1 is killed at step 12, and whose ranks are as `patch` makes them."""
    path = tmp_path / "fruitless.yaml"
    path.write_text(f"""
name: fruitless
job:
  {{nodes: 2, gpus_per_node: 2, steps: {STEPS}, dilation: off, strategy: checkpoint,
   checkpoint: {{every_steps: {EVERY}, max_fruitless_restarts: 2}}}}
faults: [{{kind: kill-process, on: rank=1, at: {{step: 12}}, repair: 200ms}}]
""")
    run = run_chaos(tmp_path, str(path), "--no-twin", patch=PATIENT + patch)
    assert (run.summary["verdict"], run.exit_code) == ("fail", 1)
    (failed,) = run.of("job_failed")
    assert failed.source == "coordinator"
    told = [line for line in run.stderr.splitlines() if "the job cannot continue: " in line]
    assert any(f"the job cannot continue: {failed.fields['reason']}"[:60] in line for line in told)
    return str(failed.fields["reason"])
