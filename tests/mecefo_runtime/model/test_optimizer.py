"""The runtime's optimizer is torch's AdamW, bit for bit, and gets by without torch's compiler."""

import subprocess
import sys

import pytest
import torch

from mecefo_runtime.model.optimizer import EagerAdamW

pytestmark = pytest.mark.unit

_TRAIN = """
import sys
from harness.backends.forkserver import load
load(None, ())
import torch
from mecefo_runtime.model.backward import backward
from mecefo_runtime.model.optimizer import EagerAdamW
from mecefo_runtime.job.config import JobConfig
before = set(sys.modules)
layer = torch.nn.Linear(4, 4)
optimizer = EagerAdamW(layer.parameters(), fused=True)
backward(layer(torch.ones(2, 4)), torch.ones(2, 4))
optimizer.step()
print(not {"torch._dynamo", "sympy"}.isdisjoint(sys.modules), len(set(sys.modules) - before))
"""


@pytest.mark.parametrize("fused", [True, False])
def test_it_makes_the_same_bits_as_torchs_own(fused):
    generator = torch.Generator().manual_seed(7)
    values, gradients = torch.randn(33, generator=generator), torch.randn(5, 33, generator=generator)
    made = []
    for kind in (EagerAdamW, torch.optim.AdamW):
        parameter = torch.nn.Parameter(values.clone())
        optimizer = kind([{"params": [parameter], "weight_decay": 0.1}], lr=0.01, fused=fused)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
        made.append([parameter.data, optimizer.state[parameter]["exp_avg"], optimizer.state[parameter]["exp_avg_sq"]])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*made, strict=True))
    assert not torch.equal(made[0][0], values)


def test_hooks_and_closures_are_called_as_ever():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = EagerAdamW([parameter])
    told = []
    optimizer.register_step_pre_hook(lambda *_: told.append("before"))
    optimizer.register_step_post_hook(lambda *_: told.append("after"))

    def closure():
        loss = parameter.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert told == ["before", "after"] and not torch.equal(parameter.data, torch.ones(3))
    with pytest.raises(ValueError, match="non-leaf"):
        optimizer.add_param_group({"params": [parameter * 2]})


def test_what_a_node_loads_is_what_its_ranks_need_and_no_compiler():
    said = subprocess.run([sys.executable, "-c", _TRAIN], capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == "False"
    # A few small ones that differ by the version of torch; the big ones come by the hundred.
    assert int(said[1]) < 20
