"""When a preempted command is started again."""

import pytest

from harness.backends.command.requeue import Requeues
from mecefo_runtime.system.events import Event

pytestmark = pytest.mark.unit


def event(kind, incident=0, **fields):
    return Event(kind, "injector", 0.0, 0.0, 1, fields={"incident": incident, **fields})


def test_it_is_started_again_once_for_each_preemption():
    requeues = Requeues()
    assert not requeues.take()
    requeues.note(event("injected", requeue=1))
    assert requeues.is_under_way
    requeues.note(event("undone"))
    assert not requeues.is_under_way
    assert (requeues.take(), requeues.number, requeues.take()) == (True, 1, False)


def test_two_at_a_time_take_the_same_start_away():
    requeues = Requeues()
    requeues.note(event("injected", requeue=1))
    requeues.note(event("injected", 1, requeue=0))
    requeues.note(event("undone"))
    assert requeues.is_under_way
    requeues.note(event("undo_failed", 1))
    assert not requeues.is_under_way
    assert (requeues.take(), requeues.take()) == (True, False)


@pytest.mark.parametrize("fields", [{}, {"requeue": 0}, {"requeue": None}])
def test_other_faults_start_nothing(fields):
    requeues = Requeues()
    requeues.note(event("injected", **fields))
    assert requeues.is_under_way is (fields.get("requeue") is not None)
    assert not requeues.take()
