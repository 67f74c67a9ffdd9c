"""How tensors travel between the ranks of an epoch, and which transport an epoch uses.

Tensors in host memory go by gloo, always: the commit exchange, checksums, a job on CPUs. Tensors on a GPU go by NCCL
when every member has its own GPU; when members share one, or one has none, they go by gloo too, through page-locked
host memory. The coordinator chooses: see `devices.choose_way`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from mecefo_runtime.comm.operations import Operation
from mecefo_runtime.job.background import Background
from mecefo_runtime.job.layout import Layout, Transfer

# Tags from here on are of state and of what moves between steps; the lower ones are of activations.
FIRST_STATE_TAG = 1 << 18


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """A stream of messages from `source` to `destination`, received in the order in which they were sent.

    Activations do not wait behind state.
    """

    source: int
    destination: int
    is_state: bool

    @classmethod
    def of(cls, source: int, destination: int, tag: int) -> Lane:
        """The lane of a message with this tag."""
        return cls(source, destination, tag >= FIRST_STATE_TAG)


def lanes(
    layout: Layout,
    background: Background,
    transfers: Iterable[Transfer],
    members: tuple[int, ...],
    *,
    measures_transfer: bool,
) -> tuple[Lane, ...]:
    """All lanes that an epoch uses, the same in the same order for all members.

    Between neighbours of a pipeline one each way, for every piece of state that moves one from its source, and around
    the ring of `members` where the speed of transfers is measured.
    """
    found = set()
    for replica in layout.replicas:
        ranks = [span.rank for span in replica.spans]
        for before, after in pairwise(ranks):
            found |= {Lane(before, after, False), Lane(after, before, False)}
    found |= {Lane(transfer.source, transfer.destination, True) for transfer in transfers}
    found |= {Lane(shadow.source, shadow.rank, True) for shadow in background.shadows if shadow.source is not None}
    if measures_transfer and len(members) > 1:
        found |= {Lane(before, after, True) for before, after in zip(members, (*members[1:], members[0]), strict=True)}
    return tuple(sorted(found))


class Transport(Protocol):
    """Moves tensors of one kind (host or device) between the members of an epoch.

    A tensor must live, and what is sent must not change, until the operation is done. All raise EpochBroken when a
    peer is gone.
    """

    def send(self, tensor: Tensor, destination: int, tag: int) -> Operation:
        """Start sending."""
        ...

    def start_receive(self, tensor: Tensor, source: int, tag: int) -> Operation:
        """Start receiving into `tensor`, which has its content once the operation has been waited for."""
        ...

    def start_all_reduce(self, tensor: Tensor, holders: tuple[int, ...]) -> Operation:
        """Start summing `tensor` over `holders`, two or more, in place."""
        ...

    def abort(self) -> int:
        """End every blocked operation, from any thread and any number of times; returns how many connections ended."""
        ...

    def close(self) -> None:
        """Release everything. Afterwards nothing writes to the tensors of operations that were not waited for."""
        ...


class Staged:
    """Moves tensors by way of copies in host memory, which `carrier` moves.

    gloo's collectives take CUDA tensors, its messages do not (torch 2.13): both are staged alike. A copy from a GPU is
    waited for before gloo gets it, a copy to a GPU is only queued: what is asked of the device later comes after it.
    """

    def __init__(self, carrier: Transport) -> None:
        self._carrier = carrier

    def send(self, tensor: Tensor, destination: int, tag: int) -> Operation:
        """Start sending the present content of `tensor`."""
        return self._carrier.send(_to_host(tensor), destination, tag)

    def start_receive(self, tensor: Tensor, source: int, tag: int) -> Operation:
        """Start receiving; `tensor` changes when the operation is waited for."""
        host = _buffer_for(tensor)
        return _then_copy(self._carrier.start_receive(host, source, tag), host, tensor)

    def start_all_reduce(self, tensor: Tensor, holders: tuple[int, ...]) -> Operation:
        """Start summing the present content of `tensor`; it changes when the operation is waited for."""
        host = _to_host(tensor)
        return _then_copy(self._carrier.start_all_reduce(host, holders), host, tensor)

    def abort(self) -> int:
        """Does nothing: the owner of the carrier aborts its operations."""
        return 0

    def close(self) -> None:
        """Does nothing: this class holds no resources, and writes to a tensor only inside a wait."""


def _buffer_for(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def _to_host(tensor: Tensor) -> Tensor:
    return _buffer_for(tensor).copy_(tensor)


def _then_copy(operation: Operation, host: Tensor, tensor: Tensor) -> Operation:
    def finish() -> None:
        tensor.copy_(host, non_blocking=True)

    return replace(operation, finish=finish)
