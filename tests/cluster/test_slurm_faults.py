"""Faults on the hosts of an allocation of Slurm's: clocks that are 3 s apart, and torchrun that starts ranks again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.cluster.chaos_runs import ClusterRun, assert_nothing_left, new_folder, torchrun
from tests.cluster.slurm import Slurm
from tests.integration.runs import Finished

pytestmark = pytest.mark.cluster

STAMP = re.compile(r"^step (\d+) loss \S+ at (\S+)$", re.MULTILINE)


def reached(run: Finished) -> list[str]:
    """The hosts whose agents were ready, in the order of their names; twice where one has come back."""
    return sorted(event.fields["reached"][0] for event in run.of("host_reached"))


def stamps(run: Finished) -> list[float]:
    """When rank 0 was through with each of its steps, by the clock of its own script."""
    return [float(seconds) for _, seconds in STAMP.findall((run.folder / "logs/job.log").read_text())]


def assert_as_the_script_saw_it(run: Finished) -> None:
    """That the recovery lasted from the fault to the first step that the script stamps after it."""
    (incident,) = run.summary["incidents"]
    began_seconds = run.one("injected").time_seconds
    seen_seconds = min(seconds for seconds in stamps(run) if seconds > began_seconds) - began_seconds
    uncertainty_seconds = incident["uncertainty_seconds"]["recovery_seconds"]
    assert 0 < uncertainty_seconds < 0.1
    bound_seconds = uncertainty_seconds + run.summary["step_seconds"]
    assert abs(incident["recovery_seconds"] - seen_seconds) <= bound_seconds, (incident, seen_seconds)


def test_a_rank_of_another_host_is_killed_and_judged_by_one_clock(slurm: Slurm) -> None:
    command = ["srun", *torchrun(slurm, "ddp.py", "40", str(new_folder(slurm)))]
    with ClusterRun(slurm, "kill-process", "--at", "step=12", "--on", "rank=2", command=command) as chaos:
        chaos.wait_for("verified")
        for node in slurm.nodes:
            # On loopback there are metrics, for who is on that host.
            listening = [line for line in slurm.listening(node) if "127.0.0.1:" not in line]
            assert not [line for line in listening if '"chaos' in line], listening
        run = chaos.wait()
        assert_nothing_left(slurm)
    assert (run.exit_code, run.summary["verdict"]) == (0, "pass"), "\n".join(run.summary["reasons"])
    assert reached(run) == slurm.names[1:] and not run.of("host_lost")
    assert (run.summary["num_ranks"], run.summary["num_observed_ranks"]) == (4, 4)
    (incident,) = run.summary["incidents"]
    assert incident["verified"] and incident["recovered"] and incident["recovery_attempt"] == 2
    assert_as_the_script_saw_it(run)


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [(0,), (3, 0)], ids=["own", "both"])
def test_nodes_are_killed_the_own_one_too(slurm: Slurm, nodes: tuple[int, ...]) -> None:
    """The exit code of `srun` is that of the tasks that were killed; the job has completed with the others."""
    # More restarts than nodes that are killed: on a busy machine one may fail for the loss of the next.
    launcher = torchrun(slurm, "ddp.py", "45", str(new_folder(slurm)), num_nodes="2:4", num_restarts=5, store=2)
    experiment = slurm.home() / "nodes.yaml"
    steps = dict(zip(nodes, (12, 27), strict=False))
    faults = [{"kind": "kill-node", "on": f"node={node}", "at": f"step={step}"} for node, step in steps.items()]
    experiment.write_text(yaml.safe_dump({"name": "nodes", "faults": faults}))
    with ClusterRun(slurm, str(experiment), command=["srun", *launcher]) as chaos:
        run = chaos.wait()
        assert_nothing_left(slurm)
    assert (run.exit_code, run.summary["verdict"]) == (0, "pass"), "\n".join(run.summary["reasons"])
    assert all(one["verified"] and one["recovered"] for one in run.summary["incidents"])
    # The launcher and the rank of each, in one act.
    for incident, node in enumerate(nodes):
        struck = run.one("verified", incident).fields["evidence"]
        assert [one["role"] for one in struck["processes"]] == ["launcher", "rank"], (slurm.name(node + 1), struck)
    assert not run.of("host_lost")


def test_power_is_lost_and_the_host_comes_back(slurm: Slurm) -> None:
    switched_off, is_off = slurm.home() / "switched-off", slurm.home() / "is-off"
    # The site's command knows the host by its name; the fixture is outside.
    power = f"echo {{host}} >new && mv new {switched_off}; until [ -e {is_off} ]; do sleep .05; done"
    launcher = torchrun(slurm, "ddp.py", "120", str(new_folder(slurm)), num_nodes="2:4")
    # One step over all hosts would end when a host is back that was lost.
    steps = [f"srun -N1 -n1 -w {name} {shlex.join(launcher)} &" for name in slurm.names]
    command = ["sh", "-c", " ".join([*steps, "wait"])]
    arguments = ("kill-node", "--at", "step=12", "--on", "node=2", "-p", f"power={power}", "--nodes", "4")
    env = {"TIMEOUT": "4", "SECONDS": "0.1"}
    with ClusterRun(slurm, *arguments, command=command, env=env, options=("--no-kill",)) as chaos:
        chaos.wait_for_file(switched_off)
        assert switched_off.read_text().split() == [slurm.name(3)]
        slurm.crash(3)
        Path(is_off).touch()
        chaos.wait_for("verified")
        slurm.boot(3)
        lost, back = chaos.wait_for("host_lost"), chaos.wait_for("host_reached", num_starts=2)
        assert lost.fields["lost"][0] == back.fields["reached"][0] == slurm.name(3)
        assert lost.fields["lost"][1] != back.fields["reached"][1], "another boot"
        run = chaos.wait()
        assert_nothing_left(slurm)
    (incident,) = run.summary["incidents"]
    assert incident["verified"] and incident["recovered"]
    assert (run.exit_code, run.summary["verdict"]) == (0, "pass"), "\n".join(run.summary["reasons"])
