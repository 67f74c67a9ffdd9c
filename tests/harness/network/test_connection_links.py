"""Faults of links by the options of real TCP connections: between processes on two addresses of the loopback.

Packets there have a TTL of 64, as those between hosts. What happens is seen at the sockets' owners.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from chaos.errors import EffectNotSeen, HealError, InjectionError, UsageError
from chaos.faults import registry
from chaos.faults.base import Act, FaultContext, OwnedProcess, RunContext
from chaos.faults.watch import Watch
from chaos.host.links import remove_rules
from chaos.host.links.connections import LOOK_SECONDS, NOT_COVERED, PROBING, ConnectionsRecord, usual_keepalive
from chaos.host.run_processes import undoing
from chaos.injection.executor import LocalExecutor
from chaos.injection.joint_act import Hosts, JointAct
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Trigger
from chaos.plan.incident import Incident
from chaos.refusals import refusal_text
from chaos.undo.ledger import Ledger
from harness.network.connection_links import ConnectionLinks, why_no_connections
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason
from tests.harness.network.talker import UNLIMITED, Talker, connect

pytestmark = pytest.mark.unit

CLUSTER = Cluster(nodes=3, gpus_per_node=1, data_parallel=3, pipeline=1, num_layers=4, num_microbatches=3)
LINK = ResolvedTarget(ranks=(0, 1), links=((0, 1),))
HOSTS = {0: "127.0.0.1", 1: "127.0.0.2", 2: "127.0.0.3"}
PATIENCE_SECONDS = 60.0
FAMILIES = (("127.0.0.1", "127.0.0.2"), ("::ffff:127.0.0.1", "::ffff:127.0.0.2"), ("::1", "::1"))


@pytest.fixture
def run() -> str:
    return f"connections-{os.urandom(4).hex()}"


@pytest.fixture
def rank(run: str) -> Iterator[Talker]:
    with Talker(run) as talker:
        yield talker


@pytest.fixture
def other() -> Iterator[Talker]:
    with Talker(None) as talker:
        yield talker


class Ranks:
    """The rank of this host."""

    def __init__(self, process: ProcessId, rank: int) -> None:
        self.process, self.rank = process, rank

    def rank_processes(self, ranks: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        own = OwnedProcess("rank", self.process, rank=self.rank, node=self.rank)
        return (own,) if self.rank in ranks else ()


def links_of(run: str, talker: Talker, hosts: dict[int, str] = HOSTS, here: tuple[int, ...] = (0,)) -> ConnectionLinks:
    return ConnectionLinks(
        run,
        ranks=tuple(hosts),
        here=lambda: here,
        processes=lambda: {0: talker.process},
        addresses=lambda rank: (hosts[rank],),
    )


def context_of(links: ConnectionLinks, talker: Talker, folder: Path, rank: int = 0) -> FaultContext:
    unused = dict.fromkeys(field.name for field in dataclasses.fields(FaultContext))
    known = {"processes": Ranks(talker.process, rank), "links": links, "cluster": CLUSTER, "watch": Watch()}
    return FaultContext(**{**unused, **known, "run_folder": folder, "has_foreign_checkpoints": True})  # type: ignore[arg-type]


def new(kind: str, **parameters: Any) -> Any:
    fault = registry()[kind]
    return fault(fault.Parameters.model_validate(parameters))


async def inject(fault: Any, target: ResolvedTarget, context: FaultContext) -> tuple[Act, dict[str, Any]]:
    act = fault.prepare(target, context)
    await fault.apply(act, context)
    return act, await fault.verify(act, context, PATIENCE_SECONDS)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rule_on(run: str, talker: Talker, **rule: Any) -> dict[str, Any]:
    (record,) = links_of(run, talker).plan_rules(((0, 1),), {"action": "drop", **rule})
    return record


@pytest.mark.parametrize(("near", "far"), FAMILIES)
def test_a_dropped_link_carries_nothing_until_it_is_undone(run, rank, other, near, far, tmp_path):
    one, its_peer = connect(rank, other, near, far)
    links = links_of(run, rank, {0: near, 1: far})
    before = rank.ask("get", one)
    fault, context = new("drop-link"), context_of(links, rank, tmp_path)
    act, evidence = asyncio.run(inject(fault, LINK, context))
    assert evidence["fidelity"] == "shaped" and evidence["mechanism"] == "connections"
    assert evidence["not_covered"] == list(NOT_COVERED)
    assert json.loads(json.dumps(evidence)) == evidence
    (rule,) = evidence["rules"]
    assert (rule["at_first"], rule["later"]) == (1, 0)
    (link,) = evidence["links"]
    assert (link["before"]["num_lost"], link["after"]["num_lost"]) == (0, 1)
    # What verified it is no part of the fault.
    assert rank.ask("get", one) == {**before, "ttl": 255}
    other.ask("send", its_peer, text="lost")
    assert rank.ask("receive", one, seconds=0.3) is None
    undone = fault.undo(act.undo_record)
    assert [told["restored"] for told in undone["rules"]] == [1]
    assert rank.ask("get", one) == before
    # What was not acknowledged is sent again.
    assert rank.ask("receive", one, seconds=PATIENCE_SECONDS) == "lost"
    assert [told["restored"] for told in fault.undo(act.undo_record)["rules"]] == [0]


def test_verification_counts_what_the_kernel_dropped(run, rank, other, tmp_path):
    _one, its_peer = connect(rank, other)
    links = links_of(run, rank)

    async def drop() -> tuple[Act, int]:
        act, _ = await inject(new("drop-link"), LINK, context_of(links, rank, tmp_path))
        other.ask("send", its_peer, text="lost")
        rules = act.undo_record["rules"]
        while not (dropped := links.describe(rules)["rules"][0]["packets_dropped"]):
            await asyncio.sleep(0.01)
        return act, dropped

    act, dropped = asyncio.run(asyncio.wait_for(drop(), PATIENCE_SECONDS))
    remove_rules(list(act.undo_record["rules"]))
    assert dropped > 0


def test_one_way_is_dropped_where_it_arrives_and_the_other_end_changes_nothing(run, rank, other):
    one, _ = connect(rank, other)
    out, inwards = rule_on(run, rank, way="out"), rule_on(run, rank, way="in")
    assert (out["action"], inwards["action"]) == ("observe", "drop")
    asyncio.run(links_of(run, rank).apply_rules([out]))
    assert rank.ask("get", one)["ttl"] == 0
    remove_rules([out])
    # Of rank 1, on its own host, it is the other way round.
    hosts = {0: HOSTS[1], 1: HOSTS[0]}
    (mirrored,) = links_of(run, rank, hosts, here=(1,)).plan_rules(((0, 1),), {"action": "drop", "way": "out"})
    assert mirrored["action"] == "drop"


def test_the_end_that_changes_nothing_sees_that_the_other_one_drops(run, rank, other, tmp_path):
    one, its_peer = connect(rank, other)
    context = context_of(links_of(run, rank), rank, tmp_path)
    fault = new("drop-link", way="out")

    async def drop() -> dict[str, Any]:
        act = fault.prepare(LINK, context)
        await fault.apply(act, context)
        other.ask("set", its_peer, options=[[0, 21, 255]])
        rank.ask("send", one, text="lost")
        return await fault.verify(act, context, PATIENCE_SECONDS)

    assert asyncio.run(drop())["links"][0]["after"]["num_lost"] == 1


def test_a_link_that_still_carries_traffic_is_not_verified(run, rank, other, tmp_path):
    one, _its_peer = connect(rank, other)
    context = context_of(links_of(run, rank), rank, tmp_path)
    # The other end is to drop, and does not.
    with pytest.raises(EffectNotSeen) as refusal:
        asyncio.run(inject(new("drop-link", way="out"), LINK, context))
    assert refusal.value.code == "link_carries_traffic"
    assert rank.ask("get", one)["keepalive"] == list(usual_keepalive())


def test_connections_that_come_later_are_covered_also_of_new_processes(run, rank, other):
    connect(rank, other)
    record = rule_on(run, rank)
    links = links_of(run, rank)
    asyncio.run(links.apply_rules([record]))
    later, _ = connect(rank, other)
    wait_for(lambda: rank.ask("get", later)["ttl"] == 255)
    with Talker(run) as second:
        number, _ = connect(second, other)
        wait_for(lambda: second.ask("get", number)["ttl"] == 255)
        assert links.describe([record])["rules"][0]["at_first"] == 1
        assert links.describe([record])["rules"][0]["later"] == 2
        (undone,) = remove_rules([record])
        assert undone["restored"] == 3 and undone["connections"]["later"] == 2
        assert second.ask("get", number)["ttl"] == 0


def test_strangers_other_peers_and_what_listens_are_left_alone(run, rank, other):
    connect(rank, other)
    elsewhere, _ = connect(rank, other, "127.0.0.1", "127.0.0.3")
    listening, _ = rank.ask("listen", address="127.0.0.2")
    with Talker(None) as stranger, Talker(f"{run}-2") as neighbour:
        foreign = [(talker, connect(talker, other)[0]) for talker in (stranger, neighbour)]
        foreign += [(rank, elsewhere), (rank, listening)]
        before = [talker.ask("get", number) for talker, number in foreign]
        record = rule_on(run, rank)
        asyncio.run(links_of(run, rank).apply_rules([record]))
        foreign.append((stranger, connect(stranger, other)[0]))
        before.append(foreign[-1][0].ask("get", foreign[-1][1]))
        own, _ = connect(rank, other)
        wait_for(lambda: rank.ask("get", own)["ttl"] == 255)
        assert [talker.ask("get", number) for talker, number in foreign] == before
        remove_rules([record])
        assert [talker.ask("get", number) for talker, number in foreign] == before


APPLY = """
import asyncio, json, sys, time
from chaos.host.links.connections import ConnectionsRecord, RuleWatch
for line in sys.stdin:
    RuleWatch.apply(ConnectionsRecord.from_json(json.loads(line)))
    print("applied", flush=True)
"""


@pytest.mark.parametrize("rule", [{}, {"action": "shape", "rate_bytes_per_second": 100_000}])
def test_the_record_alone_undoes_it_when_who_applied_it_is_dead(run, rank, other, rule):
    one, _ = connect(rank, other)
    before = rank.ask("get", one)
    record = rule_on(run, rank, **rule)
    with subprocess.Popen(
        [sys.executable, "-c", APPLY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(record) + "\n")
        child.stdin.flush()
        assert child.stdout.readline() == "applied\n"
        later, _ = connect(rank, other)
        wait_for(lambda: rank.ask("get", later) != before)
        child.send_signal(signal.SIGKILL)
    assert rank.ask("get", one) != before
    # As if it had died in the middle of a probe.
    rank.ask("set", later, options=[[1, 9, 1], [6, 4, 1], [6, 5, 1], [6, 6, PROBING.num_probes]])
    with undoing(run):
        (undone,) = remove_rules([record])
    assert undone["restored"] == 2
    assert [rank.ask("get", number) for number in (one, later)] == [before, before]
    assert remove_rules([record])[0]["restored"] == 0
    rank.kill()
    assert remove_rules([record])[0]["gone"] == [rank.process.pid]


def test_a_record_of_another_run_is_not_undone_as_this_one(run, rank, other):
    one, _ = connect(rank, other)
    record = rule_on(run, rank)
    asyncio.run(links_of(run, rank).apply_rules([record]))
    with undoing("another"), pytest.raises(HealError) as refusal:
        remove_rules([record])
    assert refusal.value.why.fields["left"][0].code == "entry_of_another_run"
    assert rank.ask("get", one)["ttl"] == 255
    remove_rules([record])


def test_options_that_a_program_has_set_are_given_back(run, rank, other):
    one, _ = connect(rank, other)
    rank.ask("set", one, options=[[0, 21, 5], [1, 9, 1], [6, 4, 77]])
    before = rank.ask("get", one)
    record = rule_on(run, rank)
    links = links_of(run, rank)
    asyncio.run(links.apply_rules([record]))
    assert rank.ask("get", one)["ttl"] == 255
    remove_rules([record])
    assert rank.ask("get", one) == before


def test_what_a_program_has_set_after_the_record_was_written_is_left_alone(run, rank, other):
    """It could not be given back, should the injector die."""
    one, _ = connect(rank, other)
    record, links = rule_on(run, rank), links_of(run, rank)
    rank.ask("set", one, options=[[0, 21, 5]])
    asyncio.run(links.apply_rules([record]))
    assert rank.ask("get", one)["ttl"] == 5
    assert links.describe([record])["rules"][0]["left_alone"] == 1
    remove_rules([record])
    assert rank.ask("get", one)["ttl"] == 5


def test_the_end_of_one_rule_does_not_end_another_on_the_same_connections(run, rank, other):
    one, _ = connect(rank, other)
    first, second = rule_on(run, rank), rule_on(run, rank)
    # Of two objects as of one: what is active is known to the process.
    asyncio.run(links_of(run, rank).apply_rules([first]))
    asyncio.run(links_of(run, rank).apply_rules([{**second, "id": "second"}]))
    (undone,) = remove_rules([first])
    assert undone["kept_by_other_rules"] == 1 and rank.ask("get", one)["ttl"] == 255
    assert remove_rules([{**second, "id": "second"}])[0]["restored"] == 1
    assert rank.ask("get", one)["ttl"] == 0


def test_less_bandwidth_is_measured_on_what_the_job_sends(run, rank, other, tmp_path):
    pairs = [connect(rank, other) for _ in range(2)]
    for number, accepted in pairs:
        other.ask("drain", accepted)
        rank.ask("stream", number)
    context = context_of(links_of(run, rank), rank, tmp_path)
    fault = new("slow-link", bandwidth="80mbit")
    act, evidence = asyncio.run(inject(fault, LINK, context))
    (link,) = evidence["links"]
    assert link["bytes_per_second"]["before"] > 1.5e7
    assert link["bytes_per_second"]["after"] <= 1.25e7
    fault.undo(act.undo_record)
    assert [rank.ask("get", number)["rate"] for number, _ in pairs] == [UNLIMITED, UNLIMITED]


def test_a_bandwidth_without_traffic_is_not_verified(run, rank, other):
    one, _its_peer = connect(rank, other)
    links = links_of(run, rank)
    record = rule_on(run, rank, action="shape", rate_bytes_per_second=1000)

    async def measure() -> None:
        await links.apply_rules([record])
        await links.measure_rate((0, 1), 10**6, 0.1)

    with pytest.raises(EffectNotSeen) as refusal:
        asyncio.run(measure())
    assert refusal.value.code == "too_little_traffic"
    assert rank.ask("get", one)["rate"] == 1000
    remove_rules([record])


def test_a_delay_or_a_loss_needs_another_mechanism(run, rank, other, tmp_path):
    connect(rank, other)
    for parameters, key in (({}, "delay"), ({"loss": 0.1}, "loss"), ({"bandwidth": "1mbit", "delay": "5ms"}, "delay")):
        with pytest.raises(UsageError) as refused:
            new("slow-link", **parameters).check(LINK, RunContext(CLUSTER, links_are_connections=True))
        assert refused.value.key == key and "CAP_NET_ADMIN" in str(refused.value)
        with pytest.raises(InjectionError) as refusal:
            new("slow-link", **parameters).prepare(LINK, context_of(links_of(run, rank), rank, tmp_path))
        assert refusal.value.code == "delay_needs_net_admin"
    new("slow-link", bandwidth="1mbit").check(LINK, RunContext(CLUSTER, links_are_connections=True))


def test_a_reset_ends_connections_and_those_that_are_made_again(run, rank, other, tmp_path):
    one, its_peer = connect(rank, other)
    context = context_of(links_of(run, rank), rank, tmp_path)
    fault = new("reset-link")
    act, evidence = asyncio.run(inject(fault, LINK, context))
    assert len(evidence["links"][0]["connections_reset"]) == 1
    assert rank.ask("receive", one, seconds=PATIENCE_SECONDS) == ""
    assert other.ask("receive", its_peer, seconds=PATIENCE_SECONDS) == ""
    again, _ = connect(rank, other)
    assert rank.ask("receive", again, seconds=PATIENCE_SECONDS) == ""
    assert fault.undo(act.undo_record)["rules"][0]["connections"] == {"at_first": 1, "later": 1}
    last, its_peer = connect(rank, other)
    other.ask("send", its_peer, text="there")
    assert rank.ask("receive", last, seconds=PATIENCE_SECONDS) == "there"


def test_a_flapping_link_goes_and_comes(run, rank, other, tmp_path):
    one, its_peer = connect(rank, other)
    rank.ask("drain", one)
    other.ask("drain", its_peer)
    rank.ask("stream", one)
    context = context_of(links_of(run, rank), rank, tmp_path)
    fault = new("flap-link", down="600ms", up="1s")

    async def flap() -> dict[str, Any]:
        act = fault.prepare(LINK, context)
        await fault.apply(act, context)
        evidence = await fault.verify(act, context, PATIENCE_SECONDS)
        await fault.lift(act, context)
        fault.undo(act.undo_record)
        return evidence

    evidence = asyncio.run(flap())
    assert [turn["state"] for turn in evidence["links"][0]["turns"]] == ["down", "up", "down"]
    assert rank.ask("get", one)["ttl"] == 0


def test_a_partition_acts_on_the_links_of_this_host_alone(run, rank, other, tmp_path):
    to_1, _ = connect(rank, other, HOSTS[0], HOSTS[1])
    to_2, _ = connect(rank, other, HOSTS[0], HOSTS[2])
    context = context_of(links_of(run, rank), rank, tmp_path)
    fault = new("partition", groups="0|1,2")
    act, evidence = asyncio.run(inject(fault, ResolvedTarget(ranks=(0,)), context))
    assert [link["link"] for link in evidence["links"]] == [[0, 1], [0, 2]]
    assert [rank.ask("get", number)["ttl"] for number in (to_1, to_2)] == [255, 255]
    fault.undo(act.undo_record)
    fault = new("partition", groups="0,1|2")
    act, evidence = asyncio.run(inject(fault, ResolvedTarget(ranks=(0,)), context))
    # The link of ranks 1 and 2 is none of this host's.
    assert [link["link"] for link in evidence["links"]] == [[0, 2]]
    assert [rank.ask("get", number)["ttl"] for number in (to_1, to_2)] == [0, 255]
    fault.undo(act.undo_record)


def test_what_is_no_link_of_this_host_is_refused(run, rank, other, tmp_path):
    fault = new("drop-link")
    with pytest.raises(InjectionError) as refusal:
        fault.prepare(LINK, context_of(links_of(run, rank), rank, tmp_path))
    assert refusal.value.code == "no_connections"
    connect(rank, other)
    with pytest.raises(InjectionError) as refusal:
        links_of(run, rank, here=(0, 1)).plan_rules(LINK.links, {"action": "drop"})
    assert refusal.value.code == "link_within_host"


def test_ranks_of_one_host_share_its_links(run, rank):
    hosts = {0: HOSTS[0], 1: HOSTS[0], 2: HOSTS[1], 3: HOSTS[1]}
    links = links_of(run, rank, hosts, here=(0, 1))
    assert (links.sharing_network(0), links.sharing_network(2)) == ((0, 1), (2, 3))
    assert links.ends() == (0, 1, 2, 3)


def test_both_hosts_of_a_link_act_on_their_ends_and_nobody_is_held_while_it_is_verified(run, rank, tmp_path):
    with Talker(run) as second, ExitStack() as stack:
        ends = connect(rank, second)
        executors = []
        for number, talker in enumerate((rank, second)):
            links = ConnectionLinks(
                run,
                ranks=HOSTS,
                here=lambda number=number: (number,),
                processes=lambda number=number, talker=talker: {number: talker.process},
                addresses=lambda rank: (HOSTS[rank],),
            )
            ledger = stack.enter_context(Ledger(tmp_path / f"ledger-{number}.jsonl", run))
            context = context_of(links, talker, tmp_path, number)
            executors.append(LocalExecutor(registry(), ledger, context, host=f"host-{number}"))
        numbers = itertools.count()
        hosts = Hosts(executors, CLUSTER, lambda node: f"host-{node}")

        async def drop() -> tuple[Any, Any, list[int], Any]:
            act = JointAct(incident("drop-link"), 1, hosts.parts(LINK), numbers.__next__)
            await act.prepare()
            await act.record()
            applied = await act.apply()
            seen = await act.verify()
            during = [talker.ask("get", end)["ttl"] for talker, end in zip((rank, second), ends, strict=True)]
            return applied, seen, during, (await act.end())[1]

        applied, seen, during, undone = asyncio.run(drop())
        assert (applied.num_hosts, applied.error, applied.shows_when_released) == (2, None, True)
        assert applied.prepared.links == ((0, 1),)
        assert during == [255, 255]
        assert [told["fidelity"] for told in seen.evidence["hosts"].values()] == ["shaped", "shaped"]
        assert [told["rules"][0]["restored"] for told in undone["hosts"].values()] == [1, 1]
        assert [talker.ask("get", end)["ttl"] for talker, end in zip((rank, second), ends, strict=True)] == [0, 0]


def incident(kind: str) -> Incident:
    return Incident(
        incident=0,
        fault=kind,
        is_loss=False,
        parameters={},
        target=LINK,
        target_text="link=0-1",
        trigger=Trigger(at_seconds=0.0),
        repair=None,
        lifetime=None,
    )


def test_a_record_is_read_as_it_was_written_and_a_broken_one_is_refused(run, rank, other):
    one, _ = connect(rank, other)
    rank.ask("set", one, options=[[1, 9, 1]])
    for rule in ({}, {"action": "shape", "rate_bytes_per_second": 1e6}, {"action": "reset"}):
        record = rule_on(run, rank, **rule)
        assert json.loads(json.dumps(ConnectionsRecord.from_json(record).to_json())) == json.loads(json.dumps(record))
    with pytest.raises(HealError) as refusal:
        remove_rules([{**record, "peers": ["no address"]}])
    assert refusal.value.why.fields["left"][0].code == "record_not_understood"


def test_a_rule_whose_process_was_stopped_for_long_is_applied_to_nothing_more(run, rank, other, monkeypatch):
    """The watchdog may have undone it in the meantime."""
    monkeypatch.setattr("chaos.host.links.connections._LAPSE_SECONDS", 0.0)
    connect(rank, other)
    record, links = rule_on(run, rank), links_of(run, rank)
    asyncio.run(links.apply_rules([record]))
    wait_for(lambda: links.describe([record])["rules"][0].get("lapsed", False))
    later, _ = connect(rank, other)
    time.sleep(3 * LOOK_SECONDS)
    assert rank.ask("get", later)["ttl"] == 0
    assert remove_rules([record])[0]["restored"] == 1


def test_the_host_says_whether_it_allows_it(run, rank, other, monkeypatch):
    assert why_no_connections() is None
    connect(rank, other)

    def forbid(process: ProcessId, descriptor: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("harness.network.connection_links.duplicate", forbid)
    why = why_no_connections()
    assert isinstance(why, Reason) and why.code == "connections_forbidden"
    assert "pidfd_getfd" in refusal_text(why)
    assert "ptrace_scope is 1" in refusal_text(why.with_fields(ptrace_scope="1"))
    with pytest.raises(InjectionError) as refusal:
        rule_on(run, rank)
    assert refusal.value.code == "connections_forbidden"


def test_new_connections_are_looked_for_as_often_as_the_evidence_says():
    assert any(f"{LOOK_SECONDS:g} s" in words for words in NOT_COVERED)
