"""An external training's tensors: the very ones, by the names of the script's own state dict."""

import gc

import pytest
import torch
from torch import nn

from chaos.external.optimizers import steps_of
from chaos.external.subject import ExternalSubject
from chaos.in_process.shadow import ReplayedOptimizer

pytestmark = pytest.mark.unit


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x):
        return self.head(self.body(self.embed(x)))


# As torch's own, which needs a process group.
class DistributedDataParallel(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


@pytest.fixture(autouse=True)
def nothing_of_other_tests():
    gc.collect()


def trained(model, optimizer):
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    return ExternalSubject(lambda: [optimizer])


def test_names_are_those_of_the_state_dict_and_tensors_the_very_ones():
    model = Tower()
    subject = trained(model, torch.optim.AdamW(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    parameters = subject.tensors("parameters")
    assert list(parameters) == names == ["embed.weight", "body.0.weight", "body.0.bias"]
    parameters["body.0.bias"][1] = 42.0
    assert model.body[0].bias[1].item() == 42.0
    assert subject.tensors("gradients")["embed.weight"] is model.embed.weight.grad
    moments = subject.tensors("optimizer")
    assert set(moments) == {f"{name}.{moment}" for name in names for moment in ("exp_avg", "exp_avg_sq")}


def test_modules_are_by_name_too():
    model = Tower()
    modules = trained(model, torch.optim.SGD(model.parameters(), lr=0.1)).modules()
    assert modules["Tower"] is model
    assert modules["body.0"] is model.body[0]


@pytest.mark.parametrize(
    "wrap", [DistributedDataParallel, lambda m: torch.compile(m, backend="eager")], ids=["ddp", "compiled"]
)
def test_wrappers_leave_no_trace(wrap):
    model = Tower()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = DistributedDataParallel(wrap(model))
    subject = trained(wrapped, optimizer)
    assert list(subject.tensors("parameters")) == [name for name, _ in model.named_parameters()]
    assert "module" not in " ".join(subject.modules())


def test_of_several_models_each_has_its_name():
    first, second, other = nn.Linear(1, 1), nn.Linear(1, 1), nn.Conv1d(1, 1, 1)
    optimizers = [
        torch.optim.SGD([*second.parameters(), *first.parameters()], lr=0.1),
        torch.optim.SGD(other.parameters(), lr=0.1),
    ]
    parameters = ExternalSubject(lambda: optimizers).tensors("parameters")
    assert [name for name in parameters if name.endswith("weight")] == [
        "Linear.weight",
        "Linear.2.weight",
        "Conv1d.weight",
    ]
    assert parameters["Linear.weight"].data_ptr() == second.weight.data_ptr()


def test_a_model_of_a_part_of_the_parameters_is_no_second_model():
    model = Tower()
    alias = nn.Sequential(model.body)
    subject = trained(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert list(subject.tensors("parameters")) == [name for name, _ in model.named_parameters()]
    del alias


def test_parameters_of_no_module_have_their_place_in_the_optimizer():
    loose = torch.zeros(2, requires_grad=True)
    other = torch.zeros(2, requires_grad=True)
    optimizers = [torch.optim.SGD([{"params": [loose]}], lr=0.1), torch.optim.SGD([loose, other], lr=0.1)]
    subject = ExternalSubject(lambda: optimizers)
    assert list(subject.tensors("parameters")) == ["parameter_0", "parameter_1"]
    assert subject.tensors("gradients") == {}


def test_a_model_that_takes_the_place_of_another_is_found():
    models, optimizers = [nn.Linear(1, 1)], []
    optimizers.append(torch.optim.SGD(models[0].parameters(), lr=0.1))
    subject = ExternalSubject(lambda: optimizers)
    assert subject.modules()["Linear"] is models[0]
    models[:] = [nn.Conv1d(1, 1, 1)]
    optimizers[:] = [torch.optim.SGD(models[0].parameters(), lr=0.1)]
    assert list(subject.modules()) == ["Conv1d"]
    # A part that is put in its place later, with the parameters that the optimizer has.
    sequence = nn.Sequential(nn.Linear(1, 1))
    optimizers[:] = [torch.optim.SGD(sequence.parameters(), lr=0.1)]
    assert "0" in subject.modules()
    sequence.append(nn.ReLU())
    assert subject.modules()["1"] is sequence[1]


def test_who_updates_a_parameter():
    model = Tower()
    embedding = torch.optim.SGD(model.embed.parameters(), lr=0.1)
    body = torch.optim.Adam(model.body.parameters())
    wrapped = DistributedDataParallel(model)
    subject = ExternalSubject(lambda: [embedding, body])
    assert subject.updater("embed.weight") == (embedding, model.embed.weight, 0)
    optimizer, parameter, first = subject.updater("body.0.bias")
    assert optimizer is body and parameter is model.body[0].bias and first == 0
    with pytest.raises(LookupError, match=r"no optimizer here updates a parameter head\.weight"):
        subject.updater("head.weight")
    del wrapped


def test_steps_of_an_optimizer_by_its_own_count():
    weight = torch.zeros(2, requires_grad=True)
    weight.grad = torch.ones(2)
    adam, plain = torch.optim.Adam([weight]), torch.optim.SGD([weight], momentum=0.9)
    for _ in range(3):
        adam.step()
        plain.step()
    assert (steps_of(adam), steps_of(plain)) == (3, 0)
    resumed = torch.optim.Adam([weight])
    resumed.load_state_dict(adam.state_dict())
    assert steps_of(resumed) == 3


@pytest.fixture
def process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class Sharing(torch.optim.Optimizer):
    """As ZeroRedundancyOptimizer: has all parameters, and an optimizer of those that this rank updates."""

    def __init__(self, parameters):
        parameters = list(parameters)
        super().__init__(parameters, {})
        self.optim = torch.optim.Adam(parameters[:1])

    def step(self):
        self.optim.step()


def test_of_an_optimizer_that_wraps_another_the_inner_one_updates():
    model = nn.Linear(2, 1)
    outer = Sharing(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    outer.step()
    subject = ExternalSubject(lambda: [outer])
    assert subject.updater("weight")[0] is outer.optim
    assert sorted(subject.tensors("optimizer")) == ["weight.exp_avg", "weight.exp_avg_sq"]
    assert list(subject.tensors("gradients")) == ["weight", "bias"]
    with pytest.raises(LookupError, match="no optimizer here updates"):
        subject.updater("bias")


def test_a_step_that_all_ranks_make_together_is_not_made_beside_it(process_group):
    class Together(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    torch.distributed.all_reduce(parameter.data)

    weight = nn.Parameter(torch.ones(2))
    optimizer = Together([weight], lr=0.1)
    with pytest.raises(RuntimeError, match="exchanges tensors between ranks"):
        ReplayedOptimizer(optimizer, weight, torch.tensor([0])).predict(torch.ones(1))
