"""The optimizer's step on single elements, computed beside it."""

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import register_optimizer_step_pre_hook

from chaos.in_process.base import InProcessFaultRefused
from chaos.in_process.shadow import ReplayedOptimizer, Update
from chaos.in_process.values import read

pytestmark = pytest.mark.unit

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.3),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}
each_optimizer = pytest.mark.parametrize("create", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
INDICES = torch.tensor([3, 17, 100])


def trained(create, steps=3):
    """A parameter that has been trained some steps, with its next gradient in place."""
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(11, 13))
    optimizer = create([parameter])
    for _ in range(steps):
        parameter.grad = torch.randn(11, 13)
        optimizer.step()
    parameter.grad = torch.randn(11, 13)
    return parameter, optimizer


def updates(shadow, parameter, clean):
    return Update(shadow.parameters, shadow.now(), shadow.predict(read(parameter.grad, INDICES)), clean)


@each_optimizer
def test_it_predicts_what_the_step_does(create):
    parameter, optimizer = trained(create)
    shadow = ReplayedOptimizer(optimizer, parameter, INDICES)
    before = parameter.detach().clone()
    predicted = shadow.predict(read(parameter.grad, INDICES))
    assert torch.equal(parameter, before) and shadow.is_untouched(), "looking changes nothing"
    optimizer.step()
    torch.testing.assert_close(predicted, read(parameter, INDICES), rtol=1e-6, atol=1e-8)
    assert not shadow.is_untouched()


@each_optimizer
def test_another_gradient_is_told_from_the_one_that_was_used(create):
    parameter, optimizer = trained(create)
    shadow = ReplayedOptimizer(optimizer, parameter, INDICES)
    gradient = read(parameter.grad, INDICES)
    optimizer.step()
    assert updates(shadow, parameter, shadow.predict(gradient * 2)).judge() == "consumed"
    assert updates(shadow, parameter, shadow.predict(gradient)).judge() == "masked"
    wrong = Update(shadow.parameters, shadow.now(), shadow.predict(gradient * 2), shadow.predict(gradient))
    assert wrong.judge() == "otherwise", "the step did not use what is said to be struck"


def test_another_state_and_another_parameter_are_told_apart():
    parameter, optimizer = trained(OPTIMIZERS["adamw"])
    state = read(optimizer.state[parameter]["exp_avg"], INDICES)
    optimizer.state[parameter]["exp_avg"].mul_(4)
    shadow = ReplayedOptimizer(optimizer, parameter, INDICES)
    gradient = read(parameter.grad, INDICES)
    clean_parameters = shadow.parameters + 1
    optimizer.step()
    assert updates(shadow, parameter, shadow.predict(gradient, state={"exp_avg": state})).judge() == "consumed"
    assert updates(shadow, parameter, shadow.predict(gradient, parameters=clean_parameters)).judge() == "consumed"


def test_without_a_step_it_is_unchanged():
    parameter, optimizer = trained(OPTIMIZERS["adamw"])
    shadow = ReplayedOptimizer(optimizer, parameter, INDICES)
    assert updates(shadow, parameter, shadow.parameters).judge() == "unchanged"


def test_what_is_not_a_number_is_consumed_too():
    parameter, optimizer = trained(OPTIMIZERS["adamw"])
    gradient = read(parameter.grad, INDICES)
    parameter.grad.view(-1)[INDICES[0]] = float("nan")
    shadow = ReplayedOptimizer(optimizer, parameter, INDICES)
    optimizer.step()
    update = updates(shadow, parameter, shadow.predict(gradient))
    assert update.judge() == "consumed"
    assert update.widest_gap()["parameter_actual"] == "nan"
    assert isinstance(update.widest_gap()["parameter_clean"], float)


def test_the_learning_rate_of_the_step_counts_not_that_of_before():
    parameter, optimizer = trained(OPTIMIZERS["adamw"])
    shadow = ReplayedOptimizer(optimizer, parameter, INDICES)
    optimizer.param_groups[0]["lr"] = 0.7
    optimizer.step()
    torch.testing.assert_close(shadow.predict(read(parameter.grad, INDICES)), read(parameter, INDICES))


def test_those_who_count_steps_do_not_see_it():
    parameter, optimizer = trained(OPTIMIZERS["adamw"])
    scheduler = LambdaLR(optimizer, lambda step: 1.0)
    steps = []
    everywhere = register_optimizer_step_pre_hook(lambda *_: steps.append("all"))
    optimizer.register_step_pre_hook(lambda *_: steps.append("one"))
    try:
        ReplayedOptimizer(optimizer, parameter, INDICES).predict(read(parameter.grad, INDICES))
        assert steps == []
        optimizer.step()
        assert sorted(steps) == ["all", "one"]
    finally:
        everywhere.remove()
    scheduler.step()
    assert len(optimizer.state) == 1 and optimizer.param_groups[0]["params"] == [parameter]


def affected_and_stepped(create, number, steps=3, **keywords):
    """The shadow of a parameter whose gradient is affected at INDICES, after the step; and that gradient before."""
    parameter, optimizer = trained(create, steps)
    gradient = read(parameter.grad, INDICES)
    parameter.grad.view(-1)[INDICES] = number
    shadow = ReplayedOptimizer(optimizer, parameter, INDICES)
    optimizer.step(**keywords)
    return shadow, read(parameter.grad, INDICES), gradient


@pytest.mark.parametrize("create", [torch.optim.Muon, torch.optim.Adafactor])
def test_of_one_that_does_not_go_element_by_element_the_whole_tensor_shows_it(create):
    shadow, affected, clean = affected_and_stepped(create, 50.0)
    outcome, shows = shadow.judge(affected, clean)
    assert outcome == "consumed"
    assert shows["update"]["parameter_actual"] == pytest.approx(shows["update"]["parameter_struck"], rel=1e-5)
    assert shadow.judge(clean, clean)[0] == "otherwise", "the step did not use what is said to be struck"


def test_of_one_that_evaluates_the_model_only_what_is_no_number_shows():
    closure = {"steps": 0, "closure": lambda: torch.zeros(())}
    shadow, affected, clean = affected_and_stepped(torch.optim.LBFGS, float("nan"), **closure)
    outcome, shows = shadow.judge(affected, clean)
    assert outcome == "consumed" and "the parameter became nan, and was" in shows["receiver"]
    shadow, affected, clean = affected_and_stepped(torch.optim.LBFGS, 50.0, **closure)
    with pytest.raises(
        InProcessFaultRefused, match=r"what LBFGS makes of it cannot be computed .*calls the script's closure"
    ):
        shadow.judge(affected, clean)


def test_one_that_steps_another_is_not_made_to():
    class Around(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})
            self.base = torch.optim.SGD(parameters, lr=0.1)

        def step(self):
            self.base.step()

    shadow, affected, clean = affected_and_stepped(Around, 50.0)
    after = shadow.now()
    with pytest.raises(InProcessFaultRefused, match="one of other tensors too"):
        shadow.judge(affected, clean)
    assert torch.equal(shadow.now(), after)


def test_a_step_that_changes_other_elements_only_was_made():
    parameter, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1))
    parameter.grad.view(-1)[INDICES] = 0.0
    shadow = ReplayedOptimizer(optimizer, parameter, INDICES)
    optimizer.step()
    assert not shadow.is_untouched()
    assert shadow.judge(torch.zeros(3), torch.ones(3))[0] == "consumed"
