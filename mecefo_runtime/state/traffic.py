"""What moves between ranks that keep the time of a device: messages say when they were sent, or when they are due.

Without links of known speed a message takes what it was rated at; or, where the link between two ranks has become
slower than that, what their messages take at least. What its sender was late by is not added, and what a busy machine
adds is lateness, too: a pacer makes up for as much as a segment takes, and what is more shows.
On a link of known speed it is there no sooner than such a link would have brought it: what its receiver does with it
begins then, and all that time it may be under way in fact, and others with it. So the processes of a job must share a
clock: `time.monotonic` of one machine.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import Operation
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import EMBEDDING, HEAD
from mecefo_runtime.prediction.rated_link import RatedLink
from mecefo_runtime.system.dilation import MAX_CARRIED_SECONDS, Steady

# What computes with a message may begin so much before it is due: it ends when it should all the same.
MAX_EARLY_SECONDS = 0.02
# Two times, in the place of so many numbers of an activation: when it is due, or was sent, by the sender's device; and
# when it was sent by the clock.
_HEADER_VALUES = 4
_NUM_RECENT_MESSAGES = 8
# Of a unit's state these are parameters and both moments, which move, and gradients, which are reduced.
_MOVED_SHARE, _REDUCED_SHARE = 3 / 4, 1 / 4


class Traffic:
    """What one rank sends and receives: in the time of its links, where it has such, or as long as it takes.

    Of a rank that emulates another device, bytes are those of that device. With `keeps_time` messages carry times.
    """

    def __init__(
        self,
        link: RatedLink | None = None,
        *,
        keeps_time: bool = False,
        message_bytes: int | None = None,
        device_costs: Costs | None = None,
    ) -> None:
        self.link = link
        self._keeps_time = keeps_time or link is not None
        self._message_bytes = message_bytes
        self._device_costs = device_costs
        # Where there are no links of known speed: how long a message is under way at least, and really, by its sender.
        self.message_seconds: float | None = None
        self._transits: dict[int, Steady] = defaultdict(lambda: Steady(_NUM_RECENT_MESSAGES))

    @classmethod
    def of(cls, job: JobConfig, rank: int) -> Traffic:
        """That of a rank of `job`."""
        link = None if job.links is None else RatedLink(job.links, rank, job.gpus_per_node)
        if job.emulation is None:
            return cls(link, keeps_time=job.is_rated)
        return cls(link, keeps_time=job.is_rated, message_bytes=job.emulation.message_bytes, device_costs=job.ratings)

    @property
    def is_emulated(self) -> bool:
        """Whether the bytes are those of another device."""
        return self._device_costs is not None

    # ---- activations, and their gradients ----

    def send(
        self, groups: Groups, tensor: Tensor, destination: int, tag: int, now_seconds: float
    ) -> tuple[Operation, Tensor]:
        """Start sending an activation; what it returns beside must live until the operation is done."""
        if not self._keeps_time:
            return groups.send(tensor, destination, tag), tensor
        due_seconds = now_seconds
        if self.link is not None:
            due_seconds = self.link.post(self._message_bytes or tensor.nbytes, destination, "message", now_seconds)
        packed = torch.empty(_HEADER_VALUES + tensor.numel(), dtype=torch.float32)
        packed[:_HEADER_VALUES].view(torch.float64).copy_(
            torch.tensor([due_seconds, time.monotonic()], dtype=torch.float64)
        )
        packed[_HEADER_VALUES:].copy_(tensor.flatten())
        return groups.send(packed, destination, tag), packed

    def receive(self, groups: Groups, into: Tensor, source: int, tag: int, now_seconds: float) -> float:
        """Receive an activation, waiting for it; returns when it is there, on a device where it is `now_seconds` now.

        0.0 where messages carry no times. On a link of known speed it may be here a little earlier, so that what is
        done with it then has begun when it counts.
        """
        if not self._keeps_time:
            groups.receive(into, source, tag)
            return 0.0
        began_seconds = time.monotonic()
        packed = torch.empty(_HEADER_VALUES + into.numel(), dtype=torch.float32)
        groups.receive(packed, source, tag)
        due_seconds, sent_seconds = packed[:_HEADER_VALUES].view(torch.float64).tolist()
        into.copy_(packed[_HEADER_VALUES:].view(into.shape))
        # It was under way for as long as it was waited for when it had been sent.
        waited_seconds = max(0.0, time.monotonic() - max(began_seconds, sent_seconds))
        steady = self._transits[source]
        if sent_seconds >= began_seconds:
            steady.add(waited_seconds)
        if self.link is None:
            if self.message_seconds is not None:
                return float(due_seconds + max(self.message_seconds, steady.seconds))
            return float(max(due_seconds, now_seconds) + waited_seconds)
        num_bytes = self._message_bytes or into.nbytes
        here_seconds = self.link.arrive(num_bytes, source, "message", due_seconds)
        # What makes the real link slower than that shows, but for the moments that a busy machine takes.
        slower_seconds = steady.seconds - MAX_CARRIED_SECONDS - self.link.message_seconds(num_bytes, source)
        here_seconds = float(max(here_seconds, due_seconds + slower_seconds))
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

    def moved_bytes(self, unit: str, actual_bytes: int, num_shares: int = 1) -> int:
        """Bytes of one of `num_shares` of a unit's parameters and moments, which are `actual_bytes` here."""
        costs = self._device_costs
        return actual_bytes if costs is None else round(_MOVED_SHARE * _state_bytes(unit, costs) / num_shares)

    def post_state(self, unit: str, actual_bytes: int, destination: int, num_shares: int = 1) -> float:
        """When a share of a unit that is sent now is there; 0.0 where nobody waits for links."""
        if self.link is None:
            return 0.0
        moved_bytes = self.moved_bytes(unit, actual_bytes, num_shares)
        return self.link.post(moved_bytes, destination, "state", time.monotonic())

    def state_arrives(self, unit: str, actual_bytes: int, source: int, num_shares: int, due_seconds: float) -> float:
        """When a share of a unit is here that its sender says is due then."""
        if self.link is None:
            return 0.0
        return self.link.arrive(self.moved_bytes(unit, actual_bytes, num_shares), source, "state", due_seconds)

    def transfer_bytes_per_second(self, measured: float) -> float:
        """How fast state moves where it moves so fast without regard to links."""
        return measured if self.link is None else min(measured, self.link.slowest_bytes_per_second)

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
