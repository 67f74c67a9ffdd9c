"""The steps and phases of a script, over its events in any order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.external.step_machine import (
    CHECKPOINT,
    COMMIT,
    PHASES,
    Announce,
    BeginCheckpoint,
    BeginStep,
    CommitStep,
    RepeatStep,
    StepMachine,
)

pytestmark = pytest.mark.unit

OPTIMIZERS = ("a", "b", "c")
OF_A_STEP = PHASES[:CHECKPOINT]


class Injected(Exception):
    """What a fault raises where a phase is announced."""


class Caller:
    """Feeds events and performs what comes out; the announcements whose numbers are in `raising` raise."""

    def __init__(self, *, is_explicit=False, raising=()):
        self.machine = StepMachine(is_explicit=is_explicit)
        self.done = []
        self._raising = set(raising)
        self._num_announced = 0

    def feed(self, event, *facts, **more):
        """Whether all that came out was performed."""
        for action in getattr(self.machine, event)(*facts, **more) or ():
            self.done.append(action)
            if isinstance(action, Announce):
                self._num_announced += 1
                if self._num_announced in self._raising:
                    return False
        return True

    def announced(self, step=None):
        return [one.phase for one in self.done if isinstance(one, Announce) and step in (None, one.step)]

    def committed(self):
        return [one.step for one in self.done if isinstance(one, CommitStep)]

    def train(self, *optimizers, num_backwards=1):
        """One step as a script takes it."""
        self.feed("on_data")
        self.feed("on_forward")
        for _ in range(num_backwards):
            self.feed("on_backward")
        for one in optimizers or ("a",):
            self.step(one)

    def step(self, optimizer, others=()):
        return self.feed("on_stepping", optimizer) and self.feed("on_stepped", optimizer, others)


def event(name, *facts):
    return st.tuples(st.just(name), *facts)


optimizers = st.sampled_from(OPTIMIZERS)
steps = st.integers(1, 40)
# Everything but what gives a step another number.
COUNTED = [
    event("on_data"),
    event("on_forward"),
    event("on_backward"),
    event("on_left_out"),
    event("on_stepping", optimizers, st.booleans()),
    event("on_evaluating", optimizers),
    event("on_updating"),
    event("on_stepped", optimizers, st.sampled_from([(), ("b",), ("b", "c")])),
    event("on_forgotten", optimizers),
    event("on_rejected"),
    event("on_saving"),
    event("on_effect"),
    event("on_step_reported", st.just({}), st.none()),
]
NUMBERED = [
    event("count_is", steps),
    event("continues_after", steps),
    event("on_updating", steps),
    event("on_step_reported", st.just({"loss": 1.0}), steps),
]
counted_events = st.lists(st.one_of(COUNTED), max_size=60)
any_events = st.lists(st.one_of([*COUNTED, *NUMBERED, event("stop")]), max_size=60)
raised = st.sets(st.integers(1, 30), max_size=3)


@given(any_events, st.booleans(), raised)
def test_no_order_of_events_raises_and_only_known_phases_of_known_steps_are_announced(events, is_explicit, raising):
    caller = Caller(is_explicit=is_explicit, raising=raising)
    for name, *facts in events:
        before = len(caller.done)
        caller.feed(name, *facts)
        for action in caller.done[before:]:
            assert not caller.machine.is_over
            if isinstance(action, Announce):
                assert action.phase in PHASES
                assert action.step >= 0


@given(counted_events, st.booleans(), raised)
def test_steps_count_up_by_one_whatever_comes(events, is_explicit, raising):
    caller = Caller(is_explicit=is_explicit, raising=raising)
    for name, *facts in events:
        caller.feed(name, *facts)
    committed = caller.committed()
    assert committed == list(range(1, len(committed) + 1))
    assert caller.machine.step == len(committed) + 1 == caller.machine.num_committed + 1
    firsts = [one.is_first for one in caller.done if isinstance(one, CommitStep)]
    assert firsts == [True, *[False] * (len(firsts) - 1)][: len(firsts)]


@given(counted_events, st.booleans())
def test_every_step_is_announced_phase_by_phase_once_and_before_it_is_committed(events, is_explicit):
    caller = Caller(is_explicit=is_explicit)
    for name, *facts in events:
        caller.feed(name, *facts)
    seen, under_way = [], 1
    for action in caller.done:
        match action:
            case BeginStep():
                assert not seen
            case RepeatStep():
                seen = []
            case Announce(step, phase) if phase != PHASES[CHECKPOINT]:
                seen.append(phase)
                assert seen == list(OF_A_STEP[: len(seen)])
                assert step == under_way
            case CommitStep():
                assert seen == list(OF_A_STEP)
                seen, under_way = [], under_way + 1


@given(counted_events)
def test_a_checkpoint_is_announced_once_after_a_step(events):
    caller = Caller()
    for name, *facts in events:
        caller.feed(name, *facts)
    of_checkpoints = [one.step for one in caller.done if isinstance(one, Announce) and one.phase == PHASES[CHECKPOINT]]
    assert len(of_checkpoints) == len(set(of_checkpoints))
    assert all(step < caller.machine.step for step in of_checkpoints)
    begun = [one.step for one in caller.done if isinstance(one, BeginCheckpoint)]
    assert all(1 <= step <= caller.machine.step for step in begun)


@given(st.lists(st.one_of(COUNTED[:-1]), max_size=60), st.integers(0, 5))
def test_a_script_that_reports_its_steps_is_believed_alone(events, num_reported):
    """Several optimizers, batches and closures in between are no steps."""
    caller = Caller(is_explicit=True)
    for _ in range(num_reported):
        for name, *facts in events:
            caller.feed(name, *facts)
        caller.feed("on_step_reported", {}, None)
    assert caller.committed() == list(range(1, num_reported + 1))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=20), st.integers(1, 3))
def test_accumulated_passes_and_several_optimizers_make_one_step(passes, num_optimizers):
    caller = Caller()
    for number in passes:
        caller.feed("on_data")
        caller.feed("on_forward")
        for _ in range(number):
            caller.feed("on_backward")
        for one in OPTIMIZERS[:num_optimizers]:
            caller.step(one, OPTIMIZERS[1:num_optimizers])
    assert caller.committed() == list(range(1, len(passes) + 1))
    assert caller.announced() == list(OF_A_STEP) * len(passes)
    assert caller.machine.most_backwards == max(passes)


@given(st.integers(1, 5))
def test_a_step_at_which_a_fault_raises_is_not_committed_and_the_script_may_try_again(number):
    caller = Caller(raising={number})
    caller.feed("on_data") and caller.feed("on_forward") and caller.feed("on_backward") and caller.step("a")
    assert caller.announced() == list(OF_A_STEP[:number])
    assert caller.committed() == []
    # The phases that came are not announced again.
    caller.train()
    assert caller.announced() == list(OF_A_STEP)
    assert caller.committed() == [1]


def test_what_a_script_does_not_show_is_announced_with_the_next_that_it_does():
    caller = Caller()
    caller.feed("on_backward")
    assert caller.announced() == list(OF_A_STEP[:3])
    caller.step("a")
    assert caller.announced() == list(OF_A_STEP)


def test_a_step_that_is_left_out_is_none():
    caller = Caller()
    caller.train()
    for event in ("on_data", "on_forward", "on_backward", "on_left_out"):
        caller.feed(event)
    assert (caller.committed(), caller.machine.num_left_out) == ([1], 1)
    caller.train()
    assert (caller.committed(), caller.machine.num_left_out) == ([1, 2], 0)


def test_a_late_step_ends_the_one_before_it():
    caller = Caller()
    caller.feed("on_stepping", "a", True)
    assert caller.committed() == [1]
    assert caller.announced(2) == list(OF_A_STEP[:4])


def test_a_training_that_was_restored_continues_its_own_count():
    caller = Caller()
    caller.feed("on_data")
    caller.machine.count_is(31)
    caller.train()
    caller.machine.continues_after(40)
    caller.train()
    assert caller.committed() == [31, 41]
    assert caller.announced(31) == caller.announced(41) == list(OF_A_STEP)


def test_the_numbers_of_a_script_are_those_of_its_steps():
    caller = Caller()
    caller.train()
    # This step was counted by its optimizer already.
    caller.feed("on_step_reported", {}, 7)
    assert (caller.committed(), caller.machine.step, caller.machine.has_numbers) == ([1], 8, False)
    caller.train()
    caller.feed("on_step_reported", {"loss": 2.0}, 8)
    assert caller.committed() == [1, 8]
    assert caller.done[-1].figures == {"loss": 2.0}
    assert caller.machine.has_numbers


def test_a_rejected_step_is_computed_and_announced_again():
    caller = Caller()
    for event in ("on_data", "on_forward", "on_backward", "on_rejected"):
        caller.feed(event)
    assert caller.done[-1] == RepeatStep(1)
    caller.train()
    assert caller.announced(1) == [*OF_A_STEP[:3], *OF_A_STEP]
    assert caller.committed() == [1]


def test_only_a_step_that_began_after_an_effect_follows_it():
    caller = Caller()
    caller.feed("on_data")
    caller.machine.on_effect()
    caller.train()
    caller.train()
    assert [one.follows_effect for one in caller.done if isinstance(one, CommitStep)] == [False, True]


@pytest.mark.parametrize(("is_within", "saved_after"), [(False, 1), (True, 2)])
def test_a_save_is_of_the_step_that_is_over(is_within, saved_after):
    caller = Caller(is_explicit=True)
    caller.train()
    caller.feed("on_saving")
    assert not [one for one in caller.done if isinstance(one, BeginCheckpoint)], "no step is committed yet"
    caller.feed("on_step_reported", {}, None)
    if is_within:
        caller.train()
    caller.feed("on_saving")
    assert caller.done[-2:] == [BeginCheckpoint(saved_after), Announce(1, "checkpoint")]


def test_the_newest_step_between_two_is_the_one_that_is_over():
    caller = Caller()
    assert (caller.machine.newest_step, caller.machine.last_step) == (0, 0)
    caller.feed("on_data")
    assert (caller.machine.newest_step, caller.machine.last_step) == (1, 0)
    caller.train()
    assert (caller.machine.newest_step, caller.machine.last_step) == (1, 1)


def test_a_training_that_is_not_followed_has_no_actions():
    caller = Caller()
    caller.train()
    before = list(caller.done)
    caller.machine.stop()
    caller.train()
    caller.feed("on_saving")
    caller.feed("on_step_reported", {}, None)
    assert caller.done == before


def test_a_stop_while_a_phase_is_announced_ends_the_rest():
    caller = Caller()
    actions = caller.machine.on_stepped("a")
    for action in actions:
        if isinstance(action, Announce) and action.phase == PHASES[COMMIT]:
            caller.machine.stop()
        caller.done.append(action)
    assert caller.committed() == []
