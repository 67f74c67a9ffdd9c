"""The committed steps of a job, event by event: what `steps` reads from a whole log, without keeping it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from statistics import median

from harness.analysis.steps import BASELINE_STEPS, WARM_UP_STEPS, WORK_UNITS, CommittedStep, baseline
from mecefo_runtime.system.events import Event

# Enough for the baseline, and for the late news of an injection that was before the newest of them.
_RECENT_STEPS = BASELINE_STEPS + WARM_UP_STEPS + 8
_NOW_STEPS = 5
_MAX_HOLES = 256
_MAX_EPOCHS = 1024
_MAX_PROCESSES = 4096


class StepCounts:
    """How far a job has come. What it keeps does not grow with the number of steps.

    `num_first` counts the steps that were committed, `num_redone` those that were committed again.
    """

    def __init__(self) -> None:
        self.first_step: int | None = None
        self.last: CommittedStep | None = None
        self.newest_step = 0
        self.num_first = 0
        self.num_redone = 0
        self.first_injected_seconds: float | None = None
        self.tokens: int | None = None
        self.samples: int | None = None
        self.recent: deque[CommittedStep] = deque(maxlen=_RECENT_STEPS)
        # Steps below the newest one of which there is no record (yet), as (from, up to but without).
        self._holes: list[tuple[int, int]] = []
        # From which step on the first records are of which epoch.
        self._epoch_steps: list[int] = []
        self._epochs: list[int] = []
        self._epochs_of_pids: dict[int, int] = {}
        self._unit: str | None = None
        self._baseline: tuple[CommittedStep, ...] | None = None

    def note_process(self, event: Event) -> None:
        """Which attempt of an external job the process belongs to: its own steps do not say it reliably."""
        if "rank_attempt" in event.fields and event.fields.get("role") == "rank":
            self._epochs_of_pids[int(event.fields["started_pid"])] = int(event.fields["rank_attempt"])
            if len(self._epochs_of_pids) > _MAX_PROCESSES:
                del self._epochs_of_pids[next(iter(self._epochs_of_pids))]

    def feed(self, event: Event, is_command: bool) -> tuple[CommittedStep, bool] | None:
        """Take in a `step_committed`; returns (step, whether it was redone), None when it says nothing new."""
        if event.step is None:
            return None
        step, fields = int(event.step), event.fields
        epoch = int(fields.get("epoch", 0))
        epoch = self._epochs_of_pids.get(event.pid, epoch) if is_command else epoch
        is_first = self._is_first(step)
        if not is_first and (fields.get("repeated") or epoch <= self._epoch_of(step)):
            return None
        record = self._record(event, step, epoch)
        if is_first:
            self._count(record, event)
        else:
            self.num_redone += 1
        self.last = record
        return record, not is_first

    def freeze_baseline(self, injected_seconds: float) -> None:
        """The first fault: what committed before it is what all else is compared with."""
        if self.first_injected_seconds is None:
            self.first_injected_seconds = injected_seconds

    @property
    def is_baseline_final(self) -> bool:
        """Whether there was a fault, and a step after it: one that committed before it may be told after it."""
        return self._baseline is not None

    @property
    def baseline(self) -> tuple[CommittedStep, ...]:
        """The steps that tell the speed before the first fault."""
        if self._baseline is not None:
            return self._baseline
        until = self.first_injected_seconds
        found = baseline(self.recent, float("inf") if until is None else until)
        if until is not None and self.last is not None and self.last.committed_seconds > until:
            self._baseline = found
        return found

    @property
    def usual_seconds(self) -> float | None:
        """The median duration of the last steps."""
        return median(step.duration_seconds for step in self.recent) if self.recent else None

    @property
    def tokens_per_second(self) -> float | None:
        """Over the last few steps; None where the job does not tell tokens."""
        steps = list(self.recent)[-_NOW_STEPS:]
        if not steps or self._unit != WORK_UNITS[0]:
            return None
        seconds = sum(step.duration_seconds for step in steps)
        return sum(step.work for step in steps) / seconds if seconds > 0 else None

    def num_missing(self, steps_planned: int | None) -> int:
        """Steps up to the last planned one, or the newest, that were never committed."""
        last = max(steps_planned or 0, self.newest_step)
        first = 1 if self.first_step is None else self.first_step
        return max(0, last - first + 1 - self.num_first)

    def _is_first(self, step: int) -> bool:
        if step > self.newest_step:
            return True
        if self.first_step is not None and step < self.first_step:
            return True
        return any(begin <= step < end for begin, end in self._holes)

    def _count(self, record: CommittedStep, event: Event) -> None:
        step = record.step
        self.num_first += 1
        if step > self.newest_step:
            if self.first_step is None:
                self.first_step = step
            elif step > self.newest_step + 1:
                self._holes = [*self._holes, (self.newest_step + 1, step)][-_MAX_HOLES:]
            self.newest_step = step
            if not self._epochs or record.epoch > self._epochs[-1]:
                self._epochs.append(record.epoch)
                self._epoch_steps.append(step)
                del self._epochs[:-_MAX_EPOCHS], self._epoch_steps[:-_MAX_EPOCHS]
        else:
            self._fill(step)
        if event.fields.get("tokens") is not None:
            self.tokens = (self.tokens or 0) + int(event.fields["tokens"])
        if record.samples is not None:
            self.samples = (self.samples or 0) + record.samples
        self.recent.append(record)

    def _fill(self, step: int) -> None:
        filled = []
        for begin, end in self._holes:
            if not begin <= step < end:
                filled.append((begin, end))
            else:
                filled += [part for part in ((begin, step), (step + 1, end)) if part[0] < part[1]]
        self._holes = filled[-_MAX_HOLES:]
        if self.first_step is not None and step < self.first_step:
            if step + 1 < self.first_step:
                self._holes.insert(0, (step + 1, self.first_step))
            self.first_step = step

    def _epoch_of(self, step: int) -> int:
        index = bisect_right(self._epoch_steps, step) - 1
        return self._epochs[max(0, index)] if self._epochs else 0

    def _record(self, event: Event, step: int, epoch: int) -> CommittedStep:
        fields, last = event.fields, self.last
        committed = float(fields.get("committed_monotonic", event.monotonic_seconds))
        before = last.committed_seconds if last is not None and last.step == step - 1 else None
        began = min(float(fields.get("began_monotonic", committed if before is None else before)), committed)
        loss, samples = fields.get("loss"), fields.get("samples")
        return CommittedStep(
            step=step,
            epoch=epoch,
            loss=None if loss is None else float(loss),
            work=self._work(event),
            samples=None if samples is None else int(samples),
            samples_checksum=None,
            began_seconds=began,
            committed_seconds=committed,
            previous_seconds=began if before is None or before > began else before,
            is_left_out=bool(fields.get("skipped", False)),
        )

    def _work(self, event: Event) -> float:
        unit = next((unit for unit in WORK_UNITS[:-1] if event.fields.get(unit) is not None), WORK_UNITS[-1])
        if unit != self._unit:
            # What is counted differently cannot be compared.
            self._unit = unit
            self.recent.clear()
        return 1.0 if unit == WORK_UNITS[-1] else float(event.fields[unit])
