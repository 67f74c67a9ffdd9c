"""Which of a rank's layers run approximated under a layout, and on which bases all holders of a layer agree."""

from __future__ import annotations

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout, Span, layer_unit
from mecefo_runtime.model.approximate import bases, degrade, is_degraded, refresh, restore, set_recompute
from mecefo_runtime.model.low_rank import compute_bases
from mecefo_runtime.state.model_state import ModelState


def degrade_layers(layout: Layout, rank: int, state: ModelState, job: JobConfig) -> None:
    """Let the layers of `rank` run as `layout` says, now that their weights are in place.

    With `average_rest` every holder of a layer that some replica degrades gets the same bases, whether it degrades the
    layer itself or not: all begin anew together.
    """
    config, seed = job.approximation, job.seed
    span = _span(layout, rank)
    for layer in span.layers:
        block = state.units[layer_unit(layer)].module
        if layer not in span.degraded or config.average_rest:
            restore(block)
        if layer not in span.degraded:
            continue
        if is_degraded(block):
            set_recompute(block, layer in span.recomputed)
        else:
            degrade(block, config, recompute=layer in span.recomputed, seed=seed)
    for name in state.rest_units if config.average_rest else ():
        block = state.units[name].module
        state.bases[name] = bases(block) if is_degraded(block) else compute_bases(block, config, seed)


def refresh_bases(layout: Layout, rank: int, state: ModelState, job: JobConfig) -> None:
    """Follow the weights, which have turned since the bases were computed; all holders do so in the same steps."""
    for layer in _span(layout, rank).degraded:
        refresh(state.units[layer_unit(layer)].module)
    for name, previous in state.bases.items():
        block = state.units[name].module
        new = bases(block) if is_degraded(block) else compute_bases(block, job.approximation, job.seed, previous)
        state.bases[name] = new


def _span(layout: Layout, rank: int) -> Span:
    """What `rank` holds; nothing for an idle rank."""
    place = layout.find(rank)
    return Span(rank, 0, 0) if place is None else place[0].spans[place[1]]
