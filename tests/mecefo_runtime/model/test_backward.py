"""A backward pass from a gradient gives the bits of torch's own. What it imports: see test_optimizer."""

import pytest
import torch

from mecefo_runtime.model.backward import backward

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_gives_the_bits_of_torchs_own(dtype):
    generator = torch.Generator().manual_seed(3)
    weights, inputs, gradient = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((9, 7), (5, 9), (5, 7))
    )
    # Nothing that is not finite goes elsewhere than where it is handed on to.
    gradient[0, 0], gradient[1, 1], gradient[2, 2] = float("nan"), float("inf"), 0.0
    made = []
    for pass_back in (backward, torch.autograd.backward):
        leaf = inputs.clone().requires_grad_()
        pass_back(torch.tanh(leaf @ weights), gradient)
        assert leaf.grad is not None
        made.append(leaf.grad)
    assert torch.equal(made[0].nan_to_num(7.0), made[1].nan_to_num(7.0))
    assert not torch.equal(made[0][3], torch.zeros(9, dtype=dtype))


def test_without_a_gradient_it_is_that_of_a_loss():
    leaf = torch.ones(3, requires_grad=True)
    backward((2 * leaf).sum(), None)
    assert torch.equal(leaf.grad, torch.full((3,), 2.0))
