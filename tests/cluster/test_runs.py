"""`chaos run` over four hosts, as an unprivileged user: what holds of every run, whatever it breaks."""

from __future__ import annotations

import pytest

from tests.cluster.chaos_runs import new_folder, run_chaos, torchrun
from tests.cluster.hosts import Hosts

pytestmark = pytest.mark.nightly


@pytest.fixture(params=["slurm", "ssh_hosts"])
def cluster(request: pytest.FixtureRequest) -> Hosts:
    """Four hosts, of both kinds in turn."""
    hosts = request.getfixturevalue(request.param)
    assert isinstance(hosts, Hosts)
    return hosts


def test_a_command_on_one_host_leaves_nothing(cluster: Hosts) -> None:
    command = torchrun(cluster, "ddp.py", "6", str(new_folder(cluster)), num_nodes=1)
    run = run_chaos(cluster, "none", command=command)
    assert (run.exit_code, run.summary["verdict"]) == (0, "pass")
    assert [event.step for event in run.of("step_committed")] == [1, 2, 3, 4, 5, 6]
