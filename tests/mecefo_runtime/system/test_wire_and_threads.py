"""What the soak found around the state machine: orders, connections, and threads that end as they are needed."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from mecefo_runtime.comm.coordinator_client import CoordinatorClient, CoordinatorLost
from mecefo_runtime.comm.messages import (
    CutOff,
    Evicted,
    Form,
    Formed,
    FromRank,
    Hello,
    Peers,
    Put,
    RankReport,
    Regroup,
    StartRank,
    Take,
    Value,
    to_wire,
)
from mecefo_runtime.comm.participant import CoordinatorAddress
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.launch import supervisor as supervisor_module
from mecefo_runtime.launch.supervisor import Supervisor
from mecefo_runtime.membership.coordinator import Coordinator
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.wire import Connection, WireError, decode, encode

pytestmark = pytest.mark.unit

DEADLINE_SECONDS = 120.0
HELLO = Hello(0, 1, "127.0.0.1:2", RankReport())
NOWHERE = CoordinatorAddress("127.0.0.1:1", "t")


class Idle:
    """A rank that does nothing; `abort` may be watched."""

    committed_step = 0

    def __init__(self, abort: Callable[[], None] = lambda: None) -> None:
        self.abort = abort

    def report(self) -> RankReport:
        return RankReport()


def test_all_messages_of_one_read_are_there_and_half_of_one_waits_for_its_end():
    ours, theirs = _tcp_pair()
    connection = Connection(ours)
    second = encode({"n": 2})
    theirs.sendall(encode({"n": 1}) + second[:3])
    assert connection.receive_some() == [{"n": 1}]
    theirs.sendall(second[3:] + encode({"n": 3}))
    assert connection.receive_some() == [{"n": 2}, {"n": 3}]
    theirs.close()
    with pytest.raises(WireError):
        connection.receive_some()
    hang_up(connection)


def test_a_descriptor_that_somebody_closed_and_was_given_again_is_left_to_them():
    ours, theirs = _tcp_pair()
    connection = Connection(ours)
    number = connection.fileno()
    os.close(number)
    mine, other = socket.socketpair()
    taken = mine if mine.fileno() == number else other
    assert taken.fileno() == number
    for use in (lambda: connection.send({"n": 1}), connection.receive, connection.close):
        with suppress(OSError):
            use()
    with pytest.raises(OSError):
        connection.send({"n": 2})
    mine.setblocking(False)
    other.setblocking(False)
    for end in (mine, other):
        with pytest.raises(BlockingIOError):
            end.recv(1)
    for end in (mine, other, theirs):
        end.close()


def hang_up(connection: Connection) -> None:
    connection.close()
    # Its descriptor lives as long as the reader.
    connection._reader.close()


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


@pytest.fixture
def node(monkeypatch, tmp_path: Path):
    """A supervisor whose ranks are only written down, and the other end of its orders."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        environment = RankEnvironment(JobConfig(), coordinator=f"{host}:1", token="t", events=f"{host}:{port}")
        supervised = Supervisor(environment, 0, range(2), 1, tmp_path)
        orders, _ = listener.accept()
    started: list[tuple[int, int]] = []
    monkeypatch.setattr(supervised, "_start", lambda rank, attempt: started.append((rank, attempt)))
    yield supervised, orders, started
    orders.close()
    hang_up(supervised._orders)


def test_two_orders_that_arrive_together_are_both_obeyed(node):
    supervised, orders, started = node
    orders.sendall(b"".join(encode(to_wire(StartRank(rank, 2))) for rank in (0, 1)))
    assert supervised._on_order()
    assert started == [(0, 2), (1, 2)]


def test_a_rank_that_runs_is_not_started_again(node, monkeypatch):
    supervised, _, _ = node
    monkeypatch.undo()
    supervised._running[99] = (1, 1, None)
    monkeypatch.setattr(supervisor_module, "start_child", lambda *_: pytest.fail("a second process of one rank"))
    supervised._start(1, 2)


def test_the_end_of_a_coordinator_may_be_told_twice(node):
    supervised, _, _ = node
    assert supervised._coordinator is None
    assert supervised._on_coordinator()


def test_a_call_to_leave_that_comes_as_the_abort_thread_ends_is_not_lost(monkeypatch):
    """The thread has seen that there is nothing more to end, and is still alive, when the next call comes."""
    monkeypatch.setattr("mecefo_runtime.comm.coordinator_client.ABORT_AGAIN_SECONDS", 0.002)
    aborted = threading.Event()
    client = CoordinatorClient(NOWHERE, HELLO, 1.0, Idle(aborted.set))
    for epoch in range(1, 200):
        aborted.clear()
        client._on_message(Regroup(epoch, "loss"))
        assert aborted.wait(DEADLINE_SECONDS)
        with client.changed:
            client.must_leave = False
            thread = client._abort_thread
        assert thread is not None
        if epoch % 20 == 0:
            thread.join(DEADLINE_SECONDS)
            assert client._abort_thread is None


def test_orders_that_come_on_another_way_are_a_call_to_leave_it():
    client = CoordinatorClient(NOWHERE, HELLO, 1.0, Idle())
    form = Form(2, (0,), 0, {}, Layout(1, ()), 1, "gloo", "", "loss")
    client._on_message(form)
    assert client.must_leave
    assert client.park() == form
    assert not client.must_leave
    client.enter(2)
    assert not client.must_leave


def test_who_needs_a_coordinator_that_stays_away_gives_up_in_time_and_who_trains_does_not():
    client = CoordinatorClient(NOWHERE, HELLO, 1.0, Idle(), coordinator_timeout_seconds=0.01)
    client.check()
    for wait in (client.park, client.wait_farewell):
        with pytest.raises(CoordinatorLost, match=f"no coordinator at {NOWHERE.address} for 0.01 s"):
            wait()
    patient = CoordinatorClient(NOWHERE, HELLO, 1.0, Idle())
    patient.require_coordinator()


class SentAway:
    """A rank that was sent away from rank 1, and a coordinator that names it and rank 2; what is tried, and told."""

    def __init__(self, monkeypatch, *, unreachable: list[list[int]], unsteady: list[list[int]]) -> None:
        self.told: list[str] = []
        self.steady_wanted: list[dict[int, str]] = []
        module = "mecefo_runtime.comm.coordinator_client"
        monkeypatch.setattr(f"{module}.LINK_CHECK_SECONDS", 0.01)
        monkeypatch.setattr(f"{module}.find_unreachable", lambda *_: unreachable.pop(0))
        monkeypatch.setattr(f"{module}.find_unsteady", self._find_unsteady)
        self._unsteady = unsteady
        self.client = CoordinatorClient(NOWHERE, HELLO, 1.0, Idle())
        monkeypatch.setattr(self.client, "send", self._send)
        self.client._on_message(Evicted(1, is_cut_off=True, cut_off_from=(1,)))

    def _find_unsteady(self, addresses: dict[int, str], *_: object) -> list[int]:
        self.steady_wanted.append(addresses)
        return self._unsteady.pop(0)

    def _send(self, message: FromRank) -> bool:
        self.told.append(type(message).__name__)
        if isinstance(message, CutOff):
            self.client._on_message(Peers({1: "10.0.0.1:1", 2: "10.0.0.2:1"}))
        return True


def test_who_was_sent_away_and_can_be_reached_waits_until_the_link_to_whom_it_lost_is_steady(monkeypatch):
    rank = SentAway(monkeypatch, unreachable=[[], [1], [], []], unsteady=[[1], [1], []])
    rank.client.start_over()
    assert rank.told == [*["CutOff"] * 4, "Hello"]
    assert rank.steady_wanted == [{1: "10.0.0.1:1"}] * 3


def test_who_was_sent_away_and_could_not_be_reached_comes_back_as_soon_as_it_can(monkeypatch):
    rank = SentAway(monkeypatch, unreachable=[[1], [1], []], unsteady=[])
    rank.client.start_over()
    assert rank.told == [*["CutOff"] * 3, "Hello"]
    assert rank.steady_wanted == []


def test_a_job_without_what_its_strategy_fixes_is_no_job():
    job = JobConfig(strategy="mecefo-paper")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(ValueError, match="not those that the strategy mecefo-paper fixes"),
    ):
        Coordinator(job, listener, "t", Emitter(print, "coordinator"))


def test_a_bug_of_the_coordinator_ends_it_rather_than_a_connection(monkeypatch):
    emitted: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    host, port = listener.getsockname()
    emitter = Emitter(lambda event: emitted.append(event.kind), "coordinator")

    async def run() -> None:
        coordinator = Coordinator(JobConfig(), listener, "t", emitter)

        def fail(*_: object) -> None:
            raise KeyError(3)

        monkeypatch.setattr(coordinator._membership, "on_formed", fail)
        serving = asyncio.create_task(coordinator.serve())
        _, writer = await asyncio.open_connection(host, port)
        writer.write(encode({"token": "t", **to_wire(HELLO)}))
        writer.write(encode(to_wire(Formed(RankReport(epoch=1), 0.1, 0.1, 0))))
        with pytest.raises(KeyError):
            await asyncio.wait_for(serving, DEADLINE_SECONDS)
        writer.close()
        await writer.wait_closed()
        # The transport of the other end closes with the loop's next turns.
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(run())
    listener.close()
    assert "detected" not in emitted


@pytest.mark.parametrize(
    "junk",
    [
        b"[" * 100_000 + b"\n",
        b'{"token": "\\ud800"}\n',
        b'{"token": "t", "type": "Hello", "rank": "first"}\n',
        b'{"token": "t", "type": "Put", "key": "k", "value": "v"}\n',
        b'{"token": "t", "role": "supervisor"}\n',
        b"\xff\xfe\n",
    ],
    ids=["deep", "surrogate", "wrong type", "no hello", "no type", "no text"],
)
def test_junk_on_the_coordinators_socket_ends_its_connection_and_nothing_else(junk: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    host, port = listener.getsockname()

    async def run() -> None:
        serving = asyncio.create_task(Coordinator(JobConfig(), listener, "t", Emitter(print, "coordinator")).serve())
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(junk)
        assert await asyncio.wait_for(reader.read(), DEADLINE_SECONDS) == b""
        writer.close()
        # A rank that comes later is heard: it is told apart from junk behind its hello, too.
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(
            encode({"token": "t", **to_wire(HELLO)}) + encode(to_wire(Take("k"))) + encode(to_wire(Put("k", "v")))
        )
        assert decode(await asyncio.wait_for(reader.readline(), DEADLINE_SECONDS)) == to_wire(Value("k", "v"))
        writer.write(encode({"type": "Committed", "step": "one"}))
        assert await asyncio.wait_for(reader.read(), DEADLINE_SECONDS) == b""
        writer.close()
        assert not serving.done()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(run())
    listener.close()


def test_whoever_connects_and_does_not_say_who_it_is_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("mecefo_runtime.membership.coordinator.HELLO_TIMEOUT_SECONDS", 0.05)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    host, port = listener.getsockname()

    async def run() -> None:
        serving = asyncio.create_task(Coordinator(JobConfig(), listener, "t", Emitter(print, "coordinator")).serve())
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b'{"token":')
        assert await asyncio.wait_for(reader.read(), DEADLINE_SECONDS) == b""
        writer.close()
        assert not serving.done()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(run())
    listener.close()
