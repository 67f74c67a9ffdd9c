"""The history that a job kept: of each step the pass that its final state contains."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.history import kept_steps
from harness.analysis.step_ledger import StepLedger
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.records import parse

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Start:
    """An attempt that continues after `after` and commits as many steps as `num`."""

    after: int
    num: int

    @property
    def numbers(self):
        return range(self.after + 1, self.after + 1 + self.num)


def ledger_of(starts, *, is_command=True, one_process=False):
    """Their steps, each a second long; the loss of a step is its number and, behind the point, its attempt."""
    ledger, at = StepLedger(), 0.0
    if is_command:
        ledger.believe_processes()
    for number, start in enumerate(starts, start=1):
        pid = 1 if one_process else number
        told = {"role": "rank", "started_pid": pid, "started_rank": 0, "rank_attempt": number}
        if is_command and (number == 1 or not one_process):
            ledger.note_process(parse(Event("process_started", "x", at, at, 1, fields=told)))
        for step in start.numbers:
            at += 1.0
            clock = {"began_monotonic": at - 1.0, "committed_monotonic": at}
            epoch = 1 if is_command else number
            fields = {"epoch": epoch, "loss": step + number / 10, **clock}
            ledger.add(parse(Event("step_committed", "x", at, at, pid, step=step, fields=fields)))
    return ledger.steps


def kept(starts, **how):
    """(step, attempt) of what is kept."""
    return [(step.step, round(step.loss * 10 - step.step * 10)) for step in kept_steps(ledger_of(starts, **how))]


@pytest.mark.parametrize("is_command", [True, False])
def test_each_attempt_drops_what_came_after_the_step_that_it_continues_from(is_command):
    first, second, third = Start(0, 34), Start(30, 5), Start(20, 40)
    assert kept([first], is_command=is_command) == [(n, 1) for n in range(1, 35)]
    found = kept([first, second], is_command=is_command)
    assert found == [*((n, 1) for n in range(1, 31)), *((n, 2) for n in range(31, 36))]
    found = kept([first, second, third], is_command=is_command)
    assert found == [*((n, 1) for n in range(1, 21)), *((n, 3) for n in range(21, 61))]


def test_steps_that_nobody_came_to_again_are_not_kept_either():
    """The job ends at step 33, when an earlier attempt had been at 34."""
    assert kept([Start(0, 34), Start(30, 3)]) == [*((n, 1) for n in range(1, 31)), *((n, 2) for n in range(31, 34))]


def test_who_begins_anew_keeps_nothing_of_before():
    assert kept([Start(0, 10), Start(0, 4)]) == [(n, 2) for n in range(1, 5)]


def test_a_script_that_loads_an_older_state_in_the_same_process_keeps_the_later_pass():
    assert kept([Start(0, 10), Start(6, 6)], one_process=True) == [
        *((n, 1) for n in range(1, 7)),
        *((n, 2) for n in range(7, 13)),
    ]
    # It ends before it is where it was.
    assert kept([Start(0, 10), Start(6, 2)], one_process=True)[-1] == (8, 2)


starts_of_a_job = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=6)


@given(starts_of_a_job, st.booleans())
def test_what_is_kept_is_what_replaying_the_job_leaves(raw, is_command):
    """As a checkpoint does it: an attempt continues from a step that was there, and cuts all that came after it."""
    starts, history = [], []
    for number, (after, num) in enumerate(raw, start=1):
        start = Start(min(after, len(history)), num)
        starts.append(start)
        history = [*history[: start.after], *((step, number) for step in start.numbers)]
    assert kept(starts, is_command=is_command) == history
    steps = kept_steps(ledger_of(starts, is_command=is_command))
    assert [one.step for one in steps] == list(range(1, len(history) + 1))
