"""Values that a fault leaves as they were: it must say so, whichever tensor they are in."""

import pytest

from chaos.in_process.activations import InjectActivations
from chaos.in_process.gradients import InjectGradients, KeepGradients
from chaos.in_process.tensors import MAX_FORWARDS, InjectOptimizer, InjectParameters
from tests.chaos.tiny_training import Training

pytestmark = pytest.mark.unit

FLIP = {"how": "flip", "bit": 22, "seed": "1/0"}
NAN = {"how": "fill", "number": "nan", "seed": "1/0"}
KINDS = {
    "parameters": InjectParameters,
    "gradients": InjectGradients,
    "activations": InjectActivations,
    "optimizer": InjectOptimizer,
}
STEP = 3


def train(kind, arguments, *, phase="forward", training=None):
    training = training or Training()
    training.begin(kind, arguments, STEP, phase)
    training.train(8)
    return training


def set_all(tensor_kind, value):
    """Make all of the rank's tensors of that kind `value`, just before the fault."""

    def prepare(training):
        for tensor in training.tensors(tensor_kind).values():
            tensor.fill_(value)

    return prepare


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"how": "scale", "number": 1.0, "seed": "1/0"}, 0.5),
        ({"how": "scale", "number": 1.0 + 1e-12, "seed": "1/0"}, 0.5),
        ({"how": "scale", "number": 1000.0, "seed": "1/0"}, 0.0),
        # Another zero, which no arithmetic of a training tells from the first one.
        ({"how": "scale", "number": -3.0, "seed": "1/0"}, 0.0),
        ({"how": "scale", "number": 2.0, "seed": "1/0"}, float("inf")),
        (NAN, float("nan")),
    ],
    ids=["by one", "by nearly one", "zero", "negative zero", "infinity", "not a number"],
)
@pytest.mark.parametrize("where", ["parameters", "optimizer", "gradients"])
def test_a_value_that_did_not_change_is_told_to_have_not(where, arguments, value):
    training = Training()
    phase = "optimizer" if where == "gradients" else "forward"
    training.before = {(STEP, phase): lambda: set_all(where, value)(training)}
    train(KINDS[where], arguments, phase=phase, training=training)
    told = training.reports[-1] if training.reports else training.begun
    assert told["is_changed"] is False, told


@pytest.mark.parametrize("where", ["parameters", "gradients", "activations", "optimizer"])
@pytest.mark.parametrize("arguments", [FLIP, NAN, {"how": "scale", "number": 1000.0, "seed": "1/0"}])
def test_a_value_that_changed_is_told_to_have(where, arguments):
    (told,) = train(KINDS[where], arguments).reports
    assert told["is_changed"] is True, told


def test_a_parameter_that_did_not_change_is_told_to_have_not_by_its_use_too():
    training = Training()
    training.begin(InjectParameters, {"how": "scale", "number": 1.0, "seed": "1/0"}, STEP, "forward")
    training.train(STEP + MAX_FORWARDS)
    (told,) = training.reports
    assert (told["outcome"], told["is_changed"]) == ("masked", False)


def test_an_activation_that_is_scaled_by_one_did_not_change():
    (told,) = train(InjectActivations, {"how": "scale", "number": 1.0, "seed": "1/0"}).reports
    assert (told["outcome"], told["is_changed"]) == ("consumed", False)


def test_a_sign_that_is_flipped_is_a_change_of_zero_too():
    training = Training()
    training.before = {(STEP, "forward"): lambda: set_all("parameters", 0.0)(training)}
    train(InjectParameters, {**FLIP, "bit": "sign"}, training=training)
    assert training.begun["is_changed"] is True


def test_of_a_whole_tensor_one_element_that_changed_is_enough():
    training = Training()
    name = "layer.0.up.weight"

    def leave_one():
        tensor = training.tensors("parameters")[name]
        tensor.fill_(float("inf"))
        tensor.view(-1)[77] = 0.25

    training.before = {(STEP, "forward"): leave_one}
    arguments = {"how": "scale", "number": 2.0, "share": 1.0, "seed": "1/0", "tensor": name}
    training.begin(InjectParameters, arguments, STEP, "forward")
    training.train(STEP)
    assert training.begun["is_changed"] is True
    assert training.begun["struck"]["elements"][0]["after"] == 0.5


def test_stale_gradients_that_equal_the_fresh_ones_are_no_change():
    training = Training()
    training.before = {(step, "reduce"): lambda: set_all("gradients", 0.0)(training) for step in (STEP, STEP + 1)}
    (told,) = train(KeepGradients, FLIP, phase="forward", training=training).reports
    assert told["is_changed"] is False
