"""Several channels over one stream that may break: frames are numbered, acknowledged, and sent again over the next one.

Each end counts the frames that it has received. When a stream breaks, both ends keep what the other has not
acknowledged; over the next stream each first says how many frames it has, and gets the others. So every frame arrives
once and in order, whatever happened to the streams. Channel 0 carries the messages between the two ends, all others
carry bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from mecefo_runtime.system.json_values import loads
from mecefo_runtime.system.wire import MAX_LINE_BYTES, Message, WireError, encode

# The number of the frame, its channel, and the length of what follows.
_HEADER = struct.Struct(">QII")
_CONTROL = 0
# Its number is how many frames its sender has received; it is not counted itself.
_ACKNOWLEDGED = 0xFFFFFFFF
MAX_FRAME_BYTES = 1 << 20
# Of what is not acknowledged; whoever relays waits then.
ROOM_BYTES = 1 << 25
# An acknowledgement is a sign of life, too.
ACKNOWLEDGE_SECONDS = 0.2
ALIVE_SECONDS = 1.0
_OPEN, _END = "open", "end"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Frames:
    """One end of the connection between the tool and the agent of a host.

    `on_open` gets each channel that the other end opens, with what it is for; `on_message` each of its messages.
    `is_agent` tells the ends apart, so that both can open channels.
    """

    def __init__(
        self,
        on_open: Callable[[Mapping[str, Any], Streams], None],
        on_message: Callable[[Message], None],
        *,
        is_agent: bool,
    ) -> None:
        self._on_open = on_open
        self._on_message = on_message
        self._numbers = itertools.count(2 if is_agent else 1, 2)
        self._channels: dict[int, _Channel] = {}
        self._num_received = 0
        self._num_sent = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._writer: asyncio.StreamWriter | None = None
        self._acknowledged_seconds = 0.0
        self._num_acknowledged = 0
        self.heard_seconds = time.monotonic()

    @property
    def num_received(self) -> int:
        """How many frames have arrived: what the other end is told before it uses a new stream."""
        return self._num_received

    @property
    def num_kept(self) -> int:
        """How many frames the other end has not acknowledged."""
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        """Bytes that the other end has not acknowledged."""
        return self._kept_bytes

    @property
    def silent_seconds(self) -> float:
        """For how long nothing has arrived."""
        return time.monotonic() - self.heard_seconds

    # ---- what is sent ----

    def send(self, message: Message) -> None:
        """Send a message to the other end."""
        self._send(_CONTROL, encode(message))

    def open(self, what: Mapping[str, Any]) -> Streams:
        """Open a channel; the other end gets `what`."""
        number = next(self._numbers)
        self.send({"type": _OPEN, "channel": number, "what": dict(what)})
        return self._channel(number).streams

    async def room(self) -> None:
        """Wait until there is room for more."""
        await self._has_room.wait()

    def write(self, number: int, content: bytes) -> None:
        """Send bytes on the channel `number`."""
        for begin in range(0, len(content), MAX_FRAME_BYTES):
            self._send(number, content[begin : begin + MAX_FRAME_BYTES])

    def end(self, number: int) -> None:
        """Close the channel `number`."""
        if self._channels.pop(number, None) is not None:
            self.send({"type": _END, "channel": number})

    def _send(self, channel: int, content: bytes) -> None:
        self._num_sent += 1
        frame = _HEADER.pack(self._num_sent, channel, len(content)) + content
        self._kept.append((self._num_sent, frame))
        self._kept_bytes += len(frame)
        if self._kept_bytes > ROOM_BYTES:
            self._has_room.clear()
        self._transmit(frame)

    def _transmit(self, frame: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(frame)

    # ---- the stream ----

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, num_others: int) -> str:
        """Carry the frames over this stream, of which the other end has received `num_others`, until it breaks.

        A stream that another one replaces ends, too. Returns why it ended.

        Raises:
            WireError: the other end has another count of frames: it is not the end of this connection.
        """
        if not self._num_sent - len(self._kept) <= num_others <= self._num_sent:
            raise WireError("the other end has another count of frames")
        earlier, self._writer = self._writer, writer
        self.heard_seconds = time.monotonic()
        if earlier is not None:
            earlier.close()
        self._forget(num_others)
        for _, frame in self._kept:
            self._transmit(frame)
        beating = asyncio.create_task(self._beat(writer))
        try:
            return await self._read(reader)
        except asyncio.IncompleteReadError:
            return "the stream has ended"
        except OSError as error:
            return str(error)
        finally:
            beating.cancel()
            if self._writer is writer:
                self._writer = None
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> NoReturn:
        while True:
            number, channel, length = _HEADER.unpack(await reader.readexactly(_HEADER.size))
            content = await reader.readexactly(_length(channel, length))
            self.heard_seconds = time.monotonic()
            if channel == _ACKNOWLEDGED:
                self._forget(number)
                continue
            if number <= self._num_received:
                # It was sent again, and had arrived.
                continue
            if number != self._num_received + 1:
                raise WireError(f"frame {number} follows frame {self._num_received}")
            self._num_received = number
            self._take(channel, content)

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        while True:
            is_new = self._num_acknowledged != self._num_received
            if is_new or time.monotonic() - self._acknowledged_seconds >= ALIVE_SECONDS:
                self._num_acknowledged, self._acknowledged_seconds = self._num_received, time.monotonic()
                writer.write(_HEADER.pack(self._num_received, _ACKNOWLEDGED, 0))
            await asyncio.sleep(ACKNOWLEDGE_SECONDS)

    def _forget(self, num_arrived: int) -> None:
        while self._kept and self._kept[0][0] <= num_arrived:
            self._kept_bytes -= len(self._kept.popleft()[1])
        if self._kept_bytes <= ROOM_BYTES:
            self._has_room.set()

    # ---- what arrives ----

    def _take(self, number: int, content: bytes) -> None:
        if number != _CONTROL:
            if (channel := self._channels.get(number)) is not None:
                channel.streams[0].feed_data(content)
            return
        try:
            message = loads(content)
            kind = message["type"]
            if kind == _OPEN:
                opened = self._channel(int(message["channel"]))
                self._on_open(message["what"], opened.streams)
            elif kind == _END:
                if (channel := self._channels.pop(int(message["channel"]), None)) is not None:
                    channel.has_ended()
            else:
                self._on_message(message)
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"not a message: {error}") from error

    def _channel(self, number: int) -> _Channel:
        channel = self._channels[number] = _Channel(self, number)
        return channel

    def close(self) -> None:
        """No stream will come any more: all channels end."""
        if self._writer is not None:
            self._writer.close()
        for channel in list(self._channels.values()):
            channel.has_ended()
        self._channels.clear()


class _Channel(asyncio.Transport):
    """One channel, as a transport of asyncio; `streams` are the reader and the writer of this end."""

    def __init__(self, frames: Frames, number: int) -> None:
        super().__init__()
        self._frames = frames
        self._number = number
        self._is_closing = False
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(MAX_FRAME_BYTES, loop)
        self._protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        self.streams: Streams = (reader, asyncio.StreamWriter(self, self._protocol, reader, loop))

    def write(self, data: Any) -> None:
        """See `asyncio.WriteTransport`; after `close` it is lost."""
        if not self._is_closing:
            self._frames.write(self._number, bytes(data))

    def get_write_buffer_size(self) -> int:
        """Of all channels: what the other end has not acknowledged."""
        return self._frames.kept_bytes

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._is_closing

    def close(self) -> None:
        """End the channel."""
        if not self._is_closing:
            self._frames.end(self._number)
            self.has_ended()

    def abort(self) -> None:
        """As `close`."""
        self.close()

    def has_ended(self) -> None:
        """Nothing will come any more."""
        if not self._is_closing:
            self._is_closing = True
            self._protocol.connection_lost(None)


def _length(channel: int, length: int) -> int:
    if length > (MAX_LINE_BYTES if channel == _CONTROL else MAX_FRAME_BYTES):
        raise WireError(f"a frame of {length} bytes")
    return length


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Frames | None = None) -> None:
    """Pass on what comes until it ends, then close the other side; `frames` have room for it first."""
    with suppress(OSError):
        while content := await reader.read(1 << 16):
            if frames is not None:
                await frames.room()
            writer.write(content)
            await writer.drain()
    writer.close()
