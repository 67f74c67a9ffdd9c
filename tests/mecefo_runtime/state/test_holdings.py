"""What a rank keeps between two epochs, and how much memory the change takes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from mecefo_runtime.job.background import Background, ShadowUnit
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout, Replica, Span
from mecefo_runtime.job.share import Share
from mecefo_runtime.state.holdings import Holdings
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.units import CPU
from mecefo_runtime.step.step_stats import STEP_STATS_SIZE

pytestmark = pytest.mark.unit

JOB = JobConfig()
NOBODY = Background()
FLOAT_BYTES = 4


def layout_of(*bounds: int) -> Layout:
    """One replica whose rank r holds the layers from bounds[r] up to without bounds[r + 1]."""
    spans = tuple(Span(rank, bounds[rank], bounds[rank + 1]) for rank in range(len(bounds) - 1))
    return Layout(4, (Replica(0, spans, 6),))


HALF, WHOLE, LAST = layout_of(0, 2, 4), layout_of(0, 4), layout_of(0, 1, 4)


def build(holdings: Holdings, layout: Layout, **changed: Any) -> tuple[ModelState, dict]:
    told = {"background": NOBODY, "distrusted": (), "incoming": (), "stats_size": STEP_STATS_SIZE, "restores": False}
    return holdings.build(layout, **{**told, **changed})


def names(held: Collection[tuple[str, Share]]) -> set[str]:
    return {name for name, _ in held}


def begin(layout: Layout, rank: int = 0) -> Holdings:
    """The rank has computed a step: its gradients are there, and so is what the optimizer makes of them."""
    holdings = Holdings(JOB, rank, CPU)
    state, held = build(holdings, layout)
    holdings.adopt(state, NOBODY, held, restored=False)
    state.gradients.normal_(std=1e-3)
    state.apply(1e-3, 1.0)
    return holdings


def alive_bytes() -> int:
    """All storages that any tensor still has."""
    tensors = [thing for thing in gc.get_objects() if type(thing) in (Tensor, torch.nn.Parameter)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def alive_before() -> int:
    """The same for what there is before a test; it is left out of later collections, of which there are many."""
    gc.collect()
    gc.freeze()
    return alive_bytes()


def peak_bytes(monkeypatch: pytest.MonkeyPatch, holdings: Holdings, layout: Layout, **changed: Any) -> int:
    """The most that was alive in any moment at which `build` had just asked for memory, above what else there is."""
    seen = [0]

    def note(make: Callable[..., Tensor], *told: Any, **named: Any) -> Tensor:
        new = make(*told, **named)
        gc.collect()
        seen.append(alive_bytes())
        return new

    with monkeypatch.context() as patched:
        for name in ("zeros", "empty"):
            patched.setattr(torch, name, partial(note, getattr(torch, name)))
        build(holdings, layout, **changed)
    return max(seen)


def parameters_of(holdings: Holdings) -> int:
    return sum(unit.num_parameters for unit in holdings.units(()).values())


def test_the_old_gradients_are_gone_before_the_new_ones_are_made(monkeypatch):
    others = alive_before()
    holdings = begin(HALF)
    kept = parameters_of(holdings)
    peak = peak_bytes(monkeypatch, holdings, WHOLE, incoming=("layer.2", "layer.3", "head")) - others
    whole = sum(unit.num_parameters for unit in begin(WHOLE).units(()).values())
    # Parameters and two moments of all units, gradients twice (own, reduced), and a module that is about to move in.
    steady = 5 * FLOAT_BYTES * whole
    assert peak < steady + FLOAT_BYTES * kept / 2, "the gradients from before were alive too"


def test_what_a_rank_does_not_trust_makes_room_first(monkeypatch):
    others = alive_before()
    holdings = begin(HALF)
    everything = tuple(holdings.units(()))
    steady = 4 * FLOAT_BYTES * parameters_of(holdings)
    peak = peak_bytes(monkeypatch, holdings, HALF, distrusted=everything, incoming=everything) - others
    assert peak < 1.3 * steady


def test_a_state_that_somebody_still_knows_keeps_nothing_alive(monkeypatch):
    """Hooks keep what they were shown in the last epoch until they are shown the next one."""
    others = alive_before()
    holdings = begin(HALF)
    known = holdings.state
    holdings.clear()
    gc.collect()
    assert alive_bytes() == others
    assert not known.units


def test_a_regroup_that_fails_loses_nothing():
    holdings = begin(HALF)
    before = {name: unit.checksum() for name, unit in holdings.units(()).items()}
    state, held = build(holdings, LAST, incoming=("layer.0",))
    assert names(held) == {"embedding", "layer.1"}
    state.units["layer.0"].storage.fill_(7.0)
    del state, held
    assert {name: unit.checksum() for name, unit in holdings.units(()).items()} == before
    state, held = build(holdings, WHOLE, incoming=("layer.2", "layer.3", "head"))
    assert {name: unit.checksum() for (name, _), unit in held.items()} == before
    assert not any(state.gradients.tolist())


def test_what_is_given_away_counts_until_a_step_is_committed():
    holdings = begin(HALF)
    state, held = build(holdings, LAST)
    assert names(held) == {"embedding", "layer.0", "layer.1"}
    holdings.adopt(state, NOBODY, held, restored=False)
    assert set(holdings.units(())) == {"embedding", "layer.0"} and names(holdings.given_away(())) == {"layer.1"}
    assert not holdings.given_away(("layer.1",))
    holdings.commit()
    assert names(holdings.trusted(())) == {"embedding", "layer.0"}


def test_after_a_restore_nothing_of_the_time_before_counts():
    """What a rank gave away is of a later step than what was loaded: nobody may be sent it."""
    holdings = begin(HALF)
    state, held = build(holdings, LAST, restores=True)
    assert not holdings.trusted(()), "half-way through, all of it may be overwritten"
    assert names(held) == {"embedding", "layer.0"}, "its memory is used again"
    holdings.adopt(state, NOBODY, held, restored=True)
    assert names(holdings.trusted(())) == {"embedding", "layer.0"}


def test_nothing_is_drawn_for_units_that_come_from_elsewhere(monkeypatch):
    holdings = begin(layout_of(0, 1, 4))
    background = Background((ShadowUnit("layer.2", 0, 5, 1), ShadowUnit("layer.1", 0, 5, 1)))

    def refuse(*told: object, **named: object) -> Tensor:
        raise AssertionError("drawn")

    monkeypatch.setattr(Tensor, "normal_", refuse)
    build(holdings, HALF, incoming=("layer.1",), background=Background(background.shadows[:1]))
    build(holdings, LAST, background=background)
    build(Holdings(JOB, 0, CPU), WHOLE, restores=True)
    with pytest.raises(AssertionError, match="drawn"):
        build(Holdings(JOB, 0, CPU), WHOLE)


def test_what_is_fetched_counts_when_it_has_come():
    holdings = begin(HALF)
    background = Background((ShadowUnit("layer.2", 0, 5, 1), ShadowUnit("layer.3", 0, 6, 1)))
    state, held = build(holdings, HALF, background=background)
    holdings.adopt(state, background, held, restored=False)
    own = {"embedding", "layer.0", "layer.1"}
    assert set(holdings.units(())) == own
    assert set(holdings.units((), {"layer.2"})) == own | {"layer.2"}
    holdings.receive({"layer.2"})
    assert names(holdings.trusted(())) == own | {"layer.2"}
