"""Links of known speed: what moves between ranks is there no sooner than a link of that speed would have brought it.

Whoever posts a message says in it when it is due, and what its receiver does with it begins then; all that time it may
be under way in fact, and others with it. So the processes of a job must share a clock: `time.monotonic` of one machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch import Tensor

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import Operation
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import EMBEDDING, HEAD
from mecefo_runtime.job.rated_link import RatedLink

# What computes with a message may begin so much before it is due: it ends when it should all the same.
MAX_EARLY_SECONDS = 0.02
# A time of day, in the place of so many numbers of an activation.
_HEADER_VALUES = 2
# Of a unit's state these are parameters and both moments, which move, and gradients, which are reduced.
_MOVED_SHARE, _REDUCED_SHARE = 3 / 4, 1 / 4


class Traffic:
    """What one rank sends and receives: in the time of its links, where it has such, or as long as it takes.

    Of a rank that emulates another device, bytes are those of that device.
    """

    def __init__(
        self,
        link: RatedLink | None = None,
        *,
        message_bytes: int | None = None,
        device_costs: Costs | None = None,
    ) -> None:
        self.link = link
        self._message_bytes = message_bytes
        self._device_costs = device_costs

    @classmethod
    def of(cls, job: JobConfig, rank: int) -> Traffic:
        """That of a rank of `job`."""
        link = None if job.links is None else RatedLink(job.links, rank, job.gpus_per_node)
        if job.emulation is None:
            return cls(link)
        return cls(link, message_bytes=job.emulation.message_bytes, device_costs=job.ratings)

    @property
    def is_emulated(self) -> bool:
        """Whether the bytes are those of another device."""
        return self._device_costs is not None

    @property
    def begin_seconds(self) -> float | None:
        """What waits for nothing could begin at any time; None where nobody waits for links."""
        return None if self.link is None else 0.0

    # ---- activations, and their gradients ----

    def send(
        self, groups: Groups, tensor: Tensor, destination: int, tag: int, now_seconds: float
    ) -> tuple[Operation, Tensor]:
        """Start sending an activation; what it returns beside must live until the operation is done."""
        if self.link is None:
            return groups.send(tensor, destination, tag), tensor
        num_bytes = self._message_bytes or tensor.nbytes
        due_seconds = self.link.post(num_bytes, destination, "message", now_seconds)
        packed = torch.empty(_HEADER_VALUES + tensor.numel(), dtype=torch.float32)
        packed[:_HEADER_VALUES].view(torch.float64)[0] = due_seconds
        packed[_HEADER_VALUES:].copy_(tensor.flatten())
        return groups.send(packed, destination, tag), packed

    def receive(self, groups: Groups, into: Tensor, source: int, tag: int) -> float | None:
        """Receive an activation, waiting for it; returns when it was due, None where nobody waits for links.

        It may be here a little earlier, so that what is done with it then has begun when it counts.
        """
        if self.link is None:
            groups.receive(into, source, tag)
            return None
        packed = torch.empty(_HEADER_VALUES + into.numel(), dtype=torch.float32)
        groups.receive(packed, source, tag)
        due_seconds = float(packed[:_HEADER_VALUES].view(torch.float64)[0])
        into.copy_(packed[_HEADER_VALUES:].view(into.shape))
        here_seconds = self.link.arrive(self._message_bytes or into.nbytes, source, "message", due_seconds)
        self.wait(groups, here_seconds, early_seconds=MAX_EARLY_SECONDS)
        return here_seconds

    # ---- gradients of parameters ----

    def reduce(self, units: Iterable[str], actual_bytes: int, holders: tuple[int, ...], now_seconds: float) -> float:
        """When an all-reduce of the gradients of `units` is over that begins now; 0.0 where nobody waits for links."""
        if self.link is None or len(holders) == 1:
            return 0.0
        costs = self._device_costs
        num_bytes = actual_bytes if costs is None else _REDUCED_SHARE * sum(_state_bytes(unit, costs) for unit in units)
        return self.link.reduce(num_bytes, holders, now_seconds)

    # ---- state ----

    def moved_bytes(self, unit: str, actual_bytes: int) -> int:
        """Bytes of a unit's parameters and moments, which are `actual_bytes` here."""
        costs = self._device_costs
        return actual_bytes if costs is None else round(_MOVED_SHARE * _state_bytes(unit, costs))

    def post_state(self, unit: str, actual_bytes: int, destination: int) -> float:
        """When a unit that is sent now is there; 0.0 where nobody waits for links."""
        if self.link is None:
            return 0.0
        return self.link.post(self.moved_bytes(unit, actual_bytes), destination, "state", time.monotonic())

    def state_arrives(self, unit: str, actual_bytes: int, source: int, due_seconds: float) -> float:
        """When a unit is here that its sender says is due then."""
        if self.link is None:
            return 0.0
        return self.link.arrive(self.moved_bytes(unit, actual_bytes), source, "state", due_seconds)

    def transfer_bytes_per_second(self, measured: float) -> float:
        """How fast state moves where it moves so fast without regard to links."""
        return measured if self.link is None else min(measured, self.link.slowest_bytes_per_second)

    def account(self) -> dict[str, float]:
        """What the event `rank_finished` says of it; nothing without links of known speed."""
        if self.link is None:
            return {}
        return {"link_seconds": self.link.rated_seconds, "link_waited_seconds": self.link.waited_seconds}

    def wait(self, groups: Groups, until_seconds: float, early_seconds: float = 0.0) -> None:
        """Wait until then, or until so much earlier, which counts as waiting, too.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: the epoch was aborted meanwhile.
        """
        if self.link is None:
            return
        remaining_seconds = until_seconds - time.monotonic()
        if remaining_seconds > 0:
            self.link.waited_seconds += remaining_seconds
            groups.wait_until(until_seconds - early_seconds)


FREE = Traffic()
"""That of ranks whose links are nobody's but their own."""


def _state_bytes(unit: str, costs: Costs) -> int:
    return {EMBEDDING: costs.embedding_state_bytes, HEAD: costs.head_state_bytes}.get(unit, costs.layer_state_bytes)
