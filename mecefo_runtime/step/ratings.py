"""How long the device takes for each compute segment of a rank in an epoch, by the costs that all ranks agreed on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import EMBEDDING, HEAD, Layout
from mecefo_runtime.job.share import Share
from mecefo_runtime.prediction.step_time import commit_seconds


class Ratings:
    """Seconds of the segments of `rank` in `layout`; None for all of them where `costs` is None.

    `reduces_by_link`: see `commit_seconds` in `mecefo_runtime.prediction.step_time`.
    """

    def __init__(self, costs: Costs | None, layout: Layout, rank: int, *, reduces_by_link: bool = False) -> None:
        self._costs = costs
        self.commit_seconds = None if costs is None else commit_seconds(layout, costs, reduces_by_link=reduces_by_link)
        self.message_seconds = None if costs is None else costs.message_seconds
        self.forward_seconds: float | None = None
        self.backward_seconds: float | None = None
        place = layout.find(rank)
        if costs is None or place is None:
            return
        span = place[0].spans[place[1]]
        num_degraded, num_recomputed = len(span.degraded), len(span.recomputed)
        num_exact = len(span.layers) - num_degraded
        recomputed_backward_seconds = costs.recomputed_backward_seconds
        if span.recomputes_fully:
            recomputed_backward_seconds = costs.fully_recomputed_backward_seconds
        has_embedding, has_head = span.first == 0, span.end == layout.num_layers
        self.forward_seconds = (
            num_exact * costs.layer_forward_seconds
            + num_degraded * costs.degraded_forward_seconds
            + has_embedding * costs.embedding_forward_seconds
            + has_head * costs.head_forward_seconds
        )
        self.backward_seconds = (
            num_exact * costs.layer_backward_seconds
            + (num_degraded - num_recomputed) * costs.degraded_backward_seconds
            + num_recomputed * recomputed_backward_seconds
            - len(span.projected) * costs.projected_saved_seconds
            + has_embedding * costs.embedding_backward_seconds
            + has_head * costs.head_backward_seconds
        )

    def update_seconds(self, units: Mapping[str, Share]) -> float | None:
        """The optimizer's step on those shares of `units`; of embedding and head as of a layer, by their bytes."""
        if self._costs is None:
            return None
        num_layers = sum(self.in_layers([unit], self._costs) / share.of for unit, share in units.items())
        return self._costs.layer_update_seconds * num_layers

    def gather_seconds(self, holders: Mapping[str, Collection[int]]) -> float | None:
        """Getting from the other `holders` of each unit what they have updated: half of what an all-reduce moves."""
        if self._costs is None or self._costs.layer_reduction_seconds is None:
            return None
        units = [unit for unit, ranks in holders.items() if len(ranks) > 1]
        return self._costs.layer_reduction_seconds / 2 * self.in_layers(units, self._costs)

    def checksum_seconds(self, units: Iterable[str]) -> float | None:
        """A checksum over each of `units`."""
        return None if self._costs is None else self._costs.layer_checksum_seconds * self.in_layers(units, self._costs)

    def refresh_seconds(self, num_layers: int) -> float | None:
        """New bases for so many degraded layers."""
        return None if self._costs is None else self._costs.refresh_seconds * num_layers

    @staticmethod
    def in_layers(units: Iterable[str], costs: Costs) -> float:
        """How many layers have as many bytes as `units`."""
        ends = {EMBEDDING: costs.embedding_state_bytes, HEAD: costs.head_state_bytes}
        return sum(ends[unit] / costs.layer_state_bytes if unit in ends else 1.0 for unit in units)
