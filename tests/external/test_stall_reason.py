"""What a script makes of a value that went wrong inside it: one that looks at its loss takes no step any more."""

import pytest
import torch
from torch import nn

from chaos.external.stall_reason import StallReason
from chaos.external.step_machine import PHASES
from chaos.external.subject import ExternalSubject
from chaos.in_process.activations import InjectActivations
from chaos.in_process.tensors import InjectParameters
from tests.external.test_injections import Attending

pytestmark = pytest.mark.unit

NAN = {"how": "fill", "number": "nan", "seed": "3/0"}


def fail(error):
    raise error


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


@pytest.fixture
def stall_reason(model):
    watching = StallReason(fail)
    watching.begin(model)
    yield watching
    watching.end()
    assert not model._forward_hooks


def compute(model, stall_reason, *, is_back=True):
    loss = model(torch.ones(2, 4)).square().mean()
    if is_back:
        loss.backward()
        stall_reason.computed_back(loss, [parameter.grad for parameter in model.parameters()])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("is_back", [False, True])
def test_corrupted_passes_without_a_step_were_left_out(model, stall_reason, value, is_back):
    model[2].bias.data.fill_(value)
    for _ in range(5):
        compute(model, stall_reason, is_back=is_back)
    assert stall_reason.num_left_out(1) == 5
    assert stall_reason.num_left_out(5) == 0, "a step may have needed one pass more"


def test_what_only_the_gradients_show(model, stall_reason):
    for _ in range(2):
        loss = model(torch.ones(2, 4)).square().mean()
        stall_reason.computed_back(loss, [torch.tensor([1.0, float("inf")]), None])
    assert stall_reason.num_left_out(1) == 2


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_script_that_takes_no_step_for_another_reason_is_not_taken_for_one(model, stall_reason, value):
    """It computes gradients for something else (their size, say) when it has trained."""
    model[2].bias.data.fill_(value)
    for _ in range(5):
        compute(model, stall_reason)
    assert stall_reason.num_left_out(1) == 0


def test_nor_is_one_of_which_some_passes_are_sound(model, stall_reason):
    for _ in range(5):
        compute(model, stall_reason)
    model[2].bias.data.fill_(float("nan"))
    for _ in range(5):
        compute(model, stall_reason)
    assert stall_reason.num_left_out(1) == 0


def test_evaluation_is_no_pass(model, stall_reason):
    model[2].bias.data.fill_(float("nan"))
    with torch.no_grad():
        model(torch.ones(2, 4))
    model.eval()
    model(torch.ones(2, 4))
    model.train()
    stall_reason.fetched(is_trained_from=False)
    model(torch.ones(2, 4))
    assert stall_reason.num_left_out(0) == 0
    stall_reason.fetched(is_trained_from=True)
    model(torch.ones(2, 4))
    assert stall_reason.num_left_out(0) == 1


def test_a_step_that_began_after_the_fault_is_the_answer(model, stall_reason):
    model[2].bias.data.fill_(float("nan"))
    compute(model, stall_reason)
    stall_reason.committed(began_after=False)
    assert stall_reason.is_watching
    compute(model, stall_reason)
    stall_reason.committed(began_after=True)
    assert not stall_reason.is_watching and not model._forward_hooks
    compute(model, stall_reason, is_back=False)
    assert stall_reason.num_left_out(0) == 0


def test_nothing_is_wanted_of_a_rank_in_which_nothing_was_done(model):
    watching = StallReason(fail)
    assert not watching.is_watching and watching.num_left_out(0) == 0


def told_of(effect_class, arguments, model, is_left_out):
    """What the effect tells that begins at step 2, of a script that leaves out a pass whose loss is `is_left_out`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reports = []
    effect = effect_class(arguments, ExternalSubject(lambda: [optimizer]), reports.append)
    step = 1
    announced = 0

    def come_to(phase):
        nonlocal announced
        for name in PHASES[announced : PHASES.index(phase) + 1]:
            if (step, name) == (2, "forward"):
                effect.begin(step, name)
            elif (step, PHASES.index(name)) > (2, 1):
                effect.announced(step, name)
            announced += 1

    for _ in range(6):
        come_to("forward")
        loss = model(torch.randn(2, 3, 4)).square().mean()
        if is_left_out(loss):
            continue
        come_to("backward")
        optimizer.zero_grad()
        loss.backward()
        come_to("optimizer")
        optimizer.step()
        come_to("commit")
        step, announced = step + 1, 0
    effect.lift()
    return reports


def is_corrupted(loss):
    return not torch.isfinite(loss)


def test_the_last_modules_output_is_seen_where_the_script_leaves_the_pass_out(model):
    (told,) = told_of(InjectActivations, {**NAN, "tensor": "2"}, model, is_corrupted)
    assert (told["outcome"], told["step"]) == ("consumed", 2)
    assert "left that pass out" in told["receiver"]


def test_an_output_that_nobody_reads_is_still_unused():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.other = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x):
            return {"main": self.head(x), "other": self.other(x)}

    class Main(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = TwoHeads()

        def forward(self, x):
            return self.heads(x)["main"]

    (told,) = told_of(InjectActivations, {**NAN, "tensor": "*other"}, Main(), is_corrupted)
    assert told["outcome"] == "unused"


def test_a_parameter_whose_module_is_not_called_shows_without_a_backward_pass():
    (told,) = told_of(InjectParameters, {**NAN, "tensor": "attention.out_proj.weight"}, Attending(), is_corrupted)
    assert told["outcome"] == "consumed" and "put out what is no number" in told["receiver"]
