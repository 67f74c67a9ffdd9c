"""Links between hosts, changed by an unprivileged user at the connections of the run's own processes."""

from __future__ import annotations

import pytest
import yaml

from tests.cluster.chaos_runs import ClusterRun, assert_nothing_left, ranks
from tests.cluster.slurm import Slurm

pytestmark = pytest.mark.cluster

# A rank on each of two hosts.
NUM_HOSTS = 2
DROP = {"kind": "drop-link", "on": "link=0-1", "at": "step=8", "for": "1s"}
RESET = {"kind": "reset-link", "on": "link=0-1", "at": "step=20"}


def test_a_link_is_cut_and_reset_without_any_right(slurm: Slurm) -> None:
    experiment = slurm.home() / "links.yaml"
    experiment.write_text(yaml.safe_dump({"name": "links", "faults": [DROP, RESET]}))
    with ClusterRun(slurm, str(experiment), command=ranks(slurm, 40)) as chaos:
        run = chaos.wait()
        assert_nothing_left(slurm)
    for incident in (0, 1):
        hosts = run.one("verified", incident).fields["evidence"]["hosts"]
        # Both ends act, each on its own host.
        assert len(hosts) == 2
        assert {one["fidelity"] for one in hosts.values()} == {"shaped"}
        assert all("RDMA (InfiniBand, RoCE, EFA)" in one["not_covered"] for one in hosts.values())
    dropped, reset = run.summary["incidents"]
    # It trains on in the same processes, until its connections are gone: nobody starts it again.
    assert dropped["recovered"] and dropped["verified"] and not reset["recovered"]
    assert (run.exit_code, run.summary["verdict"]) == (1, "fail")
