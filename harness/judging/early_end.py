"""Gates that end a run as soon as they are certain to fail (`abort_on_fail`).

Of values that only grow, or only fall, it is known before the end of a run that they are beyond a limit; of all others
`refuse` says why nothing is known of them. A value that is still growing (the time since a fault) is followed by the
clock as well as by events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import isfinite

from chaos.experiment.gate_spec import AbortingGate, AnyGate
from harness.analysis.contained import could_not
from harness.analysis.integrity import samples_lost_of
from harness.analysis.state import RunState
from harness.judging.gate_reasons import gate_text
from harness.judging.gates import Gate, GateError
from harness.judging.metrics import Metric
from mecefo_runtime.system.clocks import uncertainty_between
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.job_records import Detected, JobStarted, StepCommitted, StepUnfit
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.run_records import CERTAIN_TO_FAIL, Aborted, Verified, Warned

# What was committed in time may still be on its way here.
ARRIVAL_SECONDS = 0.25
_GROWING_FIGURES = ("steps_lost", "steps_repeated", "samples_lost", "unfit_steps", "wall_clock_seconds")
_GROWING_PHASES = ("recovery_seconds", "progress_seconds", "detection_seconds")
_GROWING = ("<", "<=", "==")
# While a log doubles its length, its incidents are looked at so many times.
_LOOKS_PER_LENGTH = 2_000


def check_gates(gates: Iterable[AnyGate], *, has_baseline: bool = True, can_have_baseline: bool = True) -> None:
    """Let those gates pass that can be understood, answered and, where they are to end the run, can do so.

    Without a baseline, `can_have_baseline` says whether the run could have one.

    Raises:
        GateError: one of them is no gate, is of a figure that needs the baseline where there is none, or whether it
            fails is not known before the end.
    """
    for gate in gates:
        parsed = Gate.parse(str(gate))
        if not has_baseline and isinstance(parsed.metric, Metric) and parsed.metric.needs_baseline:
            needed = f"'{parsed.expression}' could never be decided: {parsed.metric.name} needs the fault-free baseline"
            if not can_have_baseline:
                raise GateError(f"{needed}, and a command in containers has none: leave the gate out")
            raise GateError(f"{needed} (--baseline-run), and this run has none")
        if isinstance(gate, AbortingGate) and (reason := _why_not(parsed)):
            raise GateError(
                f"'{parsed.expression}' cannot end a run early: {reason}. Use this only for gates that can: "
                "--abort-unless EXPRESSION each, or in the file {gate: EXPRESSION, abort_on_fail: true}"
            )


def can_end_early(gate: Gate) -> bool:
    """Whether `gate` may have abort_on_fail."""
    return _why_not(gate) is None


def _why_not(gate: Gate) -> str | None:
    metric = gate.metric
    if isinstance(metric, Metric):
        if metric.name not in (*_GROWING_FIGURES, *_GROWING_PHASES):
            return f"{metric.name} can rise and fall until the run has ended"
        if not gate.is_of_one_figure and gate.aggregate != "max":
            return f"the {gate.aggregate} of {metric.name} can still fall with a later incident; its max cannot"
        if gate.comparison not in (_GROWING if gate.is_of_one_figure else _GROWING[:2]):
            return f"{metric.name} only grows, and may still come to hold {gate.comparison!r}"
        return None
    if metric.of_step is None:
        return f"{metric.name} is cut into stretches of time when the run has ended"
    if gate.period is not None:
        return f"which steps are {gate.period} the fault is known when the run has ended"
    if not gate.fails_for_good:
        return f"of {metric.name} only 'max' with '<' or '<=' and 'min' with '>' or '>=' are certain before that"
    return None


class EarlyEnd:
    """Follows a run event by event, for the gates of an experiment that may end it; costs nothing where none may.

    The first that is certain to fail is told in an event `aborted`, and `finish` is called with `aborted` and a
    sentence. `state` is the run's, which others feed before. Belongs to the event loop of the run.
    """

    def __init__(
        self, gates: Iterable[AnyGate], state: RunState, emitter: Emitter, finish: Callable[[str, str], None]
    ) -> None:
        self._gates = [Gate.parse(gate.expression) for gate in gates if isinstance(gate, AbortingGate)]
        self._emitter = emitter
        self._finish = finish
        self._is_over = not self._gates
        self._state = state
        self._reached = _Reached({gate.metric.name for gate in self._gates}, state)
        self._timers: dict[tuple[str, int | None], list[asyncio.TimerHandle]] = {}

    def feed(self, event: Event) -> None:
        """Process one event, in the order of arrival."""
        if self._is_over or event.job != MAIN_JOB:
            return
        if event.kind == "job_ended":
            self._stop()
            return
        try:
            self._look(event)
        except Exception as error:
            # The run goes on, and its gates are judged at its end.
            self._stop()
            self._emitter.emit(Warned(message=could_not("gates that may end the run", error)))

    def _look(self, event: Event) -> None:
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
                # The beginning may be later by the uncertainty of another host's clock.
                doubt_seconds = uncertainty_between(since_seconds, loop.time())
                at_seconds = since_seconds + doubt_seconds + gate.threshold + ARRIVAL_SECONDS
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
            now_seconds = asyncio.get_running_loop().time()
            value = now_seconds - since_seconds - uncertainty_between(since_seconds, now_seconds)
            step = self._state.newest_step()
            self._abort(gate, value, incident, None if step is None else step.step, is_running=True)

    def _abort(
        self, gate: Gate, value: float, incident: int | None, step: int | None, *, is_running: bool = False
    ) -> None:
        self._stop()
        why = Reason(
            CERTAIN_TO_FAIL,
            metric=gate.metric.name,
            value=value,
            unit=gate.metric.unit,
            incident=incident,
            still_running=is_running or None,
        )
        reason = gate_text(why)
        aborted = Aborted(gate=gate.expression, value=value, reason=reason, incident=incident, why=why)
        self._emitter.emit(aborted, step=step)
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
    """What the state of a run says of `wanted` after an event, as far as it was not told before."""

    def __init__(self, wanted: set[str], state: RunState) -> None:
        self._wanted = wanted
        self._state = state
        self._samples_lost = 0
        self._num_first = self._num_redone = 0
        self._told: set[tuple[str, int]] = set()
        # Those of which it was told that they grow.
        self._growing: set[tuple[str, int]] = set()
        self._begun: list[Value] = []
        # Events since incidents were last looked at.
        self._num_since = 0

    def feed(self, event: Event) -> list[Value]:
        """The values that the event brings."""
        found: list[Value] = []
        match event.kind:
            case JobStarted.KIND:
                self._begun.append(("wall_clock_seconds", event.monotonic_seconds, None))
            case StepUnfit.KIND:
                found = [("unfit_steps", float(sum(1 for _ in self._state.of(StepUnfit))), None)]
            case Verified.KIND | Detected.KIND:
                found = self._of_incidents()
            case StepCommitted.KIND:
                found = [*self._of_incidents(), *self._of_step(event.step or 0)]
        return [value for value in found if value[0] in self._wanted and isfinite(value[1])]

    def begun(self) -> list[Value]:
        """What has begun to grow with time since this was last asked: metric, since when, incident."""
        begun, self._begun = self._begun, []
        return [one for one in begun if one[0] in self._wanted]

    def _of_incidents(self) -> list[Value]:
        """Of incidents whose effect was seen: no other counts."""
        if not self._wanted & set(_GROWING_PHASES) or not self._state.num_injected:
            return []
        self._num_since += 1
        # Each time costs as much as there is to look at: of a long run it is not done for every event.
        if self._num_since < self._state.num_records // _LOOKS_PER_LENGTH:
            return []
        self._num_since = 0
        found: list[Value] = []
        for one in self._state.timeline.incidents:
            if one.verified is None or one.injected is None:
                continue
            detection = one.detection_seconds if one.ranks else None
            values = (one.recovery_seconds, one.progress_seconds, detection)
            doubts = one.uncertainty_seconds
            for metric, value in zip(_GROWING_PHASES, values, strict=True):
                if value is not None and (metric, one.incident) not in self._told:
                    self._told.add((metric, one.incident))
                    # The least that the value can be.
                    found.append((metric, value - doubts.get(metric, 0.0), one.incident))
                elif value is None and metric != "detection_seconds" and (metric, one.incident) not in self._growing:
                    self._growing.add((metric, one.incident))
                    self._begun.append((metric, one.injected, one.incident))
        return found

    def _of_step(self, number: int) -> list[Value]:
        num_first, num_redone = self._state.num_steps()
        step = self._state.step(number)
        found: list[Value] = []
        if num_redone > self._num_redone and self._state.timeline.steps_are_counted:
            self._num_redone = num_redone
            found += [("steps_repeated", float(num_redone), None), ("steps_lost", float(num_redone), None)]
        if num_first == self._num_first or step is None:
            return found
        self._num_first = num_first
        degraded = self._state.degraded_layers.get(step.epoch) if "degraded_layers" in self._wanted else None
        values = {"training_loss": step.loss, "grad_norm": step.grad_norm, "degraded_layers": degraded}
        found.append(("step_seconds", step.duration_seconds, None))
        found += [(metric, float(value), None) for metric, value in values.items() if value is not None]
        started = self._state.first_of(JobStarted)
        per_step = None if started is None else started.samples_per_step
        if "samples_lost" in self._wanted and per_step is not None and step.samples is not None:
            self._samples_lost += samples_lost_of(number, step.samples, step.samples_checksum, per_step)
            found.append(("samples_lost", float(self._samples_lost), None))
        return found
