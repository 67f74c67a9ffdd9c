"""Starts again what faults took down, when their `repair` says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from chaos.faults.base import Fault
from chaos.plan.incident import Incident
from harness.backends.base import RunningJob
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import MAIN_JOB
from mecefo_runtime.system.run_records import RepairStarted


class Repairs:
    """The repairs of one run; `running` is the job under way, None between jobs, and `usual_step_seconds` its pace.

    After `end_step`, the last one of the job, nobody has to come back any more.
    """

    def __init__(
        self,
        incidents: Mapping[int, Incident],
        faults: Mapping[str, type[Fault[Any]]],
        emitter: Emitter,
        running: Callable[[], RunningJob | None],
        usual_step_seconds: Callable[[], float | None],
        end_step: int | None = None,
    ) -> None:
        self._incidents = incidents
        self._faults = faults
        self._emitter = emitter
        self._running = running
        self._end_step = end_step
        # (the step after whose commit it is due, what to repair)
        self._due: list[tuple[int, Incident]] = []
        self._last_step = 0
        self._num_timed = 0
        self._stands_still = False
        self._ask_step_seconds = usual_step_seconds
        self._usual_step_seconds = 0.0

    @property
    def are_due(self) -> bool:
        """Whether there is anything that is going to be repaired."""
        return bool(self._due) or self._num_timed > 0

    def on_injected(self, number: int, step: int) -> None:
        """An incident fired at `step`: its repair begins to count."""
        incident = self._incidents.get(number)
        # Not planned: a command that starts again gets its fault again, and nobody repairs a command.
        if incident is None or incident.repair is None:
            return
        if incident.repair.steps is None:
            self._repair_in(incident.repair.seconds or 0.0, incident)
        elif self._stands_still:
            self._repair_in(incident.repair.steps * self._usual_step_seconds, incident)
        else:
            self._due.append((step + incident.repair.steps, incident))

    def on_standstill(self) -> None:
        """No step is committed until all is repaired: what is due in steps is due when they would have been over."""
        if not self._stands_still:
            self._usual_step_seconds = self._ask_step_seconds() or 0.0
        self._stands_still = True
        due, self._due = self._due, []
        for at, incident in due:
            self._repair_in((at - self._last_step) * self._usual_step_seconds, incident)

    def on_step(self, step: int) -> None:
        """The main job committed `step`."""
        self._stands_still = False
        self._last_step = max(self._last_step, step)
        if self._end_step is not None and step >= self._end_step:
            self._due.clear()
        due = [incident for at, incident in self._due if at <= step]
        self._due = [(at, incident) for at, incident in self._due if at > step]
        for incident in due:
            self._repair(incident)

    def _repair_in(self, seconds: float, incident: Incident) -> None:
        self._num_timed += 1

        def repair() -> None:
            self._num_timed -= 1
            self._repair(incident)

        asyncio.get_running_loop().call_later(seconds, repair)

    def _repair(self, incident: Incident) -> None:
        running = self._running()
        if running is None or running.name != MAIN_JOB:
            return
        target = incident.target
        is_node_fault = self._faults[incident.fault].scope == "node"
        nodes, ranks = (target.nodes, ()) if is_node_fault else ((), target.ranks)
        if not nodes and not ranks:
            return
        self._emitter.emit(
            RepairStarted(incident=incident.incident, nodes=tuple(nodes), ranks=tuple(ranks)), step=self._last_step
        )
        for node in nodes:
            running.repair_node(node)
        for rank in ranks:
            running.repair_rank(rank)
