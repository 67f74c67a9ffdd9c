"""Links between containers, as they are planned: whose networks, whose addresses."""

import asyncio
import threading
import time

import pytest

from chaos.errors import InjectionError
from harness.backends.docker.links import ContainerLinks
from mecefo_runtime.job.layout import Cluster

pytestmark = pytest.mark.unit

ADDRESSES = {"node-0": "10.96.0.16", "node-1": "10.96.0.17"}


async def nobody(part, question, timeout_seconds):
    raise AssertionError("nobody is to be asked")


@pytest.fixture
def links():
    """Those of a command with two nodes of two ranks."""
    cluster = Cluster(2, 2, 4, 1, num_layers=1, num_microbatches=4)
    return ContainerLinks(cluster, {part: f"id-{part}" for part in ADDRESSES}, ADDRESSES, "engine", "mark", nobody)


def test_the_ranks_of_a_command_meet_at_node_0(links):
    (record,) = links.plan_rules(((2, "coordinator"),), {"action": "drop"})
    assert (record["at"], record["container"]) == ("node-1", "id-node-1")
    assert all("10.96.0.16" in " ".join(words) for words in record["rules"])


@pytest.mark.parametrize("link", [(0, 1), (0, "coordinator")])
def test_there_is_no_link_within_a_node(links, link):
    with pytest.raises(InjectionError, match="both ends are in the network of node-0"):
        links.plan_rules((link,), {"action": "drop"})


def test_a_rule_in_the_network_of_a_node_affects_all_its_ranks(links):
    assert links.sharing_network(3) == (2, 3)


def test_rules_that_are_being_added_when_the_fault_is_given_up_are_there_before_anybody_undoes(links, monkeypatch):
    is_adding, added = threading.Event(), []

    def add(record, command, text):
        is_adding.set()
        time.sleep(0.5)
        added.append(record.at)

    monkeypatch.setattr("harness.backends.docker.links.run_inside", add)

    async def give_up():
        adding = asyncio.create_task(links.apply_rules(links.plan_rules(((2, "coordinator"),), {"action": "drop"})))
        await asyncio.to_thread(is_adding.wait)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert added == ["node-1"]

    asyncio.run(give_up())
