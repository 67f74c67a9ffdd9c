"""The optimizers of a process as they come and go."""

import gc

import pytest
import torch

from chaos.external.optimizers import Optimizers

pytestmark = pytest.mark.unit


class NoManagers:
    """A script without torchft."""

    are_any = False

    def num_steps(self):
        return None


class Process:
    """Optimizers as a script makes, steps and drops them; `dropped` are those that had stepped."""

    def __init__(self):
        self.dropped = []
        self.optimizers = Optimizers(NoManagers(), lambda key, is_first: self.dropped.append((key, is_first)))

    def make(self):
        made = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        self.optimizers.add(made)
        return made

    def step(self, optimizer, *, leaves=True):
        self.optimizers.passed()
        is_outermost = self.optimizers.enter(optimizer)
        if is_outermost:
            self.optimizers.is_late(optimizer)
        if leaves:
            self.optimizers.leave(optimizer)
        return is_outermost


def test_an_optimizer_at_the_address_of_one_that_is_gone_is_another_one():
    process = Process()
    # As CPython gives a new object the memory of the last one that was freed.
    addresses = set()
    for _ in range(50):
        optimizer = process.make()
        assert process.optimizers.made() == [optimizer]
        addresses.add(id(optimizer))
        del optimizer
        gc.collect()
    assert len(addresses) < 50
    assert process.optimizers.made() == []


def test_nothing_is_kept_of_an_optimizer_that_is_gone():
    process = Process()
    stepped, unused = process.make(), process.make()
    process.step(stepped)
    key = id(stepped)
    del stepped, unused
    gc.collect()
    assert process.dropped == [(key, True)]
    assert process.optimizers.num_training == 0 and process.optimizers.training() == []
    kept = [value for value in vars(process.optimizers).values() if isinstance(value, dict | set)]
    assert kept and not any(kept)


def test_one_that_broke_off_and_is_gone_hides_no_other():
    process = Process()
    broken = process.make()
    assert process.step(broken, leaves=False)
    del broken
    gc.collect()
    assert process.step(process.make())
