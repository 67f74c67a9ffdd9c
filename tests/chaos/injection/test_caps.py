"""Caps at firing time: what is in force now, and what may be added to it."""

import pytest

from chaos.injection.active import ActiveRanks, may_fire
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Trigger
from chaos.plan.incident import Incident
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.events import Event

pytestmark = pytest.mark.unit

CLUSTER = Cluster(nodes=4, gpus_per_node=2, data_parallel=8, pipeline=1, num_layers=4, num_microbatches=8)


class AtMost:
    def __init__(self, ranks):
        self.ranks = ranks

    def violation(self, affected, cluster):
        assert cluster is CLUSTER
        return f"{sorted(affected)} are too many" if len(affected) > self.ranks else None


def incident(number, *ranks, is_loss=False, role=None):
    target = ResolvedTarget(ranks=ranks, role=role)
    return Incident(number, "f", is_loss, {}, target, str(target), Trigger(step=1), None)


def rejoined(*ranks):
    return Event("rejoined", "coordinator", 0.0, 0.0, 1, fields={"ranks": list(ranks)})


def test_ranks_that_are_affected_already_count_once():
    assert may_fire({1}, incident(0, 1), AtMost(1), CLUSTER) is None
    assert may_fire({1}, incident(0, 2), AtMost(1), CLUSTER) == "[1, 2] are too many"
    assert may_fire({1, 2}, incident(0, role="coordinator"), AtMost(1), CLUSTER) is None, "it strikes no rank"


def test_a_fault_is_in_force_until_it_is_undone_and_a_loss_until_its_rank_is_back():
    affected = ActiveRanks()
    pause, kill = incident(0, 1, 2), incident(1, 2, 3, is_loss=True)
    affected.begin(pause)
    affected.begin(kill)
    assert affected.ranks == {1, 2, 3}
    affected.end(pause)
    affected.end(kill)
    assert affected.ranks == {2, 3}
    affected.on_event(rejoined(3, 5))
    assert affected.ranks == {2}
    affected.on_event(rejoined(2))
    assert affected.ranks == frozenset()
