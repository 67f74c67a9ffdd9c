"""What a unit's state is worth: whether the optimizer could step with it is known before it does."""

from __future__ import annotations

from math import inf, isfinite, nan

import pytest
import torch
from torch import Tensor

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout, Replica, Span
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.units import UnitState
from mecefo_runtime.step.step_stats import STEP_STATS_SIZE

pytestmark = pytest.mark.unit

JOB = JobConfig(nodes=1, gpus_per_node=1, data_parallel=1, pipeline=1)


def trained_state() -> ModelState:
    layout = Layout(JOB.model.num_layers, (Replica(0, (Span(0, 0, JOB.model.num_layers),), 1),))
    state = ModelState(JOB, layout, 0, {}, STEP_STATS_SIZE)
    state.gradients.normal_(std=1e-3)
    state.apply(1e-3, 1.0)
    return state


def is_suspected(unit: UnitState) -> bool:
    return not isfinite(float(unit.vital_sign()))


def inject(unit: UnitState, where: str, value: float) -> None:
    getattr(unit, where)[1] = value


@pytest.mark.parametrize(
    ("where", "value", "is_seen"),
    [
        ("first_moments", nan, True),
        ("first_moments", inf, True),
        ("first_moments", -inf, True),
        ("second_moments", nan, True),
        ("second_moments", -inf, True),
        # Seen when the next step comes to nothing.
        ("second_moments", -1e-3, False),
        ("step_counts", nan, False),
        ("parameters", nan, False),
        ("parameters", inf, False),
        ("parameters", -inf, False),
    ],
)
def test_state_that_would_spoil_parameters_is_known_before_it_does(where: str, value: float, is_seen: bool) -> None:
    state = trained_state()
    unit = state.units["layer.1"]
    assert not is_suspected(unit) and not unit.is_corrupted()
    inject(unit, where, value)
    assert (is_suspected(unit), unit.is_corrupted()) == (is_seen, True)
    state.apply(1e-3, 1.0)
    assert not bool(unit.parameters.isfinite().all())
    assert all(bool(other.parameters.isfinite().all()) for name, other in state.units.items() if name != "layer.1")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("parameters", 1e30),
        ("first_moments", 1e30),
        ("second_moments", inf),
        ("second_moments", 0.0),
        ("step_counts", 0.0),
    ],
)
def test_state_that_is_merely_wrong_is_not_taken_for_corrupted(where: str, value: float) -> None:
    state = trained_state()
    unit = state.units["layer.1"]
    inject(unit, where, value)
    assert not unit.is_corrupted()
    state.apply(1e-3, 1.0)
    assert bool(unit.parameters.isfinite().all())


@pytest.mark.parametrize("name", ["embedding", "layer.1", "head"])
def test_nothing_is_drawn_for_what_is_to_come(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    drawn = UnitState(name, JOB)

    def refuse(*told: object, **named: object) -> Tensor:
        raise AssertionError("drawn")

    monkeypatch.setattr(Tensor, "normal_", refuse)
    unit = UnitState(name, JOB, is_to_come=True)
    unit.storage.copy_(drawn.storage)
    for mine, other in zip(unit.module.parameters(), drawn.module.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_sum_that_overflows_is_only_a_suspicion() -> None:
    unit = trained_state().units["layer.1"]
    unit.first_moments.fill_(1e38)
    unit.second_moments.fill_(1e10)
    assert is_suspected(unit)
    assert not unit.is_corrupted()
