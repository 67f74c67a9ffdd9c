"""Whatever is killed, whenever in a step: the job goes on, and the run says so."""

import pytest

from chaos.trigger import PHASES
from tests.integration.runs import SMALL, assert_survived, run_chaos

pytestmark = pytest.mark.integration


def test_default_job_loses_a_random_node_and_gets_it_back(tmp_path):
    arguments = ("kill-node", "--at", "step=20", "--steps", "50", "--repair", "10steps", "--dilation", "off", "--no-twin")
    run = run_chaos(tmp_path, *arguments)
    assert_survived(run, 50, at=20)
    injected = run.one("injected")
    roles = sorted(process["role"] for process in injected.fields["processes"])
    assert roles == ["rank", "rank", "supervisor"]
    losses = [event.fields["loss"] for event in run.of("step_committed")]
    assert losses[-1] < losses[0] - 1.0, "it did not learn"
    (repair,) = run.of("repair_started")
    assert repair.step == 30


def test_first_node_can_be_lost(tmp_path):
    run = run_chaos(tmp_path, "kill-node", "--at", "step=10", "--on", "node=0", "--repair", "5steps", "--steps", "25", *SMALL)
    assert_survived(run, 25, at=10)
    assert (run.one("injected").fields["nodes"], run.one("injected").fields["ranks"]) == ([0], [0, 1])


def test_coordinator_can_be_lost(tmp_path):
    run = run_chaos(tmp_path, "kill-process", "--at", "step=10", "--on", "role=coordinator", "--steps", "30", *SMALL)
    assert_survived(run, 30, at=10)
    assert [process["role"] for process in run.one("injected").fields["processes"]] == ["coordinator"]
    (restarted,) = run.of("coordinator_restarted")
    assert restarted.fields["members"] == [0, 1, 2, 3]
    assert len(run.of("layout")) == 1, "the loss of the coordinator is nobody's loss of a rank"


@pytest.mark.parametrize("phase", PHASES)
def test_node_lost_in_any_phase_of_a_step(tmp_path, phase):
    trigger = f"step=10,phase={phase}"
    run = run_chaos(tmp_path, "kill-node", "--at", trigger, "--on", "node=1", "--repair", "5steps", "--steps", "25", *SMALL)
    assert_survived(run, 25, at=10, phase=phase)


# Rank 0 leads the commit: around it is where its loss is most delicate.
@pytest.mark.parametrize("phase", ["forward", "reduce", "optimizer", "commit"])
def test_leader_lost_in_a_phase_of_a_step(tmp_path, phase):
    trigger = f"step=10,phase={phase}"
    run = run_chaos(tmp_path, "kill-process", "--at", trigger, "--on", "rank=0", "--repair", "5steps", "--steps", "25", *SMALL)
    assert_survived(run, 25, at=10, phase=phase)
    injected = run.one("injected").fields
    assert (injected["nodes"], injected["ranks"]) == ([], [0])


def test_second_loss_one_step_after_the_first(tmp_path):
    experiment = tmp_path / "twice.yaml"
    experiment.write_text(
        """
        name: twice
        twin: false
        job: {steps: 40, dilation: "off"}
        faults:
          - {kind: kill-node, on: node=1, at: step=15, repair: 10steps}
          - {kind: kill-process, on: rank=5, at: step=16, repair: 10steps}
        """
    )
    run = run_chaos(tmp_path / "run", str(experiment))
    for incident, at in enumerate((15, 16)):
        assert_survived(run, 40, at=at, incident=incident)
    alive = [len(event.fields["members"]) for event in run.of("regrouped")]
    assert alive[:3] == [8, 6, 5]
    assert alive[-1] == 8


def test_unrepaired_loss_lasts(tmp_path):
    run = run_chaos(tmp_path, "kill-node", "--at", "step=10", "--repair", "none", "--steps", "25", *SMALL)
    assert_survived(run, 25, at=10, repaired=False)
    assert run.of("repair_started") == []
    assert len(run.of("regrouped")[-1].fields["members"]) == 2
    assert run.of("layout")[-1].fields["degraded_layers"] > 0


def test_trigger_at_a_time(tmp_path):
    arguments = ("kill-process", "--at", "time=1500ms", "--on", "rank=2", "--repair", "10steps", "--steps", "120")
    run = run_chaos(tmp_path, *arguments, *SMALL)
    assert_survived(run, 120, at=None)
    injected = run.one("injected")
    began = run.of("job_started")[0].monotonic_seconds
    assert injected.monotonic_seconds - began >= 1.5
    before = max(e.step for e in run.of("step_committed") if e.monotonic_seconds <= injected.monotonic_seconds)
    assert injected.step in (before, before + 1)
