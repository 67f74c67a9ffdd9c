"""A run in an allocation of Slurm: the tool, an agent or a stream is lost, or the job is cancelled."""

from __future__ import annotations

import sys

import pytest

from tests.cluster.chaos_runs import Allocation, ClusterRun, assert_nothing_left, await_gone, ranks
from tests.cluster.slurm import Slurm
from tests.integration.runs import Finished

pytestmark = pytest.mark.cluster

# Ranks on the host of the tool and on another one: it is enough.
NUM_HOSTS = 2
# Of a step, so that there is time for what is to happen during the job.
SLOWLY = {"SECONDS": "0.1"}
JOB_SCRIPT = "ddp.py"
OTHER = 2


def kill(hosts: Slurm, node: int, text: str) -> None:
    """SIGKILL to the processes of `node` whose command lines have `text` in them."""
    # srun has a second process, which cancels the step where the first is gone before it.
    pids = map(str, sorted(hosts.processes(node, text), reverse=True))
    hosts.run(node, "kill", "-KILL", *pids, check=False)


def steps_of_rank(run: Finished, rank: int) -> list[int]:
    """Of which steps a rank has reported the checksums of its parameters, in the order of the log."""
    return [event.step or 0 for event in run.of("state_checksums") if event.rank == rank]


def test_a_broken_stream_and_a_cut_network_lose_nothing(slurm: Slurm) -> None:
    arguments = ("pause-process", "--at", "step=80", "--on", "rank=1", "--for", "200ms")
    with ClusterRun(slurm, *arguments, command=ranks(slurm, 100), env=SLOWLY) as chaos:
        chaos.wait_for_step(3)
        kill(slurm, 1, f"--nodelist={slurm.name(OTHER)}")
        # Another step was started, although the job has all memory and all GPUs. What follows came by it.
        chaos.wait_for_step(20)
        chaos.wait_for_rank(1, 20)
        slurm.cut(OTHER)
        chaos.sleep(5.0)
        slurm.heal(OTHER)
        run = chaos.wait()
        assert_nothing_left(slurm)
    assert (run.exit_code, run.summary["verdict"]) == (0, "pass"), "\n".join(run.summary["reasons"])
    (incident,) = run.summary["incidents"]
    assert incident["verified"] and incident["undone"]
    assert not run.of("host_lost") and len(run.of("host_reached")) == 1
    # Each in its place, and none twice. Later steps are sampled, by both ranks alike.
    assert steps_of_rank(run, 1) == sorted(set(steps_of_rank(run, 0)))
    assert {*range(1, 65)} <= {*steps_of_rank(run, 1)}


def test_a_host_without_its_agent_is_not_observed_and_its_ranks_go_on(slurm: Slurm) -> None:
    arguments = ("pause-process", "--at", "step=70", "--on", "rank=1", "--for", "200ms")
    with ClusterRun(slurm, *arguments, command=ranks(slurm, 80), env=SLOWLY) as chaos:
        chaos.wait_for_step(3)
        kill(slurm, OTHER, "harness.node")
        lost = chaos.wait_for("host_lost")
        assert slurm.processes(OTHER, JOB_SCRIPT)
        run = chaos.wait()
        assert_nothing_left(slurm)
    assert lost.fields["lost"][0] == slurm.name(OTHER)
    assert (run.exit_code, run.summary["verdict"]) == (5, "inconclusive"), "\n".join(run.summary["reasons"])
    assert run.summary["steps_committed"] == 80, "rank 1 took part in each of them"
    assert (run.summary["num_ranks"], run.summary["num_observed_ranks"]) == (2, 1)
    (incident,) = run.summary["incidents"]
    assert not (incident["injected"] or incident["verified"])


@pytest.mark.nightly
def test_an_agent_that_hangs_is_lost_and_ended_with_the_run(slurm: Slurm) -> None:
    """It is stopped, with its stream open."""
    with ClusterRun(slurm, "none", command=ranks(slurm, 200), env=SLOWLY) as chaos:
        chaos.wait_for_step(3)
        pids = map(str, slurm.processes(OTHER, "harness.node"))
        slurm.run(OTHER, "kill", "-STOP", *pids)
        lost = chaos.wait_for("host_lost")
        assert "silent for 10 s" in lost.fields["message"]
        assert slurm.processes(OTHER, JOB_SCRIPT)
        run = chaos.wait()
        assert_nothing_left(slurm)
    assert run.summary["steps_committed"] == 200 and run.summary["num_observed_ranks"] == 1
    assert not run.summary["unplanned_losses"]


def test_nothing_is_left_of_a_tool_that_was_killed_nor_of_a_cancelled_job(slurm: Slurm) -> None:
    with Allocation(slurm) as allocation:

        def heal() -> None:
            chaos = f"{sys.prefix}/bin/chaos"
            healed = slurm.run(1, chaos, "heal", user="alice", env=allocation.environment, check=False)
            assert healed.returncode == 0, healed.stdout + healed.stderr

        with ClusterRun(slurm, "none", command=ranks(slurm, 600), env=SLOWLY, allocation=allocation) as chaos:
            chaos.wait_for_step(3)
            chaos.kill_chaos()
            for node in slurm.nodes:
                await_gone(slurm, node, JOB_SCRIPT, "harness.node", "chaos.undo.watchdog")
            heal()
        with ClusterRun(slurm, "none", command=ranks(slurm, 600), env=SLOWLY, allocation=allocation) as chaos:
            chaos.wait_for_step(3)
            allocation.cancel()
            while not chaos.is_over():
                chaos.sleep(0.1)
            assert "Traceback" not in chaos.stderr
            heal()
    assert_nothing_left(slurm)


@pytest.mark.nightly
def test_two_runs_in_one_allocation_know_their_own_ranks(slurm: Slurm) -> None:
    killed = ("kill-process", "--on", "rank=1", "--at", "step=8")
    port = {"MASTER_PORT": "29521"}
    with (
        Allocation(slurm) as allocation,
        ClusterRun(slurm, *killed, command=ranks(slurm, 30), allocation=allocation, env=port) as one,
        ClusterRun(
            slurm, "set-nan", "--on", "rank=1", "--at", "step=8", command=ranks(slurm, 30), allocation=allocation
        ) as other,
    ):
        first, second = one.wait(), other.wait()
    assert_nothing_left(slurm)
    # srun starts no rank again; and no script heals a parameter that is not a number.
    assert [(run.exit_code, run.summary["verdict"]) for run in (first, second)] == [(1, "fail"), (1, "fail")]
    assert [run.summary["incidents"][0]["verified"] for run in (first, second)] == [True, True]
    assert (first.summary["steps_committed"], second.summary["steps_committed"]) == (7, 30)
    assert second.summary["first_non_finite_loss_step"] is not None
