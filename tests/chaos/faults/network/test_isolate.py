"""Hosts that are cut off: which links that means, who is said to be affected, and that it is seen from outside."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

import pytest

from chaos.errors import EffectNotSeen, EnvironmentFailure, InjectionError
from chaos.faults import registry
from chaos.faults.base import FaultContext
from chaos.faults.network.isolate import DropCoordinatorLink, IsolateNode
from chaos.faults.network.link import DropLink, ResetLink
from chaos.faults.network.partition import Partition
from chaos.faults.watch import Watch
from chaos.host.links.nccl_transport import LOG_NAME
from chaos.language.target import ResolvedTarget
from mecefo_runtime.job.layout import Cluster
from tests.chaos.faults.network.ranks import Ranks

pytestmark = pytest.mark.unit

ENDS = ("coordinator", "node-0", "node-1", 0, 1, 2, 3)
NODE = ResolvedTarget(ranks=(2, 3), nodes=(1,))
CLUSTER = Cluster(nodes=2, gpus_per_node=2, data_parallel=2, pipeline=2, num_layers=4, num_microbatches=8)


class FakeLinks:
    """Links that are cut, at once, where a rule says so; `is_deaf`: rules have no effect.

    `networks`: which ranks share one, by rank; each has its own where nothing is said.
    """

    def __init__(self, *, is_deaf: bool = False, networks: dict[int, tuple[int, ...]] | None = None) -> None:
        self.networks = networks or {rank: (rank,) for rank in range(4)}
        self.is_deaf = is_deaf
        self.rule: dict = {}
        self.cut: set[frozenset] = set()

    def ends(self):
        return ENDS

    def sharing_network(self, rank):
        return self.networks[rank]

    def plan_rules(self, links, rule):
        self.rule = dict(rule)
        return [{"how": "fake", "links": [list(link) for link in links]}]

    async def apply_rules(self, records):
        if not self.is_deaf:
            self.cut |= {frozenset(link) for record in records for link in record["links"]}
        return time.monotonic()

    async def probe(self, link, timeout_seconds):
        is_cut = frozenset(link) in self.cut
        return {"reached": not is_cut, "round_trip_seconds": None if is_cut else 0.001}

    async def measure_rate(self, link, num_bytes, timeout_seconds):
        raise AssertionError("nobody asked for a rate")


def host_with(links: FakeLinks | None, run_folder: Path = Path("nowhere")) -> FaultContext:
    unused = dict.fromkeys(field.name for field in dataclasses.fields(FaultContext))
    return FaultContext(
        **{
            **unused,
            "processes": Ranks(),
            "links": links,
            "cluster": CLUSTER,
            "run_folder": run_folder,
            "watch": Watch(),
        }
    )  # type: ignore[arg-type]


def act_of(fault, target, links: FakeLinks):
    return fault.prepare(target, host_with(links))


def inject(fault, target, links: FakeLinks, run_folder: Path = Path("nowhere")) -> dict:
    async def run() -> dict:
        context = host_with(links, run_folder)
        act = fault.prepare(target, context)
        await fault.apply(act, context)
        return await fault.verify(act, context, 5.0)

    return asyncio.run(run())


def new(kind):
    return kind(kind.Parameters())


def test_a_node_is_cut_off_from_everything_outside_and_nothing_inside():
    act = act_of(new(IsolateNode), NODE, FakeLinks())
    links = {tuple(link) for link in act.undo_record["links"]}
    assert links == {(here, there) for here in ("node-1", 2, 3) for there in ("coordinator", "node-0", 0, 1)}
    # The others are at the far ends, but it is not they who are affected.
    assert act.ranks == (2, 3)


def test_a_rank_is_cut_off_from_the_coordinator_alone():
    act = act_of(new(DropCoordinatorLink), ResolvedTarget(ranks=(1,)), FakeLinks())
    assert act.undo_record["links"] == [[1, "coordinator"]]
    assert act.ranks == (1,)


@pytest.mark.parametrize("kind", [DropCoordinatorLink, DropLink, ResetLink])
def test_a_rule_affects_all_ranks_that_share_the_network_it_is_in(kind):
    of_nodes = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    target = ResolvedTarget(ranks=(1,), links=() if kind is DropCoordinatorLink else ((1, 2),))
    act = act_of(new(kind), target, FakeLinks(networks=of_nodes))
    assert act.ranks == ((0, 1) if kind is DropCoordinatorLink else (0, 1, 2, 3))


def partition(groups: str) -> Partition:
    return Partition(Partition.Parameters(groups=groups))


def test_groups_without_a_word_on_the_coordinator_all_reach_it():
    act = act_of(partition("0,1|2,3"), ResolvedTarget(), FakeLinks())
    assert {tuple(link) for link in act.undo_record["links"]} == {(0, 2), (0, 3), (1, 2), (1, 3)}
    assert act.ranks == (0, 1, 2, 3)


@pytest.mark.parametrize(("groups", "alone"), [("0,1,coordinator|2,3", (2, 3)), ("0,1|2,3,coordinator", (0, 1))])
def test_the_side_without_the_coordinator_has_no_link_to_it_nor_has_its_supervisor(groups, alone):
    act = act_of(partition(groups), ResolvedTarget(), FakeLinks())
    links = {tuple(link) for link in act.undo_record["links"]}
    among_ranks = {(0, 2), (0, 3), (1, 2), (1, 3)}
    assert links - among_ranks == {(end, "coordinator") for end in (*alone, f"node-{alone[0] // 2}")}
    assert links > among_ranks
    assert act.ranks == alone


def test_the_coordinator_alone_on_a_side_is_cut_off_from_all_who_still_reach_each_other():
    act = act_of(partition("coordinator|0,1,2,3"), ResolvedTarget(), FakeLinks())
    links = {tuple(link) for link in act.undo_record["links"]}
    assert links == {(end, "coordinator") for end in (0, 1, 2, 3, "node-0", "node-1")}


def test_the_coordinator_has_no_link_to_itself():
    with pytest.raises(InjectionError, match="no rank"):
        act_of(new(DropCoordinatorLink), ResolvedTarget(role="coordinator"), FakeLinks())


@pytest.mark.parametrize("kind", [IsolateNode, DropCoordinatorLink])
def test_without_networks_it_cannot_be_done(kind):
    with pytest.raises(InjectionError, match="network links of their own"):
        new(kind).prepare(NODE, host_with(None))


def test_what_is_the_same_on_many_links_is_said_once():
    evidence = inject(new(IsolateNode), NODE, FakeLinks())
    assert evidence["summary"].startswith("12 links, ")
    assert "0 of 5 probes come back" in evidence["summary"]
    assert len(evidence["links"]) == 12


@pytest.mark.parametrize("kind", [IsolateNode, DropCoordinatorLink])
def test_rules_without_effect_are_no_fault(kind):
    with pytest.raises(EffectNotSeen):
        inject(new(kind), NODE, FakeLinks(is_deaf=True))


def test_a_link_is_reset_or_dropped_one_way_by_its_own_rule():
    target, links = ResolvedTarget(ranks=(0, 2), links=((0, 2),)), FakeLinks()
    assert inject(new(ResetLink), target, links)["links"][0]["link"] == [0, 2]
    assert links.rule == {"action": "reset"}
    links = FakeLinks()
    inject(DropLink(DropLink.Parameters(way="in")), target, links)
    assert links.rule == {"action": "drop", "way": "in"}


def test_a_link_that_nccl_crosses_without_the_network_is_refused_before_a_rule_is_added(tmp_path):
    (tmp_path / "logs").mkdir()
    said = "host:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[2] via SHM/direct/direct\n"
    (tmp_path / "logs" / LOG_NAME.format(rank=0)).write_text(said)
    links = FakeLinks()
    for fault, target in ((new(ResetLink), ResolvedTarget(ranks=(0, 2), links=((0, 2),))), (new(IsolateNode), NODE)):
        with pytest.raises(InjectionError, match=r"link 0-2 by SHM/direct/direct.*NCCL_SHM_DISABLE=1"):
            inject(fault, target, links, tmp_path)
    assert links.cut == set()
    inject(new(ResetLink), ResolvedTarget(ranks=(0, 3), links=((0, 3),)), links, tmp_path)
    assert links.cut


class ListedLinks(FakeLinks):
    """Links of which the connections are known; `lasting`: those that do not end."""

    def __init__(self, *connections: str, lasting: tuple[str, ...] = (), refusal: str = "") -> None:
        super().__init__()
        self.known, self.lasting, self.refusal = list(connections), list(lasting), refusal

    async def connections(self, link, timeout_seconds):
        return list(self.known)

    async def end_connections(self, link, timeout_seconds):
        assert self.cut, "what is ended before the rules may be made again"
        if self.refusal:
            raise EnvironmentFailure(self.refusal)
        ended, self.known = self.known, self.lasting
        return ended


def test_a_reset_ends_idle_connections_too_and_names_them():
    target, ends = ResolvedTarget(ranks=(0, 2), links=((0, 2),)), ("a:1-b:2", "b:2-a:1")
    evidence = inject(new(ResetLink), target, ListedLinks(*ends))
    assert evidence["links"][0]["connections_reset"] == list(ends)
    assert "reset (2 ends), none is left" in evidence["summary"]
    with pytest.raises(EffectNotSeen, match="still has connections: b:2-a:1"):
        inject(new(ResetLink), target, ListedLinks(*ends, lasting=ends[1:]))


def test_where_connections_cannot_be_ended_it_is_said_when_an_idle_one_notices():
    target = ResolvedTarget(ranks=(0, 2), links=((0, 2),))
    for links in (FakeLinks(), ListedLinks("a:1-b:2", refusal="not supported")):
        (told,) = inject(new(ResetLink), target, links)["links"]
        assert "an idle one fails when it is next used" in told["summary"] or "not supported" in told["summary"]
        assert "connections_reset" not in told


def test_all_of_them_are_found_and_end():
    for kind in ("isolate-node", "drop-coordinator-link", "reset-link"):
        fault = registry()[kind]
        assert fault.needs == ("links",)
        assert fault.has_lifetime and not fault.is_loss
