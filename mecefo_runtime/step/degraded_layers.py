"""The approximated layers of an epoch: which they are, and how the gradients of all replicas become one mean.

A degraded layer gives no gradient to its attention, so the mean of that is over N(l), the replicas whose layer l is not
degraded (arXiv 2510.16415, section 3). Every holder reduces a plain sum, weighted by samples, to which degraded ones
contribute zeros; what makes it the mean over N(l) is a factor. With `average_rest`, likewise for what technique III
cuts off the feed-forward gradients, over the replicas whose layer l is neither degraded nor projected; then all holders
agree on the bases, to the bit. In a step that is completed, replicas count as what they were when they computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mecefo_runtime.job.background import Background
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.contribution import Completion, Work
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
    """One rank's part in them, under one layout. To be made when the weights are in place.

    `completion`: the first step was begun under another layout, and is completed.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        state: ModelState,
        job: JobConfig,
        background: Background | None = None,
        completion: Completion | None = None,
    ) -> None:
        self._state = state
        self._config, self._seed = job.approximation, job.seed
        place = layout.find(rank)
        self._span = Span(rank, 0, 0) if place is None else place[0].spans[place[1]]
        self._shares = _exact_shares(layout.num_layers, work_of(layout), state)
        self._completed_shares = self._shares
        if completion is not None:
            self._completed_shares = _exact_shares(layout.num_layers, work_of(layout, completion), state)
        self._degrade()
        self.bases: dict[str, Bases] = {}
        if self._config.average_rest:
            # What is on its way has no weights yet to compute bases from.
            shadowed = {shadow.unit for shadow in (background or Background()).shadows}
            shares = [*self._shares.items(), *self._completed_shares.items()]
            names = dict.fromkeys(name for name, share in shares if share.rest_scale and name not in shadowed)
            self.bases = {name: self._bases_of(name) for name in names}

    def _degrade(self) -> None:
        span = self._span
        for layer in span.layers:
            block = self._state.units[layer_unit(layer)].module
            if layer not in self._approximated or self._config.average_rest:
                # All holders of a layer begin again together.
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
        """Recompute the bases from the present weights; all holders do so in the same steps."""
        for layer in self._approximated:
            refresh(self._state.units[layer_unit(layer)].module)
        self.bases = {name: self._bases_of(name, previous) for name, previous in self.bases.items()}

    def _bases_of(self, name: str, previous: Bases | None = None) -> Bases:
        block = self._state.units[name].module
        return bases(block) if is_degraded(block) else compute_bases(block, self._config, self._seed, previous)

    def sums_to_means(self, *, is_completed: bool = False) -> None:
        """Scale the reduced gradients: of sums over the replicas that computed them exactly, N(l), to their means.

        `is_completed`: they are those of the step that was begun under another layout.
        """
        state, shares = self._state, self._completed_shares if is_completed else self._shares
        for share in shares.values():
            if share.attention_scale != 1:
                state.gradients[share.first : share.end].mul_(share.attention_scale or 0.0)
        # What no replica has computed stays as it is, moments included.
        unknown = [name for name, share in shares.items() if share.attention_scale is None]
        state.optimizer.leave_out(
            (name, part) for name in unknown for part in state.units[name].slices if part.is_attention
        )
        for name, its_bases in self.bases.items():
            scale = shares[name].rest_scale if name in shares else 1.0
            if scale is None or scale == 1:
                continue
            for projection in projections(state.units[name].module, its_bases):
                assert projection.weight.grad is not None
                correct_(projection.weight.grad, projection.basis, scale, projection.side)


def work_of(layout: Layout, completion: Completion | None = None) -> tuple[Work, ...]:
    """What the replicas of `layout` compute in a step; in the one of `completion` also what had been computed."""
    if completion is None:
        return tuple(Work(r.replica, tuple(layout.microbatches_of(r.replica)), r.spans) for r in layout.replicas)
    assigned = (Work(r.replica, completion.assigned.get(r.replica, ()), r.spans) for r in layout.replicas)
    return (*completion.kept, *assigned)


def _exact_shares(num_layers: int, work: Sequence[Work], state: ModelState) -> dict[str, ExactShare]:
    """By unit of `state`, for those that somebody degrades or projects: of the others a plain sum is the mean."""
    num_all = sum(len(one.microbatches) for one in work)
    num_attended, num_exact = [0] * num_layers, [0] * num_layers
    for one in work:
        for span in one.spans:
            for layer in span.layers:
                if layer not in span.degraded:
                    num_attended[layer] += len(one.microbatches)
                    num_exact[layer] += len(one.microbatches) * (layer not in span.projected)
    shares: dict[str, ExactShare] = {}
    for layer in range(num_layers):
        name = layer_unit(layer)
        if name in state.units and num_exact[layer] < num_all:
            attention = [part for part in state.units[name].slices if part.is_attention]
            offset = state.offsets[name]
            scales = (num_all / number if number else None for number in (num_attended[layer], num_exact[layer]))
            shares[name] = ExactShare(offset + attention[0].first, offset + attention[-1].end, *scales)
    return shares
