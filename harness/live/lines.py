"""The live view as lines of text, for logs and CI."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right, insort
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Self, TextIO

from chaos.host.streams import forgiving
from chaos.plain_text import plain
from harness.analysis.contained import could_not
from harness.analysis.incident import MeasuredIncident
from harness.analysis.narrator import Narrator
from harness.analysis.state import RunState
from harness.analysis.steps import step_under_way
from harness.analysis.violations import is_judged_later
from harness.analysis.words import count, name_uncertain, one_line, speed_text, target_text
from harness.live.progress import JobProgress, RunProgress
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.job_records import AttemptStarted

# What happened before something else is heard of at most this much later, but on a machine that is very busy.
HOLD_SECONDS = 0.5
_PLAIN_PARTS = 10
_MAX_FAILURES = 5


@dataclass(frozen=True, slots=True)
class _Line:
    """A sentence of an event: when that happened and when it came (CLOCK_MONOTONIC), and what stands before it."""

    happened: float
    arrived: float
    job: str
    since: float
    step: int
    sentence: str
    # The job has started again, from whatever step.
    goes_back: bool = False


def _happened(line: _Line) -> float:
    return line.happened


class PlainView:
    """Lines, by time: one for every event that matters, and one for every tenth of the steps.

    Events of several processes arrive with different delays. So a line waits for earlier events: in a run for
    `HOLD_SECONDS`, without an event loop until an event is newer by that.
    """

    def __init__(self, stream: TextIO, state: RunState | None = None) -> None:
        self._stream = forgiving(stream)
        self._progress = RunProgress(state)
        # By when it happened.
        self._waiting: list[_Line] = []
        self._timer: asyncio.TimerHandle | None = None
        self._narrator = Narrator()
        self._failures = Failures()
        self._parts: dict[str, int] = {}
        self._last_steps: dict[str, int] = {}
        self._told_steps: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._write_until(inf)
        self._write("")

    def feed(self, event: Event) -> None:
        """Process one event; its lines, if any, are written in order of time."""
        try:
            told = [recovery_sentence(incident) for incident in self._progress.feed(event)]
            told.append(self._narrator.tell(event) or self._milestone(event) or "")
        except Exception as error:
            # A view never fails a run.
            told = self._failures.tell(error)
        # An event between two steps is told with the newest step heard of, so that the column runs backwards only where
        # the job does.
        goes_back = event.kind == AttemptStarted.KIND
        if goes_back:
            self._last_steps[event.job] = 0
        step = max(step_under_way(event) or 0, self._last_steps.get(event.job, 0))
        self._last_steps[event.job] = step
        for sentence in filter(None, told):
            since = self._progress.since_start_seconds(event)
            line = _Line(event.monotonic_seconds, time.monotonic(), event.job, since, step, sentence, goes_back)
            insort(self._waiting, line, key=_happened)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._write_until(event.monotonic_seconds - HOLD_SECONDS)
            return
        if self._waiting and self._timer is None:
            self._timer = loop.call_later(HOLD_SECONDS, self._write_due, loop)

    def message(self, text: str) -> None:
        """Write the sentence as a separate line."""
        self._write_until(inf)
        self._write(one_line(text))

    def _write_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write what has waited, with all that happened before it."""
        now = time.monotonic()
        due = [line.happened for line in self._waiting if line.arrived + HOLD_SECONDS <= now]
        self._write_until(max(due, default=-inf))
        next_arrived = min((line.arrived for line in self._waiting), default=None)
        self._timer = None
        if next_arrived is not None:
            self._timer = loop.call_later(max(0.0, next_arrived + HOLD_SECONDS - now), self._write_due, loop)

    def _write_until(self, happened: float) -> None:
        """Write the lines of what had happened by then."""
        number = bisect_right(self._waiting, happened, key=_happened)
        lines, self._waiting = self._waiting[:number], self._waiting[number:]
        for line in lines:
            step = line.step if line.goes_back else max(line.step, self._told_steps.get(line.job, 0))
            self._told_steps[line.job] = step
            self._write(f"{f'{line.since:.1f}s':>8}  {f'step {step}' if step else 'start':<11}  {line.sentence}")

    def _milestone(self, event: Event) -> str | None:
        if event.kind != "step_committed":
            return None
        job = self._progress.main if event.job == MAIN_JOB else self._progress.baseline
        if job is None:
            return None
        if not job.steps:
            return self._step_milestone(event, job)
        part = int(job.done_ratio * _PLAIN_PARTS)
        if part <= self._parts.get(event.job, 0):
            return None
        self._parts[event.job] = part
        return f"{_prefix(event)}{job.done_ratio:.0%} done{_speed_and_loss(job)}"

    def _step_milestone(self, event: Event, job: JobProgress) -> str | None:
        """A line each time that the steps have doubled, for jobs whose number of steps is not known."""
        if job.step < 2 * self._parts.get(event.job, 1):
            return None
        self._parts[event.job] = job.step
        return f"{_prefix(event)}{count(job.step, 'step')} done{_speed_and_loss(job)}"

    def _write(self, line: str) -> None:
        if line:
            self._stream.write(plain(line, kept="") + "\n")
        self._stream.flush()


class Failures:
    """What a view could not compute, each said once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, error: Exception) -> list[str]:
        """The sentence of `error`, the first time."""
        sentence = could_not("view of the run", error)
        if sentence in self._told or len(self._told) >= _MAX_FAILURES:
            return []
        self._told.add(sentence)
        return [sentence]


def _prefix(event: Event) -> str:
    return "" if event.job == MAIN_JOB else "fault-free baseline: "


def _speed_and_loss(job: JobProgress) -> str:
    """The speed, unless it is that of a job at another pace, which says nothing beside the main job's."""
    speed = f", {speed_text(job.work_per_second)} {job.unit}/s" if job.work_per_second and job.is_comparable else ""
    loss = f", loss {job.loss:.3f}" if job.loss is not None else ""
    left = "" if job.remaining_seconds is None else f", about {rounded(job.remaining_seconds)} left"
    return speed + loss + left


def rounded(seconds: float) -> str:
    """An estimate, rounded to its precision."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def recovery_sentence(incident: MeasuredIncident) -> str:
    """How long the job took from the fault to its next committed step.

    Of some faults a step shows only that training continued: whether the job recovers is known at its end.
    """
    doubts = incident.uncertainty_seconds
    recovery = name_uncertain(incident.recovery_seconds, doubts.get("recovery_seconds"))
    if incident.goes_on and incident.is_in_force:
        return (
            f"training continues under {one_line(incident.fault)} on {target_text(incident.target)} after "
            f"{recovery} (first step begun under it committed)"
        )
    if is_judged_later(incident):
        return (
            f"training continued after {one_line(incident.fault)} on {target_text(incident.target)}, "
            f"{name_uncertain(incident.continued_seconds, doubts.get('continued_seconds'))} after it "
            "(first step begun after it committed)"
        )
    return (
        f"recovered from {one_line(incident.fault)} on {target_text(incident.target)} in "
        f"{recovery} (first step begun after it committed)"
    )
