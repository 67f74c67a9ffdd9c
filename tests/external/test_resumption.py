"""A start finds out by its parameters after which step of the run it continues."""

import sys

import pytest
import torch
from torch import nn

from chaos.external import resumption
from chaos.external.optimizers import Optimizers
from chaos.external.resumption import Resumption, digest_of
from chaos.external.torchft import Managers
from chaos.in_process.protocol import Start
from tests.external.jobs import counts_of, python, run_job


def model_of(seed=0, width=4):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 1))


def digest(model):
    return digest_of(model.parameters())


@pytest.mark.unit
class TestDigest:
    def test_it_is_of_the_values_and_not_of_the_order(self):
        model = model_of()
        assert digest(model) == digest(model_of()) == digest_of(reversed([*model.parameters(), *model.parameters()]))
        assert digest(model) != digest(model_of(seed=1)) and digest(model) != digest(model_of(width=5))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8])
    def test_one_bit_makes_another(self, dtype):
        tensor = torch.ones(64, dtype=dtype)
        before = digest_of([tensor])
        tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])[7] ^= 1
        assert digest_of([tensor]) != before
        assert digest_of([torch.ones(64, dtype=dtype)]) == before != digest_of([torch.ones(8, 8, dtype=dtype)])

    @pytest.mark.parametrize("part", [slice(1, 4), slice(0, 63), slice(None, None, 2)])
    def test_a_part_of_a_tensor_that_is_in_no_words_has_one_too(self, part):
        whole, other = torch.arange(64.0), torch.arange(64.0)
        assert digest_of([whole[part]]) == digest_of([other[part]])
        other[2] += 1.0
        assert digest_of([whole[part]]) != digest_of([other[part]])
        assert digest_of([torch.ones(4, 3, dtype=torch.complex64).T, torch.zeros(0)]) is not None

    def test_what_has_no_bits_to_look_at_has_none(self):
        lazy = nn.LazyLinear(3)
        assert digest_of([]) is None
        assert digest_of(nn.Linear(2, 2, device="meta").parameters()) is None
        assert digest_of(lazy.parameters()) is None
        assert digest_of([*lazy.parameters(), torch.ones(2)]) == digest_of([torch.ones(2)])


class Training:
    """A model and its optimizer, and what is known of where it continues."""

    def __init__(self, start, kind=torch.optim.AdamW, loads=(), **settings):
        self.model = model_of()
        self.optimizer = kind(self.model.parameters(), lr=0.1, **settings)
        self.optimizers = Optimizers(Managers(lambda: None), lambda *_: None)
        self.optimizers.add(self.optimizer)
        self.resumption = Resumption(start, self.optimizers, loads)

    def step(self):
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()

    def first_step(self, **how):
        found = self.resumption.look(is_first_pass=True)
        self.step()
        counted = self.resumption.counted((found or 0) + 1, **{"told_by": None, "is_explicit": False, **how})
        return counted.count_kept_by, counted.resumed_after


@pytest.mark.unit
class TestWhereItContinues:
    @pytest.fixture(autouse=True)
    def _no_other_loaders(self, monkeypatch):
        for name in ("safetensors", "tensorstore"):
            monkeypatch.delitem(sys.modules, name, raising=False)

    @pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
    def test_equal_parameters_say_it_whatever_was_loaded(self, kind):
        states = {digest(model_of()): (30,), "others": (20,)}
        assert Training(Start(True, states), kind, loads=[True]).first_step() == ("parameters", 30)

    @pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
    def test_those_of_the_beginning_are_a_new_beginning(self, kind):
        training = Training(Start(True, {digest(model_of()): (0,)}), kind, loads=[True])
        assert training.first_step() == ("parameters", 0)

    def test_before_the_first_pass_the_beginning_says_nothing(self):
        """A loader may be asked for a batch before the checkpoint is loaded."""
        start = Start(True, {digest(model_of()): (0,), digest(model_of(seed=1)): (30,)})
        training = Training(start, torch.optim.SGD, loads=[True])
        assert training.resumption.look(is_first_pass=False) is None
        assert training.resumption.is_due
        training.model.load_state_dict(model_of(seed=1).state_dict())
        assert training.resumption.look(is_first_pass=False) == 30
        assert training.first_step() == ("parameters", 30)
        assert not training.resumption.is_due

    def test_what_was_the_same_after_several_steps_says_nothing(self):
        states = {digest(model_of()): (10, 20)}
        assert Training(Start(True, states), torch.optim.SGD, loads=[True]).first_step() == ("nobody", None)

    @pytest.mark.parametrize(
        ("kind", "loads", "known"),
        [
            (torch.optim.SGD, [], ("nothing_loaded", 0)),
            (torch.optim.AdamW, [], ("optimizer", 0)),
            (torch.optim.SGD, [True], ("nobody", None)),
            (torch.optim.AdamW, [True], ("nobody", None)),
            # Nobody watches what is loaded.
            (torch.optim.AdamW, None, ("nobody", None)),
        ],
    )
    def test_without_equal_ones_only_who_loads_nothing_begins_anew(self, kind, loads, known):
        assert Training(Start(True, {"others": (30,)}), kind, loads=loads).first_step() == known

    def test_another_way_to_load_is_as_good_as_a_load(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "safetensors", torch)
        assert Training(Start(True, {}), torch.optim.SGD).first_step() == ("nobody", None)

    def test_the_first_start_has_nothing_to_continue_from(self):
        assert Training(Start(), loads=[True]).first_step() == ("optimizer", 0)
        assert Training(None, torch.optim.SGD, loads=[True]).first_step() == ("nobody", None)

    def test_a_restored_count_counts_where_the_parameters_are_unknown(self):
        training = Training(Start(True, {"others": (30,)}), loads=[True])
        for _ in range(3):
            training.step()
        training.resumption.look(is_first_pass=True)
        training.step()
        counted = training.resumption.counted(4, told_by=None, is_explicit=False)
        assert (counted.count_kept_by, counted.resumed_after, counted.optimizer_steps) == ("optimizer", 3, 3)
        assert not counted.is_optimizer_fresh
        # A step of the script's own need not be one of the optimizer's.
        counted = training.resumption.counted(1, told_by=None, is_explicit=True)
        assert (counted.count_kept_by, counted.resumed_after) == ("nobody", None)

    def test_the_script_itself_knows_best(self):
        states = {digest(model_of()): (30,)}
        training = Training(Start(True, states), loads=[True])
        training.resumption.look(is_first_pass=True)
        training.step()
        counted = training.resumption.counted(26, told_by="script", is_explicit=True)
        assert (counted.count_kept_by, counted.resumed_after) == ("script", 25)

    @pytest.mark.parametrize(
        ("kind", "settings", "is_fresh", "steps"),
        [
            (torch.optim.AdamW, {}, True, 0),
            (torch.optim.SGD, {"momentum": 0.9}, True, None),
            # It has no state that could be lost.
            (torch.optim.SGD, {}, False, None),
        ],
    )
    def test_an_optimizer_that_begins_without_a_state(self, kind, settings, is_fresh, steps):
        training = Training(Start(True, {digest(model_of()): (30,)}), kind, **settings)
        training.resumption.look(is_first_pass=True)
        training.step()
        counted = training.resumption.counted(31, told_by=None, is_explicit=False)
        assert (counted.is_optimizer_fresh, counted.optimizer_steps) == (is_fresh, steps)
        training.resumption.look(is_first_pass=True)
        training.step()
        assert not training.resumption.counted(31, told_by=None, is_explicit=False).is_optimizer_fresh


@pytest.mark.unit
def test_digests_are_bounded_by_the_time_that_the_training_and_its_saves_take(monkeypatch):
    """Each takes 0.4 s here: two in advance, then one in 40 s, or for each 1.6 s of saving."""
    now = [100.0]
    monkeypatch.setattr(resumption.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(resumption.time, "thread_time", lambda: now[0])

    def slow(parameters):
        now[0] += 0.4
        return "digest"

    monkeypatch.setattr(resumption, "digest_of", slow)
    found = Training(Start()).resumption
    assert [found.state_to_save().get("parameters") for _ in range(4)] == ["digest", "digest", None, None]
    found.saved(1.0)
    assert [found.state_to_save().get("parameters") for _ in range(2)] == ["digest", None]
    now[0] += 41.0
    assert [found.state_to_save().get("parameters") for _ in range(2)] == ["digest", None]


# ---- real scripts ----


@pytest.mark.external
class TestScripts:
    def test_steps_go_on_where_the_parameters_are_and_are_held_by_these_numbers(self, tmp_path):
        """SGD keeps no count; this one does not restore its momentum either."""
        first = run_job(tmp_path, python("resuming.py", "sgd", "6"))
        assert (first.exit_code, first.steps) == (0, [1, 2, 3, 4, 5, 6]), first.stderr
        assert [event.step for event in first.of("checkpoint_begun")] == [2, 4, 6]
        later = run_job(tmp_path, python("resuming.py", "sgd", "9"), states_of=first, holds=[(0, 8, "forward")])
        assert (later.exit_code, later.steps) == (0, [7, 8, 9]), later.stderr
        assert counts_of(later) == {0: (7, "parameters", 6)}
        assert [held.printed[-1] for held in later.held] == ["step 7"]
        (counted,) = later.of("steps_counted")
        assert counted.fields["is_optimizer_fresh"] is True
        # The whole run's numbers, also in what is saved later.
        assert [event.step for event in later.of("checkpoint_begun")] == [8]

    @pytest.mark.nightly
    def test_what_is_loaded_with_other_bits_is_unknown_and_who_loads_nothing_begins_anew(self, tmp_path):
        first = run_job(tmp_path, python("resuming.py", "rounded", "6"))
        later = run_job(tmp_path, python("resuming.py", "rounded", "8"), states_of=first)
        assert counts_of(later) == {0: (1, "nobody", None)}, later.stderr
        (tmp_path / "state.pt").unlink()
        anew = run_job(tmp_path, python("resuming.py", "unseeded", "3"), states_of=first)
        assert counts_of(anew) == {0: (1, "optimizer", 0)}, anew.stderr

    @pytest.mark.nightly
    def test_a_script_that_saves_before_it_says_that_a_step_is_over(self, tmp_path):
        first = run_job(tmp_path, python("resuming.py", "explicit", "6"))
        assert [event.step for event in first.of("checkpoint_begun")] == [2, 4, 6], first.stderr
        later = run_job(tmp_path, python("resuming.py", "explicit", "8"), states_of=first)
        assert (later.steps, counts_of(later)) == ([7, 8], {0: (7, "parameters", 6)}), later.stderr
