"""A node that is asked to go, on real processes: seen only if the job let it go and its ranks ended by themselves."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.errors import EffectNotSeen, UsageError
from chaos.faults.base import FaultContext, OwnedProcess, RunContext
from chaos.faults.process.drain import DrainNode, NoticeParameters
from chaos.language.target import ResolvedTarget
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.events import Event
from tests.chaos.one_node import create_context, sleepers

pytestmark = pytest.mark.unit

NODE = ResolvedTarget(ranks=(0, 1), nodes=(0,))
TIMEOUT_SECONDS = 60.0
# What ignores the notice, as nobody does who has heard of nothing else.
DEAF = ("sh", "-c", "trap '' USR1; exec sleep 300")


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    with sleepers(DEAF) as started:
        while any(Path(f"/proc/{child.pid}/comm").read_text() != "sleep\n" for child in started):
            time.sleep(0.001)
        yield started


def let_go(context: FaultContext, *ranks: int) -> None:
    fields: dict[str, Any] = {"lost": list(ranks), "how": "drain"}
    context.watch.feed(Event("detected", "coordinator", 0.0, 0.0, 1, fields=fields))


async def drain(context: FaultContext, grace_seconds: float, *answers: Any) -> dict[str, Any]:
    fault = DrainNode(NoticeParameters(grace=f"{grace_seconds:g}s"))
    act = fault.prepare(NODE, context)
    await fault.apply(act, context)
    try:
        for answer in answers:
            answer()
        return await fault.verify(act, context, TIMEOUT_SECONDS)
    finally:
        await fault.lift(act, context)


def running(context: FaultContext) -> set[OwnedProcess]:
    return {owned for owned in context.processes.node_processes((0,)) if owned.process.is_running()}


def test_a_node_whose_ranks_have_left_in_order_is_taken_away_at_once(children) -> None:
    context = create_context(children)
    _, *ranks, coordinator = children
    answers = [lambda: let_go(context, 0), lambda: let_go(context, 1), *(rank.kill for rank in ranks)]
    evidence = asyncio.run(drain(context, 1000.0, *answers))
    assert "had left the job" in evidence["summary"]
    assert evidence["left_seconds"] < 1000.0
    assert not running(context)
    assert coordinator.poll() is None


def test_a_job_that_does_not_answer_is_no_drain_and_the_node_is_gone_all_the_same(children) -> None:
    context = create_context(children)
    with pytest.raises(EffectNotSeen, match=r"did not release the node within 0.05 s"):
        asyncio.run(drain(context, 0.05))
    assert not running(context)


def test_ranks_that_end_without_a_word_of_the_job_are_no_drain(children) -> None:
    context = create_context(children)
    with pytest.raises(EffectNotSeen, match="did not release the node"):
        asyncio.run(drain(context, 0.3, *(rank.kill for rank in children[1:3])))


def test_ranks_that_stay_although_the_job_has_let_them_go_are_no_drain(children) -> None:
    context = create_context(children)
    with pytest.raises(EffectNotSeen, match="rank 0"):
        asyncio.run(drain(context, 0.05, lambda: let_go(context, 0, 1)))


def test_only_a_node_can_be_told() -> None:
    cluster = Cluster(1, 2, data_parallel=2, pipeline=1, num_layers=1, num_microbatches=2)
    with pytest.raises(UsageError, match="not the coordinator"):
        DrainNode(NoticeParameters()).check(ResolvedTarget(role="coordinator"), RunContext(cluster))
