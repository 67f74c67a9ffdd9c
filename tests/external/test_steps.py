"""What is one step of the training when there are several optimizers."""

import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.external.hooks import TorchHooks
from chaos.external.steps import TAKEOVER_STEPS, Nesting, Rounds

pytestmark = pytest.mark.unit


def play(rounds, text, others=()):
    """Optimizers step in the order of `text`, where `|` is the next batch; returns where steps of the training ended.

    `<x` is before x stepped.
    """
    ends = []
    for number, who in enumerate(text):
        if who == "|":
            ends += [f"{number}|"] if rounds.new_batch() else []
            continue
        ends += [f"{number}<{who}"] if rounds.stepping(who) else []
        ends += [f"{number}{who}"] if rounds.stepped(who, others) else []
    return ends


def test_every_step_of_a_single_optimizer_is_one():
    assert play(Rounds(), "aaa") == ["0a", "1a", "2a"]


def test_two_that_alternate_make_one_step_together():
    assert play(Rounds(), "dgdgdg", others="g") == ["1g", "3g", "5g"]


def test_without_a_hint_the_first_step_is_over_early_and_the_count_is_the_same():
    assert play(Rounds(), "dgdgdg") == ["0d", "3g", "5g"]


def test_one_that_follows_only_sometimes_is_waited_for_once():
    # The first wait for g is in vain, until d steps again; then its steps belong to whatever comes next.
    assert play(Rounds(), "dddgdddgdd", others="g") == ["1<d", "1d", "2d", "4d", "5d", "6d", "8d", "9d"]


def test_the_next_batch_ends_a_step():
    assert play(Rounds(), "|d|d|dg|d", others="g") == ["2|", "3d", "5d", "8d"]


def test_many_small_optimizers_make_one_step_together():
    assert play(Rounds(), "abcdabcdabcd", others="bcd") == ["3d", "7d", "11d"]


def test_another_part_of_the_training_takes_the_lead():
    rounds = Rounds()
    assert play(rounds, "aaa") == ["0a", "1a", "2a"]
    assert play(rounds, "b" * (TAKEOVER_STEPS + 2))[-3:] == [f"{TAKEOVER_STEPS + n}b" for n in (-1, 0, 1)]
    rounds = Rounds()
    play(rounds, "aaa")
    rounds.forget("a")
    assert play(rounds, "bb") == ["0b", "1b"]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.booleans())
def test_as_many_steps_as_the_leading_one_made(followers_of_each, has_batches):
    text = "".join(("|" if has_batches else "") + "a" + "bcde"[:count] for count in followers_of_each)
    rounds = Rounds()
    ends = play(rounds, text, others="bcde"[: followers_of_each[0]])
    # The last one may still wait.
    assert len(ends) + rounds.stepping("a") == len(followers_of_each)


def test_a_wrapper_and_what_it_wraps_step_once():
    nesting = Nesting()
    assert nesting.enter("zero")
    assert not nesting.enter("adam")
    assert not nesting.leave("adam")
    assert nesting.leave("zero")


def test_a_step_that_broke_off_is_forgotten():
    nesting = Nesting()
    assert nesting.enter("a")
    assert not nesting.enter("b")
    # Neither came back.
    assert nesting.enter("a")
    assert nesting.leave("a")
    assert not nesting.leave("b")


def test_a_compiled_step_is_told_on_the_thread_that_trains_only():
    told = []
    # As a thread that saves a checkpoint meanwhile, and then the training thread itself.
    observer = SimpleNamespace(is_elsewhere=lambda: threading.current_thread() is saving, on_compiled_step=told.append)
    hooks = TorchHooks(observer)
    saving = threading.Thread(target=hooks.tell_compiled_step)
    hooks._compiled_steps.optimizer = "its optimizer"
    saving.start()
    saving.join()
    assert told == []
    hooks.tell_compiled_step()
    hooks.tell_compiled_step()
    assert told == ["its optimizer"]
