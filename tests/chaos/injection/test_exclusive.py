"""Faults that would undo each other are kept apart when they are about to fire."""

import asyncio

import pytest

import chaos.injection.active
from chaos.injection.active import Exclusive
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Trigger
from chaos.plan.incident import Incident
from mecefo_runtime.system.reason import Reason

pytestmark = pytest.mark.unit

RUNNING = "whether a process runs"


def incident(number, **target):
    target = ResolvedTarget(**target)
    trigger = Trigger(step=5, phase="forward")
    return Incident(number, "pause-process", False, {}, target, str(target), trigger, None)


@pytest.fixture
def briefly(monkeypatch):
    monkeypatch.setattr(chaos.injection.active, "UNDO_SECONDS", 0.01)


def test_the_second_on_a_rank_is_refused_with_the_first_named(briefly):
    exclusive = Exclusive()
    exclusive.begin(incident(0, ranks=(2, 3), nodes=(1,)), RUNNING)
    why = asyncio.run(exclusive.why_taken(incident(1, ranks=(3,)), RUNNING))
    assert why == Reason("exclusive", incident=0, fault="pause-process", where="rank 3", what=RUNNING)


@pytest.mark.parametrize(
    ("target", "words"),
    [({"ranks": (1,)}, RUNNING), ({"role": "coordinator"}, RUNNING), ({"ranks": (3,)}, "the delay of a link")],
)
def test_what_is_apart_may_begin(briefly, target, words):
    exclusive = Exclusive()
    exclusive.begin(incident(0, ranks=(2, 3)), RUNNING)
    assert asyncio.run(exclusive.why_taken(incident(1, **target), words)) is None


def test_what_is_just_being_undone_is_waited_for():
    async def wait():
        exclusive, first = Exclusive(), incident(0, ranks=(3,))
        exclusive.begin(first, RUNNING)
        waiting = asyncio.create_task(exclusive.why_taken(incident(1, ranks=(3,)), RUNNING))
        await asyncio.sleep(0)
        assert not waiting.done()
        exclusive.end(first)
        return await waiting

    assert asyncio.run(wait()) is None


def test_roles_and_the_job_as_a_whole_are_targets_too(briefly):
    for target in ({"role": "coordinator"}, {}):
        exclusive = Exclusive()
        exclusive.begin(incident(0, **target), RUNNING)
        assert asyncio.run(exclusive.why_taken(incident(1, **target), RUNNING)) is not None
