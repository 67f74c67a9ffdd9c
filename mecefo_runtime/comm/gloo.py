"""gloo's process groups of one epoch: formed quickly, aborted on demand, closed without leftovers.

Raw groups under a fresh prefix rather than `init_process_group`: they can be formed from survivors alone and thrown
away (2-8 ms). gloo (torch 2.11-2.13) cannot abort a blocked operation: `abort()` and `shutdown()` of a group return and
do nothing, so the established sockets are shut down instead, which ends blocked operations here and, by cascade, in the
peers.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo

from mecefo_runtime.comm.operations import Operation, Owner, breaking_epoch, take_down
from mecefo_runtime.comm.rendezvous import RendezvousStore, form_timeout_seconds
from mecefo_runtime.comm.sockets import open_sockets

# torch's stubs know neither gloo's options nor its operations.
_Gloo: Any = ProcessGroupGloo


class Gloo:
    """A world group over `members`, which carries messages, and a group for every set in `reductions` with this rank.

    `host` is this rank's own address. All pairs are connected when the constructor returns, so that `abort` reaches
    every operation: a lazily connecting pair whose peer died blocks for five time-outs, and nothing ends it.

    Raises:
        EpochBroken: a peer did not come.
    """

    def __init__(
        self,
        store: RendezvousStore,
        prefix: str,
        rank: int,
        members: tuple[int, ...],
        reductions: Sequence[tuple[int, ...]],
        owner: Owner,
        host: str,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._index: Mapping[int, int] = {member: index for index, member in enumerate(members)}
        self._owner = owner
        self._host = host
        self._form_timeout = timedelta(seconds=form_timeout_seconds(len(members)))
        self._groups: dict[tuple[int, ...], Any] = {}
        with breaking_epoch():
            self._world = self._form("world", members)
            for holders in reductions:
                if rank in holders:
                    self._groups[holders] = self._form("-".join(map(str, holders)), holders)

    def _form(self, name: str, ranks: tuple[int, ...]) -> Any:
        options = _Gloo._Options()
        options._timeout = self._form_timeout
        options._threads = 2
        options._devices = [_Gloo.create_device(hostname=self._host, lazy_init=False)]
        store = PrefixStore(f"{self._prefix}/{name}", self._store)
        group = _Gloo(store, ranks.index(self._rank), len(ranks), options)
        group.set_timeout(self._owner.timeout)
        return group

    def send(self, tensor: torch.Tensor, destination: int, tag: int) -> Operation:
        """Start sending."""
        with breaking_epoch():
            work: dist.Work = self._world.send([tensor], self._index[destination], tag)
        return Operation(work, self._owner, is_message=True)

    def start_receive(self, tensor: torch.Tensor, source: int, tag: int) -> Operation:
        """Start receiving into `tensor`."""
        with breaking_epoch():
            work: dist.Work = self._world.recv([tensor], self._index[source], tag)
        return Operation(work, self._owner, is_message=True)

    def start_all_reduce(self, tensor: torch.Tensor, holders: tuple[int, ...]) -> Operation:
        """Start summing `tensor` over `holders`."""
        with breaking_epoch():
            work: dist.Work = self._groups[holders].allreduce([tensor])
        return Operation(work, self._owner, is_message=False)

    def all_gather(self, tensor: torch.Tensor, holders: tuple[int, ...]) -> list[torch.Tensor]:
        """Every holder's `tensor` (equal shapes), in the order of `holders`."""
        gathered = [torch.empty_like(tensor) for _ in holders]
        with breaking_epoch():
            work = self._groups[holders].allgather([gathered], [tensor])
        Operation(work, self._owner, is_message=False).wait()
        return gathered

    def abort(self) -> int:
        """End every blocked operation, from any thread; returns how many connections were shut down.

        Only connections to or from a listener that gloo published in this epoch are touched. Listening sockets are not:
        shutting one of those down crashes the process.
        """
        return sum(_shut_down(sock, self._store.listeners) for sock in open_sockets())

    def close(self) -> None:
        """Close the groups.

        Their sockets are shut down at once, so that the peers notice. The rest is destroyed on another thread,
        because it waits for operations that gloo has forgotten (see `operations.Waiter`).
        """
        self.abort()
        doomed = [self._world, *self._groups.values()]
        self._groups.clear()
        del self._world
        take_down(doomed)


def _shut_down(sock: socket.socket, listeners: set[tuple[str, int]]) -> bool:
    with suppress(OSError):
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        ends = {sock.getsockname()[:2], sock.getpeername()[:2]}
        if ends & listeners:
            sock.shutdown(socket.SHUT_RDWR)
            return True
    return False
