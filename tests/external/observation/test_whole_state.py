"""The digests of a whole state: each part shows what it is of, and nothing else does."""

import pytest
import torch
from torch import nn

from chaos.external.observation.whole_state import Scalers, WholeState
from chaos.external.resumption import digest_of
from chaos.external.subject import ExternalSubject

pytestmark = pytest.mark.unit


class Training:
    def __init__(self, kind=torch.optim.AdamW, **settings):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.model.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.optimizer = kind(self.model.parameters(), lr=0.1, **settings)
        self.scalers = Scalers()
        self.state = WholeState(
            lambda: [self.optimizer], ExternalSubject(lambda: [self.optimizer]), digest_of, self.scalers
        )

    def step(self):
        self.model(torch.ones(2, 3)).sum().backward()
        self.optimizer.step()

    @property
    def fields(self):
        return self.state.fields()

    def differing(self, before):
        after = self.fields
        return {name for name in after if after[name] != before[name]}


def test_before_the_first_step_the_optimizer_has_nothing():
    fields = Training().fields
    assert (fields["optimizer"], fields["optimizer_steps"], fields["scaler"]) == ("", None, "")
    assert (fields["rates"], fields["is_whole"], bool(fields["buffers"])) == ((0.1,), True, True)


def test_a_state_that_is_loaded_is_the_one_that_was_saved():
    training = Training()
    training.step()
    saved = training.model.state_dict(), training.optimizer.state_dict()
    before = training.fields
    other = Training()
    other.model.load_state_dict(saved[0])
    other.optimizer.load_state_dict(saved[1])
    assert other.fields == before


def test_each_part_is_in_its_own_field():
    training = Training()
    training.step()
    training.step()
    before = training.fields
    training.model.scratch += 1.0
    assert training.differing(before) == set()
    training.model[1].running_mean += 1.0
    assert training.differing(before) == {"buffers"}
    state = training.optimizer.state[training.model[0].weight]
    state["exp_avg"] += 1.0
    assert training.differing(before) == {"buffers", "optimizer"}
    for one in training.optimizer.state.values():
        one["step"] += 1.0
    training.optimizer.param_groups[0]["lr"] = 0.2
    training.optimizer.param_groups[0]["weight_decay"] = 0.2
    assert training.differing(before) == {"buffers", "optimizer", "optimizer_steps", "rates", "groups"}


def test_momentum_without_a_count():
    training = Training(torch.optim.SGD, momentum=0.9)
    training.step()
    fields = training.fields
    assert (bool(fields["optimizer"]), fields["optimizer_steps"]) == (True, None)


def test_a_scaler_before_its_first_step_and_after_a_load():
    training = Training()
    # Before anybody watched.
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = training.fields["scaler"]
    assert "1024.0" in before
    scaler.scale(torch.ones(1))
    assert training.fields["scaler"] == before
    scaler.update(512.0)
    saved, halved = scaler.state_dict(), training.fields["scaler"]
    assert halved != before
    del scaler
    again = torch.amp.GradScaler("cpu", init_scale=1024.0)
    again.load_state_dict(saved)
    training.scalers.add(again)
    assert training.fields["scaler"] == halved
    del again
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    assert training.fields["scaler"] == "" and not disabled.is_enabled()
