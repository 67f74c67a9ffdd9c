"""What is reported of a step, and of how many steps."""

import base64
import random
import struct

import numpy as np
import pytest
import torch
from torch import nn

from chaos.external.identity import RANK_PID
from chaos.external.observation import step_watch
from chaos.external.observation.random_states import random_states
from chaos.external.observation.rows import rows_of
from chaos.external.observation.step_watch import StepWatch, settings_of
from chaos.external.phase_tracker import PhaseTracker
from mecefo_runtime.system.command_records import StepSeen

pytestmark = pytest.mark.unit


class Watched:
    """A watch, and what it has reported."""

    def __init__(self):
        self.made = []
        self.watch = StepWatch(lambda make, step, now: self.made.append((step, make())))
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.5)

    def step(self, number, *batches, draws=lambda: None, loss=1.0):
        for batch in batches:
            self.watch.forward(number, (batch,), {})
            self.watch.backward()
        draws()
        self.watch.updating()
        self.watch.stepping(number, self.optimizer)
        self.watch.committed(number, [self.optimizer], loss)

    @property
    def seen(self):
        return [(step, record) for step, record in self.made if isinstance(record, StepSeen)]


def rows_in(text):
    return list(struct.unpack(f"={len(base64.b64decode(text)) // 8}q", base64.b64decode(text)))


def test_every_pass_of_a_step_and_what_it_was_taken_with():
    watched = Watched()
    one, two = torch.ones(2, 3), torch.zeros(4, 3)
    watched.step(1, one, two)
    watched.optimizer.param_groups[0]["lr"] = 0.25
    watched.step(2, two, loss=torch.tensor([2.5]))
    (first, second) = (record for _, record in watched.seen)
    assert [rows_in(text) for text in first.batches] == [rows_of([one]).tolist(), rows_of([two]).tolist()]
    assert (first.rates, second.rates, first.loss, second.loss) == ((0.5,), (0.25,), 1.0, 2.5)
    assert '"weight_decay":0.01' in first.groups and second.groups == ""
    assert (first.draws, second.draws, first.random == second.random) == ((), (), True)


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("torch", lambda: torch.rand(1)),
        ("python", random.random),
        ("numpy", lambda: np.random.rand()),
        ("python", lambda: random.gauss(0, 1)),
    ],
)
def test_drawing_shows(name, draw):
    watched = Watched()
    before = random_states()
    assert random_states() == before
    watched.step(1, torch.ones(2, 3), draws=draw)
    ((_, seen),) = watched.seen
    assert (seen.draws, seen.random) == ((name,), before)
    assert random_states() != before


def test_a_state_that_is_restored_is_the_same_again():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    before = random_states()
    torch.rand(1), random.random(), np.random.rand()
    assert random_states() != before
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    assert random_states() == before


def test_a_pass_that_was_not_seen_is_said_to_be_missing():
    watched = Watched()
    watched.watch.forward(1, (torch.ones(2, 3),), {})
    watched.watch.backward()
    watched.watch.backward()
    watched.watch.forward(1, (torch.ones(2, 3),), None)
    watched.watch.committed(1, [], None)
    ((_, seen),) = watched.seen
    assert [bool(text) for text in seen.batches] == [True, False]
    watched.step(2)
    assert watched.seen[1][1].batches == ()


def test_after_an_update_it_is_not_known_what_the_step_drew():
    watched = Watched()
    watched.watch.forward(1, (torch.ones(2, 3),), {})
    watched.watch.updating(is_late=True)
    watched.watch.committed(1, [], None)
    ((_, seen),) = watched.seen
    assert (seen.random, seen.draws) == ({}, None)


def test_a_step_that_is_discarded_leaves_nothing():
    watched = Watched()
    watched.watch.forward(1, (torch.zeros(5, 3),), {})
    watched.watch.discarded()
    watched.step(1, torch.ones(2, 3))
    ((_, seen),) = watched.seen
    assert [len(rows_in(text)) for text in seen.batches] == [2]


class Clock:
    """Each look costs `cost` seconds, and each step lasts one."""

    def __init__(self, cost):
        self.now, self.cost = 0.0, cost

    def perf_counter(self):
        self.now += self.cost
        return self.now


@pytest.mark.parametrize(("cost", "most"), [(1e-5, 1.0), (0.005, 0.6), (0.05, 0.1)])
def test_of_a_fast_training_some_steps_are_looked_at_and_they_cost_a_hundredth(monkeypatch, cost, most):
    clock = Clock(cost)
    monkeypatch.setattr(step_watch.time, "perf_counter", clock.perf_counter)
    watched = Watched()
    for number in range(1, 2001):
        clock.now += 1.0
        watched.step(number, torch.ones(2, 3))
    steps = [step for step, _ in watched.seen]
    assert len(steps) / 2000 <= most
    # Every rank that looks at fewer of them looks at some of the same.
    interval = steps[-1] - steps[-2]
    assert interval.bit_count() == 1 and all(step % interval == 0 for step in steps[-3:])
    # Eight readings of the clock in each.
    assert 8 * cost * len(steps) <= step_watch.CREDIT_SECONDS + 0.02 * clock.now


def test_a_log_does_not_grow_without_bound(monkeypatch):
    monkeypatch.setattr(step_watch, "BYTES_PER_INTERVAL", 4096)
    watched = Watched()
    for number in range(1, 201):
        watched.step(number, torch.ones(8, 3))
    assert len(watched.seen) < 60


def test_a_rate_on_a_device_is_not_waited_for():
    optimizer = torch.optim.AdamW([torch.ones(1, requires_grad=True)], lr=torch.tensor(0.5))
    assert settings_of(optimizer)[0] == (0.5,)
    optimizer.param_groups[0]["lr"] = torch.ones((), device="meta")
    assert settings_of(optimizer) is None


def test_settings_are_those_of_the_training_alone():
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0, momentum=0.9)
    before = settings_of(optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.param_groups[0]["note"] = object()
    assert settings_of(optimizer) == before
    optimizer.param_groups[0]["momentum"] = 0.8
    assert settings_of(optimizer) != before


def test_passes_that_are_not_differentiated_are_of_no_step():
    watched = Watched()
    one, two = torch.ones(2, 3), torch.zeros(4, 3)
    watched.watch.forward(1, (one,), {})
    watched.watch.backward()
    watched.watch.forward(1, (one,), {})
    watched.watch.passes_were_of_no_step()
    watched.step(1, two)
    ((_, seen),) = watched.seen
    assert [rows_in(text) for text in seen.batches] == [rows_of([one]).tolist(), rows_of([two]).tolist()]


def test_what_may_be_trained():
    tracker = PhaseTracker({RANK_PID: "1"}, is_explicit=False)
    model = nn.Sequential(nn.Linear(3, 1), nn.Dropout())
    assert tracker.may_be_trained(model)
    assert not tracker.may_be_trained(nn.MSELoss())
    model.eval()
    assert not tracker.may_be_trained(model)
    # Gradients were computed, and of no other module.
    tracker.on_backward(torch.ones(()), None)
    assert tracker.may_be_trained(model)
