"""Snapshots in memory under losses, against what can be computed by hand and against the closed forms of survival."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest

from mecefo_chaos.studies.forecast.failures import losses
from mecefo_chaos.studies.forecast.memory import survives
from mecefo_chaos.studies.forecast.model import Failures, Loss, Policy, Recovery, Saving, SnapshotSaving
from mecefo_chaos.studies.forecast.simulation import simulate
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.job.protection import groups_of
from tests.mecefo_chaos.studies.forecast.jobs import TenRanks

pytestmark = pytest.mark.unit

NUM_NODES = 8


def restarted(found, memory, horizon_seconds=1000.0, policy="reft", **recovery):
    """A job of ten ranks, a step of 10 s, that restarts after the losses (seconds, nodes); a spare is there."""
    told = [Loss(at, (number,), 0.0, tuple(nodes)) for number, (at, nodes) in enumerate(found)]
    recovery = Recovery(memory=memory, replacement_seconds=0, **recovery)
    return simulate(TenRanks(), Policy(policy), recovery, told, horizon_seconds, 10.0, 10, num_nodes=NUM_NODES)


def test_a_job_goes_back_to_the_newest_snapshot_that_was_complete():
    # Every second step, complete 5 s later: at 144 s that of step 12 is not, at 146 s it is.
    memory = SnapshotSaving(20, complete_seconds=25)
    for at_seconds, kept_steps in ((144.0, 9), (120.0, 9), (114.9, 6), (146.0, 12)):
        outcome = restarted([(at_seconds, [])], memory, at_seconds + 50, restart_seconds=50)
        assert outcome.num_steps == kept_steps, "none is begun before the last one is complete: every third step"
        assert outcome.lost_seconds["repeated_work"] == pytest.approx(at_seconds - kept_steps * 10)
        assert outcome.rungs["snapshot"] == 1


def test_what_training_waits_for_snapshots_is_a_loss_of_its_own():
    outcome = restarted([], SnapshotSaving(20, save_seconds=2), 1100.0)
    assert outcome.lost_seconds["snapshot"] == pytest.approx(100)
    assert outcome.num_steps == pytest.approx(100)


@pytest.mark.parametrize(
    ("protection", "lost", "rung"),
    [
        ("none", [], "snapshot"),
        ("none", [3], "checkpoint"),
        ("xor", [3], "parity"),
        ("xor", [2, 3], "parity"),  # Of two groups: 0, 2, 4, 6 and 1, 3, 5, 7.
        ("xor", [1, 3], "checkpoint"),
        ("pq", [1, 3], "parity"),
        ("pq", [1, 3, 5], "checkpoint"),
        ("copy", [0, 1], "parity"),
    ],
)
def test_the_protection_says_which_rung_serves(protection, lost, rung):
    memory = SnapshotSaving(10, restore_seconds=3, rebuild_seconds=4, protection=protection, group_size=4)
    outcome = restarted([(205.0, lost)], memory, checkpoint=Saving(100, 1e-6, restore_seconds=5))
    assert {name for name, number in outcome.rungs.items() if number} == {rung}
    restore_seconds = {"snapshot": 3, "parity": 3 + 4, "checkpoint": 5}[rung]
    assert outcome.lost_seconds["restart"] == pytest.approx(restore_seconds)


def test_a_version_is_less_protected_until_the_next_one_is_complete():
    memory = SnapshotSaving(10, restore_seconds=10)
    # The second node is lost while the job restarts from what the first one's group has rebuilt, or a step later.
    outcome = restarted([(205.0, [1]), (210.0, [3])], memory)
    assert (outcome.rungs["parity"], outcome.rungs["start"]) == (1, 1)
    outcome = restarted([(205.0, [1]), (226.0, [3])], memory)
    assert outcome.rungs["parity"] == 2
    # Or until the others have protected it anew, as long after training goes on as a snapshot takes.
    rarely = SnapshotSaving(100, restore_seconds=10, complete_seconds=4)
    outcome = restarted([(206.0, [1]), (218.0, [3])], rarely)
    assert (outcome.rungs["parity"], outcome.rungs["start"]) == (1, 1)
    outcome = restarted([(206.0, [1]), (229.0, [3])], rarely)
    assert outcome.rungs["parity"] == 2


@pytest.mark.parametrize(
    ("num_nodes", "protection", "group", "num_lost"),
    [(8, "xor", 4, 2), (16, "xor", 4, 2), (16, "xor", 8, 3), (12, "pq", 6, 3), (8, "copy", 4, 2)],
)
def test_so_many_sets_of_nodes_can_be_lost_at_once_as_the_closed_form_says(num_nodes, protection, group, num_lost):
    groups = groups_of(range(num_nodes), protection, group)
    survived = sum(survives(groups, lost) for lost in combinations(range(num_nodes), num_lost))
    size, bears = (2, 1) if protection == "copy" else (group, {"xor": 1, "pq": 2}[protection])
    # The coefficient of x^k in (sum over i <= m of C(n, i) x^i)^G.
    ways = [1]
    for _ in range(num_nodes // size):
        grown = [0] * (len(ways) + bears)
        for taken, number in enumerate(ways):
            for more in range(bears + 1):
                grown[taken + more] += number * comb(size, more)
        ways = grown
    assert survived == (ways[num_lost] if num_lost < len(ways) else 0)
    if protection == "xor" and num_lost == 2:
        assert survived / comb(num_nodes, 2) == pytest.approx(1 - (group - 1) / (num_nodes - 1))


def test_steps_lost_to_random_failures_are_as_many_as_is_to_be_expected():
    """Of a rank, whose node keeps its memory: since the copy of the newest complete snapshot, half an interval more."""
    cluster = Cluster(NUM_NODES, 1, 8, 1, 8, 8)
    failures = Failures(interval_seconds=2000.0, repair_seconds=0.0)
    horizon = 4_000_000.0
    found = losses(failures, cluster, horizon, seed=1)
    assert not any(loss.nodes for loss in found)
    recovery = Recovery(memory=SnapshotSaving(40, complete_seconds=25), replacement_seconds=0)
    outcome = simulate(TenRanks(), Policy("reft"), recovery, found, horizon, 10.0, NUM_NODES, num_nodes=NUM_NODES)
    assert outcome.rungs["snapshot"] + outcome.rungs["start"] == outcome.num_losses > 1500
    expected = 25 + 40 / 2
    assert outcome.lost_seconds["repeated_work"] / outcome.num_losses == pytest.approx(expected, rel=0.05)


def test_a_failure_of_nodes_takes_their_memory():
    cluster = Cluster(NUM_NODES, 2, 8, 2, 8, 8)
    found = losses(Failures(1000.0, unit="node"), cluster, 20_000.0, seed=2)
    assert found and all(loss.ranks == tuple(cluster.ranks_of(loss.nodes[0])) for loss in found)
