"""Channels over streams that break: everything arrives once and in order, and what is no frame ends the stream."""

import asyncio
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.node import frames as module
from harness.node.frames import MAX_FRAME_BYTES, Frames, pump
from mecefo_runtime.system.wire import MAX_LINE_BYTES, WireError

pytestmark = pytest.mark.unit

TIMEOUT_SECONDS = 60.0
ENDS = ("tool", "agent")


@pytest.fixture(autouse=True, scope="module")
def quick():
    """Acknowledged at once, so that no test waits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ACKNOWLEDGE_SECONDS", 0.0005)
        yield


class Wire(asyncio.Transport):
    """One direction of a stream, of which `num_bytes` arrive before it breaks in both; None: it does not break."""

    def __init__(self, num_bytes=None):
        super().__init__()
        self.reader = asyncio.StreamReader()
        self.other = None
        self._left = num_bytes
        self._is_closing = False

    def write(self, data):
        if self._is_closing:
            return
        passed = data if self._left is None else data[: self._left]
        if passed:
            self.reader.feed_data(passed)
        if self._left is not None:
            self._left -= len(passed)
            if not self._left:
                self.close()

    def is_closing(self):
        return self._is_closing

    def close(self):
        if not self._is_closing:
            self._is_closing = True
            self.reader.feed_eof()
            self.other.close()


def stream(breaks=(None, None)):
    """(reader, writer) of both ends of a stream."""
    to_agent, to_tool = map(Wire, breaks)
    to_agent.other, to_tool.other = to_tool, to_agent
    loop = asyncio.get_running_loop()

    def writer(wire):
        reader = asyncio.StreamReader()
        return asyncio.StreamWriter(wire, asyncio.StreamReaderProtocol(reader), reader, loop)

    return (to_tool.reader, writer(to_agent)), (to_agent.reader, writer(to_tool))


class End:
    """One end: what it was told, and the channels that the other one has opened."""

    def __init__(self, name):
        self.frames = Frames(self._on_open, self._on_message, is_agent=name == "agent")
        self.messages = []
        self.got = {}
        self.opened = {}
        self.reading = []

    def _on_open(self, what, streams):
        self.opened[what["name"]] = streams
        self.reading.append(asyncio.create_task(self._read(what["name"], streams[0])))

    def _on_message(self, message):
        self.messages.append(message["number"])

    async def _read(self, name, reader):
        self.got[name] = await reader.read()

    def open(self, name):
        streams = self.frames.open({"name": name})
        self.reading.append(asyncio.create_task(self._read(name, streams[0])))
        return streams[1]


class Pair:
    """Both ends of a connection."""

    def __init__(self):
        self.ends = {name: End(name) for name in ENDS}
        self.carrying = []

    async def connect(self, breaks=(None, None)):
        """The next stream; the one before has broken."""
        for one in self.carrying:
            one.writer.close()
        await asyncio.gather(*(one.task for one in self.carrying))
        tool, agent = (self.ends[name].frames for name in ENDS)
        counts = agent.num_received, tool.num_received
        self.carrying = [
            Carrying(frames, streams, count)
            for frames, streams, count in zip((tool, agent), stream(breaks), counts, strict=True)
        ]
        await asyncio.sleep(0)

    async def settle(self):
        """Until all has arrived and is acknowledged."""
        while any(end.frames.num_kept for end in self.ends.values()):
            await asyncio.sleep(0.0005)

    async def close(self):
        for end in self.ends.values():
            end.frames.close()
            await asyncio.gather(*end.reading)
        await asyncio.gather(*(one.task for one in self.carrying))


class Carrying:
    def __init__(self, frames, streams, count):
        self.writer = streams[1]
        self.task = asyncio.create_task(frames.carry(*streams, count))


def play(story):
    async def run():
        pair = Pair()
        try:
            return await asyncio.wait_for(story(pair), TIMEOUT_SECONDS)
        finally:
            await pair.close()

    return asyncio.run(run())


ACTS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(ENDS), st.integers(0, 2), st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("tell"), st.sampled_from(ENDS)),
    st.tuples(st.just("connect"), st.integers(1, 120), st.integers(1, 120)),
    st.tuples(st.just("wait")),
)


@given(st.lists(ACTS, max_size=40))
def test_everything_arrives_once_and_in_order_wherever_the_streams_break(acts):
    async def story(pair):
        writers, sent, told = {}, {}, {name: [] for name in ENDS}
        for kind, *arguments in acts:
            match kind:
                case "write":
                    name, number, content = arguments
                    key = f"{name}-{number}"
                    if key not in writers:
                        writers[key] = pair.ends[name].open(key)
                    writers[key].write(content)
                    sent[key] = sent.get(key, b"") + content
                case "tell":
                    (name,) = arguments
                    told[name].append(len(told[name]))
                    pair.ends[name].frames.send({"type": "told", "number": told[name][-1]})
                case "connect":
                    await pair.connect(arguments)
                case "wait":
                    await asyncio.sleep(0.001)
        await pair.connect()
        for writer in writers.values():
            writer.close()
        await pair.settle()
        tool, agent = (pair.ends[name] for name in ENDS)
        await asyncio.gather(*tool.reading, *agent.reading)
        assert (agent.messages, tool.messages) == (told["tool"], told["agent"])
        for key, content in sent.items():
            (other,) = {"tool", "agent"} - {key.partition("-")[0]}
            assert pair.ends[other].got[key] == content
        assert {end.frames.kept_bytes for end in pair.ends.values()} == {0}

    play(story)


def test_a_channel_goes_both_ways_and_ends_at_both_ends():
    async def story(pair):
        await pair.connect()
        tool, agent = (pair.ends[name] for name in ENDS)
        writer = tool.open("one")
        writer.write(b"question")
        await pair.settle()
        agent.opened["one"][1].write(b"x" * (MAX_FRAME_BYTES + 1))
        agent.opened["one"][1].close()
        await asyncio.gather(*tool.reading, *agent.reading)
        assert (agent.got["one"], len(tool.got["one"])) == (b"question", MAX_FRAME_BYTES + 1)
        # Nobody is there any more to whom this could be said.
        writer.write(b"more")
        assert writer.is_closing() and tool.frames.num_kept == 0

    play(story)


def test_what_is_not_acknowledged_is_bounded_for_whoever_asks_for_room(monkeypatch):
    monkeypatch.setattr(module, "ROOM_BYTES", 100)

    async def story(pair):
        tool = pair.ends["tool"].frames
        writer = pair.ends["tool"].open("one")
        writer.write(b"x" * 200)
        waiting = asyncio.create_task(tool.room())
        await asyncio.sleep(0)
        assert not waiting.done() and tool.kept_bytes > 200
        await pair.connect()
        await waiting
        assert tool.kept_bytes <= 100

    play(story)


def test_whoever_passes_on_waits_for_room(monkeypatch):
    monkeypatch.setattr(module, "ROOM_BYTES", 1 << 16)

    async def story(pair):
        agent = pair.ends["agent"]
        source = asyncio.StreamReader()
        source.feed_data(b"x" * (1 << 20))
        source.feed_eof()
        passing = asyncio.create_task(pump(source, agent.open("log"), agent.frames))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not passing.done() and agent.frames.kept_bytes < 1 << 18
        await pair.connect()
        await passing
        await pair.settle()
        await asyncio.gather(*pair.ends["tool"].reading)
        assert len(pair.ends["tool"].got["log"]) == 1 << 20

    play(story)


def test_a_stream_that_another_one_replaces_ends():
    async def story(pair):
        await pair.connect()
        first = pair.carrying
        tool, agent = (pair.ends[name].frames for name in ENDS)
        tool.send({"type": "told", "number": 1})
        # Nobody has closed it: its host may be gone without a word.
        second = [
            Carrying(frames, streams, count)
            for frames, streams, count in zip((tool, agent), stream(), (0, 0), strict=True)
        ]
        assert await asyncio.gather(*(one.task for one in first)) == ["the stream has ended"] * 2
        pair.carrying = second
        agent.send({"type": "told", "number": 2})
        await pair.settle()
        assert (pair.ends["agent"].messages, pair.ends["tool"].messages) == ([1], [2])

    play(story)


@pytest.mark.parametrize("count", [-1, 3, 1 << 40])
def test_a_count_that_does_not_fit_is_refused(count):
    async def story(pair):
        tool = pair.ends["tool"].frames
        for number in range(2):
            tool.send({"type": "told", "number": number})
        ours, _ = stream()
        with pytest.raises(WireError, match="count"):
            await tool.carry(*ours, count)
        ours[1].close()

    play(story)


def test_what_was_acknowledged_cannot_be_asked_for_again():
    async def story(pair):
        tool = pair.ends["tool"].frames
        await pair.connect()
        tool.send({"type": "told", "number": 1})
        await pair.settle()
        ours, _ = stream()
        with pytest.raises(WireError, match="count"):
            await tool.carry(*ours, 0)
        ours[1].close()

    play(story)


def frame(number, channel, content, length=None):
    return struct.pack(">QII", number, channel, len(content) if length is None else length) + content


def line(**message):
    return json.dumps(message).encode()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param(frame(2, 0, line(type="told", number=1)), "frame 2 follows frame 0", id="one is missing"),
        pytest.param(frame(1, 5, b"", MAX_FRAME_BYTES + 1), "a frame of 1048577 bytes", id="too long"),
        pytest.param(frame(1, 0, b"", MAX_LINE_BYTES + 1), "a frame of 16777217 bytes", id="too long a message"),
        pytest.param(frame(1, 0, b"who is there?"), "not a message", id="no message"),
        pytest.param(frame(1, 0, b"[]"), "not a message", id="no object"),
        pytest.param(frame(1, 0, line(number=1)), "not a message", id="no type"),
        pytest.param(frame(1, 0, line(type="open", channel="first", what={})), "not a message", id="no channel"),
    ],
)
def test_what_is_no_frame_ends_the_stream(said, why):
    async def story(pair):
        ours, (_, writer) = stream()
        tool = pair.ends["tool"]
        carrying = asyncio.create_task(tool.frames.carry(*ours, 0))
        writer.write(said)
        assert why in await carrying
        assert ours[1].is_closing() and tool.messages == []

    play(story)


def test_bytes_for_a_channel_that_has_ended_are_dropped():
    async def story(pair):
        await pair.connect()
        tool, agent = (pair.ends[name] for name in ENDS)
        writer = tool.open("one")
        await pair.settle()
        agent.opened["one"][1].close()
        # Not yet known here.
        writer.write(b"late")
        await pair.settle()
        await asyncio.gather(*tool.reading, *agent.reading)
        assert (agent.got["one"], tool.got["one"]) == (b"", b"")

    play(story)


def test_a_stream_is_alive_while_nothing_is_sent(monkeypatch):
    monkeypatch.setattr(module, "ALIVE_SECONDS", 0.001)

    async def story(pair):
        tool = pair.ends["tool"].frames
        await pair.connect()
        for _ in range(3):
            heard_seconds = tool.heard_seconds
            while tool.heard_seconds == heard_seconds:
                await asyncio.sleep(0.001)
        assert tool.num_received == 0

    play(story)
