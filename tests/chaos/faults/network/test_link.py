"""Faults of links, driven through the injector on a network that is kept in memory; the negative controls with it."""

import asyncio
import json
import time
from random import Random

import pytest

import chaos.host.links
from chaos.errors import HealError, UsageError
from chaos.faults import registry
from chaos.faults.base import FaultContext, RunContext
from chaos.faults.network.look import Look, is_loss, probes_for_loss
from chaos.faults.watch import Watch
from chaos.host.links.check import Group, parse_groups
from chaos.injection.agent_sessions import AgentSessions
from chaos.injection.executor import LocalExecutor
from chaos.injection.injector import Injector
from chaos.injection.joint_act import Hosts
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Duration, Trigger
from chaos.plan.incident import Incident
from chaos.undo.ledger import Ledger, read_ledger
from mecefo_runtime.job.layout import Cluster
from tests.chaos.faults.network.ranks import Ranks

pytestmark = pytest.mark.unit

CLUSTER = Cluster(nodes=2, gpus_per_node=2, data_parallel=2, pipeline=2, num_layers=4, num_microbatches=8)
LINK = ResolvedTarget(ranks=(0, 2), links=((0, 2),))
HOP_SECONDS = 0.001
LATE_SECONDS = 0.5
BYTES_PER_SECOND = 1e9
GROUPS = "0,1|2,3"
PARAMETERS = {
    "drop-link": {},
    "partition": {"groups": GROUPS},
    "slow-link": {"delay": "30ms", "jitter": "5ms", "loss": 0.2, "bandwidth": "1mbit"},
    "flap-link": {"down": "60ms", "up": "60ms"},
}
each_kind = pytest.mark.parametrize("kind", PARAMETERS)


class Network:
    """A network of four ranks, each on a host of its own, with the rules that are on it; also the sort of rule."""

    how = "memory"

    def __init__(self):
        self.rules = []
        self.is_deaf = False
        self.turns = []
        # From which turn on rules come late, as from a process that goes on whoever waits for it; and those under way.
        self.late_from = None
        # When the first rule was in; and when each incident is said to have been injected.
        self.took_effect = None
        self.injected = None
        self.late = []
        self.num_probing = 0
        self.most_probing_untouched = 0
        self._rng = Random(1)

    # ---- a LinkHost ----

    def sharing_network(self, rank):
        return (rank,)

    def plan_rules(self, links, rule):
        return [{"how": "memory", "link": list(link), **rule} for link in links]

    async def apply_rules(self, records):
        self.turns.append("down")
        if self.late_from is not None and self.turns.count("down") >= self.late_from:
            self.late.append(asyncio.create_task(asyncio.sleep(LATE_SECONDS)))
            self.late[-1].add_done_callback(lambda _: self._add(records))
            await asyncio.shield(self.late[-1])
        else:
            self._add(records)
        self.took_effect = self.took_effect or time.monotonic()
        return time.monotonic()

    def _add(self, records):
        if not self.is_deaf:
            self.rules += [record for record in records if record not in self.rules]

    async def probe(self, link, timeout_seconds):
        self.num_probing += 1
        if not self.turns:
            self.most_probing_untouched = max(self.most_probing_untouched, self.num_probing)
        try:
            return await self._probe(link, timeout_seconds)
        finally:
            self.num_probing -= 1

    async def _probe(self, link, timeout_seconds):
        # The clock of the loop is the test's: see `run`.
        seconds, lost = 2 * HOP_SECONDS, False
        for rule in self._on(link):
            for _ in range(2):
                lost |= rule["action"] == "drop" or self._rng.random() < rule["loss_ratio"]
                if rule["action"] == "shape":
                    seconds += rule["delay_seconds"] + (2 * self._rng.random() - 1) * rule["jitter_seconds"]
        await asyncio.sleep(0.001 if lost else 0)
        lost = lost or seconds > timeout_seconds
        return {"reached": not lost, "round_trip_seconds": None if lost else seconds}

    async def measure_rate(self, link, num_bytes, timeout_seconds):
        rates = [rule["rate_bytes_per_second"] for rule in self._on(link) if rule.get("rate_bytes_per_second")]
        return min([BYTES_PER_SECOND, *rates])

    def _on(self, link):
        return [rule for rule in self.rules if tuple(rule["link"]) == tuple(link)]

    # ---- a sort of rule ----

    def remove(self, record):
        self.turns.append("up")
        self.rules = [rule for rule in self.rules if rule != record]
        return {"removed": record["link"]}


@pytest.fixture
def network(monkeypatch):
    made = Network()
    monkeypatch.setattr(chaos.host.links, "rule_kinds", lambda: {"memory": made})
    return made


def target_of(kind):
    return ResolvedTarget() if kind == "partition" else LINK


def incident(kind, parameters):
    return Incident(
        incident=0,
        fault=kind,
        is_loss=False,
        parameters=registry()[kind].Parameters.model_validate(parameters).model_dump(mode="json"),
        target=target_of(kind),
        target_text="link=0-2",
        trigger=Trigger(at_seconds=0.0),
        repair=None,
        lifetime=Duration(seconds=0.3),
    )


def inject(folder, network, kind, parameters=None, *, processes=None):
    """Run one incident through the injector; returns its events by kind, and the rules while it was in force.

    `network` None: on a backend that has none. `processes` are those of the ranks; by default, all are there.
    """
    events, in_force = {}, []

    def emit(record, *, step=None, monotonic_seconds=None):
        name = record.KIND
        events[name] = record.to_fields()
        if name == "injected" and network is not None:
            network.injected = monotonic_seconds
        if name == "verified":
            in_force.extend(network.rules)

    async def run():
        sessions = AgentSessions()
        context = FaultContext(
            processes=processes or Ranks(), inside=sessions, watch=Watch(), run_folder=folder, links=network
        )
        with Ledger(folder / "ledger.jsonl") as ledger:
            given = PARAMETERS[kind] if parameters is None else parameters
            hosts = Hosts([LocalExecutor(registry(), ledger, context)])
            injector = Injector(
                [incident(kind, given)], registry(), frozenset(range(4)), context.watch, sessions, hosts, emit, seed=3
            )
            injector.start()
            while not events.keys() & {"undone", "undo_failed"} and not (
                "unverified" in events and "injected" not in events
            ):
                await asyncio.sleep(0.005)
            await injector.finish()
            if network:
                await asyncio.gather(*network.late)

    asyncio.run(asyncio.wait_for(run(), 300.0))
    return events, in_force


@each_kind
def test_it_is_seen_on_the_network_and_gone_after_its_lifetime(tmp_path, network, kind):
    began = time.monotonic()
    events, in_force = inject(tmp_path, network, kind)
    assert "unverified" not in events, events["unverified"]
    assert in_force or kind == "flap-link"
    evidence = events["verified"]["evidence"]
    assert json.loads(json.dumps(evidence)) == evidence
    assert evidence["summary"]
    assert network.rules == []
    assert "undone" in events
    assert read_ledger(tmp_path / "ledger.jsonl").pending == ()
    assert time.monotonic() - began >= 0.3, "it was in force for its lifetime"
    links = [[0, 2], [0, 3], [1, 2], [1, 3]] if kind == "partition" else [[0, 2]]
    assert events["injected"]["links"] == links
    assert [told["link"] for told in evidence["links"]] == links


@each_kind
def test_its_time_is_that_of_its_rules_and_not_that_of_the_probes_before_them(tmp_path, network, kind, monkeypatch):
    probe = network.probe

    async def probe_slowly(link, timeout_seconds):
        await asyncio.sleep(0.01)
        return await probe(link, timeout_seconds)

    monkeypatch.setattr(network, "probe", probe_slowly)
    began = time.monotonic()
    inject(tmp_path, network, kind)
    assert network.injected - began >= 5 * 0.01
    assert network.injected >= network.took_effect


@each_kind
def test_rules_that_do_nothing_are_not_verified(tmp_path, network, kind, monkeypatch):
    monkeypatch.setattr("chaos.faults.network.flap.TURN_SLACK_SECONDS", 0.5)
    network.is_deaf = True
    events, _ = inject(tmp_path, network, kind)
    assert "verified" not in events
    assert events["unverified"]["reason"]
    assert "undone" in events


def test_the_evidence_has_figures(tmp_path, network):
    events, _ = inject(tmp_path, network, "slow-link")
    (told,) = events["verified"]["evidence"]["links"]
    assert told["before"]["round_trip_seconds"] == pytest.approx(2 * HOP_SECONDS)
    assert told["after"]["round_trip_seconds"] == pytest.approx(2 * (HOP_SECONDS + 0.03), rel=0.2)
    assert told["after"]["num_lost"] > 0
    assert told["bytes_per_second"] == {"before": BYTES_PER_SECOND, "after": 125_000.0}


@pytest.mark.parametrize("parameters", [{"delay": "30ms"}, {"loss": 0.1}, {"bandwidth": "20mbit"}], ids=str)
def test_a_slow_link_can_be_any_of_them_alone(tmp_path, network, parameters):
    events, _ = inject(tmp_path, network, "slow-link", parameters)
    assert "verified" in events, events["unverified"]


def test_a_flapping_link_goes_down_and_up_until_the_end(tmp_path, network):
    events, _ = inject(tmp_path, network, "flap-link")
    assert [turn["state"] for turn in events["verified"]["evidence"]["links"][0]["turns"]] == ["down", "up", "down"]
    assert network.turns[:4] == ["down", "up", "down", "up"]
    assert network.turns[-1] == "up"


def test_a_flapping_link_is_seen_also_where_each_turn_takes_many_times_as_long_as_it_should(
    tmp_path, network, monkeypatch
):
    monkeypatch.setattr("tests.chaos.faults.network.test_link.LATE_SECONDS", 1.0)
    network.late_from = 2
    events, _ = inject(tmp_path, network, "flap-link")
    assert "verified" in events, events["unverified"]


def test_a_turn_that_is_under_way_when_flapping_ends_leaves_no_rule(tmp_path, network):
    # The first two are waited for, to be seen.
    network.late_from = 3
    events, _ = inject(tmp_path, network, "flap-link")
    assert "undone" in events
    assert network.rules == []


def test_how_quick_a_link_was_before_is_asked_by_one_packet_at_a_time(tmp_path, network):
    # Of several at once all are as late as the machine is busy, and what a delay adds to that would seem too little.
    inject(tmp_path, network, "slow-link")
    assert network.most_probing_untouched == 1


def test_a_link_that_carries_nothing_before_is_no_ground_for_a_verdict(tmp_path, network):
    network.rules = network.plan_rules([(0, 2)], {"action": "drop", "whose": "another's"})
    events, _ = inject(tmp_path, network, "drop-link")
    assert "carried no probe before" in events["unverified"]["reason"]
    assert len(network.rules) == 1, "another's rule was removed"


# The second is less than the link carries, by so little that what it carries then would pass for it unlimited.
@pytest.mark.parametrize("bandwidth", ["100gbit", f"{8 * BYTES_PER_SECOND / 1.2:.0f}bit"])
def test_a_rate_that_limits_nothing_is_said(tmp_path, network, bandwidth):
    events, _ = inject(tmp_path, network, "slow-link", {"bandwidth": bandwidth})
    assert "does not limit it" in events["unverified"]["reason"]


def test_on_a_backend_without_links_nothing_is_planned(tmp_path):
    events, _ = inject(tmp_path, None, "drop-link")
    assert "network links of their own" in events["unverified"]["reason"]
    assert "injected" not in events


# ---- undo from the record alone ----


@each_kind
def test_undo_needs_the_record_alone_and_can_be_repeated(network, kind):
    fault = registry()[kind](registry()[kind].Parameters.model_validate(PARAMETERS[kind]))
    context = FaultContext(processes=Ranks(), inside=None, watch=Watch(), run_folder=None, links=network)
    act = fault.prepare(target_of(kind), context)
    assert network.rules == []
    record = json.loads(json.dumps(dict(act.undo_record)))
    never_applied = fault.undo(record)
    asyncio.run(network.apply_rules(list(record["rules"])))
    assert network.rules
    assert fault.undo(record) == fault.undo(record) == never_applied
    assert network.rules == []


def test_rules_that_nobody_knows_how_to_remove_are_said_and_the_others_removed(network):
    known, unknown = network.plan_rules([(0, 2)], {"action": "drop"})[0], {"how": "pigeons", "link": [0, 2]}
    asyncio.run(network.apply_rules([known]))
    with pytest.raises(HealError, match=r"1 of 2 rules are still there: .*pigeons"):
        registry()["drop-link"].undo({"rules": [known, unknown]})
    assert network.rules == []


def test_the_sorts_of_rules_that_are_installed_keep_to_the_protocol():
    for how, kind in chaos.host.links.rule_kinds().items():
        assert kind.how == how
        assert callable(kind.remove)


# ---- what can be checked without a network ----


def check(kind, target, **parameters):
    fault = registry()[kind]
    fault(fault.Parameters.model_validate(parameters)).check(target, RunContext(CLUSTER))


@pytest.mark.parametrize(
    ("link", "reason"),
    [((0, 9), "there is no rank 9"), ((1, 1), "two ends"), ((0, 1), "both ranks are on node 0.*loopback")],
)
def test_a_link_that_is_none_is_refused(link, reason):
    check("drop-link", LINK)
    with pytest.raises(UsageError, match=reason):
        check("drop-link", ResolvedTarget(ranks=link, links=(link,)))


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ("0,1", "one group"),
        ("0,1|2,2", "rank 2 is in .* more than once"),
        ("0,1|2", "rank 3 is in none"),
        ("0,1|2,3,4", "there is no rank 4"),
        ("0,2|1,3", "loopback"),
        ("0,1|", "no groups"),
        ("a|b", "no groups"),
        ("0,1,coordinator|2,3,coordinator", "coordinator is in .* more than once"),
        ("0,1,coordinater|2,3", "no groups: .*0,1,coordinator"),
        ("0,1,coordinator", "one group"),
        ("0,1,coordinator|2", "rank 3 is in none"),
        ("-1|2", "no groups"),
    ],
)
def test_groups_that_are_no_partition_are_refused(groups, reason):
    check("partition", ResolvedTarget(), groups=GROUPS)
    with pytest.raises(UsageError, match=reason):
        check("partition", ResolvedTarget(), groups=groups)


def test_groups_are_read_in_any_order():
    assert parse_groups(" 3, 2|1 ,0") == (Group((2, 3)), Group((0, 1)))
    assert parse_groups("2, coordinator ,3|0,1") == (Group((2, 3), has_coordinator=True), Group((0, 1)))
    assert parse_groups("coordinator|0,1") == (Group((), has_coordinator=True), Group((0, 1)))


@pytest.mark.parametrize(
    ("kind", "parameters", "reason"),
    [
        ("slow-link", {"delay": "0s"}, "no effect as written"),
        ("slow-link", {"bandwidth": "1mbit", "jitter": "10ms"}, "more than the delay"),
        ("slow-link", {"delay": "10ms", "jitter": "20ms"}, "more than the delay"),
        ("slow-link", {"loss": 1.0}, "less than or equal to 0.9"),
        ("slow-link", {"loss": -0.1}, "greater than or equal to 0"),
        ("slow-link", {"bandwidth": "0mbit"}, "carries nothing"),
        ("flap-link", {"down": "0s"}, "no time to do anything"),
        ("flap-link", {"down": "1ms"}, "too short to be seen"),
        ("flap-link", {"up": "1h"}, "no flapping"),
        ("partition", {}, "required"),
        ("drop-link", {"delay": "1s"}, "not permitted"),
    ],
)
def test_parameters_that_cannot_be_are_refused(kind, parameters, reason):
    with pytest.raises((UsageError, ValueError), match=reason):
        registry()[kind].Parameters.model_validate(parameters)


@each_kind
def test_parameters_come_back_from_what_the_plan_says(kind):
    parameters = registry()[kind].Parameters.model_validate(PARAMETERS[kind])
    assert registry()[kind].Parameters.model_validate(parameters.model_dump(mode="json")) == parameters


def test_what_a_slow_link_is_where_little_is_said():
    def delay_seconds(**parameters):
        return registry()["slow-link"].Parameters.model_validate(parameters).delay_seconds

    assert delay_seconds() == 0.05
    assert delay_seconds(loss=0.1) == delay_seconds(bandwidth="1mbit") == 0.0
    assert delay_seconds(loss=0.1, delay="20ms") == 0.02


@pytest.mark.parametrize("loss_ratio", [0.01, 0.05, 0.2, 0.5, 0.9])
def test_a_loss_is_told_from_none_and_from_all(loss_ratio):
    num = probes_for_loss(loss_ratio)
    assert num <= 400
    expected = round(num * (1 - (1 - loss_ratio) ** 2))
    assert is_loss(Look(num, expected, 0.1), loss_ratio)
    assert not is_loss(Look(num, 0, 0.1), loss_ratio)
    assert not is_loss(Look(num, num, None), loss_ratio)
