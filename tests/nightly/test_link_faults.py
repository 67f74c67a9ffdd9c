"""Further ways in which links of a job break."""

from __future__ import annotations

import pytest

from harness.network.machine import why_no_networks
from tests.integration.runs import (
    SMALL,
    ChaosRun,
    assert_nothing_left,
    assert_sound,
    assert_survived,
    read_run,
    run_chaos,
)
from tests.integration.test_link_faults import (
    AT,
    IN_TIME,
    LONG,
    STEPS,
    assert_back_after_the_undo,
    assert_one_cluster_trained,
    assert_slowed,
)

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(why_no_networks() is not None, reason=f"no networks here: {why_no_networks()}"),
]


def test_a_job_on_networks_of_its_own_survives_as_on_the_loopback(tmp_path):
    kill = ("kill-node", *AT, "--on", "node=1", "--repair", "5steps", "--steps", "60", *SMALL)
    run = run_chaos(tmp_path, *kill, "--network", "namespaces")
    assert_survived(run, 60, at=10)
    assert run.of("run_started")[0].fields["experiment"]["network"] == "namespaces"
    assert not (run.folder / "control.socket").exists()


def test_a_link_that_is_reset_is_noticed_although_nobody_sends_and_costs_one_rank(tmp_path):
    run = run_chaos(tmp_path, "reset-link", "--on", "link=0-2", "--for", "60steps", *LONG, patch=IN_TIME)
    assert run.summary["verdict"] == "pass", run.summary["reasons"]
    assert_sound(run, STEPS)
    (link,) = run.one("verified").fields["evidence"]["links"]
    # Both ranks were held: whatever there was between them was idle.
    assert len(link["connections_reset"]) >= 2
    assert [event.fields["lost"] for event in run.of("detected")] == [[2]]
    assert_back_after_the_undo(run, [2])


def test_of_a_partition_one_side_trains_and_the_other_stops_and_comes_back(tmp_path):
    groups = ("-p", "groups=0,1|2,3")
    run = run_chaos(tmp_path, "partition", *groups, "--for", "60steps", *LONG, patch=IN_TIME)
    assert run.summary["verdict"] == "pass", run.summary["reasons"]
    assert_sound(run, STEPS)
    assert sorted(event.fields["lost"] for event in run.of("detected")) == [[2], [3]]
    assert_one_cluster_trained(run, outside=(2, 3))
    assert_back_after_the_undo(run, [2, 3])


def test_a_coordinator_that_is_cut_off_from_all_finds_them_in_the_epoch_in_which_it_lost_them(tmp_path):
    # Training goes on meanwhile, and must not end before it is found.
    cut = ("partition", "-p", "groups=coordinator|0,1,2,3", "--for", "100steps", *AT)
    run = run_chaos(tmp_path, *cut, "--steps", "240", *SMALL, patch=IN_TIME)
    assert run.summary["verdict"] == "pass", run.summary["reasons"]
    assert_sound(run, 240)
    assert sorted(rank for event in run.of("detected") for rank in event.fields["lost"]) == [0, 1, 2, 3]
    # Without it they went on, and it had no other job begun meanwhile.
    (back,) = run.of("coordinator_restarted")
    assert back.fields["members"] == [0, 1, 2, 3]
    assert [event.fields["reason"] for event in run.of("regrouped")] == ["start"]
    assert {event.fields["epoch"] for event in run.of("step_committed")} == {1}


def test_a_slow_link_is_not_a_dead_one(tmp_path):
    slow = ("slow-link", "--on", "link=0-2", "-p", "delay=60ms", "--for", "10steps")
    run = run_chaos(tmp_path, *slow, *AT, "--steps", "40", *SMALL)
    assert run.summary["verdict"] == "pass", run.summary["reasons"]
    assert_sound(run, 40)
    assert run.of("detected") == []
    assert len(run.of("regrouped")) == 1
    assert_slowed(run, 10, 0.06)


def test_a_link_that_comes_and_goes_so_fast_that_it_can_always_be_reached_costs_one_rank_until_it_stays(tmp_path):
    # While it is up there is always time for a probe, which is tried every 100 ms, and rarely for what TCP sends again.
    flap = ("flap-link", "--on", "link=0-2", "-p", "down=300ms", "-p", "up=150ms", "--for", "100000steps")
    run = run_chaos(tmp_path, *flap, *AT, "--steps", "120", *SMALL)
    assert run.summary["verdict"] == "pass", run.summary["reasons"]
    assert_sound(run, 120)
    assert [event.fields["lost"] for event in run.of("detected")] == [[2]]
    assert run.of("detected")[0].fields["cut_links"] == [[0, 2]]
    assert run.of("rejoined") == []


def test_two_runs_at_once_each_cut_links_of_their_own(tmp_path):
    cut = ("drop-link", "--on", "link=0-2", "--for", "60steps", *LONG)
    with (
        ChaosRun(tmp_path / "one", ["run", *cut], patch=IN_TIME) as one,
        ChaosRun(tmp_path / "other", ["run", *cut], patch=IN_TIME) as other,
    ):
        assert [one.wait(), other.wait()] == [0, 0], f"{one.stderr}\n{other.stderr}"
        for run, running in ((read_run(running.folder, 0), running) for running in (one, other)):
            assert_sound(run, STEPS)
            assert [event.fields["cut_links"] for event in run.of("detected")] == [[[0, 2]]]
            assert_back_after_the_undo(run, [2])
            assert_nothing_left(running, run.events)
