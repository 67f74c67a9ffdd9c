"""Addresses, and which rules do what to a link: values, without a network."""

from __future__ import annotations

import json

import pytest

from chaos.host.links.firewall import restore_text
from harness.network.links import NamespaceLinks
from harness.network.plan import HeldNetworks, Networks, sites
from mecefo_runtime.system.own_network import OwnNetwork
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

RESET = "-p tcp -m tcp --tcp-flags RST NONE"


def held(num_nodes: int = 2, num_ranks: int = 4) -> HeldNetworks:
    made = {site.name: OwnNetwork(5 + n, site.address) for n, site in enumerate(sites(num_nodes, num_ranks))}
    return HeldNetworks(ProcessId(1234, 99), Networks(made))


def planned(links, rule) -> list[dict]:
    return NamespaceLinks(held(), "ab12").plan_rules(links, rule)


def test_everything_has_an_address_of_its_own_however_many_there_are():
    made = list(sites(1024, 8192))
    addresses = {site.address for site in made}
    assert len(addresses) == len(made) == 1 + 1024 + 8192
    assert all(0 <= int(number) < 256 for address in addresses for number in address.split("."))
    assert {address.rpartition(".")[2] for address in addresses}.isdisjoint({"0", "255"})


def test_networks_are_the_same_after_they_were_written_and_read():
    networks = held().networks
    assert Networks.from_text(networks.to_text()) == networks
    assert networks.ends() == ("coordinator", "node-0", "node-1", 0, 1, 2, 3)
    assert networks.of(2) == networks.of_rank(2)
    assert networks.of("node-1") == networks.of_node(1)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ({"action": "drop"}, {"OUTPUT -d 10.77.84.3/32 {} -j DROP", "INPUT -s 10.77.84.3/32 {} -j DROP"}),
        ({"action": "drop", "way": "out"}, {"OUTPUT -d 10.77.84.3/32 {} -j DROP"}),
        ({"action": "drop", "way": "in"}, {"INPUT -s 10.77.84.3/32 {} -j DROP"}),
        (
            {"action": "reset", "way": "out"},
            {
                f"OUTPUT -d 10.77.84.3/32 {RESET} {{}} -j REJECT --reject-with tcp-reset",
                "OUTPUT -d 10.77.84.3/32 ! -p tcp {} -j DROP",
            },
        ),
    ],
)
def test_a_link_is_cut_at_its_first_end(rule, wanted):
    (record,) = planned(((0, 2),), rule)
    comment = "-m comment --comment chaos:ab12:1"
    assert {" ".join(words) for words in record["rules"]} == {words.format(comment) for words in wanted}
    assert (record["at"], record["descriptor"], record["queue"]) == ("rank 0", 8, None)
    assert record["holder"] == {"pid": 1234, "start_ticks": 99}
    assert record == json.loads(json.dumps(record))


def test_a_link_is_slowed_where_its_packets_arrive():
    here, there = planned(((0, 2),), {"action": "shape", "delay_seconds": 0.05})
    assert {(record["at"], record["rules"][0][0], record["rules"][0][2]) for record in (here, there)} == {
        ("rank 2", "INPUT", "10.77.84.1/32"),
        ("rank 0", "INPUT", "10.77.84.3/32"),
    }
    assert here["shape"] == there["shape"] == {"delay_seconds": 0.05}
    assert here["queue"] != there["queue"]


def test_all_that_is_done_at_one_end_is_one_record():
    links = ((0, 2), (0, "coordinator"), (1, 2))
    records = planned(links, {"action": "drop"})
    assert [(record["at"], len(record["rules"])) for record in records] == [("rank 0", 4), ("rank 1", 2)]
    assert len({record["comment"] for record in records}) == 2


def test_what_cannot_be_done_to_a_link_is_refused():
    with pytest.raises(ValueError, match="flood"):
        planned(((0, 2),), {"action": "flood"})


def test_rules_are_written_as_the_firewall_reads_them():
    assert restore_text("-D", [["INPUT", "!", "-p", "tcp"]]) == "*filter\n-D INPUT ! -p tcp\nCOMMIT\n"
