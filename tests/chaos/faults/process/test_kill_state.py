"""Kills of what holds the state, tried on real processes: every rank at once, or the process that keeps snapshots."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from chaos.errors import EffectNotSeen, TargetNotFound, UsageError
from chaos.faults.base import FaultContext, OwnedProcess
from chaos.faults.process.kill import KillJob, KillSmp
from chaos.faults.watch import Watch
from chaos.language.target import ResolvedTarget, Target, resolve
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.process import ProcessId
from tests.chaos.one_node import OneNode, do_nothing, sleepers

pytestmark = pytest.mark.unit

CLUSTER = Cluster(1, 2, data_parallel=2, pipeline=1, num_layers=1, num_microbatches=2)
NODE = ResolvedTarget(ranks=(0, 1), nodes=(0,))
TIMEOUT_SECONDS = 60.0
each = pytest.mark.parametrize("kind", [KillJob, KillSmp], ids=["kill-job", "kill-smp"])


class NodeWithSnapshots(OneNode):
    """The coordinator's place is taken by a snapshot process."""

    def __init__(self, supervisor: ProcessId, ranks: list[ProcessId], snapshots: ProcessId) -> None:
        super().__init__(supervisor, ranks, snapshots)
        self.snapshots = OwnedProcess("snapshots", snapshots, node=0)

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        return (*super().node_processes(nodes), self.snapshots) if 0 in nodes else ()


@pytest.fixture
def node() -> Iterator[NodeWithSnapshots]:
    with sleepers() as children:
        supervisor, *ranks, snapshots = (ProcessId.of(child.pid) for child in children)
        yield NodeWithSnapshots(supervisor, ranks, snapshots)


def context_of(node: OneNode) -> FaultContext:
    return FaultContext(processes=node, inside=None, watch=Watch(), run_folder=None)


def target_of(kind: type[KillJob] | type[KillSmp]) -> ResolvedTarget:
    return NODE if kind is KillSmp else resolve(None, CLUSTER, kind.scope, random.Random(0))


def dead(node: NodeWithSnapshots) -> set[OwnedProcess]:
    everybody = (node.supervisor, *node.ranks, node.snapshots)
    return {owned for owned in everybody if not owned.process.is_running()}


@each
def test_nobody_else_is_touched(node, kind) -> None:
    fault, context = kind(kind.Parameters()), context_of(node)
    act = fault.prepare(target_of(kind), context)
    assert not dead(node)
    asyncio.run(fault.apply(act, context))
    evidence = asyncio.run(fault.verify(act, context, TIMEOUT_SECONDS))
    affected = set(node.ranks) if kind is KillJob else {node.snapshots}
    assert dead(node) == affected == set(act.processes)
    assert {one["pid"] for one in evidence["processes"]} == {owned.process.pid for owned in affected}


@each
def test_a_kill_that_kills_nobody_is_not_seen(node, kind, monkeypatch) -> None:
    monkeypatch.setattr(kind, "apply", do_nothing)
    fault, context = kind(kind.Parameters()), context_of(node)
    act = fault.prepare(target_of(kind), context)
    asyncio.run(fault.apply(act, context))
    with pytest.raises(EffectNotSeen):
        asyncio.run(fault.verify(act, context, 0.2))
    assert not dead(node)


def test_a_node_that_keeps_no_snapshots_has_nothing_to_lose() -> None:
    with sleepers() as children:
        supervisor, *ranks, other = (ProcessId.of(child.pid) for child in children)
        with pytest.raises(TargetNotFound):
            KillSmp(KillSmp.Parameters()).prepare(NODE, context_of(OneNode(supervisor, ranks, other)))


def test_the_whole_job_has_no_target_of_its_own() -> None:
    assert target_of(KillJob).ranks == (0, 1)
    with pytest.raises(UsageError, match="leave rank=0 out"):
        resolve(Target(rank=0), CLUSTER, KillJob.scope, random.Random(0))
