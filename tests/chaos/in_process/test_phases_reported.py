"""What an agent reports of the phases of its rank: enough to know every step of each, in few messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.faults.phase_steps import PhaseSteps
from chaos.in_process import agent as agents
from chaos.in_process.agent import Agent
from chaos.in_process.protocol import Came, from_agent

pytestmark = pytest.mark.unit


class FakeConnection:
    """To an injector that holds nobody."""

    def __init__(self):
        self.sent = []

    def receive(self):
        return {"holds": []}

    def send(self, message):
        self.sent.append(from_agent(message))


def reports(announced):
    """The messages of an agent that announces these (step, phase)."""
    connection = FakeConnection()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agents.Connection, "open", lambda *_, **__: connection)
        patch.setattr(Agent, "_start_reader", lambda *_: None)
        agent = Agent("address", rank=0, node=0, attempt=1)
        for step, phase in announced:
            agent.announce(step, phase)
    return connection.sent


@given(st.sets(st.integers(1, 40), min_size=1))
def test_every_step_of_a_phase_is_known(steps):
    phases = PhaseSteps()
    announced = [(step, phase) for step in range(1, 41) for phase in ("forward", *(["checkpoint"] * (step in steps)))]
    for message in reports(announced):
        phases.came(0, message)
    assert str(phases.of("forward", (0,), 40)) == "steps 1 to 40"
    reported = phases.of("checkpoint", (0,), max(steps))
    assert [step for step in range(1, 41) if step in reported] == sorted(steps)


def test_a_phase_of_every_step_costs_three_messages_however_long_the_run():
    sent = reports([(step, phase) for step in range(1, 1000) for phase in ("data", "forward", "forward")])
    assert sent == [Came(step, phase, is_steady=step == 3) for step in (1, 2, 3) for phase in ("data", "forward")]


def test_phases_without_a_step_known_beforehand_are_not_reported():
    assert reports([(1, "regroup"), (1, "transfer"), (4, "snapshot")]) == []
