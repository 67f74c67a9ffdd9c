"""What hooks see of a rank: the very tensors of its training, and who updates them."""

import pytest

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout, Replica, Span
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.step.step_stats import STEP_STATS_SIZE
from mecefo_runtime.system.dilation import NO_DILATION, Pacer
from mecefo_runtime.training.inspection import Inspection

pytestmark = pytest.mark.unit

LAYOUT = Layout(4, (Replica(0, (Span(0, 0, 2), Span(1, 2, 4)), 12),))


@pytest.fixture
def state():
    return ModelState(JobConfig(), LAYOUT, 1, {}, STEP_STATS_SIZE)


def test_names_are_those_of_the_units_and_all_tensors_have_an_owner(state):
    inspection = Inspection(state, Pacer(NO_DILATION))
    parameters, modules = inspection.tensors("parameters"), inspection.modules()
    assert parameters.keys() == inspection.tensors("gradients").keys()
    assert {name.rpartition(".")[0] for name in parameters} <= modules.keys()
    states = {f"{name}.{key}" for name in parameters for key in ("exp_avg", "exp_avg_sq")}
    assert inspection.tensors("optimizer").keys() == states


def test_who_updates_a_parameter_is_told_with_its_place(state):
    inspection = Inspection(state, Pacer(NO_DILATION))
    parameters, states = inspection.tensors("parameters"), inspection.tensors("optimizer")
    for number, (name, parameter) in enumerate(parameters.items()):
        parameter.fill_(number + 1)
        states[f"{name}.exp_avg"].fill_(-number - 1)
        optimizer, flat, first = inspection.updater(name)
        place = slice(first, first + parameter.numel())
        assert flat[place].eq(number + 1).all()
        assert optimizer.state[flat]["exp_avg"][place].eq(-number - 1).all()
        assert any(flat is known for group in optimizer.param_groups for known in group["params"])


def test_it_is_that_one_which_the_step_goes_by(state):
    inspection = Inspection(state, Pacer(NO_DILATION))
    name = next(name for name in inspection.tensors("parameters") if name.endswith("ffn.up.weight"))
    state.gradients.fill_(1e-3)
    optimizer, flat, first = inspection.updater(name)
    before = flat[first].item()
    state.apply(0.01, 1.0)
    assert inspection.tensors("parameters")[name].view(-1)[0] == flat[first] != before
    assert optimizer.param_groups[0]["lr"] == 0.01


@pytest.mark.parametrize("name", ["no.such", "layer", "layer.0.ffn.up.weight", "layer.3.no.weight", "layer.3.ffn"])
def test_what_is_not_here_is_nobodys(state, name):
    with pytest.raises(LookupError):
        Inspection(state, Pacer(NO_DILATION)).updater(name)
