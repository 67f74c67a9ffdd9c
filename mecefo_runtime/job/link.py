"""How long what moves between two ranks takes on a link of known bandwidth and latency."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a rank's link.

    Raises:
        ValueError: a figure is not finite, or not positive; the latency may be 0.
    """

    bandwidth_bytes_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth_bytes_per_second) and self.bandwidth_bytes_per_second > 0):
            given = self.bandwidth_bytes_per_second
            raise ValueError(f"bandwidth_bytes_per_second must be positive and finite, not {given}")
        if not (math.isfinite(self.latency_seconds) and self.latency_seconds >= 0):
            raise ValueError(f"latency_seconds must be 0 or more and finite, not {self.latency_seconds}")

    def bytes_seconds(self, num_bytes: float) -> float:
        """How long `num_bytes` keep the link busy: without the latency."""
        return num_bytes / self.bandwidth_bytes_per_second

    def message_seconds(self, num_bytes: float) -> float:
        """From when a message is posted until it is there."""
        return self.latency_seconds + self.bytes_seconds(num_bytes)

    def all_reduce_seconds(self, num_bytes: float, num_ranks: int) -> float:
        """A ring's sum of `num_bytes` over `num_ranks`: each sends 2(k - 1) messages of a k-th.

        Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
        """
        if num_ranks < 2:
            return 0.0
        return 2 * (num_ranks - 1) * self.message_seconds(num_bytes / num_ranks)

    def scaled(self, ratio: float) -> Link:
        """A link on which everything takes `ratio` times as long."""
        return Link(self.bandwidth_bytes_per_second / ratio, self.latency_seconds * ratio)


@dataclass(frozen=True, slots=True)
class Links:
    """What connects the ranks of a cluster: `between_nodes`, and `inside_node`, None where that is the same."""

    between_nodes: Link
    inside_node: Link | None = None

    def of(self, *, is_inside: bool) -> Link:
        """The link of ranks that share a node, or that do not."""
        return self.inside_node if is_inside and self.inside_node is not None else self.between_nodes

    def scaled(self, ratio: float) -> Links:
        """Links on which everything takes `ratio` times as long."""
        inside = None if self.inside_node is None else self.inside_node.scaled(ratio)
        return Links(self.between_nodes.scaled(ratio), inside)
