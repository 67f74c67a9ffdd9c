"""Effects on tensors in trainings that are built otherwise than ours: where they affect, and how it shows there."""

import copy
import gc
import io
import threading

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from chaos.external.step_machine import PHASES
from chaos.external.subject import ExternalSubject
from chaos.in_process.activations import InjectActivations
from chaos.in_process.gradients import InjectGradients, KeepGradients
from chaos.in_process.tensors import MAX_FORWARDS, InjectOptimizer, InjectParameters

pytestmark = pytest.mark.unit

SCALE = {"how": "scale", "number": 100.0, "seed": "3/0"}


@pytest.fixture(autouse=True)
def the_same_numbers():
    """Whatever ran before: with some numbers a unit is off, or two gradients are too alike, and an effect is masked."""
    torch.manual_seed(3)


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
    # What is left is looked at by no collection and no search for models.
    gc.freeze()


def affected(kind, arguments, compute, optimizer, *, phase="forward", steps=4):
    """What the effect reports that is begun at (2, phase); `compute(inputs)` is the model, called or not."""
    reports = []
    effect = kind(arguments, ExternalSubject(lambda: [optimizer]), reports.append)
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


@pytest.mark.parametrize("kind", [InjectGradients, KeepGradients, InjectOptimizer, InjectParameters])
@pytest.mark.parametrize("create", [torch.optim.Adam, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)])
def test_a_model_that_is_a_single_module(kind, create):
    model = nn.Linear(4, 1)
    told = affected(kind, SCALE, model, create(model.parameters()))
    assert told["outcome"] == "consumed", told
    assert told["struck"]["tensor"].split(".")[0] in ("weight", "bias")


@pytest.mark.parametrize("kind", [InjectGradients, InjectOptimizer, InjectParameters])
def test_a_parameter_of_the_outermost_module_itself(kind):
    model = Prefixed()
    told = affected(kind, {**SCALE, "tensor": "token*"}, model, torch.optim.Adam(model.parameters()))
    assert told["outcome"] == "consumed", told


@pytest.mark.parametrize("kind", [InjectGradients, InjectOptimizer])
def test_a_parameter_of_no_module(kind):
    weight = torch.ones(4, requires_grad=True)
    told = affected(kind, SCALE, lambda x: x @ weight, torch.optim.Adam([weight]))
    assert (told["outcome"], told["struck"]["tensor"].partition(".")[0]) == ("consumed", "parameter_0"), told


@pytest.mark.parametrize("name", ["attention.in_proj_weight", "attention.out_proj.weight"])
@pytest.mark.parametrize("phase", PHASES[:5])
def test_a_parameter_whose_module_is_not_called_shows_in_its_gradient(name, phase):
    model = Attending()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = affected(InjectParameters, {**SCALE, "tensor": name}, model, optimizer, phase=phase)
    assert (told["outcome"], told["receiver"].partition(":")[0]) == ("consumed", "its gradient is not zero"), told


def test_a_gradient_of_before_the_injection_shows_nothing():
    model = Attending()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    arguments = {**SCALE, "tensor": "attention.out_proj.weight"}
    with pytest.raises(ValueError, match="not enough values"):
        affected(InjectParameters, arguments, model, optimizer, phase="backward", steps=2)


@pytest.mark.parametrize("kind", [InjectActivations, InjectParameters])
def test_a_script_may_copy_and_save_a_model_that_is_affected(kind):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    reports = []
    effect = kind(SCALE, ExternalSubject(lambda: [optimizer]), reports.append)
    # As our connections have them: it can neither be copied nor pickled.
    effect.lock = threading.Lock()
    effect.begin(2, "commit")
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for other in (copy.deepcopy(model), torch.load(stored, weights_only=False)):
        assert other(torch.ones(1, 4)).shape == (1, 1)
    assert reports == [], "a copy is not looked at"
    model(torch.ones(1, 4)).sum().backward()
    assert reports[0]["outcome"] == "consumed"


@pytest.mark.parametrize("kind", [InjectActivations, InjectParameters])
def test_what_goes_wrong_on_our_side_is_not_raised_in_the_script(kind, monkeypatch):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    reports = []
    effect = kind(SCALE, ExternalSubject(lambda: [torch.optim.Adam(model.parameters())]), reports.append)
    effect.begin(2, "commit")
    for name in ("_received", "_is_there"):
        monkeypatch.setattr(effect, name, lambda *_: 1 / 0, raising=False)
    model(torch.ones(1, 4)).sum().backward()
    assert [(told["outcome"], told["reason"]) for told in reports] == [
        ("failed", "ZeroDivisionError: division by zero")
    ]


@pytest.fixture
def mesh():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", [InjectGradients, KeepGradients, InjectOptimizer, InjectParameters, InjectActivations])
def test_tensors_that_are_spread_over_ranks(kind, mesh):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    parallelize_module(model, mesh, {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()})
    assert isinstance(model[0].weight, DTensor)
    told = affected(kind, {**SCALE, "tensor": "[02]*"}, model, torch.optim.Adam(model.parameters(), foreach=False))
    assert told["outcome"] == "consumed", told


def announced(effect, step, *, since="forward"):
    """Announces a phase of `step` to the effect that begins at (2, `since`)."""

    def announce(phase):
        if (step, phase) == (2, since):
            effect.begin(step, phase)
        elif (step, PHASES.index(phase)) > (2, PHASES.index(since)):
            effect.announced(step, phase)

    return announce


@pytest.mark.parametrize("kind", [InjectGradients, KeepGradients, InjectOptimizer])
@pytest.mark.parametrize("since", ["forward", "optimizer"])
@pytest.mark.parametrize("model", ["Critic", "Maker"])
def test_of_two_optimizers_each_takes_in_what_is_its_own(kind, since, model):
    """The maker's gradients are computed anew after the critic's step, and the critic's are added to before the end."""

    class Critic(nn.Linear): ...

    class Maker(nn.Linear): ...

    critic, maker = Critic(4, 1), Maker(4, 4)
    critic_optimizer, maker_optimizer = torch.optim.RMSprop(critic.parameters()), torch.optim.Adam(maker.parameters())
    reports = []
    subject = ExternalSubject(lambda: [critic_optimizer, maker_optimizer])
    effect = kind({"how": "fill", "number": "nan", "seed": "3/0", "tensor": f"{model}.*"}, subject, reports.append)
    for step in range(1, 5):
        announce = announced(effect, step, since=since)
        announce("forward")
        critic_optimizer.zero_grad()
        critic(maker(torch.randn(2, 4)).detach()).square().mean().backward()
        announce("optimizer")
        critic_optimizer.step()
        maker_optimizer.zero_grad()
        critic(maker(torch.randn(2, 4))).square().mean().backward()
        maker_optimizer.step()
        announce("commit")
    effect.lift()
    (told,) = reports
    assert told["outcome"] == "consumed", told
    assert told["struck"]["tensor"].startswith(model)
    if kind is not KeepGradients:
        assert told["update"]["parameter_actual"] == "nan"


@pytest.mark.parametrize("kind", [InjectGradients, KeepGradients, InjectOptimizer])
def test_optimizers_that_step_within_the_backward_pass_and_leave_no_gradient(kind):
    model = nn.Linear(4, 1)
    optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}
    reports, announce = [], None
    effect = kind(SCALE, ExternalSubject(lambda: list(optimizers.values())), reports.append)

    def step_now(parameter):
        announce("optimizer")
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_now)
    for step in range(1, 5):
        announce = announced(effect, step)
        announce("forward")
        model(torch.randn(2, 4)).square().mean().backward()
        announce("commit")
    assert [told["outcome"] for told in reports] == ["consumed"], reports


def test_a_model_whose_parameters_are_copied_for_the_optimizer_is_the_one_that_is_called():
    model = nn.Linear(4, 1).bfloat16()
    masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    other = copy.deepcopy(model)
    optimizer = torch.optim.SGD(masters, lr=0.1)
    subject = ExternalSubject(lambda: [optimizer], called=lambda: model)
    assert subject.modules()["Linear"] is model is not other
    reports = []
    effect = InjectParameters({**SCALE, "tensor": "weight"}, subject, reports.append)
    effect.begin(2, "forward")
    model(torch.ones(1, 4).bfloat16())
    assert reports[0]["outcome"] == "consumed"
    assert list(subject.tensors("optimizer")) == []


def test_a_parameter_of_a_part_that_is_never_called_changes_nothing():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x):
            return self.used(x)

    model = Partly()
    optimizer = torch.optim.Adam(model.parameters())
    told = affected(InjectParameters, {**SCALE, "tensor": "unused.weight"}, model, optimizer, steps=MAX_FORWARDS + 4)
    assert told["outcome"] == "masked", told


def test_sparse_gradients_are_left_out():
    model = nn.Sequential(nn.EmbeddingBag(8, 4, sparse=True), nn.Linear(4, 1))
    sparse, dense = torch.optim.SparseAdam(model[0].parameters()), torch.optim.Adam(model[1].parameters())
    subject = ExternalSubject(lambda: [sparse, dense])
    model(torch.tensor([[1, 2]])).sum().backward()
    sparse.step()
    dense.step()
    assert {name.split(".")[0] for kind in ("gradients", "optimizer") for name in subject.tensors(kind)} == {"1"}


def test_a_gradient_that_no_optimizer_takes_in_is_said_to_be_so():
    model = nn.Linear(4, 1)
    reports = []
    effect = InjectGradients(SCALE, ExternalSubject(list, called=lambda: model), reports.append)
    model(torch.ones(1, 4)).sum().backward()
    for phase in ("optimizer", "commit"):
        (effect.begin if phase == "optimizer" else effect.announced)(2, phase)
    assert reports[0]["outcome"] == "failed" and "no optimizer is known" in reports[0]["reason"]
