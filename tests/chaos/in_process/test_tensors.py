"""Injections into tensors in a small real training: what they change, what they tell, that nothing of them stays."""

import json

import pytest
import torch

import chaos.in_process.injection
from chaos.in_process.activations import InjectActivations
from chaos.in_process.base import InProcessFaultRefused
from chaos.in_process.gradients import InjectGradients, KeepGradients, is_carried, would_be
from chaos.in_process.tensors import MAX_FORWARDS, InjectOptimizer, InjectParameters
from tests.chaos.tiny_training import PHASES, Training

pytestmark = pytest.mark.unit

FLIP = {"how": "flip", "bit": 22, "seed": "1/0"}
NAN = {"how": "fill", "number": "nan", "seed": "1/0"}
KINDS = {
    "parameters": InjectParameters,
    "gradients": InjectGradients,
    "activations": InjectActivations,
    "optimizer": InjectOptimizer,
    "stale": KeepGradients,
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
STEP = 3


def train(kind, arguments, *, phase="forward", steps=8, training=None):
    training = training or Training()
    training.begin(kind, arguments, STEP, phase)
    training.train(steps)
    assert json.loads(json.dumps(training.reports)) == training.reports
    return training


def hooks_of(training):
    return [
        hook
        for module in training.model.modules()
        for hook in (*module._forward_hooks, *module._forward_pre_hooks, *module._backward_hooks)
    ]


@each_kind
def test_it_is_used_and_told_once_and_nothing_of_it_stays(kind):
    training = train(kind, FLIP)
    (told,) = training.reports
    assert told["outcome"] == "consumed", told
    assert hooks_of(training) == []
    training.effect.lift()
    losses = [p.detach().clone() for p in training.model.parameters()]
    assert all(value.isfinite().all() for value in losses)


@each_kind
def test_the_same_seed_affects_the_same(kind):
    one, same = (train(kind, FLIP).reports[0]["struck"] for _ in range(2))
    assert one == same


def test_other_seeds_injection_elsewhere():
    affected = [train(InjectGradients, {**FLIP, "seed": f"{seed}/0"}).reports[0]["struck"] for seed in range(4)]
    assert len({(s["tensor"], s["elements"][0]["index"]) for s in affected}) == 4


@each_kind
def test_where_nothing_is_written_nothing_is_seen(kind, monkeypatch):
    monkeypatch.setattr(chaos.in_process.injection, "write", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, *_, **__: self) if kind is KeepGradients else None
    training = Training()
    training.begin(kind, FLIP, STEP, "forward")
    training.train(8)
    told = {**training.begun, **(training.reports[0] if training.reports else {})}
    assert told.get("is_changed") is False or told["outcome"] not in ("consumed", "masked"), told


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", [InjectParameters, InjectOptimizer], ids=["parameters", "optimizer"])
def test_what_lives_from_step_to_step_can_be_affected_at_any_phase(kind, phase):
    (told,) = train(kind, FLIP, phase=phase).reports
    assert told["outcome"] == "consumed", told


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "reduce", "optimizer"])
def test_gradients_are_affected_in_the_very_step(phase):
    (told,) = train(InjectGradients, FLIP, phase=phase).reports
    assert (told["outcome"], told["step"]) == ("consumed", STEP), told
    assert told["phase"] == ("optimizer" if phase == "optimizer" else "reduce")


def test_gradients_affected_after_their_use_are_those_of_the_next_step():
    (told,) = train(InjectGradients, FLIP, phase="commit").reports
    assert (told["outcome"], told["step"]) == ("consumed", STEP + 1)


@pytest.mark.parametrize("create", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_any_optimizer_that_treats_elements_one_by_one_will_do(create):
    training = Training(lambda parameters: create(parameters, lr=0.01))
    (told,) = train(InjectGradients, {**FLIP, "bit": 24}, training=training).reports
    assert told["outcome"] == "consumed", told


def test_a_large_gradient_is_seen_in_the_sum_of_the_ranks():
    arguments = {"how": "scale", "number": 1e6, "count": 1, "seed": "5/0"}
    (told,) = train(InjectGradients, arguments).reports
    assert told["carried_by_reduction"] is True
    gradient = told["gradient"]
    assert gradient["reduced"] == pytest.approx(gradient["struck"], rel=1e-3)


def test_a_reduction_that_does_not_carry_it_is_not_evidence():
    training = Training()
    kept = {}

    def keep():
        kept.update({name: gradient.clone() for name, gradient in training.tensors("gradients").items()})

    def put_back():
        for name, gradient in training.tensors("gradients").items():
            gradient.copy_(kept[name])

    training.before = {(STEP, "reduce"): keep, (STEP, "optimizer"): put_back}
    (told,) = train(InjectGradients, {"how": "scale", "number": 1e6, "seed": "5/0"}, training=training).reports
    assert (told["outcome"], told["carried_by_reduction"]) == ("otherwise", False)


def test_a_parameter_that_is_put_back_before_it_is_read_was_not_seen():
    training = Training()
    arguments = {**FLIP, "tensor": "norm.weight"}
    kept = {}
    training.before = {
        (STEP, "commit"): lambda: kept.update(weight=training.model.norm.weight.detach().clone()),
        (STEP + 1, "data"): lambda: training.model.norm.weight.data.copy_(kept["weight"]),
    }
    (told,) = train(InjectParameters, arguments, phase="commit", training=training).reports
    assert told["outcome"] == "restored"


def test_the_optimizer_may_move_a_affected_parameter_before_it_is_read():
    (told,) = train(InjectParameters, {**FLIP, "tensor": "layer.0.up.weight"}, phase="backward").reports
    assert told["outcome"] == "consumed"
    assert told["output"]["num_changed"] > 0


def test_a_change_that_no_output_shows_is_called_masked():
    training = Training()
    # No input has this feature.
    with torch.no_grad():
        training.model.layer[0].up.bias.fill_(1e30)
    arguments = {**FLIP, "tensor": "layer.0.up.weight", "bit": 0}
    (told,) = train(InjectParameters, arguments, steps=STEP + MAX_FORWARDS + 1, training=training).reports
    assert (told["outcome"], told["num_forwards"]) == ("masked", MAX_FORWARDS)


def test_a_step_that_is_left_out_is_told():
    training = Training()
    training.skipped = {STEP}
    (told,) = train(InjectGradients, NAN, training=training).reports
    assert (told["outcome"], told["step"]) == ("unchanged", STEP)


def test_a_step_that_is_computed_again_is_told():
    training = Training()
    training.begin(InjectGradients, NAN, STEP, "forward")
    training.train(STEP - 1)
    training.step = STEP
    for phase in ("data", "forward"):
        training._announce(phase)
    for parameter in training.model.parameters():
        parameter.grad.fill_(1.0)
    for phase in ("reduce", "data"):
        training._announce(phase)
    (told,) = training.reports
    assert (told["outcome"], told["next_phase"], told["next_step"]) == ("left", "data", STEP)


def test_state_waits_for_a_step_that_uses_it():
    training = Training()
    training.skipped = {STEP}
    (told,) = train(InjectOptimizer, FLIP, training=training).reports
    assert (told["outcome"], told["step"]) == ("consumed", STEP + 1)


@pytest.mark.parametrize("where", ["parameters", "gradients", "activations", "optimizer"])
def test_a_stuck_bit_stays_until_it_is_lifted(where):
    arguments = {"how": "flip", "bit": 22, "seed": "1/0", "sticky": True}
    if where in ("parameters", "gradients", "optimizer"):
        arguments["tensor"] = "layer.1.down.weight" + (".exp_avg" if where == "optimizer" else "")
    else:
        arguments["tensor"] = "layer.1.down"
    training = Training()
    training.begin(KINDS[where], arguments, STEP, "forward")
    training.train(STEP)
    if where == "parameters":
        # Left alone, the optimizer would take long to move it.
        (flipped,) = training.begun["struck"]["elements"]
        training.tensors(where)["layer.1.down.weight"].view(-1)[flipped["index"]] = flipped["before"]
    training.train(7)
    (told,) = training.reports
    assert told["outcome"] == "consumed"
    (element,) = told["struck"]["elements"]
    stuck = int(element["bits_after"], 16) >> 22 & 1
    if where in ("parameters", "optimizer"):
        name = arguments["tensor"]
        # Re-applied at the last announcement before its use, moved by the optimizer since.
        training._announce("optimizer")
        value = training.tensors(where)[name].view(-1)[element["index"]]
        assert int(value.view(torch.int32)) >> 22 & 1 == stuck
    before = training.effect.lift()["num_strikes"]
    assert before > 1
    assert hooks_of(training) == []
    training.train(3)
    assert training.effect._num_injections == before


def test_stale_gradients_are_those_of_the_step_before():
    training = Training()
    seen = {}

    def note(step):
        seen[step] = {name: gradient.clone() for name, gradient in training.tensors("gradients").items()}

    training.is_reducing = False
    for step in (STEP, STEP + 1, STEP + 2):
        training.before[step, "optimizer"] = lambda step=step: note(step)
    (told,) = train(KeepGradients, {"seed": "0/0"}, training=training).reports
    assert told["is_equal_to_kept"] and (told["kept_step"], told["step"]) == (STEP, STEP + 1)
    assert told["num_tensors"] == len(seen[STEP])
    assert all(torch.equal(seen[STEP][name], seen[STEP + 1][name]) for name in seen[STEP])
    assert not all(torch.equal(seen[STEP][name], seen[STEP + 2][name]) for name in seen[STEP])
    assert told["relative_change"] > 0.1


def test_only_chosen_gradients_are_kept():
    (told,) = train(KeepGradients, {"tensor": "*.up.*", "seed": "0/0"}).reports
    assert told["num_tensors"] == 4 and ".up." in told["struck"]["tensor"]


def test_the_affected_activation_is_what_the_next_module_gets():
    training = Training()
    got = []
    training.model.norm.register_forward_pre_hook(lambda module, args: got.append(args[0].detach().clone()))
    arguments = {"how": "fill", "number": "7.5", "tensor": "layer.1", "index": 5, "seed": "0/0"}
    (told,) = train(InjectActivations, arguments, training=training).reports
    assert (told["outcome"], told["receiver"]) == ("consumed", "the module norm was given it")
    assert got[STEP - 1].view(-1)[5] == 7.5
    assert got[STEP].view(-1)[5] != 7.5, "once"


def test_an_activation_that_nobody_uses_was_not_seen():
    training = Training()
    original = type(training.model).forward

    def waste(x):
        with torch.no_grad():
            training.model.norm(x)
        return original(training.model, x)

    training.model.forward = waste
    training.model.norm.register_forward_hook(lambda *_: None)
    arguments = {"how": "fill", "number": "7.5", "tensor": "norm", "seed": "0/0"}
    (told,) = train(InjectActivations, arguments, training=training).reports
    assert told["outcome"] == "unused"


@pytest.mark.parametrize(
    ("kind", "arguments", "reason"),
    [
        (InjectParameters, {**FLIP, "tensor": "no.such"}, "no parameters that fit"),
        (InjectParameters, {**FLIP, "bit": 40}, "bits 0 to 31"),
        (InjectParameters, {**FLIP, "tensor": "norm.weight", "index": 8}, "8 elements"),
        (InjectActivations, {**FLIP, "layer": 9}, "no modules of layer 9"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_changed(kind, arguments, reason):
    training = Training()
    training.train(1)
    before = {name: tensor.clone() for name, tensor in training.tensors("parameters").items()}
    with pytest.raises(InProcessFaultRefused, match=reason):
        kind(arguments, training, training.reports.append).begin(2, "forward")
    assert all(torch.equal(tensor, training.tensors("parameters")[name]) for name, tensor in before.items())
    assert hooks_of(training) == []


def test_an_optimizer_without_state_is_refused():
    training = Training()
    with pytest.raises(InProcessFaultRefused, match="keeps no state"):
        InjectOptimizer(FLIP, training, training.reports.append).begin(1, "forward")


def test_without_a_training_it_is_refused():
    with pytest.raises(InProcessFaultRefused, match="does not train yet"):
        InjectParameters(FLIP, None, print).begin(1, "forward")


@each_kind
def test_the_rank_does_not_die_of_a_mistake_of_ours(kind, monkeypatch):
    training = Training()
    training.begin(kind, FLIP, STEP, "forward")
    training.train(STEP - 1)

    def break_down(*_, **__):
        raise ZeroDivisionError("a mistake")

    training.before[STEP, "backward"] = lambda: monkeypatch.setattr(training, "tensors", break_down)
    monkeypatch.setattr(chaos.in_process.injection, "Mark", break_down) if kind is InjectActivations else None
    training.train(3)
    assert training.reports, "it is told"
    assert training.reports[0]["outcome"] in ("failed", "consumed")
    assert hooks_of(training) == []


def test_a_new_epoch_brings_other_modules():
    training, other = Training(), Training()
    training.begin(InjectParameters, {**FLIP, "sticky": True, "tensor": "norm.weight"}, STEP, "commit")
    training.train(STEP)
    other.model.load_state_dict(training.model.state_dict())
    training.effect.exposed(other)
    assert hooks_of(training) == []
    other.effect, other.step = training.effect, STEP
    other.train(2)
    assert training.reports[0]["outcome"] == "consumed"
    other.effect.lift()
    assert hooks_of(other) == []


# ---- pure parts ----


def test_what_the_peers_add_tells_whether_the_sum_contains_the_injection():
    torch.manual_seed(0)
    own, peers = torch.randn(50) * 1e-3, torch.randn(50) * 1e-3
    affected = own.clone()
    affected[7] = 1.0
    index = torch.tensor([7])
    assert is_carried(own, affected, affected + peers, index) is True
    assert is_carried(own, affected, own + peers, index) is False
    barely = own.clone()
    barely[7] += 1e-6
    assert is_carried(own, barely, barely + peers, index) is None
    affected[7] = float("nan")
    assert is_carried(own, affected, affected + peers, index) is True
    assert is_carried(own, affected, own + peers, index) is False


def test_what_would_have_been_taken_in():
    own, affected, peers = torch.tensor([1e-3, 2e-3]), torch.tensor([4e-3, 1e30]), torch.tensor([5e-3, 5e-3])
    reduced = affected + peers
    clean = would_be(own, affected, reduced, reduced * 0.5, 1e-3)
    assert clean[0].item() == pytest.approx(0.5 * 6e-3, rel=1e-4)
    assert clean[1].item() == pytest.approx(0.5 * 2e-3, rel=1e-4), "the peers' part is lost in rounding"


class OnGpu(torch.Tensor):
    """A tensor that says that it lies on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("is_on_gpu", [False, True])
def test_the_random_numbers_of_the_training_are_left_alone_where_it_computes(is_on_gpu, monkeypatch):
    training = train(InjectParameters, FLIP | {"tensor": "norm.weight"})
    asked = []
    fork = torch.random.fork_rng

    def watch(devices):
        asked.append(list(devices))
        return fork(devices=[])

    monkeypatch.setattr(torch.random, "fork_rng", watch)
    given, output = torch.ones(3, training.size), torch.zeros(3, training.size)
    output = output.as_subclass(OnGpu) if is_on_gpu else output
    assert training.effect._change_of_output(training.model.norm, (given,), {}, output)
    assert asked == [[output.device] if is_on_gpu else []]
