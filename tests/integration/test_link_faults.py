"""Jobs whose links break: who is evicted, who trains on, who comes back, and what is refused."""

from __future__ import annotations

import signal

import pytest

from chaos.undo.ledger import read_ledger
from harness.network.machine import why_no_networks
from tests.integration.runs import (
    SLOW_UNTIL_BACK,
    SMALL,
    ChaosRun,
    Finished,
    assert_nothing_left,
    assert_sound,
    paced,
    read_log,
    run_chaos,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(why_no_networks() is not None, reason=f"no networks here: {why_no_networks()}"),
]

STEPS = 200
AT = ("--at", "step=10")
# 60 steps, for which links are cut, are longer than a rank looks for its peers once it is out; and those that are left
# then are longer than it takes to come back.
IN_TIME = paced(0.05)
# As long, in a third as many steps; once all are there again, as fast as they can.
IN_TIME_UNTIL_BACK = SLOW_UNTIL_BACK.replace("time.sleep(0.2)", "time.sleep(0.15)")
LONG = (*AT, "--steps", str(STEPS), *SMALL)
IN_COMMAND = "import sys\nif sys.orig_argv[1] == '-c':\n"
DO_NOTHING = f"""{IN_COMMAND}
    from harness.network.links import NamespaceLinks

    async def do_nothing(self, records):
        pass

    NamespaceLinks.apply_rules = do_nothing
"""
ASK_ALWAYS = """
from mecefo_runtime import link_watch

link_watch.STALLED_AFTER = 0
"""


def test_a_dropped_link_costs_one_rank_which_comes_back_by_itself_when_it_is_whole(tmp_path):
    cut = ("drop-link", "--on", "link=0-2", "--for", "20steps", *AT, "--steps", "80", *SMALL)
    run = run_chaos(tmp_path, *cut, patch=IN_TIME_UNTIL_BACK)
    assert run.summary["verdict"] == "pass", run.summary["reasons"]
    assert_sound(run, 80)
    (detected,) = run.of("detected")
    assert (detected.fields["lost"], detected.fields["how"]) == ([2], "peers")
    assert detected.fields["cut_links"] == [[0, 2]]
    assert_back_after_the_undo(run, [2])


@pytest.mark.nightly
@pytest.mark.parametrize(("groups", "alone"), [("0,1|2,3,coordinator", (0, 1)), ("0,1,coordinator|2,3", (2, 3))])
def test_of_a_partition_the_side_without_the_coordinator_stops_and_comes_back(tmp_path, groups, alone):
    run = run_chaos(tmp_path, "partition", "-p", f"groups={groups}", "--for", "60steps", *LONG, patch=IN_TIME)
    assert run.summary["verdict"] == "pass", run.summary["reasons"]
    assert_sound(run, STEPS)
    assert {event.fields["how"] for event in run.of("detected")} == {"heartbeat"}
    assert sorted(rank for event in run.of("detected") for rank in event.fields["lost"]) == list(alone)
    assert_one_cluster_trained(run, outside=alone)
    assert_back_after_the_undo(run, list(alone))


@pytest.mark.nightly
def test_a_node_that_is_cut_off_even_from_the_coordinator_commits_nothing_until_it_is_back(tmp_path):
    # The node of the rank that leads until then.
    run = run_chaos(tmp_path, "isolate-node", "--on", "node=0", "--for", "60steps", *LONG, patch=IN_TIME)
    assert run.summary["verdict"] == "pass", run.summary["reasons"]
    assert_sound(run, STEPS)
    assert {event.fields["how"] for event in run.of("detected")} == {"heartbeat"}
    assert sorted(rank for event in run.of("detected") for rank in event.fields["lost"]) == [0, 1]
    assert_one_cluster_trained(run, outside=(0, 1))
    assert_back_after_the_undo(run, [0, 1])


@pytest.mark.nightly
def test_a_link_that_is_late_and_loses_packets_is_not_a_dead_one(tmp_path):
    # Not even if it is asked all the time which connections wait, as otherwise after a long time without a step.
    bad = ("slow-link", "--on", "link=0-2", "-p", "delay=200ms", "-p", "loss=0.05", "--for", "5steps")
    run = run_chaos(tmp_path, *bad, *AT, "--steps", "40", *SMALL, patch=ASK_ALWAYS)
    assert run.summary["verdict"] == "pass", run.summary["reasons"]
    assert_sound(run, 40)
    assert run.of("detected") == []
    assert [event.fields["reason"] for event in run.of("regrouped")] == ["start"]
    assert_slowed(run, 5, 0.2)
    assert "degraded throughput" in (run.folder / "report.html").read_text()


@pytest.mark.nightly
def test_rules_that_are_not_added_are_no_fault(tmp_path):
    run = run_chaos(tmp_path, "drop-link", "--on", "link=0-2", *AT, "--steps", "30", *SMALL, patch=DO_NOTHING)
    assert (run.summary["verdict"], run.exit_code) == ("inconclusive", 5)
    assert not run.summary["incidents"][0]["verified"]


def test_without_networks_a_link_cannot_be_cut(tmp_path):
    arguments = ["run", "drop-link", "--on", "link=0-2", "--network", "loopback", *AT, *SMALL]
    with ChaosRun(tmp_path, arguments) as run:
        assert run.wait() == 4
        assert "drop-link needs ranks with networks of their own" in run.stderr
        assert "loopback" in run.stderr
    assert not run.out.exists()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(("slow-link", "--on", "link=0-2", "-p", "delay=20ms"), marks=pytest.mark.nightly),
        ("partition", "-p", "groups=0,1,coordinator|2,3"),
        pytest.param(("drop-link", "--on", "link=0-2", "-p", "way=out"), marks=pytest.mark.nightly),
        pytest.param(("reset-link", "--on", "link=0-2"), marks=pytest.mark.nightly),
        pytest.param(
            ("flap-link", "--on", "link=0-2", "-p", "down=200ms", "-p", "up=200ms"), marks=pytest.mark.nightly
        ),
        pytest.param(("isolate-node", "--on", "node=1"), marks=pytest.mark.nightly),
        pytest.param(("drop-coordinator-link", "--on", "rank=1"), marks=pytest.mark.nightly),
    ],
    ids=lambda fault: fault[0],
)
def test_nothing_of_the_networks_outlives_a_command_that_is_killed(tmp_path, fault):
    with ChaosRun(tmp_path, ["run", *fault, "--for", "100000steps", *AT, "--steps", "100000", *SMALL]) as run:
        run.wait_for("verified")
        assert read_ledger(run.folder / "ledger.jsonl").pending
        run.process.send_signal(signal.SIGKILL)
        run.wait()
        # Processes of the run hold the networks: with them the networks are gone, and with the networks the rules.
        assert_nothing_left(run, read_log(run.folder / "events.jsonl"))
        assert read_ledger(run.folder / "ledger.jsonl").pending == ()


def assert_one_cluster_trained(run: Finished, outside: tuple[int, ...]) -> None:
    """That while the fault was in force, nobody of `outside` committed a step, and the others did."""
    (detected,) = {max(event.monotonic_seconds for event in run.of("detected"))}
    undone = run.one("undone").monotonic_seconds
    committed = [event for event in run.of("step_committed") if detected < event.monotonic_seconds < undone]
    assert committed
    assert not {event.rank for event in committed} & set(outside)
    steps = [event.step for event in run.of("step_committed") if not event.fields["repeated"]]
    assert len(steps) == len(set(steps)), "a step was committed by two clusters"


def assert_slowed(run: Finished, num_steps: int, delay_seconds: float) -> None:
    """That each step of the fault went over the link and back twice, however busy the machine was before, and then.

    Gradients do, and then the commit, which needs them. In the first of the `num_steps` ranks were held until it was
    seen; with the commit of the last one it was undone.
    """
    first = run.one("injected").step
    during = [event for event in run.of("step_committed") if first < event.step < first + num_steps]
    assert len(during) == num_steps - 1
    for event in during:
        seconds = event.fields["committed_monotonic"] - event.fields["began_monotonic"]
        assert seconds >= 3.8 * delay_seconds, event


def assert_back_after_the_undo(run: Finished, ranks: list[int]) -> None:
    """That `ranks` came back, no process having been started again, once the links were whole."""
    back = [event for event in run.of("rejoined") if set(event.fields["ranks"]) & set(ranks)]
    assert sorted(rank for event in back for rank in event.fields["ranks"]) == ranks
    # Rules are gone some moments before it is said that they are.
    released = run.one("verified").monotonic_seconds
    assert all(event.monotonic_seconds > released for event in back)
    assert {event.fields.get("rank_attempt", 1) for event in run.of("process_started")} == {1}
    first, last = run.of("layout")[0], run.of("layout")[-1]
    assert last.fields["layout"] == first.fields["layout"]
