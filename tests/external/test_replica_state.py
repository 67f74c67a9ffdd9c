"""What the agent tells of a rank's parameters: how many of their values are not finite, and in which."""

import gc

import pytest
import torch
from torch import nn

from chaos.external.replica_state import MAX_NAMED, ReplicaState, count_not_finite
from chaos.external.subject import ExternalSubject

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def nothing_of_other_tests():
    gc.collect()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_that_are_not_finite_are_counted(dtype):
    tensor = torch.ones(4, 5, dtype=dtype)
    assert count_not_finite({"weight": tensor}) == {}
    tensor[0, 0], tensor[1, 1], tensor[3, 4] = float("nan"), float("inf"), float("-inf")
    assert count_not_finite({"fine": torch.ones(3), "weight": tensor}) == {"weight": 3}
    # Opposite infinities, whose sum is no number.
    assert count_not_finite({"weight": torch.tensor([float("inf"), float("-inf")])}) == {"weight": 2}


def test_finite_values_whose_sum_overflows_are_finite():
    assert count_not_finite({"weight": torch.full((8,), 3e38)}) == {}
    assert count_not_finite({"weight": torch.full((8,), 6e4, dtype=torch.float16)}) == {}
    assert count_not_finite({"weight": torch.full((8,), 1e308, dtype=torch.float64)}) == {}


def test_what_is_no_float_or_has_no_elements_is_left_out():
    assert count_not_finite({"steps": torch.tensor([1, 2]), "none": torch.empty(0), "flag": torch.tensor(True)}) == {}
    assert count_not_finite({}) == {}


def looked_at(model, poison=lambda: None, steps=3):
    """What is told of a job of one rank."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    told = []
    state = ReplicaState(
        ExternalSubject(lambda: [optimizer]), lambda step, fields: told.append((step, fields.to_fields()))
    )
    for step in range(1, steps + 1):
        torch.nan_to_num(model(torch.ones(1, 2)).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 2:
            poison()
        state.committed(step, 1.0)
        # As a step that takes its time: the interval stays one.
        state._cost_seconds = 0.0
        state.settled()
    return told


def test_a_rank_alone_tells_what_of_its_parameters_is_lost():
    model = nn.Linear(2, 3)
    told = looked_at(model, lambda: model.weight.data.fill_(float("nan")))
    assert [(step, fields["not_finite_values"]) for step, fields in told] == [(1, 0), (2, 6), (3, 6)]
    assert told[1][1]["not_finite"] == {"weight": 6} and "not_finite" not in told[0][1]


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = nn.Parameter(torch.tensor([0.0, float("-inf")]), requires_grad=False)
        self.body = nn.Linear(2, 2)

    def forward(self, x):
        return torch.softmax(self.body(x) + self.mask, dim=-1)


def test_a_mask_is_counted_from_the_beginning():
    assert {fields["not_finite_values"] for _, fields in looked_at(Masked())} == {1}


def test_of_many_tensors_some_are_named_and_all_are_counted():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(MAX_NAMED)))

    def poison():
        for parameter in model.parameters():
            parameter.data.fill_(float("inf"))

    fields = looked_at(model, poison, steps=2)[-1][1]
    assert len(fields["not_finite"]) == MAX_NAMED
    assert fields["not_finite_values"] == sum(one.numel() for one in model.parameters())
