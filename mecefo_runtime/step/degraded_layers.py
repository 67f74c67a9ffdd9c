"""The approximated layers of an epoch: which they are, and how the gradients of all replicas become one mean.

A degraded layer gives no gradient to its attention, so the mean of that is over N(l), the replicas whose layer l is not
degraded (arXiv 2510.16415, section 3). Every holder reduces a plain sum, weighted by samples, to which degraded ones
contribute zeros; what makes it the mean over N(l) is a factor. With `average_rest`, likewise for what technique III
cuts off the feed-forward gradients, over the replicas whose layer l is neither degraded nor projected; then all holders
agree on the bases, to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from mecefo_runtime.job.background import Background
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout, Span, layer_unit
from mecefo_runtime.model.approximate import Recompute, bases, degrade, is_degraded, refresh, restore
from mecefo_runtime.model.low_rank import Bases, compute_bases, correct_, projections
from mecefo_runtime.state.model_state import ModelState


@dataclass(frozen=True, slots=True)
class ExactShare:
    """How much of one unit's gradients all replicas compute exactly; its attention's are elements `first` to `end`.

    `attention_scale` is samples of all replicas over those of N(l), None when all replicas degrade the layer;
    `rest_scale` likewise over those of the replicas that neither degrade nor project it.
    """

    first: int
    end: int
    attention_scale: float | None
    rest_scale: float | None


class DegradedLayers:
    """One rank's part in them, under one layout. To be made when the weights are in place."""

    def __init__(
        self, layout: Layout, rank: int, state: ModelState, job: JobConfig, background: Background | None = None
    ) -> None:
        self._state = state
        self._config, self._seed = job.approximation, job.seed
        place = layout.find(rank)
        self._span = Span(rank, 0, 0) if place is None else place[0].spans[place[1]]
        self._shares = {
            layer_unit(layer): share
            for layer in range(layout.num_layers)
            if layer_unit(layer) in state.units and (share := _exact_share(layer, layout, state)) is not None
        }
        for name, share in self._shares.items():
            if share.attention_scale is None:
                state.optimizer.leave_out(name, [part for part in state.units[name].slices if part.is_attention])
        self._degrade()
        self.bases: dict[str, Bases] = {}
        if self._config.average_rest:
            # What is on its way has no weights yet to compute bases from.
            shadowed = {shadow.unit for shadow in (background or Background()).shadows}
            names = [name for name, share in self._shares.items() if share.rest_scale and name not in shadowed]
            self.bases = {name: self._bases_of(name) for name in names}

    def _degrade(self) -> None:
        span = self._span
        for layer in span.layers:
            block = self._state.units[layer_unit(layer)].module
            if layer not in self._approximated or self._config.average_rest:
                # All holders of a layer begin anew together.
                restore(block)
            if layer not in self._approximated:
                continue
            recompute: Recompute = layer in span.recomputed
            if recompute and span.recomputes_fully:
                recompute = "full"
            skips = layer in span.degraded
            degrade(block, self._config, recompute=recompute, skip_attention=skips, seed=self._seed)

    @property
    def _approximated(self) -> frozenset[int]:
        return self._span.degraded | self._span.projected

    @property
    def num_refreshed(self) -> int:
        """For how many layers `refresh` computes bases."""
        return len({layer_unit(layer) for layer in self._approximated} | set(self.bases))

    def refresh(self) -> None:
        """Follow the weights, which have turned since the bases were computed; all holders do so in the same steps."""
        for layer in self._approximated:
            refresh(self._state.units[layer_unit(layer)].module)
        self.bases = {name: self._bases_of(name, previous) for name, previous in self.bases.items()}

    def _bases_of(self, name: str, previous: Bases | None = None) -> Bases:
        block = self._state.units[name].module
        return bases(block) if is_degraded(block) else compute_bases(block, self._config, self._seed, previous)

    def sums_to_means(self) -> None:
        """Scale the reduced gradients: of sums over the replicas that computed them exactly, N(l), to their means."""
        for share in self._shares.values():
            if share.attention_scale != 1:
                self._state.gradients[share.first : share.end].mul_(share.attention_scale or 0.0)
        for name, its_bases in self.bases.items():
            scale = self._shares[name].rest_scale
            assert scale is not None
            for projection in projections(self._state.units[name].module, its_bases):
                assert projection.weight.grad is not None
                correct_(projection.weight.grad, projection.basis, scale, projection.side)


def _exact_share(layer: int, layout: Layout, state: ModelState) -> ExactShare | None:
    """None when nobody degrades or projects the layer: then a plain sum is the mean."""
    num_exact = num_attended = 0
    for replica in layout.replicas:
        for span in replica.spans:
            if layer in span.layers and layer not in span.degraded:
                num_attended += replica.num_microbatches
                num_exact += replica.num_microbatches * (layer not in span.projected)
    if num_exact == layout.num_microbatches:
        return None
    name = layer_unit(layer)
    attention = [part for part in state.units[name].slices if part.is_attention]
    offset = state.offsets[name]
    scales = (layout.num_microbatches / number if number else None for number in (num_attended, num_exact))
    return ExactShare(offset + attention[0].first, offset + attention[-1].end, *scales)
