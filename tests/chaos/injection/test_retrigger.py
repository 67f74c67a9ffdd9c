"""Attempts of a job's launcher: what has fired is not fired again, unless it is to."""

import asyncio
from dataclasses import dataclass

import pytest

from chaos.faults.base import FaultContext
from chaos.faults.watch import Watch
from chaos.in_process.protocol import AgentSession, At
from chaos.injection.agent_sessions import AgentSessions
from chaos.injection.executor import LocalExecutor
from chaos.injection.injector import Injector
from chaos.injection.joint_act import Hosts
from chaos.language.target import ResolvedTarget
from chaos.language.trigger import Trigger
from chaos.plan.incident import Incident
from chaos.undo.ledger import Ledger
from tests.chaos.injection.test_injector import create_fault

pytestmark = pytest.mark.unit

STEP, PHASE = 5, "forward"


@dataclass(frozen=True, slots=True)
class Again(Incident):
    """An incident that says at which attempts it fires."""

    retrigger: str | int = "once"


def play(folder, retrigger, num_attempts, *, num_held=99):
    """(events, holds told) of a run: rank 2 begins `num_attempts` times, and the first `num_held` come to the step."""
    events, holds = [], []

    async def run():
        incident = Again(
            0, "note-acts", False, {}, ResolvedTarget(ranks=(2,)), "rank=2", Trigger(STEP), None, retrigger=retrigger
        )
        sessions = AgentSessions()
        context = FaultContext(processes=None, inside=sessions, watch=Watch(), run_folder=folder)

        def emit(record, *, step=None, monotonic_seconds=None):
            events.append((record.KIND, record.to_fields()))

        with Ledger(folder / "ledger.jsonl") as ledger:
            faults = {"note-acts": create_fault([])}
            hosts = Hosts([LocalExecutor(faults, ledger, context)])
            injector = Injector([incident], faults, frozenset({2}), context.watch, sessions, hosts, emit)
            injector.start()
            for attempt in range(1, num_attempts + 1):
                session = AgentSession(2, 0, attempt, None, lambda message: None)
                told = []
                session.send = told.append
                injector.connected(session)
                holds.append(list(told[0].holds))
                if list(told[0].holds) and attempt <= num_held:
                    injector.on_message(session, At(STEP, PHASE))
                    while session.is_held:
                        await asyncio.sleep(0)
                injector.closed(session)
            await injector.finish()

    asyncio.run(run())
    return events, holds


def fired(events):
    return [fields["incident"] for kind, fields in events if kind == "injected"]


@pytest.mark.parametrize(
    ("retrigger", "num_fired"), [("once", 1), ("every-attempt", 4), (1, 1), (2, 2), (3, 3), (9, 4)]
)
def test_how_often_it_fires_in_four_attempts(tmp_path, retrigger, num_fired):
    events, holds = play(tmp_path, retrigger, 4)
    # Each firing is an incident of its own, announced before it happens.
    assert fired(events) == list(range(num_fired))
    planned = [fields["incidents"][0]["incident"] for kind, fields in events if kind == "incidents_planned"]
    assert planned == list(range(1, num_fired))
    assert [bool(told) for told in holds] == [True] * num_fired + [False] * (4 - num_fired)
    assert sum(kind == "verified" for kind, _ in events) == num_fired
    assert not any(kind == "unverified" for kind, _ in events)


def test_one_that_has_not_fired_waits_for_the_next_attempt_as_it_is(tmp_path):
    events, holds = play(tmp_path, "every-attempt", 3, num_held=0)
    assert fired(events) == [] and all(holds)
    assert [kind for kind, _ in events] == ["unverified"]


def test_an_attempt_that_does_not_come_to_it_again_is_no_failure_of_the_run(tmp_path):
    events, _ = play(tmp_path, "every-attempt", 2, num_held=1)
    assert fired(events) == [0]
    assert [(kind, fields["incident"]) for kind, fields in events if kind in ("unverified", "not_due")] == [
        ("not_due", 1)
    ]
