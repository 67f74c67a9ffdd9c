"""What one announcement costs, timed by itself: a whole run's noise is a hundred times larger."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.plain.runs import NeverReached
from chaos.in_process.protocol import AGENT_VARIABLE
from chaos.language.trigger import PHASES as ALL_PHASES
from harness.control.control_server import ControlServer
from mecefo_runtime.training.hooks import Hooks

NUM_REPEATS, NUM_STEPS = 9, 5000

# A job that writes no checkpoints announces none.
PHASES = tuple(phase for phase in ALL_PHASES if phase != "checkpoint")


@dataclass(frozen=True, slots=True)
class AgentCost:
    """CPU seconds of one announcement to a rank's hooks, with an armed agent among them and without any."""

    armed_seconds: float
    bare_seconds: float
    num_announcements: int = len(PHASES)

    @property
    def seconds_per_step(self) -> float:
        """What the armed agent adds to a rank's step."""
        return self.num_announcements * (self.armed_seconds - self.bare_seconds)

    def __str__(self) -> str:
        armed, bare = self.armed_seconds * 1e9, self.bare_seconds * 1e9
        return f"{armed:.0f} ns instead of {bare:.0f} ns, {self.num_announcements} times a step"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "seconds_per_step": self.seconds_per_step}


async def measure_agent() -> AgentCost:
    """Time announcements to an agent that is connected, as in a run, and told of a fault that never comes."""
    control = ControlServer(lambda event: None)
    control.agents = NeverReached()
    await control.open()
    try:
        # On a thread of its own: the control server must answer the agent meanwhile.
        return await asyncio.to_thread(_measure, control.address)
    finally:
        await control.close()


def _measure(address: str) -> AgentCost:
    with _environment({AGENT_VARIABLE: address}):
        armed = Hooks("chaos.agent:install", rank=0, node=0, attempt=1)
    bare = Hooks("", rank=0, node=0, attempt=1)
    # In turns, so that a drift of the machine favours neither.
    found = [(_announcement_seconds(armed), _announcement_seconds(bare)) for _ in range(NUM_REPEATS)]
    return AgentCost(median(seconds for seconds, _ in found), median(seconds for _, seconds in found))


def _announcement_seconds(hooks: Hooks) -> float:
    began = time.thread_time()
    for step in range(NUM_STEPS):
        for phase in PHASES:
            hooks.announce(step, phase)
    return (time.thread_time() - began) / (NUM_STEPS * len(PHASES))


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
