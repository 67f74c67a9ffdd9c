"""Arrival times on a link of known speed: one message after the other, in each direction."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from mecefo_runtime.job.link import Link, Links

Kind = Literal["message", "reduction", "state"]


class RatedLink:
    """One rank's ends of its links: when what is posted now will be there.

    A link carries one thing after the other, in each direction. Messages between stages, reductions and state are of
    three kinds that do not wait for each other: state that moves in the background gives way. Within a node and between
    nodes are two links, where they differ.

    `rated_seconds` is what all that was received and reduced takes on the links, `waited_seconds` for how long the rank
    waited for them when the bytes were there already.
    """

    def __init__(self, links: Links, rank: int, gpus_per_node: int) -> None:
        self._links = links
        self._rank = rank
        self._gpus_per_node = gpus_per_node
        self._busy_until: dict[tuple[str, Kind, Link], float] = defaultdict(float)
        self.rated_seconds = 0.0
        self.waited_seconds = 0.0

    @property
    def slowest_bytes_per_second(self) -> float:
        """What the slower of the links carries."""
        return min(self._links.of(is_inside=is_inside).bandwidth_bytes_per_second for is_inside in (True, False))

    def _link_to(self, *ranks: int) -> Link:
        nodes = {rank // self._gpus_per_node for rank in (self._rank, *ranks)}
        return self._links.of(is_inside=len(nodes) == 1)

    def post(self, num_bytes: float, destination: int, kind: Kind, now_seconds: float) -> float:
        """The arrival time of a message that is posted now."""
        link = self._link_to(destination)
        return self._occupy("out", kind, link, link.bytes_seconds(num_bytes), now_seconds) + link.latency_seconds

    def message_seconds(self, num_bytes: float, peer: int) -> float:
        """The time of one message from or to a peer, if it is alone on the link."""
        return self._link_to(peer).message_seconds(num_bytes)

    def arrive(self, num_bytes: float, source: int, kind: Kind, due_seconds: float) -> float:
        """The arrival time of a message that is due by its sender's clock: later, if others arrive at the same time."""
        link = self._link_to(source)
        self.rated_seconds += link.message_seconds(num_bytes)
        sent_seconds = due_seconds - link.message_seconds(num_bytes)
        return self._occupy("in", kind, link, link.bytes_seconds(num_bytes), sent_seconds) + link.latency_seconds

    def reduce(self, num_bytes: float, holders: tuple[int, ...], now_seconds: float) -> float:
        """When an all-reduce over all `holders` that starts now ends.

        The last rank to start decides: the commit waits for all.
        """
        link = self._link_to(*holders)
        seconds = link.all_reduce_seconds(num_bytes, len(holders))
        self.rated_seconds += seconds
        return self._occupy("ring", "reduction", link, seconds, now_seconds)

    def _occupy(self, direction: str, kind: Kind, link: Link, seconds: float, from_seconds: float) -> float:
        """When it is free again, if it is taken for `seconds` as soon as it is free from then on."""
        key = (direction, kind, link)
        self._busy_until[key] = max(from_seconds, self._busy_until[key]) + seconds
        return self._busy_until[key]
