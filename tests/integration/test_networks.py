"""Networks of a run's own: real namespaces, real packets, and rules that are seen to work and to be gone."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chaos.errors import EnvironmentFailure, HealError
from chaos.host.links import remove_rules
from chaos.host.links.firewall import FirewallRecord, find_tool, inside
from harness.network.links import NamespaceLinks
from harness.network.machine import why_no_networks
from harness.network.plan import HeldNetworks, Networks
from mecefo_runtime.system.own_network import OwnNetwork
from mecefo_runtime.system.process import ProcessId

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(why_no_networks() is not None, reason=f"no networks here: {why_no_networks()}"),
]

LINK, OTHER = (0, 2), (1, 2)
# How long is waited for what must not come; for what must, as long as it takes on a busy machine.
PROBE_SECONDS = 0.3
PATIENCE_SECONDS = 60.0
# After so long a probe that has not come is lost, and not late.
LATE_SECONDS = 5.0
NUM_PROBES = 5
# Longer than a busy machine keeps a packet.
DELAY_SECONDS = 0.25
RATE = 1_000_000.0


@asynccontextmanager
async def networks() -> AsyncIterator[tuple[NamespaceLinks, asyncio.subprocess.Process]]:
    """The networks of two nodes with two ranks each, held by a process that does nothing else."""
    counts = (os.getpid(), 2, 4)
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "harness.network", *map(str, counts)),
        *("sh", "-c", "echo $CHAOS_NETWORKS; exec cat"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdout is not None
    made = Networks.from_text((await holder.stdout.readline()).decode())
    links = NamespaceLinks(HeldNetworks(ProcessId.of(holder.pid), made), os.urandom(4).hex())
    try:
        yield links, holder
    finally:
        await links.close()
        if holder.returncode is None:
            holder.kill()
        await holder.wait()


def in_networks(work: Callable[[NamespaceLinks, asyncio.subprocess.Process], Awaitable[None]]) -> None:
    async def run() -> None:
        async with networks() as (links, holder):
            await work(links, holder)

    asyncio.run(asyncio.wait_for(run(), 600.0))


async def is_whole(links: NamespaceLinks, link: tuple[Any, Any]) -> bool:
    """Whether every probe comes back."""
    return await num_reached(links, link, PATIENCE_SECONDS) == NUM_PROBES


async def is_cut(links: NamespaceLinks, link: tuple[Any, Any]) -> bool:
    """Whether none does, for a while."""
    return await num_reached(links, link, PROBE_SECONDS) == 0


async def num_reached(links: NamespaceLinks, link: tuple[Any, Any], seconds: float) -> int:
    told = await asyncio.gather(*(links.probe(link, seconds) for _ in range(NUM_PROBES)))
    return sum(bool(probe["reached"]) for probe in told)


async def round_trip_seconds(links: NamespaceLinks, link: tuple[int, int]) -> float:
    """The least of some: a busy machine makes packets late, and none of them early."""
    return min([(await links.probe(link, PATIENCE_SECONDS))["round_trip_seconds"] for _ in range(NUM_PROBES)])


def test_all_reach_each_other_until_a_link_is_cut_and_again_when_it_is_not():
    async def work(links: NamespaceLinks, _: object) -> None:
        ends = links.ends()
        for end in ends[1:]:
            assert await is_whole(links, (ends[0], end))
        for rule in ({"action": "drop"}, {"action": "reset"}, {"action": "drop", "way": "in"}):
            records = links.plan_rules((LINK,), rule)
            # Planned is not done.
            assert await is_whole(links, LINK)
            await links.apply_rules(records)
            assert await is_cut(links, LINK)
            assert await is_cut(links, (LINK[1], LINK[0]))
            assert await is_whole(links, OTHER)
            (evidence,) = remove_rules([*records])
            assert evidence["removed"] == len(records[0]["rules"])
            assert await is_whole(links, LINK)

    in_networks(work)


async def connect(links: NamespaceLinks, near: int, far: int) -> tuple[socket.socket, socket.socket]:
    """A connection from one rank's network to the other's, by descriptors of the process that holds them."""
    own = {}
    for rank in (near, far):
        network = links._held.networks.of(rank)
        path = f"/proc/{links._held.holder.pid}/fd/{network.descriptor}"
        own[rank] = OwnNetwork(os.open(path, os.O_RDONLY | os.O_CLOEXEC), network.address)
    with own[far].entered():
        listener = socket.create_server((own[far].address, 0))
    with listener, own[near].entered():
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    for network in own.values():
        os.close(network.descriptor)
    return one, other


def test_rules_tell_when_they_took_effect_however_long_the_program_took_to_start(monkeypatch):
    start_seconds = 0.5
    slowly = ["sh", "-c", f'sleep {start_seconds}; exec "$@"', "sh"]

    def inside_slowly(record: FirewallRecord, command: list[str]) -> list[str]:
        return inside(record, [*slowly, find_tool(command[0]), *command[1:]])

    monkeypatch.setattr("harness.network.links.inside", inside_slowly)

    async def work(links: NamespaceLinks, _: object) -> None:
        one, other = await connect(links, *LINK)
        arrivals: list[float] = []
        is_over = threading.Event()

        def send() -> None:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not is_over.wait(0.001):
                one.sendall(b".")

        def receive() -> None:
            while other.recv(4096):
                arrivals.append(time.monotonic())

        sender, receiver = threading.Thread(target=send), threading.Thread(target=receive)
        with one, other:
            sender.start()
            receiver.start()
            while not arrivals:
                await asyncio.sleep(0.001)
            began = time.monotonic()
            took_effect = await links.apply_rules(links.plan_rules((LINK,), {"action": "drop"}))
            num_arrived = len(arrivals)
            is_over.set()
            sender.join()
            one.shutdown(socket.SHUT_RDWR)
            other.shutdown(socket.SHUT_RDWR)
            receiver.join()
        assert took_effect >= began + start_seconds
        # Never after the job can have noticed, but for how late a busy machine sends and receives.
        assert arrivals[num_arrived - 1] + LATE_SECONDS / 10 >= took_effect

    if os.geteuid() != 0:
        pytest.skip("only root enters the networks of another process without its user namespace")
    in_networks(work)


def test_connections_of_a_link_are_listed_and_ended_also_idle_ones_and_no_others():
    async def work(links: NamespaceLinks, _: object) -> None:
        one, other = await connect(links, *LINK)
        third, fourth = await connect(links, *OTHER)
        with one, other, third, fourth:
            assert len(await links.connections(LINK, PROBE_SECONDS)) == 2
            # Nobody has ever said anything over it.
            await links.apply_rules(links.plan_rules((LINK,), {"action": "reset"}))
            ended = await links.end_connections(LINK, PROBE_SECONDS)
            own, far = (":".join(map(str, end.getsockname())) for end in (one, other))
            assert sorted(ended) == sorted([f"{own}-{far}", f"{far}-{own}"])
            assert await links.connections(LINK, PROBE_SECONDS) == []
            assert await links.end_connections(LINK, PROBE_SECONDS) == []
            for end in (one, other):
                end.settimeout(PATIENCE_SECONDS)
                with pytest.raises(OSError, match=r"abort|reset"):
                    end.recv(1)
            third.sendall(b".")
            assert fourth.recv(1) == b"."

    if os.geteuid() != 0:
        pytest.skip("only root enters the networks of another process without its user namespace")
    in_networks(work)


def test_removing_takes_away_what_the_record_names_and_nothing_else_however_often():
    async def work(links: NamespaceLinks, _: object) -> None:
        first, second = (links.plan_rules((link,), {"action": "drop"}) for link in (LINK, (0, 3)))
        await links.apply_rules([*first, *second])
        remove_rules([*first])
        assert await is_whole(links, LINK)
        assert await is_cut(links, (0, 3))
        assert [evidence["removed"] for evidence in remove_rules([*first])] == [0]
        # One that was planned and never added.
        assert [evidence["removed"] for evidence in remove_rules(links.plan_rules((LINK,), {"action": "drop"}))] == [0]
        assert [evidence["removed"] for evidence in remove_rules([*second])] == [2]

    in_networks(work)


def test_a_delay_is_as_long_as_asked_each_way_and_ends_with_its_process():
    async def work(links: NamespaceLinks, _: object) -> None:
        assert await round_trip_seconds(links, LINK) < DELAY_SECONDS
        records = links.plan_rules((LINK,), {"action": "shape", "delay_seconds": DELAY_SECONDS})
        await links.apply_rules(records)
        assert await round_trip_seconds(links, LINK) >= 1.9 * DELAY_SECONDS
        assert await round_trip_seconds(links, OTHER) < DELAY_SECONDS
        evidence = remove_rules([*records])
        assert len({one["ended"] for one in evidence}) == 2
        for shaper in links._shapers:
            assert await asyncio.wait_for(shaper.process.wait(), PATIENCE_SECONDS) == -signal.SIGKILL
        assert await round_trip_seconds(links, LINK) < DELAY_SECONDS

    in_networks(work)


def test_a_rate_is_kept_and_other_links_are_as_fast_as_before():
    async def work(links: NamespaceLinks, _: object) -> None:
        before = await links.measure_rate(LINK, int(RATE), PATIENCE_SECONDS)
        await links.apply_rules(links.plan_rules((LINK,), {"action": "shape", "rate_bytes_per_second": RATE}))
        for link in (LINK, (LINK[1], LINK[0])):
            assert 0.2 * RATE < await links.measure_rate(link, int(RATE), PATIENCE_SECONDS) <= 1.1 * RATE
        assert before > 2 * RATE
        assert await links.measure_rate(OTHER, int(RATE), PATIENCE_SECONDS) > 2 * RATE

    in_networks(work)


def test_packets_are_lost_at_random_and_a_cut_link_carries_nothing():
    async def work(links: NamespaceLinks, _: object) -> None:
        await links.apply_rules(links.plan_rules((LINK,), {"action": "shape", "loss_ratio": 0.5}))
        told = await asyncio.gather(*(links.probe(LINK, LATE_SECONDS) for _ in range(100)))
        # A quarter comes back.
        assert 8 <= sum(bool(probe["reached"]) for probe in told) <= 45
        await links.apply_rules(links.plan_rules((OTHER,), {"action": "drop"}))
        assert await links.measure_rate(OTHER, 1000, 0.5) == 0.0

    in_networks(work)


def test_packets_pass_when_the_process_that_holds_them_is_killed():
    async def work(links: NamespaceLinks, _: object) -> None:
        records = links.plan_rules((LINK,), {"action": "shape", "loss_ratio": 0.9, "delay_seconds": 0.2})
        await links.apply_rules(records)
        for shaper in links._shapers:
            shaper.process.send_signal(signal.SIGKILL)
            await shaper.process.wait()
        assert await is_whole(links, LINK)

    in_networks(work)


def test_with_the_process_that_holds_them_networks_and_rules_are_gone():
    async def work(links: NamespaceLinks, holder: asyncio.subprocess.Process) -> None:
        records = links.plan_rules((LINK,), {"action": "drop"})
        await links.apply_rules(records)
        holder.kill()
        await holder.wait()
        (evidence,) = remove_rules([*records])
        assert evidence["removed"] == 0 and "gone" in evidence
        with pytest.raises(EnvironmentFailure):
            await links.apply_rules(records)

    in_networks(work)


def test_rules_that_cannot_be_removed_are_an_error(monkeypatch):
    async def work(links: NamespaceLinks, _: object) -> None:
        records = links.plan_rules((LINK,), {"action": "drop"})
        await links.apply_rules(records)
        with monkeypatch.context() as patch:
            patch.setattr("chaos.host.links.firewall._delete", lambda record: 0)
            with pytest.raises(HealError, match=records[0]["comment"]):
                remove_rules([*records])
        remove_rules([*records])

    in_networks(work)


def test_files_belong_to_whom_they_did_and_children_are_not_seen_by_the_machine():
    counts = (os.getpid(), "1", "1")
    command = [sys.executable, "-m", "harness.network", *map(str, counts)]
    told = subprocess.run(
        [*command, "sh", "-c", "id -u; cat /proc/net/dev"], capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines()[0] == "0"
    inside = set(re.findall(r"^ *(\S+):", told.stdout, re.MULTILINE)) - {"lo"}
    assert {"bridge", "site0"} <= inside
    # Others may come and go here meanwhile, such as those of an engine's containers.
    assert not inside & {link.name for link in Path("/sys/class/net").iterdir()}
