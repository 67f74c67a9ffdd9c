"""The coordinator process: connections of ranks and node supervisors around a `Membership`, on one asyncio loop.

It may die at any time: ranks go on training without it, and a restarted one learns where they are from their hellos.
It also passes on the small values with which gloo groups find each other.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from mecefo_runtime.config import JobConfig
from mecefo_runtime.events import Emitter
from mecefo_runtime.membership import Membership
from mecefo_runtime.planners import find
from mecefo_runtime.roster import Stage
from mecefo_runtime.wire import MAX_LINE_BYTES, Message, WireError, decode, encode, token_matches

# After the end: how long ranks may take to hear of it and hang up.
FAREWELL_SECONDS = 2.0
# The exit code that says that the job cannot go on; any other but 0 is a crash, after which the coordinator is
# started again.
JOB_FAILED = 3


class Coordinator:
    """Serves one job on `listener` until it has ended."""

    def __init__(self, job: JobConfig, listener: socket.socket, token: str, emitter: Emitter) -> None:
        self._listener = listener
        self._token = token
        self._emitter = emitter
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._rendezvous: dict[str, str] = {}
        self._waiting: dict[str, list[int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._membership = Membership(
            job.cluster(), find(job.strategy), job.steps, self, time.monotonic, job.heartbeat_timeout_seconds
        )

    async def serve(self) -> bool:
        """Run until the job has ended; returns whether it went well."""
        server = await asyncio.start_server(self._on_connection, sock=self._listener, limit=MAX_LINE_BYTES)
        self._settle()
        await self._ended.wait()
        deadline = time.monotonic() + FAREWELL_SECONDS
        while self._writers and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        server.close()
        return self._membership.failure is None

    # ---- Effects ----

    def send(self, rank: int, message: Message) -> None:
        """Queue `message` for `rank`; a rank without a connection will be heard of as lost."""
        writer = self._writers.get(rank)
        if writer is not None:
            writer.write(encode(message))

    def hang_up(self, rank: int) -> None:
        """Close the connection of `rank`."""
        writer = self._writers.pop(rank, None)
        if writer is not None:
            writer.close()

    def emit(self, kind: str, *, step: int | None = None, **fields: Any) -> None:
        """Emit an event as the coordinator."""
        self._emitter.emit(kind, step=step, **fields)

    # ---- connections ----

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = decode(await reader.readline())
            if not token_matches(hello, self._token):
                return
            if hello["role"] == "supervisor":
                await self._serve_supervisor(reader, int(hello["node"]))
            else:
                await self._serve_rank(reader, writer, hello)
        except (WireError, OSError, ValueError, KeyError):
            # A peer that died in the middle of a line, or a stranger.
            return
        finally:
            writer.close()

    async def _serve_supervisor(self, reader: asyncio.StreamReader, node: int) -> None:
        self._membership.on_supervisor(node)
        try:
            while line := await reader.readline():
                message = decode(line)
                self._membership.on_lost(int(message["rank"]), "supervisor", int(message["attempt"]))
                self._settle()
        finally:
            self._membership.on_supervisor_lost(node)
            self._settle()

    async def _serve_rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Message) -> None:
        rank = int(hello["rank"])
        self._writers[rank] = writer
        try:
            self._on_message(rank, hello)
            while line := await reader.readline():
                self._on_message(rank, decode(line))
        except OSError:
            # A reset is as good as an end: the finally below says so.
            return
        finally:
            if self._writers.get(rank) is writer:
                del self._writers[rank]
                self._membership.on_lost(rank, "connection")
                self._settle()

    def _on_message(self, rank: int, message: Message) -> None:
        membership = self._membership
        membership.on_heard(rank)
        match message["type"]:
            case "put":
                self._put(message["key"], message["value"])
                return
            case "take":
                self._take(rank, message["key"])
                return
            case "hello":
                membership.on_hello(rank, message)
            case "parked":
                membership.on_parked(rank, message)
            case "formed":
                membership.on_formed(rank, message)
            case "trouble":
                membership.on_trouble(rank, int(message["epoch"]), str(message["error"]))
            case "finished":
                membership.on_finished(rank)
            case "lost":
                membership.on_lost(rank, "connection")
        self._settle()

    def _put(self, key: str, value: str) -> None:
        self._rendezvous[key] = value
        for rank in self._waiting.pop(key, ()):
            self.send(rank, {"type": "value", "key": key, "value": value})

    def _take(self, rank: int, key: str) -> None:
        if key in self._rendezvous:
            self.send(rank, {"type": "value", "key": key, "value": self._rendezvous[key]})
        else:
            self._waiting.setdefault(key, []).append(rank)

    def _settle(self) -> None:
        """After anything happened: wake up in time for the next deadline, forget old rendezvous, notice the end."""
        membership = self._membership
        if membership.stage is Stage.ENDED:
            self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        deadline = membership.next_deadline()
        if deadline is not None:
            delay = max(0.0, deadline - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)
        if membership.stage is Stage.TRAINING and self._rendezvous:
            self._rendezvous.clear()
            self._waiting.clear()

    def _on_timer(self) -> None:
        self._timer = None
        self._membership.tick()
        self._settle()


def run_coordinator(job: JobConfig, listener: socket.socket, token: str, emitter: Emitter) -> int:
    """Serve `job` until it has ended; returns the exit code: 0, or JOB_FAILED."""
    listener.setblocking(False)

    async def serve() -> bool:
        return await Coordinator(job, listener, token, emitter).serve()

    return 0 if asyncio.run(serve()) else JOB_FAILED
