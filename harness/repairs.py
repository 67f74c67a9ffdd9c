"""Starts again what faults took down, when their `repair` says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from chaos.faults.base import Fault
from chaos.schedule import Incident
from harness.backends.base import RunningJob
from mecefo_runtime.events import MAIN_JOB, Emitter


class Repairs:
    """The repairs of one run; `running` is the job under way, None between jobs."""

    def __init__(
        self,
        incidents: Mapping[int, Incident],
        faults: Mapping[str, type[Fault[Any]]],
        emitter: Emitter,
        running: Callable[[], RunningJob | None],
    ) -> None:
        self._incidents = incidents
        self._faults = faults
        self._emitter = emitter
        self._running = running
        # (the step after whose commit it is due, what to repair)
        self._due: list[tuple[int, Incident]] = []
        self._last_step = 0

    def on_injected(self, number: int, step: int) -> None:
        """An incident struck at `step`: its repair begins to count."""
        incident = self._incidents.get(number)
        # Unknown: the injector fires one of them once more, at a later attempt of a command, which nobody repairs.
        if incident is None or incident.repair is None:
            return
        if incident.repair.steps is not None:
            self._due.append((step + incident.repair.steps, incident))
        else:
            asyncio.get_running_loop().call_later(incident.repair.seconds or 0.0, self._repair, incident)

    def on_step(self, step: int) -> None:
        """The main job committed `step`."""
        self._last_step = max(self._last_step, step)
        due = [incident for at, incident in self._due if at <= step]
        self._due = [(at, incident) for at, incident in self._due if at > step]
        for incident in due:
            self._repair(incident)

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
            "repair_started",
            step=self._last_step,
            incident=incident.incident,
            nodes=list(nodes),
            ranks=list(ranks),
        )
        for node in nodes:
            running.repair_node(node)
        for rank in ranks:
            running.repair_rank(rank)
