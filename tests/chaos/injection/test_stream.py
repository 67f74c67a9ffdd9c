"""An executor at the other end of a stream: what goes over it, and what each end does when it hears nothing."""

import asyncio
import os
import socket
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

import chaos.injection.stream
from chaos.errors import EnvironmentFailure, NotOurs
from chaos.host.run_processes import RUN_VARIABLE
from chaos.injection.orders import (
    Lift,
    Lifted,
    Looked,
    Record,
    Undo,
    Undone,
    Verified,
    Verify,
    message_to_json,
)
from chaos.injection.serving import KnownProcesses, Serving
from chaos.injection.stream import (
    MAX_LINE_BYTES,
    Alive,
    Ask,
    Close,
    Closed,
    Failed,
    Happened,
    JobEnded,
    Lapsed,
    Open,
    Ready,
    Reply,
    StreamExecutor,
    WatchdogLost,
    from_executor,
    to_executor,
    to_line,
)
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.events import Event, Origin
from mecefo_runtime.system.host import Host, this_host
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.wire import WireError
from tests.chaos.injection.test_executor import ALL, LOOK, UP_TO_APPLY, Place

pytestmark = pytest.mark.unit

# What is silent in a test is silent for good.
SHORT_SECONDS = 0.05
LONG_SECONDS = 60.0
CLUSTER = Cluster(2, 2, data_parallel=2, pipeline=2, num_layers=2, num_microbatches=2)
OPEN = Open(
    "run",
    "beta",
    "/run",
    "/run/logs",
    ("/checkpoints",),
    "/checkpoints",
    True,
    CLUSTER,
    3.0,
    False,
    Host("alpha", "a boot"),
)
STEP = Event("step_committed", "rank", 0.0, 1.0, 1, step=7)


async def connect():
    """(reader, writer) of both ends of a stream."""
    ours, theirs = socket.socketpair()
    return [await asyncio.open_connection(sock=end, limit=MAX_LINE_BYTES) for end in (ours, theirs)]


@asynccontextmanager
async def served(place, *, lease_seconds=LONG_SECONDS, seen=None, released=None):
    """The executor of `place`, served; gives this end of the stream and the task that serves."""
    ours, (reader, writer) = await connect()
    serving = Serving(
        place.executor,
        reader,
        writer,
        lease_seconds=lease_seconds,
        on_event=[].append if seen is None else seen.append,
        release=(lambda: None) if released is None else lambda: released.append(place.pending()),
    )
    task = asyncio.create_task(serving.serve())
    try:
        yield ours, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for end in (ours[1], writer):
            end.transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def linked(place, *, lease_seconds=LONG_SECONDS, seen=None):
    """The same, with a `StreamExecutor` at this end."""
    async with served(place, seen=seen) as ((reader, writer), task):
        opening = Open("run", "beta", "/run", "/run", lease_seconds=lease_seconds)
        executor = StreamExecutor(opening, reader, writer, on_lapse=print, on_loss=print)
        try:
            yield executor, task
        finally:
            writer.transport.abort()
            await executor.close()


def play(folder, act, **fault):
    place = Place(folder, **fault)
    with place.ledger:
        return place, asyncio.run(asyncio.wait_for(act(place), 30.0))


async def until(is_so):
    while not is_so():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("message", "read"),
    [
        *((message, to_executor) for message in (OPEN, Ask({"a": 1}), Happened("{}"), JobEnded(), Close(), Alive())),
        *((message, from_executor) for message in (Ready(), Failed("no"), Reply(7, {"a": 1}), Alive())),
        *((message, from_executor) for message in (Lapsed("it"), WatchdogLost("it", True))),
        (Closed(({"incident": 1},), (2,), ({"pid": 3},), ({"kind": "file"},)), from_executor),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_goes_over_the_stream_as_it_is(message, read):
    line = to_line(message)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert read(line) == message


@pytest.mark.parametrize("line", [b"{}\n", b"[1]\n", b'{"type": "ready"}\n', b'{"type": "ask"}\n', b"\x80\x04K\x01.\n"])
def test_what_is_no_message_is_refused(line):
    with pytest.raises(WireError):
        to_executor(line)


def test_orders_and_events_reach_the_executor_and_its_answers_come_back(tmp_path):
    seen = []

    async def act(place):
        async with linked(place, seen=seen) as (executor, _):
            await executor.ready()
            executor.on_event(STEP)
            return [await executor.obey(order) for order in (*ALL, ALL[0])]

    place, answers = play(tmp_path, act)
    assert answers[4:] == [Verified({"summary": "seen"}), Lifted(), Undone({"undone": "all", "by": "chaos"}), Looked()]
    assert place.trace == ["prepare", "apply", "verify", "undo"]
    assert seen == [STEP]


def test_the_end_of_the_job_reaches_the_executor(tmp_path, monkeypatch):
    monkeypatch.setattr("chaos.injection.executor.LAST_WORDS_SECONDS", 0.01)

    async def act(place):
        async with linked(place) as (executor, _):
            for order in UP_TO_APPLY:
                await executor.obey(order)
            verification = asyncio.create_task(executor.obey(Verify(5, 0)))
            executor.end_of_job()
            return await verification

    _, answer = play(tmp_path, act, lasting=True, verify_seconds=LONG_SECONDS)
    assert (answer.kind, answer.code) == ("not-seen", "run_ended_before_verified")


def test_a_mistake_in_a_fault_is_a_refusal_and_the_others_go_on(tmp_path):
    async def act(place):
        async with linked(place) as (executor, task):
            answers = [await executor.obey(order) for order in (*UP_TO_APPLY, Lift(6, 0), Undo(7, 0))]
            return answers, task.done()

    place, (answers, is_over) = play(tmp_path, act, failing="apply", error=ZeroDivisionError("a mistake"))
    assert (answers[3].kind, "a mistake" in str(answers[3]), is_over) == ("broken", True, False)
    assert isinstance(answers[-1], Undone) and place.pending() == []


def test_an_answer_longer_than_a_line_may_be_is_a_refusal(tmp_path, monkeypatch):
    monkeypatch.setattr("chaos.injection.serving.MAX_LINE_BYTES", 80)

    async def act(place):
        async with linked(place) as (executor, _):
            return [await executor.obey(order) for order in UP_TO_APPLY[:2]]

    _, answers = play(tmp_path, act)
    assert (answers[0], answers[1].kind) == (Looked(), "broken")


# ---- the executor hears nothing ----


def ask(order):
    return to_line(Ask(message_to_json(order)))


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(None, id="silent"),
        pytest.param(b"", id="ended"),
        pytest.param(b'{"type": "ask", "ord', id="cut off"),
        pytest.param(b"who is there?\n", id="not a message"),
        pytest.param(b"x" * (MAX_LINE_BYTES + 2) + b"\n", id="too long"),
        pytest.param(to_line(Ask({"type": "strike", "id": 9})), id="no order"),
    ],
)
def test_without_its_injector_it_undoes_and_lets_the_held_ranks_go(tmp_path, then):
    released = []

    async def act(place):
        lease_seconds = SHORT_SECONDS if then is None else LONG_SECONDS
        async with served(place, lease_seconds=lease_seconds, released=released) as ((_, writer), task):
            for order in UP_TO_APPLY:
                writer.write(ask(order))
                await until(lambda order=order: order.id in place.executor._orders)
            await until(lambda: "apply" in place.trace)
            if then:
                writer.write(then)
            if then in (b"", b'{"type": "ask", "ord'):
                writer.write_eof()
            return await task

    place, is_in_order = play(tmp_path, act)
    assert not is_in_order
    assert place.trace == ["prepare", "apply", "undo"] and place.pending() == []
    assert released == [[]], "once, when nothing was active any more"


def test_it_lets_the_held_ranks_go_also_when_the_undo_breaks_down(tmp_path, monkeypatch):
    released = []

    async def act(place):
        async with served(place, released=released) as ((_, writer), task):

            async def end_all():
                raise ZeroDivisionError

            monkeypatch.setattr(place.executor, "end_all", end_all)
            writer.write_eof()
            return await asyncio.gather(task, return_exceptions=True)

    _, (mistake,) = play(tmp_path, act)
    assert isinstance(mistake, ZeroDivisionError) and len(released) == 1


def test_it_undoes_nothing_while_it_hears_of_the_injector(tmp_path):
    """For many leases, without an order."""

    async def act(place):
        async with served(place, lease_seconds=SHORT_SECONDS) as ((reader, writer), task):
            for order in UP_TO_APPLY:
                writer.write(ask(order))
            num_heard = 0
            while num_heard < 12:
                num_heard += from_executor(await reader.readline()) == Alive()
                writer.write(to_line(Alive()))
            writer.write(to_line(Close()))
            return await task

    place, is_in_order = play(tmp_path, act)
    assert is_in_order and place.trace == ["prepare", "apply"], "the rest is for the end of the run"


def test_a_fault_whose_lifetime_is_over_ends_without_an_order_when_the_injector_is_late(tmp_path):
    async def act(place):
        async with served(place, lease_seconds=1.6) as ((_, writer), task):
            for order in (*UP_TO_APPLY[:3], type(UP_TO_APPLY[3])(4, 0, 0.0)):
                writer.write(ask(order))
            await until(lambda: "undo" in place.trace)
            return task.done()

    place, is_over = play(tmp_path, act, lasting=True)
    assert not is_over and place.pending() == []


# ---- the injector hears nothing ----


def test_orders_for_a_silent_executor_are_refused(tmp_path):
    async def run():
        (reader, writer), (their_reader, their_writer) = await connect()
        opening = Open("run", "beta", "/run", "/run", lease_seconds=SHORT_SECONDS)
        executor = StreamExecutor(opening, reader, writer, on_lapse=print, on_loss=print)
        assert executor.lost is None, "it may take long to start"
        their_writer.write(to_line(Ready()))
        await executor.ready()
        answers = [await executor.obey(LOOK), await executor.obey(Record(2, 0))]
        # Up to its end: the stream is closed, so that an executor undoes if it is still there.
        await their_reader.read()
        farewell = await executor.close()
        their_writer.transport.abort()
        return answers, farewell

    answers, farewell = asyncio.run(asyncio.wait_for(run(), 30.0))
    assert {(answer.kind, answer.code) for answer in answers} == {("silent", "host_silent")}
    assert "beta: the executor was silent for 0.05 s" in str(answers[0])
    assert not farewell.is_clean and "beta" in farewell.left[0]["what"]


@pytest.mark.parametrize("said", [b"", b"nothing of the kind\n", to_line(Failed("no space left"))])
def test_an_executor_that_does_not_start_says_why(said):
    async def run():
        (reader, writer), (_, their_writer) = await connect()
        executor = StreamExecutor(Open("r", "beta", "/", "/"), reader, writer, on_lapse=print, on_loss=print)
        their_writer.write(said)
        their_writer.write_eof()
        with pytest.raises(EnvironmentFailure, match="nothing can be injected on beta") as caught:
            await executor.ready()
        await executor.close()
        their_writer.transport.abort()
        return str(caught.value)

    text = asyncio.run(asyncio.wait_for(run(), 30.0))
    assert "no space left" in text or not said.startswith(b"{")


def test_an_order_is_refused_when_its_answer_cannot_be_read():
    async def run():
        (reader, writer), (_, their_writer) = await connect()
        executor = StreamExecutor(Open("r", "beta", "/", "/"), reader, writer, on_lapse=print, on_loss=print)
        their_writer.write(to_line(Ready()))
        await executor.ready()
        order = asyncio.create_task(executor.obey(LOOK))
        await asyncio.sleep(0)
        their_writer.write(to_line(Reply(LOOK.id, {"type": "no answer"})))
        answer = await order
        await executor.close()
        their_writer.transport.abort()
        return answer

    answer = asyncio.run(asyncio.wait_for(run(), 30.0))
    assert (answer.kind, answer.code) == ("silent", "host_silent")


def test_too_long_an_order_is_refused_and_too_long_an_event_left_out(tmp_path, monkeypatch):
    seen = []

    async def act(place):
        async with linked(place, seen=seen) as (executor, _):
            await executor.ready()
            executor.on_event(replace(STEP, fields={"text": "x" * MAX_LINE_BYTES}))
            refused = await executor.obey(replace(LOOK, parameters={"text": "x" * MAX_LINE_BYTES}))
            executor.on_event(STEP)
            return refused, await executor.obey(replace(LOOK, id=LOOK.id + 1)), executor.lost

    _, (refused, looked, lost) = play(tmp_path, act)
    assert refused.code == "order_too_long" and isinstance(looked, Looked) and lost is None
    assert [event.step for event in seen] == [7]


def test_it_undoes_when_an_event_breaks_what_follows_the_job(tmp_path):
    class Broken(list):
        def append(self, event):
            raise RecursionError("too deep")

    released = []

    async def act(place):
        async with served(place, seen=Broken(), released=released) as ((_, writer), task):
            for order in UP_TO_APPLY:
                writer.write(to_line(Ask(message_to_json(order))))
            await until(lambda: place.pending())
            writer.write(to_line(Happened(STEP.to_json())))
            return await task

    place, is_in_order = play(tmp_path, act)
    assert is_in_order is False and place.pending() == [] and released == [[]]


def test_an_executor_that_reads_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(chaos.injection.stream, "MAX_UNSENT_BYTES", 1 << 12)

    async def run():
        (reader, writer), (_, their_writer) = await connect()
        their_writer.transport.pause_reading()
        executor = StreamExecutor(Open("r", "beta", "/", "/"), reader, writer, on_lapse=print, on_loss=print)
        event = Event("warning", "rank", 0.0, 1.0, 1, fields={"message": "x" * 10_000})
        for _ in range(1000):
            executor.on_event(event)
        lost = executor.lost
        await executor.close()
        their_writer.transport.abort()
        return lost

    assert "does not read" in asyncio.run(asyncio.wait_for(run(), 30.0))


# ---- whom an executor in another process acts on ----


def started(role, process, **fields):
    fields = {"role": role, "started_pid": process.pid, "start_ticks": process.start_ticks, **fields}
    return Event("process_started", "supervisor", 0.0, 0.0, 1, node=1, fields=fields)


def test_processes_are_known_from_the_events_of_the_job(monkeypatch):
    us, gone = ProcessId.of(os.getpid()), ProcessId(2_000_000_000, 1)
    known = KnownProcesses(this_host())
    monkeypatch.setattr("chaos.injection.serving.bears_mark", lambda process: True)
    for event in (started("rank", gone, started_rank=2), started("rank", us, started_rank=3), STEP):
        known.feed(event)
    known.feed(started("coordinator", us, started_node=None))
    known.feed(started("stranger", us))
    known.feed(Event("process_started", "rank", 0.0, 0.0, 1, fields={"role": 7}))
    (owned,) = known.rank_processes((2, 3))
    assert (owned.rank, owned.node, owned.process) == (3, 1, us)
    assert len(known.node_processes((1,))) == 2 and known.node_processes((0,)) == ()
    assert [owned.role for owned in known.role_processes("store")] == ["coordinator"]


def test_a_process_of_another_host_is_none_of_this_one(monkeypatch):
    monkeypatch.setattr("chaos.injection.serving.bears_mark", lambda process: True)
    us, elsewhere = ProcessId.of(os.getpid()), Host("elsewhere", "another boot")
    event = started("rank", us, started_rank=3)
    known = KnownProcesses(elsewhere)
    known.feed(event)
    assert known.rank_processes((3,)) == (), "the number is the same, the process is not"
    known.feed(replace(event, origin=Origin(this_host(), "clock", 0.0, {})))
    assert [owned.process for owned in known.rank_processes((3,))] == [us]
    known = KnownProcesses(this_host())
    known.feed(replace(event, origin=Origin(elsewhere, "clock", 0.0, {})))
    assert known.rank_processes((3,)) == ()


def test_a_process_without_the_mark_of_the_run_is_not_touched(monkeypatch):
    monkeypatch.setenv(RUN_VARIABLE, "another-run")
    known = KnownProcesses(this_host())
    known.feed(started("rank", ProcessId.of(os.getpid()), started_rank=3))
    with pytest.raises(NotOurs):
        known.rank_processes((3,))
