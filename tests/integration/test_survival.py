"""Whatever is killed, whenever in a step: the job goes on, and the run says so."""

import pytest

from chaos.language.trigger import PHASES
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.system.json_values import from_json
from tests.integration.runs import PATIENT, SLOW_UNTIL_BACK, SMALL, assert_survived, run_chaos

pytestmark = pytest.mark.integration

STEPS = 40
PATCH = PATIENT + SLOW_UNTIL_BACK
# In the change tier a node is lost in `forward` (the smoke tests) and `reduce` (test_exact, test_spare).
REPAIRED = ("--repair", "5steps", "--steps", str(STEPS), *SMALL)


@pytest.mark.nightly
def test_default_job_loses_a_random_node_and_gets_it_back(tmp_path):
    shape = ("--steps", str(STEPS), "--dilation", "off", "--no-twin")
    run = run_chaos(tmp_path, "kill-node", "--at", "step=20", "--repair", "10steps", *shape, patch=PATCH)
    assert_survived(run, STEPS, at=20)
    roles = [process["role"] for process in run.one("injected").fields["processes"]]
    assert sorted(roles) == ["rank", "rank", "supervisor"]
    (repair,) = run.of("repair_started")
    assert repair.step == 30
    losses = [event.fields["loss"] for event in run.of("step_committed")]
    assert losses[-1] < losses[0] - 1.0, "it did not learn"


@pytest.mark.nightly
def test_a_neighbour_does_both_as_the_paper_says(tmp_path):
    run = run_chaos(
        tmp_path, "kill-node", "--at", "step=10", "--on", "node=1", *REPAIRED, "--strategy", "mecefo-paper", patch=PATCH
    )
    assert_survived(run, STEPS, at=10)
    approximation = run.of("run_started")[0].fields["experiment"]["job"]["approximation"]
    assert (approximation["down_projection"], approximation["average_rest"]) == ("right", False)
    _, lost, back = (from_json(Layout, event.fields["layout"]) for event in run.of("layout"))
    spans = [span for replica in lost.replicas for span in replica.spans]
    assert all(span.recomputes_fully and span.recomputed == frozenset(span.layers) for span in spans)
    assert back.num_degraded_layers == 0
    assert run.summary["strategy"] == "mecefo-paper"


def test_coordinator_can_be_lost(tmp_path):
    run = run_chaos(
        tmp_path, "kill-process", "--at", "step=10", "--on", "role=coordinator", "--steps", "25", *SMALL, patch=PATIENT
    )
    assert_survived(run, 25, at=10)
    assert [process["role"] for process in run.one("injected").fields["processes"]] == ["coordinator"]
    (restarted,) = run.of("coordinator_restarted")
    assert restarted.fields["members"] == [0, 1, 2, 3]
    assert len(run.of("layout")) == 1, "the loss of the coordinator is nobody's loss of a rank"


# `checkpoint` is in test_checkpoints.
@pytest.mark.nightly
@pytest.mark.parametrize("phase", PHASES[:-1])
def test_node_lost_in_any_phase_of_a_step(tmp_path, phase):
    run = run_chaos(tmp_path, "kill-node", "--at", f"step=10,phase={phase}", "--on", "node=1", *REPAIRED, patch=PATCH)
    assert_survived(run, STEPS, at=10, phase=phase)


# Rank 0 leads the commit: around it is where its loss is most delicate.
@pytest.mark.nightly
@pytest.mark.parametrize("phase", ["commit", "forward", "reduce", "optimizer"])
def test_leader_lost_in_a_phase_of_a_step(tmp_path, phase):
    run = run_chaos(
        tmp_path, "kill-process", "--at", f"step=10,phase={phase}", "--on", "rank=0", *REPAIRED, patch=PATCH
    )
    assert_survived(run, STEPS, at=10, phase=phase)
    assert (run.one("injected").fields["nodes"], run.one("injected").fields["ranks"]) == ([], [0])


@pytest.mark.nightly
def test_second_loss_one_step_after_the_first(tmp_path):
    experiment = tmp_path / "twice.yaml"
    experiment.write_text(
        f"""
        name: twice
        twin: false
        job: {{steps: {STEPS}, dilation: "off"}}
        faults:
          - {{kind: kill-node, on: node=1, at: step=15, repair: 10steps}}
          - {{kind: kill-process, on: rank=5, at: step=16, repair: 10steps}}
        """
    )
    run = run_chaos(tmp_path / "run", str(experiment), patch=PATCH)
    for incident, at in enumerate((15, 16)):
        assert_survived(run, STEPS, at=at, incident=incident)
    num_members = [len(event.fields["members"]) for event in run.of("regrouped")]
    assert num_members[:3] == [8, 6, 5]
    assert num_members[-1] == 8
