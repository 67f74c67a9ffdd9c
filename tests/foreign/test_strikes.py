"""Effects on tensors in trainings that are built otherwise than ours: where they strike, and how it shows there."""

import gc

import pytest
import torch
from torch import nn

from chaos.foreign.following import PHASES
from chaos.foreign.subject import ForeignSubject
from chaos.inside.gradients import KeepGradients, StrikeGradients
from chaos.inside.tensors import StrikeOptimizer, StrikeParameters

pytestmark = pytest.mark.unit

SCALE = {"how": "scale", "number": 100.0, "seed": "3/0"}


class Prefixed(nn.Module):
    """A parameter of the outermost module itself, as a class token."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 4))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(x + self.token)


class Attending(nn.Module):
    """torch computes with the parameters of the attention's parts without calling them."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.fixture(autouse=True)
def nothing_of_other_tests():
    gc.collect()


def struck(kind, arguments, compute, optimizer, *, phase="forward", steps=4):
    """What the effect reports that is begun at (2, phase); `compute(inputs)` is the model, called or not."""
    reports = []
    effect = kind(arguments, ForeignSubject(lambda: [optimizer]), reports.append)
    torch.manual_seed(0)
    for step in range(1, steps + 1):
        for name in PHASES[:5]:
            if (step, name) == (2, phase):
                effect.begin(step, name)
            elif (step, PHASES.index(name)) > (2, PHASES.index(phase)):
                effect.announced(step, name)
            if name == "forward":
                optimizer.zero_grad()
                loss = compute(torch.randn(2, 3, 4)).square().mean()
            elif name == "backward":
                loss.backward()
            elif name == "optimizer":
                optimizer.step()
    effect.lift()
    (told,) = reports
    return told


@pytest.mark.parametrize("kind", [StrikeGradients, KeepGradients, StrikeOptimizer, StrikeParameters])
@pytest.mark.parametrize("create", [torch.optim.Adam, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_a_model_that_is_a_single_module(kind, create):
    model = nn.Linear(4, 1)
    told = struck(kind, SCALE, model, create(model.parameters()))
    assert told["outcome"] == "consumed", told
    assert told["struck"]["tensor"].split(".")[0] in ("weight", "bias")


@pytest.mark.parametrize("kind", [StrikeGradients, StrikeOptimizer, StrikeParameters])
def test_a_parameter_of_the_outermost_module_itself(kind):
    model = Prefixed()
    told = struck(kind, {**SCALE, "tensor": "token*"}, model, torch.optim.Adam(model.parameters()))
    assert told["outcome"] == "consumed", told


@pytest.mark.parametrize("kind", [StrikeGradients, StrikeOptimizer])
def test_a_parameter_of_no_module(kind):
    weight = torch.ones(4, requires_grad=True)
    told = struck(kind, SCALE, lambda x: x @ weight, torch.optim.Adam([weight]))
    assert (told["outcome"], told["struck"]["tensor"].partition(".")[0]) == ("consumed", "parameter_0"), told


@pytest.mark.parametrize("name", ["attention.in_proj_weight", "attention.out_proj.weight"])
@pytest.mark.parametrize("phase", PHASES[:5])
def test_a_parameter_whose_module_is_not_called_shows_in_its_gradient(name, phase):
    model = Attending()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = struck(StrikeParameters, {**SCALE, "tensor": name}, model, optimizer, phase=phase)
    assert (told["outcome"], told["receiver"].partition(":")[0]) == ("consumed", "its gradient is not zero"), told


def test_a_gradient_of_before_the_strike_shows_nothing():
    model = Attending()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = {**SCALE, "tensor": "attention.out_proj.weight"}
    with pytest.raises(ValueError, match="not enough values"):
        struck(StrikeParameters, arguments, model, optimizer, phase="backward", steps=2)
