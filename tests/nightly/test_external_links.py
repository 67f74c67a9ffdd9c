"""Further ways in which links of an external job break."""

from __future__ import annotations

import sys

import pytest

from harness.network.machine import why_no_networks
from tests.integration.runs import run_chaos
from tests.integration.test_external_links import FORKED, LINK, ONE_LAUNCHER, RESTARTING, training, two_launchers
from tests.ports import reserved_port

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(why_no_networks() is not None, reason=f"no networks here: {why_no_networks()}"),
]


def test_a_link_that_is_slow_slows_them(tmp_path):
    slow = ("slow-link", *LINK, "-p", "delay=100ms", "--for", "5steps")
    run = run_chaos(tmp_path, *slow, command=(*ONE_LAUNCHER, *training(tmp_path, 40)))
    assert run.exit_code == 0, run.summary["reasons"]
    times = [event.monotonic_seconds for event in run.of("step_committed") if event.rank == 0]
    verified, undone = (run.one(kind).monotonic_seconds for kind in ("verified", "undone"))
    during = [at for at in times if verified < at < undone]
    # An all-reduce over it waits for one way at the least.
    assert len(during) >= 2
    assert (during[-1] - during[0]) / (len(during) - 1) >= 0.1


def test_nodes_are_launchers_where_there_are_several(tmp_path):
    shape = ("--nodes", "2", "--gpus-per-node", "1")
    with reserved_port() as port:
        command = two_launchers(tmp_path, 30, port)
        run = run_chaos(tmp_path, "drop-link", *LINK, "--for", "2s", *shape, command=command)
    assert run.exit_code == 0, run.summary["reasons"]
    assert {event.node for event in run.of("rank_started")} == {0, 1}
    assert run.one("verified").fields["evidence"]["links"][0]["after"]["num_lost"] == 5


def test_ranks_that_are_not_in_their_networks_are_not_said_to_be_cut_off(tmp_path):
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    shape = ("--nodes", "1", "--gpus-per-node", "2")
    run = run_chaos(tmp_path, "drop-link", *LINK, "--for", "2s", *shape, command=(sys.executable, str(script)))
    assert (run.exit_code, run.summary["verdict"]) == (5, "inconclusive")
    assert run.of("injected") == []
    assert "must have RANK in its environment" in run.one("unverified").fields["reason"]


def test_a_link_that_is_reset_ends_them_and_their_launcher_starts_them_again_over_the_same_link(tmp_path, monkeypatch):
    # See tests/integration/test_external.py: without it all three restarts can fail.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    command = (*RESTARTING, *training(tmp_path, 30))
    # No longer than it takes to see it: they must not be back before it is over.
    run = run_chaos(tmp_path, "reset-link", *LINK, "--for", "100ms", command=command)
    assert run.exit_code == 0, run.summary["reasons"]
    assert run.summary["steps_committed"] == 30 and run.summary["attempts"] == 2
    (link,) = run.one("verified").fields["evidence"]["links"]
    assert len(link["connections_reset"]) >= 2
    assert all(name.startswith("10.77.84.") for name in link["connections_reset"])
