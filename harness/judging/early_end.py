"""Gates that end a run as soon as they are certain to fail (`abort_on_fail`).

Of values that only grow, or only fall, it is known before the end of a run that they are beyond a limit; of all others
`refuse` says why nothing is known of them. A value that is still growing (the time since a fault) is followed by the
clock as well as by events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any

from chaos.experiment.gate_spec import AbortingGate, AnyGate
from harness.analysis.integrity import samples_lost_of
from harness.analysis.state import RunState
from harness.analysis.steps import shows_recovery
from harness.analysis.words import num_degraded_layers
from harness.judging.gates import Gate, GateError
from harness.judging.metrics import Metric
from harness.judging.units import written
from mecefo_runtime.system.events import MAIN_JOB, Emitter, Event
from mecefo_runtime.system.job_records import (
    Detected,
    JobStarted,
    LayoutTold,
    ProcessStarted,
    StepCommitted,
    StepUnfit,
)
from mecefo_runtime.system.records import parse
from mecefo_runtime.system.run_records import Injected, Verified

# What was committed in time may still be on its way here.
ARRIVAL_SECONDS = 0.25
_GROWING_FIGURES = ("steps_lost", "steps_repeated", "samples_lost", "unfit_steps", "wall_clock_seconds")
_GROWING_PHASES = ("recovery_seconds", "progress_seconds", "detection_seconds")
_GROWING = ("<", "<=", "==")


def check_gates(gates: Iterable[AnyGate], *, has_twin: bool = True) -> None:
    """Let those gates pass that can be understood, answered and, where they are to end the run, can do so.

    Raises:
        GateError: one of them is no gate, is of a figure that needs the twin where there is none, or whether it fails
            is not known before the end.
    """
    for gate in gates:
        parsed = Gate.parse(str(gate))
        if not has_twin and isinstance(parsed.metric, Metric) and parsed.metric.needs_twin:
            raise GateError(
                f"'{parsed.expression}' could never be answered: {parsed.metric.name} needs the fault-free twin, and "
                "this run has none"
            )
        if isinstance(gate, AbortingGate) and (reason := _why_not(parsed)):
            raise GateError(
                f"'{parsed.expression}' cannot end a run early: {reason}. Only gates that can may be told to: "
                "--abort-unless EXPRESSION each, or in the file {gate: EXPRESSION, abort_on_fail: true}"
            )


def can_end_early(gate: Gate) -> bool:
    """Whether `gate` may have abort_on_fail."""
    return _why_not(gate) is None


def _why_not(gate: Gate) -> str | None:
    metric = gate.metric
    if isinstance(metric, Metric):
        if metric.name not in (*_GROWING_FIGURES, *_GROWING_PHASES):
            return f"{metric.name} can rise and fall until the run is over"
        if not gate.is_of_one_figure and gate.aggregate != "max":
            return f"the {gate.aggregate} of {metric.name} can still fall with a later incident; its max cannot"
        if gate.comparison not in (_GROWING if gate.is_of_one_figure else _GROWING[:2]):
            return f"{metric.name} only grows, and may still come to hold {gate.comparison!r}"
        return None
    if metric.of_step is None:
        return f"{metric.name} is cut into stretches of time when the run is over"
    if gate.period is not None:
        return f"which steps are {gate.period} the fault is known when the run is over"
    if not gate.fails_for_good:
        return f"of {metric.name} only 'max' with '<' or '<=' and 'min' with '>' or '>=' are certain before that"
    return None


class EarlyEnd:
    """Follows a run event by event, for the gates of an experiment that may end it; costs nothing where none may.

    The first that is certain to fail is told in an event `aborted`, and `finish` is called with `aborted` and a
    sentence. Belongs to the event loop of the run.
    """

    def __init__(self, gates: Iterable[AnyGate], emitter: Emitter, finish: Callable[[str, str], None]) -> None:
        self._gates = [Gate.parse(gate.expression) for gate in gates if isinstance(gate, AbortingGate)]
        self._emitter = emitter
        self._finish = finish
        self._is_over = not self._gates
        self._reached = _Reached({gate.metric.name for gate in self._gates})
        self._timers: dict[tuple[str, int | None], list[asyncio.TimerHandle]] = {}

    def feed(self, event: Event) -> None:
        """Take in one event, in the order of arrival."""
        if self._is_over or event.job != MAIN_JOB:
            return
        if event.kind == "job_ended":
            self._stop()
            return
        for metric, value, incident in self._reached.feed(event):
            for timer in self._timers.pop((metric, incident), ()):
                timer.cancel()
            self._judge(metric, value, incident, event.step)
        for metric, since_seconds, incident in self._reached.begun():
            self._time(metric, since_seconds, incident)

    def _judge(self, metric: str, value: float, incident: int | None, step: int | None) -> None:
        for gate in self._gates:
            if gate.metric.name != metric or gate.holds(value) or self._is_over:
                continue
            if gate.comparison == "==" and value < gate.threshold:
                continue
            self._abort(gate, value, incident, step)

    def _time(self, metric: str, since_seconds: float, incident: int | None) -> None:
        loop = asyncio.get_running_loop()
        for gate in self._gates:
            if gate.metric.name == metric:
                at_seconds = since_seconds + gate.threshold + ARRIVAL_SECONDS
                timer = loop.call_at(at_seconds, self._run_out, gate, since_seconds, incident)
                self._timers.setdefault((metric, incident), []).append(timer)

    def _run_out(self, gate: Gate, since_seconds: float, incident: int | None, is_sure: bool = False) -> None:
        if not is_sure:
            # Once more through the loop: it may have been kept from reading for as long as this took.
            key = (gate.metric.name, incident)
            again = asyncio.get_running_loop().call_later(
                ARRIVAL_SECONDS / 5, self._run_out, gate, since_seconds, incident, True
            )
            self._timers.setdefault(key, []).append(again)
        elif not self._is_over:
            value = asyncio.get_running_loop().time() - since_seconds
            self._abort(gate, value, incident, self._reached.step, "already ")

    def _abort(self, gate: Gate, value: float, incident: int | None, step: int | None, so_far: str = "") -> None:
        self._stop()
        whose = "" if incident is None else f" of incident {incident}"
        reason = f"{gate.metric.name}{whose} is {so_far}{written(value, gate.metric.unit)}"
        fields: dict[str, Any] = {"gate": gate.expression, "value": value, "reason": reason, "incident": incident}
        self._emitter.emit("aborted", step=step, **fields)
        self._finish("aborted", f"gate '{gate.expression}' failed: {reason}")

    def _stop(self) -> None:
        self._is_over = True
        for timers in self._timers.values():
            for timer in timers:
                timer.cancel()
        self._timers.clear()


Value = tuple[str, float, int | None]
"""A metric, a value that it has come to, and the incident that it is of."""


class _Reached:
    """What the events so far say of `wanted`, by the rules of the analysis after the run (`summary`)."""

    def __init__(self, wanted: set[str]) -> None:
        self._wanted = wanted
        self.step: int | None = None
        self._samples_per_step: int | None = None
        self._epochs: dict[int, int] = {}
        self._committed: dict[int, tuple[int, float]] = {}
        self._counts = {"steps_repeated": 0, "steps_lost": 0, "samples_lost": 0, "unfit_steps": 0}
        self._degraded: dict[int, int] = {}
        self._injected: dict[int, Injected] = {}
        self._verified: set[int] = set()
        # Only of those who ask for it: it keeps what it is fed.
        self._state = RunState() if "detection_seconds" in wanted else None
        self._phases: dict[int, dict[str, float]] = {}
        self._told: set[tuple[str, int]] = set()
        self._begun: list[Value] = []

    def feed(self, event: Event) -> list[Value]:
        """The values that the event brings; of one that makes no sense there are none."""
        try:
            record = parse(event)
        except ValueError:
            return []
        if self._state is not None:
            self._state.feed(event)
        found: list[Value] = []
        match record:
            case JobStarted():
                self._samples_per_step = record.samples_per_step
                self._begun.append(("wall_clock_seconds", record.monotonic_seconds, None))
            case ProcessStarted(role="rank", started_pid=int(pid), rank_attempt=int(attempt)):
                self._epochs[pid] = attempt
            case LayoutTold(epoch=int(epoch)):
                self._degraded[epoch] = num_degraded_layers(event.fields)
            case StepUnfit():
                found = self._count("unfit_steps", 1)
            case Injected():
                self._injected[record.incident] = record
            case Verified():
                found = self._on_verified(record.incident)
            case Detected():
                found = self._detected()
            case StepCommitted(step=int(step), repeated=False):
                found = self._on_step(record, step)
            case _:
                pass
        return [value for value in found if value[0] in self._wanted and isfinite(value[1])]

    def begun(self) -> list[Value]:
        """What has begun to grow with time since this was last asked: metric, since when, incident."""
        begun, self._begun = self._begun, []
        return [one for one in begun if one[0] in self._wanted]

    def _on_verified(self, incident: int) -> list[Value]:
        self._verified.add(incident)
        injected = self._injected.get(incident)
        if injected is not None:
            still_open = [metric for metric in _GROWING_PHASES[:2] if metric not in self._phases.get(incident, {})]
            self._begun += [(metric, injected.monotonic_seconds, incident) for metric in still_open]
        return [*self._detected(), *self._tell(incident)]

    def _detected(self) -> list[Value]:
        incidents = () if self._state is None else self._state.timeline.incidents
        return [
            value
            for one in incidents
            if one.ranks and one.detection_seconds is not None
            for value in self._note("detection_seconds", one.detection_seconds, one.incident)
        ]

    def _on_step(self, record: StepCommitted, step: int) -> list[Value]:
        committed = record.committed_seconds
        epoch = self._epochs.get(record.pid, record.epoch)
        before, known = self._committed.get(step - 1), self._committed.get(step)
        began = record.began_monotonic
        if began is None:
            began = committed if before is None else before[1]
        is_new = known is None
        found: list[Value] = []
        if known is not None and epoch <= known[0]:
            return []
        self.step = step
        self._committed[step] = (epoch, committed)
        for incident, injected in self._injected.items():
            since = injected.monotonic_seconds
            if shows_recovery(began, is_left_out=record.skipped, injected_seconds=since):
                seconds = committed - since
                found += self._note("recovery_seconds", seconds, incident)
                found += self._note("progress_seconds", seconds, incident) if is_new else []
        if not is_new:
            return [*found, *self._count("steps_repeated", 1), *self._count("steps_lost", 1)]
        previous = began if before is None or before[1] > began else before[1]
        found.append(("step_seconds", committed - previous, None))
        values = {"training_loss": record.loss, "grad_norm": record.grad_norm}
        values["degraded_layers"] = self._degraded.get(epoch)
        found += [(metric, float(value), None) for metric, value in values.items() if value is not None]
        if "samples_lost" in self._wanted and self._samples_per_step is not None and record.samples is not None:
            lost = samples_lost_of(step, record.samples, record.samples_checksum, self._samples_per_step)
            found += self._count("samples_lost", lost)
        return found

    def _count(self, metric: str, number: int) -> list[Value]:
        self._counts[metric] += number
        return [(metric, float(self._counts[metric]), None)]

    def _note(self, metric: str, seconds: float, incident: int) -> list[Value]:
        """The first value of a phase is the one that counts."""
        self._phases.setdefault(incident, {}).setdefault(metric, seconds)
        return self._tell(incident)

    def _tell(self, incident: int) -> list[Value]:
        """What was not told yet of an incident whose effect was seen: no other counts."""
        if incident not in self._verified:
            return []
        phases = self._phases.get(incident, {})
        news = [metric for metric in phases if (metric, incident) not in self._told]
        self._told.update((metric, incident) for metric in news)
        return [(metric, phases[metric], incident) for metric in news]
