"""The process groups of one epoch: formed fast, broken on demand, gone without a trace.

Raw gloo groups under a fresh prefix rather than `init_process_group`: they can be formed from survivors alone and
thrown away (2-8 ms). gloo (torch 2.11-2.13) cannot abort a blocked operation: `abort()` and `shutdown()` of a group
return and do nothing, so `Groups.abort` shuts down the established sockets instead, which ends blocked operations here
and, by cascade, in the peers.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from mecefo_runtime.operations import EpochBroken, Operation, Waiter, breaking_epoch

FORM_TIMEOUT_SECONDS = 2.0
# After an abort, blocked operations end within some 10 ms (333 at most have been seen).
FORGOTTEN_SECONDS = 1.0
# torch's stubs know neither gloo's options nor its operations.
_Gloo: Any = ProcessGroupGloo
LOOPBACK = "127.0.0.1"


class RendezvousStore(Store):
    """A store for gloo's rendezvous over the control connection. gloo needs set, get and wait only."""

    def __init__(self, put: Callable[[str, bytes], None], take: Callable[[str, float], bytes]) -> None:
        super().__init__()
        self._put = put
        self._take = take
        self.listener_ports: set[int] = set()

    def set(self, key: str, value: bytes | str) -> None:
        """Publish this rank's address under `key`."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._remember(data)
        self._put(key, data)

    def get(self, key: str) -> bytes:
        """The address that a peer published under `key`, as soon as it is there."""
        data = self._take(key, FORM_TIMEOUT_SECONDS)
        self._remember(data)
        return data

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=FORM_TIMEOUT_SECONDS)) -> None:
        """Wait until all `keys` are published."""
        for key in keys:
            self._take(key, timeout.total_seconds())

    def _remember(self, data: bytes) -> None:
        port = gloo_listener_port(data)
        if port is not None:
            self.listener_ports.add(port)


def gloo_listener_port(blob: bytes) -> int | None:
    """The listening port in an address that gloo publishes.

    Its form: u64 length, host name, u64 length, sockaddr with the port at +2. None when the blob is something else.
    """
    if len(blob) < 8:
        return None
    (name_length,) = struct.unpack_from("<Q", blob)
    offset = 8 + name_length + 8
    if len(blob) < offset + 4:
        return None
    family, port = struct.unpack_from("<H", blob, offset)[0], struct.unpack_from(">H", blob, offset + 2)[0]
    return port if family in (socket.AF_INET, socket.AF_INET6) else None


class Groups:
    """World and reduction groups of one epoch, as seen by one member.

    The world group carries activations, state and the commit; one group for every set in `reductions` that this rank is
    in carries gradients. `host` is this rank's own address. All pairs are connected when the constructor returns, so
    that `abort` reaches every operation: a lazily connecting pair whose peer died blocks for five time-outs, and
    nothing ends it.
    """

    def __init__(
        self,
        store: RendezvousStore,
        epoch: int,
        rank: int,
        members: Sequence[int],
        reductions: Sequence[tuple[int, ...]],
        timeout_seconds: float,
        host: str = LOOPBACK,
    ) -> None:
        self._host = host
        self.epoch = epoch
        self.rank = rank
        self.members = tuple(sorted(members))
        self._index = {member: index for index, member in enumerate(self.members)}
        self._store = store
        self.timeout = timedelta(seconds=timeout_seconds)
        self._groups: dict[tuple[int, ...], Any] = {}
        self.waiter = Waiter()
        self._aborted_seconds: float | None = None
        with breaking_epoch():
            self._world = self._form("world", self.members, timeout_seconds)
            for holders in reductions:
                if rank in holders:
                    name = "-".join(map(str, holders))
                    self._groups[holders] = self._form(name, holders, timeout_seconds)

    def _form(self, name: str, ranks: tuple[int, ...], timeout_seconds: float) -> Any:
        options = _Gloo._Options()
        options._timeout = timedelta(seconds=FORM_TIMEOUT_SECONDS)
        options._threads = 2
        options._devices = [_Gloo.create_device(hostname=self._host, lazy_init=False)]
        store = PrefixStore(f"{self.epoch}/{name}", self._store)
        group = _Gloo(store, ranks.index(self.rank), len(ranks), options)
        group.set_timeout(timedelta(seconds=timeout_seconds))
        return group

    def send(self, tensor: torch.Tensor, destination: int, tag: int) -> Operation:
        """Start sending; the tensor must live until the returned operation is done."""
        with breaking_epoch():
            work: dist.Work = self._world.send([tensor], self._index[destination], tag)
        return Operation(work, self, is_message=True)

    def start_receive(self, tensor: torch.Tensor, source: int, tag: int) -> Operation:
        """Start receiving into `tensor`."""
        with breaking_epoch():
            work: dist.Work = self._world.recv([tensor], self._index[source], tag)
        return Operation(work, self, is_message=True)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        """Receive into `tensor`, waiting for it."""
        self.start_receive(tensor, source, tag).wait()

    def start_all_reduce(self, tensor: torch.Tensor, holders: tuple[int, ...]) -> Operation | None:
        """Start summing `tensor` over `holders`; None when this rank is the only one."""
        if len(holders) == 1:
            return None
        with breaking_epoch():
            work: dist.Work = self._groups[holders].allreduce([tensor])
        return Operation(work, self, is_message=False)

    def all_gather(self, tensor: torch.Tensor, holders: tuple[int, ...]) -> dict[int, torch.Tensor]:
        """Every holder's `tensor` (equal shapes), by rank."""
        if len(holders) == 1:
            return {self.rank: tensor}
        gathered = [torch.empty_like(tensor) for _ in holders]
        with breaking_epoch():
            work = self._groups[holders].allgather([gathered], [tensor])
        Operation(work, self, is_message=False).wait()
        return dict(zip(holders, gathered, strict=True))

    def abort(self) -> int:
        """End every blocked operation, from any thread; returns how many connections were shut down.

        Only connections to or from a listener that gloo published in this epoch are touched. Listening sockets are not:
        shutting one of those down crashes the process.
        """
        if self._aborted_seconds is None:
            self._aborted_seconds = time.monotonic()
        return sum(_shut_down(descriptor, self._store.listener_ports) for descriptor in _open_sockets())

    def close(self) -> None:
        """Let go of the groups: their sockets are shut down at once, so that the peers notice.

        The rest is taken down on another thread: it waits for operations that gloo has forgotten (see `Waiter`).
        """
        self.abort()
        self.waiter.stop()
        doomed = [self._world, *self._groups.values()]
        self._groups.clear()
        del self._world
        threading.Thread(target=doomed.clear, name="undertaker", daemon=True).start()

    def is_given_up(self) -> bool:
        """Whether the epoch was aborted so long ago that what is still blocked will not hear of it."""
        return self._aborted_seconds is not None and time.monotonic() - self._aborted_seconds > FORGOTTEN_SECONDS


def _open_sockets() -> Iterator[int]:
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if entry.readlink().name.startswith("socket:"):
                yield int(entry.name)


def _shut_down(descriptor: int, listener_ports: set[int]) -> bool:
    with suppress(OSError):
        duplicate = socket.socket(fileno=os.dup(descriptor))
        try:
            if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            ports = {duplicate.getsockname()[1], duplicate.getpeername()[1]}
            if ports & listener_ports:
                duplicate.shutdown(socket.SHUT_RDWR)
                return True
        finally:
            duplicate.close()
    return False


class Formation:
    """Forms groups on a thread of its own, because gloo ignores its time-out when a peer dies while pairs connect.

    `done` tells that `take` will return or raise at once. A formation that is abandoned lets go of its groups by
    itself.
    """

    def __init__(self, form: Callable[[], Groups], notify: Callable[[], None]) -> None:
        self._form = form
        self._notify = notify
        self._groups: Groups | None = None
        self._error: str | None = None
        self._lock = threading.Lock()
        self._abandoned = False
        self.done = False
        threading.Thread(target=self._run, name="formation", daemon=True).start()

    def _run(self) -> None:
        groups, message = None, None
        try:
            groups = self._form()
        except Exception as error:  # whatever it is, it is the training thread's to hear
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
        with self._lock:
            if not self._abandoned:
                self._groups, self._error = groups, message
            self.done = True
        del groups
        self._notify()

    def take(self) -> Groups:
        """The groups.

        Raises:
            EpochBroken: they could not be formed.
        """
        with self._lock:
            groups, self._groups = self._groups, None
        if groups is None:
            raise EpochBroken(self._error or "groups were not formed in time")
        return groups

    def abandon(self) -> None:
        """Nobody will take the groups."""
        with self._lock:
            self._abandoned = True
            self._groups = None
