"""Links to ranks that are not in the job: breaking them is no fault, and is not said to be one."""

import asyncio
import dataclasses
import time

import pytest

from chaos.errors import EffectNotSeen, TargetNotFound
from chaos.faults import registry
from chaos.faults.base import FaultContext
from chaos.faults.watch import Watch
from chaos.language.target import ResolvedTarget
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.events import Event
from tests.chaos.faults.network.ranks import Ranks
from tests.chaos.faults.network.test_isolate import FakeLinks

pytestmark = pytest.mark.unit

CLUSTER = Cluster(nodes=2, gpus_per_node=2, data_parallel=2, pipeline=2, num_layers=4, num_microbatches=8)
LINK = ResolvedTarget(ranks=(1, 3), links=((1, 3),))
NODE = ResolvedTarget(ranks=(2, 3), nodes=(1,))
# Of each kind a target, and ranks without which there is nothing to break.
CASES = {
    "drop-link": (LINK, {}, [(3,), (1,), (1, 3)]),
    "reset-link": (LINK, {}, [(3,), (1, 3)]),
    "slow-link": (LINK, {}, [(1,), (1, 3)]),
    "flap-link": (LINK, {}, [(3,)]),
    "drop-coordinator-link": (ResolvedTarget(ranks=(3,)), {}, [(3,)]),
    "isolate-node": (NODE, {}, [(2, 3)]),
    "partition": (ResolvedTarget(), {"groups": "0,1|2,3"}, [(2, 3), (0, 1, 2, 3)]),
}
MISSING = [(kind, gone) for kind, (_, _, cases) in CASES.items() for gone in cases]
# Still a fault: somebody is there who feels it.
ENOUGH = [("drop-link", (0, 2)), ("drop-coordinator-link", (2,)), ("isolate-node", (0, 1, 2)), ("partition", (1, 2))]


def prepared(kind, ranks, **more):
    target, parameters, _ = CASES[kind]
    fault = registry()[kind](registry()[kind].Parameters.model_validate(parameters))
    unused = dict.fromkeys(field.name for field in dataclasses.fields(FaultContext))
    links = FakeLinks()
    context = FaultContext(
        **{**unused, "processes": ranks, "links": links, "cluster": CLUSTER, "watch": Watch(), **more}
    )
    return fault, context, lambda: fault.prepare(target, context)


@pytest.mark.parametrize("how", ["gone", "unknown"])
@pytest.mark.parametrize(("kind", "missing"), MISSING, ids=str)
def test_a_link_to_a_rank_that_is_not_there_is_not_broken(kind, missing, how):
    _, _, prepare = prepared(kind, Ranks(**{how: missing}))
    with pytest.raises(TargetNotFound, match=r"(is not|none is) in the job"):
        prepare()


@pytest.mark.parametrize(("kind", "gone"), ENOUGH, ids=str)
def test_who_has_nothing_to_do_with_it_may_be_gone(kind, gone):
    _, _, prepare = prepared(kind, Ranks(gone=gone))
    assert set(prepare().ranks) <= ({0, 1, 2, 3} if kind == "partition" else {1, 3})


def exited(rank_pid, code):
    fields = {"role": "rank", "exited_pid": rank_pid, "exit": code, "exited_rank": 3, "rank_attempt": 1}
    return Event("process_exited", "supervisor", time.time(), time.monotonic(), 1, fields=fields)


def broken_while(kind, ranks, happens, **more):
    """Apply the fault, have `happens(context)` come to pass, and verify it."""

    async def run():
        fault, context, prepare = prepared(kind, ranks, run_folder=NOWHERE, **more)
        act = prepare()
        await fault.apply(act, context)
        await asyncio.sleep(0)
        happens(context)
        try:
            return await fault.verify(act, context, 30.0)
        finally:
            await fault.lift(act, context)

    return asyncio.run(run())


class _Nowhere:
    """A run's folder without logs."""

    def __truediv__(self, name):
        return self

    def glob(self, pattern):
        return []

    def is_file(self):
        return False


NOWHERE = _Nowhere()


@pytest.mark.parametrize("kind", ["drop-link", "drop-coordinator-link", "isolate-node", "partition"])
def test_a_rank_that_is_killed_before_its_link_was_looked_at_is_no_evidence(monkeypatch, kind):
    # Nobody tells why it ended.
    monkeypatch.setattr("chaos.faults.network.link.TOLD_SECONDS", 0.05)
    ranks = Ranks()
    with pytest.raises(EffectNotSeen, match="before the effect on its link was verified"):
        broken_while(kind, ranks, lambda _: ranks.gone.update({2, 3}))


def test_with_all_there_it_is_evidence():
    assert broken_while("drop-link", Ranks(), lambda _: None)["summary"]


def test_a_rank_that_gives_up_because_of_its_link_is_evidence():
    ranks = Ranks()

    def give_up(context):
        (owned,) = ranks.rank_processes((3,))
        context.watch.feed(exited(owned.process.pid, 1))
        ranks.gone.add(3)

    assert broken_while("drop-link", ranks, give_up)["summary"]


def test_a_launcher_may_end_the_ranks_of_a_broken_link():
    ranks = Ranks()
    found = broken_while("drop-link", ranks, lambda _: ranks.gone.add(3), has_foreign_checkpoints=True)
    assert found["summary"]
