"""The progress of a run, as the live views show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.incident import MeasuredIncident
from harness.analysis.job_traits import read_traits
from harness.analysis.state import RunState
from harness.analysis.steps import NOW_STEPS, WORK_UNITS, CommittedStep, median_work_per_second, work_per_second
from harness.live.recoveries import Recoveries
from mecefo_runtime.job.traits import JobTraits
from mecefo_runtime.system.events import BASELINE_JOB, MAIN_JOB, Event
from mecefo_runtime.system.job_records import JobEnded, JobStarted
from mecefo_runtime.system.run_records import IncidentsPlanned, PlannedIncident, RunStarted


@dataclass(frozen=True, slots=True)
class JobProgress:
    """One job's steps: `work_per_second` over the last few of them, in `unit` (see `steps.WORK_UNITS`).

    `remaining_seconds` is the estimated time to its last step, at that speed. `is_comparable`: its speed is to be
    compared with that of the main job, which computes at the same pace.
    """

    steps: int = 0
    step: int = 0
    loss: float | None = None
    epoch: int = 0
    outcome: str | None = None
    unit: str = WORK_UNITS[0]
    work_per_second: float | None = None
    remaining_seconds: float | None = None
    is_comparable: bool = True

    @property
    def done_ratio(self) -> float:
        """Share of the planned steps that are committed."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0


class RunProgress:
    """What the events of a run say so far. `state` is fed by others; without one it has its own, and feeds it."""

    def __init__(self, state: RunState | None = None) -> None:
        self.state = RunState() if state is None else state
        self.began_monotonic_seconds: float | None = None
        self._feeds = state is None
        self._recoveries = Recoveries(self.state)

    def feed(self, event: Event) -> tuple[MeasuredIncident, ...]:
        """Process one event; returns the incidents from which the job recovered with it."""
        if self.began_monotonic_seconds is None:
            self.began_monotonic_seconds = event.monotonic_seconds
        if self._feeds:
            self.state.feed(event)
        return self._recoveries.feed(event)

    def since_start_seconds(self, event: Event) -> float:
        """Time of the event since the first one fed."""
        begin = self.began_monotonic_seconds
        return 0.0 if begin is None else event.monotonic_seconds - begin

    @property
    def name(self) -> str:
        """The name of the experiment."""
        started = self.state.first_of(RunStarted)
        experiment = None if started is None else started.experiment
        return str(experiment.get("name", "")) if isinstance(experiment, dict) else ""

    @property
    def seed(self) -> object:
        """The seed of the run."""
        started = self.state.first_of(RunStarted)
        return None if started is None else started.seed

    @property
    def main(self) -> JobProgress:
        """The job."""
        return self._job(MAIN_JOB)

    @property
    def baseline(self) -> JobProgress | None:
        """The fault-free baseline, once it has begun."""
        baseline = self._job(BASELINE_JOB)
        return None if baseline == JobProgress() else baseline

    @property
    def traits(self) -> JobTraits:
        """What kind of job it is."""
        return read_traits(self.state.first_of(JobStarted))

    @property
    def has_spares(self) -> bool:
        """Whether ranks without layers are there to take the place of others."""
        started = self.state.first_of(JobStarted)
        return started is not None and started.spares > 0

    @property
    def incidents(self) -> tuple[tuple[MeasuredIncident, PlannedIncident | None], ...]:
        """The incidents, those planned with their plans."""
        plans = {plan.incident: plan for record in self.state.of(IncidentsPlanned) for plan in record.incidents}
        return tuple((one, plans.get(one.incident)) for one in self.state.timeline.incidents)

    @property
    def work_per_second_before(self) -> float | None:
        """The speed before the first fault; None before there was one."""
        times = self.state.timeline
        return None if times.first_injected is None else median_work_per_second(times.before)

    def node_of(self, rank: int) -> int:
        """The node of `rank`: ranks are numbered through node by node."""
        started = self.state.first_of(JobStarted)
        nodes = (started and started.nodes) or 1
        num_nodes = (nodes if isinstance(nodes, int) else len(nodes)) + (started.spares if started else 0)
        return rank * num_nodes // max(1, len(self.state.ranks.states))

    def _job(self, job: str) -> JobProgress:
        started, ended = self.state.first_of(JobStarted, job), self.state.first_of(JobEnded, job)
        last, newest = self.state.last_steps(job, NOW_STEPS), self.state.newest_step(job)
        epochs = [self.state.ranks.epoch or 0] if job == MAIN_JOB else []
        return JobProgress(
            steps=(started and started.steps) or 0,
            step=0 if newest is None else newest.step,
            loss=None if newest is None else newest.loss,
            epoch=max([*epochs, 0 if newest is None else newest.epoch]),
            outcome=None if ended is None else str(ended.outcome),
            unit=self.state.unit(job),
            work_per_second=work_per_second(last),
            remaining_seconds=_remaining_seconds(last, (started and started.steps) or 0),
            is_comparable=started is None or _pace(started) == _pace(self.state.first_of(JobStarted)),
        )


def _pace(started: JobStarted | None) -> object:
    """By what the compute of a job is slowed down, so that each rank behaves like a separate device."""
    return None if started is None else (started.dilation_ratio or 1.0, started.emulation)


def _remaining_seconds(last: Sequence[CommittedStep], num_steps: int) -> float | None:
    remaining = num_steps - last[-1].step if last else 0
    if remaining <= 0:
        return None
    return remaining * sum(step.duration_seconds for step in last) / len(last)
