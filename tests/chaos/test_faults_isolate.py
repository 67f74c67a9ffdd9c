"""Hosts that are cut off: which links that means, who is said to be struck, and that it is seen from outside."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from chaos.errors import EffectNotSeen, InjectionError
from chaos.faults import registry
from chaos.faults.base import Host, OwnedProcess
from chaos.faults.isolate import DropCoordinatorLink, IsolateNode
from chaos.faults.link import DropLink, ResetLink
from chaos.target import ResolvedTarget
from mecefo_runtime.process import ProcessId

pytestmark = pytest.mark.unit

ENDS = ("coordinator", "node-0", "node-1", 0, 1, 2, 3)
NODE = ResolvedTarget(ranks=(2, 3), nodes=(1,))


class FakeLinks:
    """Links that are cut, at once, where a rule says so; `is_deaf`: rules have no effect."""

    def __init__(self, *, is_deaf: bool = False) -> None:
        self.is_deaf = is_deaf
        self.rule: dict = {}
        self.cut: set[frozenset] = set()

    def ends(self):
        return ENDS

    def plan_rules(self, links, rule):
        self.rule = dict(rule)
        return [{"how": "fake", "links": [list(link) for link in links]}]

    async def apply_rules(self, records):
        if not self.is_deaf:
            self.cut |= {frozenset(link) for record in records for link in record["links"]}

    async def probe(self, link, timeout_seconds):
        is_cut = frozenset(link) in self.cut
        return {"reached": not is_cut, "round_trip_seconds": None if is_cut else 0.001}

    async def measure_rate(self, link, num_bytes, timeout_seconds):
        raise AssertionError("nobody asked for a rate")


class Processes:
    def rank_processes(self, ranks):
        return tuple(OwnedProcess("rank", ProcessId(1000 + rank, 1), rank=rank, node=rank // 2) for rank in ranks)


def host_with(links: FakeLinks | None) -> Host:
    unused = dict.fromkeys(field.name for field in dataclasses.fields(Host))
    return Host(**{**unused, "processes": Processes(), "links": links})  # type: ignore[arg-type]


def act_of(fault, target, links: FakeLinks):
    return fault.prepare(target, host_with(links))


def strike(fault, target, links: FakeLinks) -> dict:
    async def run() -> dict:
        host = host_with(links)
        act = fault.prepare(target, host)
        await fault.apply(act, host)
        return await fault.verify(act, host, 5.0)

    return asyncio.run(run())


def new(kind):
    return kind(kind.Parameters())


def test_a_node_is_cut_off_from_everything_outside_and_nothing_inside():
    act = act_of(new(IsolateNode), NODE, FakeLinks())
    links = {tuple(link) for link in act.undo_record["links"]}
    assert links == {(here, there) for here in ("node-1", 2, 3) for there in ("coordinator", "node-0", 0, 1)}
    # The others are at the far ends, but it is not they who are struck.
    assert act.ranks == (2, 3)


def test_a_rank_is_cut_off_from_the_coordinator_alone():
    act = act_of(new(DropCoordinatorLink), ResolvedTarget(ranks=(1,)), FakeLinks())
    assert act.undo_record["links"] == [[1, "coordinator"]]
    assert act.ranks == (1,)


def test_the_coordinator_has_no_link_to_itself():
    with pytest.raises(InjectionError, match="no rank"):
        act_of(new(DropCoordinatorLink), ResolvedTarget(role="coordinator"), FakeLinks())


@pytest.mark.parametrize("kind", [IsolateNode, DropCoordinatorLink])
def test_without_networks_it_cannot_be_done(kind):
    with pytest.raises(InjectionError, match="network links of their own"):
        new(kind).prepare(NODE, host_with(None))


def test_what_is_the_same_on_many_links_is_said_once():
    evidence = strike(new(IsolateNode), NODE, FakeLinks())
    assert evidence["summary"].startswith("12 links, ")
    assert "0 of 5 probes come back" in evidence["summary"]
    assert len(evidence["links"]) == 12


@pytest.mark.parametrize("kind", [IsolateNode, DropCoordinatorLink])
def test_rules_without_effect_are_no_fault(kind):
    with pytest.raises(EffectNotSeen):
        strike(new(kind), NODE, FakeLinks(is_deaf=True))


def test_a_link_is_reset_or_dropped_one_way_by_its_own_rule():
    target, links = ResolvedTarget(ranks=(0, 2), links=((0, 2),)), FakeLinks()
    assert strike(new(ResetLink), target, links)["links"][0]["link"] == [0, 2]
    assert links.rule == {"action": "reset"}
    links = FakeLinks()
    strike(DropLink(DropLink.Parameters(way="in")), target, links)
    assert links.rule == {"action": "drop", "way": "in"}


def test_all_of_them_are_found_and_end():
    for kind in ("isolate-node", "drop-coordinator-link", "reset-link"):
        fault = registry()[kind]
        assert fault.needs == ("links",)
        assert fault.has_lifetime and not fault.is_loss
