"""What a later start of a rank is told of the states that were seen before it."""

import pytest

from harness.backends.command import known_states
from harness.backends.command.known_states import KnownStates
from mecefo_runtime.system.events import Event

pytestmark = pytest.mark.unit


def told(kind, step, digest, rank=0):
    fields = {} if digest is None else {"parameters": digest}
    return Event(kind, "rank", 0.0, 0.0, 1, rank=rank, step=step, fields=fields)


def known_of(*events):
    known = KnownStates()
    for event in events:
        known.note(event)
    return known.steps_by_digest()


def test_all_ranks_and_starts_tell_and_equal_states_are_one():
    entered = [told("training_entered", 0, digest, rank) for rank, digest in enumerate("ab")]
    saved = [told("checkpoint_begun", 10, "c"), told("checkpoint_begun", 10, "d", 1), told("checkpoint_begun", 10, "d")]
    assert known_of(*entered, *saved) == {"a": (0,), "b": (0,), "c": (10,), "d": (10,)}


def test_a_state_that_was_the_same_after_several_steps_has_all_of_them():
    """Nothing was learned in between: a learning rate of 0."""
    events = [told("training_entered", 0, "a"), *(told("checkpoint_begun", step, "a") for step in (10, 20))]
    assert known_of(*events) == {"a": (0, 10, 20)}


def test_what_has_no_step_or_no_digest_and_other_events_say_nothing():
    events = [told("training_entered", None, "a"), told("checkpoint_begun", 10, None), told("step_committed", 3, "a")]
    assert known_of(*events) == {}


def test_the_oldest_are_forgotten_and_the_beginning_is_not(monkeypatch):
    monkeypatch.setattr(known_states, "MAX_STATES", 3)
    saved = [told("checkpoint_begun", step, f"of {step}") for step in (10, 20, 30, 40)]
    # What is saved again is new again.
    events = [told("training_entered", 0, "a"), *saved[:3], saved[0], saved[3]]
    assert known_of(*events) == {"a": (0,), "of 10": (10,), "of 30": (30,), "of 40": (40,)}
