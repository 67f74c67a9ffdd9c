"""The coordinator process: connections of ranks and node supervisors around a `Membership`, on one asyncio loop.

It may die at any time: ranks continue training without it, and a restarted one learns their position from their
hellos. It also passes on the small values with which gloo groups find each other.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from typing import TypeVar

from mecefo_runtime.checkpoint.durable import (
    Durable,
    MismatchedCheckpoint,
    has_checkpoint,
    newest_durable,
    rejected_checkpoints,
)
from mecefo_runtime.comm.messages import (
    Alive,
    BackgroundDone,
    Committed,
    CutOff,
    Diverged,
    Finished,
    Formed,
    FromCoordinator,
    FromRank,
    FromSupervisor,
    Hello,
    NodeLeaving,
    Parked,
    PeersLost,
    Probed,
    Put,
    RankExited,
    SupervisorHello,
    Take,
    Trouble,
    Unhealthy,
    Value,
    from_rank,
    from_supervisor,
    to_wire,
)
from mecefo_runtime.job.config import JOB_FAILED, JobConfig, Quality, other_quality
from mecefo_runtime.job.protection import SnapshotOffers
from mecefo_runtime.job.state_source import Source, Version
from mecefo_runtime.membership.coordinator_checkpoint import CoordinatorCheckpoint
from mecefo_runtime.membership.member_table import Stage
from mecefo_runtime.membership.membership import Membership
from mecefo_runtime.planners import (
    find,
    goes_back_to,
    has_quality,
    placement_of,
    stops_on_loss,
    with_fixed_settings,
)
from mecefo_runtime.prediction.predicted_costs import predict_costs
from mecefo_runtime.recovery.places import filling_places
from mecefo_runtime.recovery.regroup import CannotGoOn, Rules
from mecefo_runtime.snapshots.messages import (
    FromSnapshotProcess,
    SnapshotsHello,
    ToSnapshotProcess,
    from_snapshot_process,
)
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.strangers import BUFFER_BYTES, HELLO_TIMEOUT_SECONDS, Strangers, read_line
from mecefo_runtime.system.wire import Message, WireError, decode, encode

T = TypeVar("T")

# Who is no rank says so in its first message.
_READERS: dict[str, Callable[[Message], FromRank | FromSupervisor | FromSnapshotProcess]] = {
    SupervisorHello.__name__: from_supervisor,
    SnapshotsHello.__name__: from_snapshot_process,
}

# After the end: how long ranks may take to hear of it and hang up.
FAREWELL_SECONDS = 2.0
# Turns of the event loop until what lies in the sockets has been acted upon: to poll, to hand over, to read.
READING_TURNS = 3


class Coordinator:
    """Serves one job on `listener` until it has ended.

    Raises:
        ValueError: the job lacks what its strategy fixes (`with_fixed_settings`), or the snapshots that it needs.
    """

    def __init__(
        self,
        job: JobConfig,
        listener: socket.socket,
        token: str,
        emitter: Emitter,
        checkpoint: CoordinatorCheckpoint | None = None,
    ) -> None:
        if job != with_fixed_settings(job):
            raise ValueError(f"the job's settings are not those that the strategy {job.strategy} fixes")
        if goes_back_to(job.strategy) == "snapshots" and job.snapshots is None:
            raise ValueError(f"the strategy {job.strategy} needs a job that keeps snapshots")
        self._checkpoint = checkpoint or CoordinatorCheckpoint()
        self._listener = listener
        self._strangers = Strangers(token)
        self._emitter = emitter
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._snapshot_writers: dict[int, asyncio.StreamWriter] = {}
        self._rendezvous: dict[str, str] = {}
        self._waiting: dict[str, list[int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._bug: Exception | None = None
        quality = Quality(job.degraded_share_limit, job.projected_share_limit)
        self._membership = Membership(
            Rules(
                cluster=job.cluster(),
                planner=filling_places(find(job.strategy)),
                takeover=job.takeover,
                health=job.health,
                degraded_share_limit=job.degraded_share_limit,
                projected_share_limit=job.projected_share_limit,
                other_quality=other_quality(quality) if has_quality(job.strategy) else None,
                placement=placement_of(job),
                newest_checkpoint=lambda refused: _newest_or_stop(job, refused),
                rejected_checkpoints=lambda after_step: rejected_checkpoints(job, after_step),
                stops_on_loss=stops_on_loss(job.strategy),
                max_fruitless_restarts=job.max_fruitless_restarts,
                evicts_corrupt=job.health.nonfinite == "evict",
                rating_origin=job.rating_origin,
                has_checkpoints=job.checkpoint is not None,
                has_snapshots=job.snapshots is not None,
                protects_snapshots=job.snapshots is not None and job.snapshots.protection != "none",
                shards_optimizer=job.sharded_optimizer,
                averages_rest=job.approximation.average_rest,
            ),
            job.steps,
            self,
            time.monotonic,
            job.heartbeat_timeout_seconds,
            predicted_costs=job.ratings
            or predict_costs(
                job.model,
                job.sequence_length,
                job.microbatch_size,
                job.approximation,
                memory_bytes=job.rank_memory_bytes,
            ),
            must_resume=job.checkpoint is not None and job.checkpoint.resume and has_checkpoint(job),
            begun_epoch=self._checkpoint.epoch,
        )

    async def serve(self) -> bool:
        """Run until the job has ended; returns whether it succeeded."""
        server = await asyncio.start_server(self._on_connection, sock=self._listener, limit=BUFFER_BYTES)
        self._settle()
        await self._ended.wait()
        if self._bug is not None:
            server.close()
            raise self._bug
        deadline = time.monotonic() + FAREWELL_SECONDS
        while self._writers and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        server.close()
        return self._membership.failure is None

    # ---- Effects ----

    def send(self, rank: int, message: FromCoordinator) -> None:
        """Queue `message` for `rank`; a rank without a connection is reported as lost later."""
        writer = self._writers.get(rank)
        if writer is not None:
            writer.write(encode(to_wire(message)))

    def tell_snapshots(self, node: int, message: ToSnapshotProcess) -> None:
        """Queue `message` for the snapshot process of `node`, if it is there."""
        writer = self._snapshot_writers.get(node)
        if writer is not None:
            writer.write(encode(to_wire(message)))

    def hang_up(self, rank: int) -> None:
        """Close the connection of `rank`."""
        writer = self._writers.pop(rank, None)
        if writer is not None:
            writer.close()

    def emit(self, record: Record, *, step: int | None = None) -> None:
        """Emit an event as the coordinator."""
        self._emitter.emit(record, step=step)

    # ---- connections ----

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            try:
                raw = await self._strangers.hello(reader, HELLO_TIMEOUT_SECONDS)
                del raw["token"]
                read = _READERS.get(str(raw.get("type")), from_rank)
                hello = read(raw)
            except (OSError, ValueError):
                return
            if isinstance(hello, SnapshotsHello):
                await self._serve_snapshots(reader, writer, hello.node)
            elif isinstance(hello, SupervisorHello):
                await self._serve_supervisor(reader, hello.node)
            elif isinstance(hello, Hello):
                await self._serve_rank(reader, writer, hello)
        except asyncio.CancelledError:
            # Whoever is still connected when the loop ends; passed on, Python 3.11 logs it as an error of the callback.
            return
        except Exception as error:
            self._crash(error)
        finally:
            writer.close()

    def _crash(self, bug: Exception) -> None:
        """A bug of ours: whoever is started in our place learns all from the ranks; to go on would be worse."""
        self._bug = bug
        self._ended.set()

    async def _serve_supervisor(self, reader: asyncio.StreamReader, node: int) -> None:
        self._membership.on_supervisor(node)
        async for message in _messages(reader, from_supervisor):
            if isinstance(message, RankExited):
                if message.has_ended_in_order:
                    self._membership.on_completed()
                self._membership.on_lost(message.rank, "supervisor", message.attempt)
                self._settle()
            elif isinstance(message, NodeLeaving):
                self._membership.on_leaving(node)
                self._settle()
        self._membership.on_supervisor_lost(node)
        self._settle()

    async def _serve_snapshots(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: int) -> None:
        if node in self._snapshot_writers:
            # Another process of the node is faster than the news of the end of the one before.
            self._membership.on_snapshots(node, None)
        self._snapshot_writers[node] = writer
        async for message in _messages(reader, from_snapshot_process):
            if isinstance(message, SnapshotOffers):
                self._membership.on_snapshots(node, message)
        if self._snapshot_writers.get(node) is writer:
            del self._snapshot_writers[node]
            self._membership.on_snapshots(node, None)

    async def _serve_rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello) -> None:
        rank = hello.rank
        if rank in self._writers:
            self.hang_up(rank)
        self._writers[rank] = writer
        self._on_message(rank, hello)
        async for message in _messages(reader, from_rank):
            if self._writers.get(rank) is not writer:
                # We hung up on it, or another process of this rank has come: what it still says counts no more.
                return
            self._on_message(rank, message)
        if self._writers.get(rank) is writer:
            del self._writers[rank]
            self._membership.on_lost(rank, "connection")
            self._settle()

    def _on_message(self, rank: int, message: FromRank) -> None:
        membership = self._membership
        membership.on_heard(rank)
        match message:
            case Put(key, value):
                self._put(key, value)
                return
            case Take(key):
                self._take(rank, key)
                return
            case Hello():
                # Of whom the connection is.
                membership.on_hello(replace(message, rank=rank))
            case Parked():
                membership.on_parked(rank, message)
            case Formed():
                membership.on_formed(rank, message)
            case Trouble():
                membership.on_trouble(rank, message)
            case PeersLost(epoch):
                membership.on_unreachable(rank, epoch)
            case Probed():
                membership.on_probed(rank, message)
            case CutOff():
                membership.on_cut_off(rank)
            case BackgroundDone(epoch):
                membership.on_background_done(epoch)
            case Diverged(epoch):
                membership.on_diverged(epoch)
            case Unhealthy():
                membership.on_unhealthy(message)
            case Committed(step):
                membership.on_committed(step)
            case Finished():
                membership.on_finished(rank)
            case Alive():
                # Heard above.
                pass
        self._settle()

    def _put(self, key: str, value: str) -> None:
        self._rendezvous[key] = value
        for rank in self._waiting.pop(key, ()):
            self.send(rank, Value(key, value))

    def _take(self, rank: int, key: str) -> None:
        if key in self._rendezvous:
            self.send(rank, Value(key, self._rendezvous[key]))
        else:
            self._waiting.setdefault(key, []).append(rank)

    def _settle(self) -> None:
        """After anything happened: wake up in time for the next deadline, forget old rendezvous, notice the end."""
        membership = self._membership
        self._checkpoint.note(membership.epoch, membership.furthest_step)
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
        self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        """What has arrived comes first: whoever was stopped for a while finds the signs of life behind the deadline."""
        for _ in range(READING_TURNS):
            await asyncio.sleep(0)
        try:
            self._membership.tick()
            self._settle()
        except Exception as error:
            self._crash(error)


async def _messages(reader: asyncio.StreamReader, read: Callable[[Message], T]) -> AsyncIterator[T]:
    """What a peer says, until its connection ends, or it says what is no message of ours."""
    while True:
        try:
            line = await read_line(reader)
            if not line:
                return
            message = read(decode(line))
        except WireError as error:
            print(f"connection ended: {error}", file=sys.stderr)
            return
        except (OSError, ValueError):
            return
        yield message


def _newest_or_stop(job: JobConfig, refused: Collection[tuple[Version, Source]]) -> Durable | None:
    try:
        return newest_durable(job, refused)
    except MismatchedCheckpoint as error:
        raise CannotGoOn(str(error)) from error


def run_coordinator(
    job: JobConfig,
    listener: socket.socket,
    token: str,
    emitter: Emitter,
    checkpoint: CoordinatorCheckpoint | None = None,
) -> int:
    """Serve `job` until it has ended; returns the exit code: 0, or JOB_FAILED.

    All coordinators of a job get the same `checkpoint`. Without one, a job of which every rank is lost together with
    its coordinator begins again.
    """
    listener.setblocking(False)

    async def serve() -> bool:
        return await Coordinator(job, listener, token, emitter, checkpoint).serve()

    return 0 if asyncio.run(serve()) else JOB_FAILED
