"""Does the forecast hold against the runtime? `python -m benchmarks.forecast [--device-model X --shape D P] [--json]`.

Short jobs of eight real ranks under rated pacing lose ranks in different ways under different strategies. The forecast
of each is computed from that run's own ratings. Detection, regroup and how fast state moves come from calibration runs
before. Nothing is taken from a run after its first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks._loss_schedules import CALIBRATION, SCHEDULES, Schedule, emulated_schedules
from benchmarks._machine import Machine, OtherLoad, confined_to, describe_machine
from benchmarks._runs import benchmark_options, failure_of, finish, progress, run_folder
from benchmarks._spread import table
from chaos.errors import ChaosError
from chaos.experiment.job import Job
from chaos.host.run_files import EVENTS_FILE
from harness.analysis.state import RunState, state_of
from harness.judging.summary import Summary
from harness.run.execute import execute
from harness.store.log import read_events
from mecefo_chaos.studies.forecast.forecast import rates_of
from mecefo_chaos.studies.forecast.model import JobModel, Loss, Policy, Rating, Recovery
from mecefo_chaos.studies.forecast.pipeline import rate
from mecefo_chaos.studies.forecast.simulation import simulate
from mecefo_runtime.job.config import quality_of
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.system.job_records import LayoutTold, RatingsAgreed, Regrouped
from mecefo_runtime.system.json_values import from_json

NUM_CORES = 2
DILATION_RATIO = 16.0
# As far as the forecast may be off.
MOST_DROP_POINTS = 1.0
MOST_RECOVERY_RATIO = 0.2
# The first steps of an epoch wait for what is warm later.
_WARM_UP_STEPS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: its ratings, and what came of it. `drop_ratio` is from the injection to the repair, or the end.

    `settled_drop_ratio` is that of the median step of the longest epoch under the fault.
    """

    costs: Costs
    drop_ratio: float
    settled_drop_ratio: float
    recovery_seconds: tuple[float, ...]
    overrun_ratio: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a loss costs before training continues."""

    recovery: Recovery
    transfer_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A schedule as it was forecast, and as it came; None: that run failed, as `failure` says."""

    schedule: str
    predicted_drop_ratio: float | None = None
    drop_ratio: float | None = None
    predicted_settled_drop_ratio: float | None = None
    settled_drop_ratio: float | None = None
    predicted_recovery_seconds: float | None = None
    recovery_seconds: float | None = None
    overrun_ratio: float | None = None
    failure: str | None = None

    @property
    def is_within(self) -> bool:
        """Whether the forecast was near enough."""
        if self.drop_ratio is None or self.predicted_drop_ratio is None:
            return False
        return abs(self.drop_ratio - self.predicted_drop_ratio) * 100 <= MOST_DROP_POINTS


def run_schedule(schedule: Schedule, out: Path, seed: int, dilation_ratio: float) -> tuple[Summary, RunState, JobModel]:
    """Run it; returns what came of it, and its job with the ratings of the run and no more.

    Raises:
        click.exceptions.Exit: the machine does not let us run it.
    """
    experiment = schedule.experiment(seed, dilation_ratio)
    assert isinstance(experiment.job, Job)
    try:
        with Path("/dev/null").open("w", encoding="utf-8") as nowhere:
            summary, folder = execute(experiment, out, nowhere)
    except ChaosError as error:
        click.echo(f"cannot run {schedule}: {error}", err=True)
        raise click.exceptions.Exit(error.exit_code) from error
    if summary.status == "interrupted":
        raise click.Abort
    state = state_of(read_events(folder / EVENTS_FILE)[0])
    ratings = state.first_of(RatingsAgreed)
    assert ratings is not None, "a dilated job with rated pacing tells its ratings"
    config = experiment.job.to_config(seed, dilation_ratio)
    job = JobModel(config.cluster(), from_json(Costs, ratings.costs), config.tokens_per_step)
    if config.emulation is not None and config.links is not None:
        link = config.links.scaled(ratings.time_scale or 1.0).between_nodes
        job = replace(job, link=link, activation_bytes=config.emulation.message_bytes)
    return summary, state, job


def calibrate(schedules: Sequence[Schedule], out: Path, seed: int, dilation_ratio: float) -> Calibration:
    """Run `schedules`, each with a loss: what one costs is their median."""
    runs = [run_schedule(schedule, out, seed + number, dilation_ratio) for number, schedule in enumerate(schedules)]
    incidents = [summary.incidents[0] for summary, _, _ in runs]
    regroups = [next(one for one in state.of(Regrouped) if one.reason == "loss") for _, state, _ in runs]
    first_steps = [
        (incident.phases_seconds["first_step"] or 0.0) - _medians(state)[2]
        for incident, (_, state, _) in zip(incidents, runs, strict=True)
    ]
    return Calibration(
        recovery=Recovery(
            detection_seconds=max(0.0, median(one.detection_seconds or 0.0 for one in incidents)),
            regroup_seconds=median(
                (one.phases_seconds["isolate"] or 0.0) + (one.phases_seconds["regroup"] or 0.0) for one in incidents
            ),
            first_step_seconds=max(0.0, median(first_steps)),
        ),
        transfer_bytes_per_second=median(
            (one.transfer_bytes or 1) / max(one.transfer_seconds, 1e-6) for one in regroups
        ),
    )


def _medians(state: RunState) -> dict[int, float]:
    """The median step of every epoch, without its first ones."""
    by_epoch: dict[int, list[float]] = {}
    for step in state.timeline.steps.first:
        by_epoch.setdefault(step.epoch, []).append(step.duration_seconds)
    return {epoch: median(times[_WARM_UP_STEPS:] or times) for epoch, times in by_epoch.items()}


def _rating(state: RunState, epoch: int, job: JobModel) -> Rating:
    told = next(record for record in state.of(LayoutTold) if record.epoch == epoch)
    assert told.layout is not None
    return rate(from_json(Layout, told.layout, lenient=True), job)


def measured(schedule: Schedule, summary: Summary, state: RunState, job: JobModel) -> Measured:
    """What came of a run with failures."""
    medians = _medians(state)
    under_fault = {record.epoch for record in state.of(LayoutTold) if record.reason == "loss"}
    slowest = max(seconds for epoch, seconds in medians.items() if epoch in under_fault)
    assert summary.throughput_drop_ratio is not None
    return Measured(
        costs=job.costs,
        drop_ratio=summary.throughput_drop_ratio,
        settled_drop_ratio=1 - medians[1] / slowest,
        recovery_seconds=tuple(incident.recovery_seconds or inf for incident in summary.incidents),
        overrun_ratio=summary.dilation_overrun_ratio,
    )


def predict(schedule: Schedule, job: JobModel, calibration: Calibration) -> tuple[float, float, float]:
    """(drop from the first loss on, settled drop, mean recovery seconds), from what was known before the first step."""
    num_steps = schedule.num_steps
    costs = replace(job.costs, transfer_bytes_per_second=calibration.transfer_bytes_per_second)
    job = replace(job, costs=costs)
    policy = Policy(schedule.strategy, *quality_of(schedule.quality))
    rates = rates_of(job, policy)
    free_seconds = rates.free.step_seconds
    last_step = num_steps if schedule.repair_steps is None else schedule.losses[0][2] + schedule.repair_steps - 1
    losses: list[Loss] = []
    dead: frozenset[int] = frozenset()

    def seconds_for(wanted_steps: int) -> float:
        """Until so many steps are committed."""
        horizon_seconds = 10 * num_steps * free_seconds
        for _ in range(3):
            outcome = simulate(
                rates, policy, calibration.recovery, losses, horizon_seconds, free_seconds, job.cluster.num_ranks
            )
            rating = rates.rating(dead)
            assert rating is not None
            horizon_seconds -= (outcome.num_steps - wanted_steps) * rating.step_seconds
        return horizon_seconds

    for _, target, step in schedule.losses:
        losses.append(Loss(seconds_for(step - 1) + 1e-6, _ranks(target, job), inf))
        dead |= frozenset(losses[-1].ranks)
    begin_seconds = losses[0].at_seconds
    took_seconds = seconds_for(last_step) - begin_seconds
    outcome = simulate(
        rates,
        policy,
        calibration.recovery,
        losses,
        begin_seconds + took_seconds,
        free_seconds,
        job.cluster.num_ranks,
    )
    drop_ratio = 1 - (last_step - schedule.losses[0][2] + 1) * free_seconds / took_seconds
    rating = rates.rating(dead)
    assert rating is not None
    recovery_seconds = sum(outcome.recovery_seconds) / len(outcome.recovery_seconds)
    return drop_ratio, 1 - free_seconds / rating.step_seconds, recovery_seconds


def _ranks(target: str, job: JobModel) -> tuple[int, ...]:
    kind, _, number = target.partition("=")
    return (int(number),) if kind == "rank" else tuple(job.cluster.ranks_of(int(number)))


def compare(schedule: Schedule, calibration: Calibration, out: Path, seed: int, ratio: float) -> Compared:
    """Run a schedule, and forecast it."""
    summary, state, job = run_schedule(schedule, out, seed, ratio)
    failure = failure_of(summary)
    if failure is not None:
        return Compared(str(schedule), failure=failure)
    came = measured(schedule, summary, state, job)
    drop_ratio, settled_drop_ratio, recovery_seconds = predict(schedule, job, calibration)
    return Compared(
        schedule=str(schedule),
        predicted_drop_ratio=drop_ratio,
        drop_ratio=came.drop_ratio,
        predicted_settled_drop_ratio=settled_drop_ratio,
        settled_drop_ratio=came.settled_drop_ratio,
        predicted_recovery_seconds=recovery_seconds,
        recovery_seconds=sum(came.recovery_seconds) / len(came.recovery_seconds),
        overrun_ratio=came.overrun_ratio,
    )


def to_text(found: Sequence[Compared], calibration: Calibration, machine: Machine, others_cores: float) -> str:
    """The figures as text."""
    header = (
        "schedule",
        "drop",
        "forecast",
        "points off",
        "settled",
        "forecast",
        "recovery",
        "forecast",
        "off",
        "late",
    )
    rows = [_row(one) for one in found]
    within = sum(one.is_within for one in found)
    recovery = calibration.recovery
    return "\n".join(
        [
            f"machine: {machine}; others used {others_cores:.2f} cores",
            f"calibrated: {recovery.detection_seconds * 1000:.0f} ms detection, "
            f"{recovery.regroup_seconds * 1000:.0f} ms regroup, "
            f"first step {recovery.first_step_seconds * 1000:.0f} ms longer, "
            f"state at {calibration.transfer_bytes_per_second / 1e6:.0f} MB/s",
            "",
            table(header, rows),
            "",
            f"{within} of {len(found)} schedules within {MOST_DROP_POINTS:g} point",
            *(f"FAILED: {one.schedule}: {one.failure}" for one in found if one.failure),
        ]
    )


def _row(one: Compared) -> tuple[str, ...]:
    if one.drop_ratio is None or one.predicted_drop_ratio is None:
        return (one.schedule, *"-" * 9)
    predicted_seconds, seconds = one.predicted_recovery_seconds or 0.0, one.recovery_seconds or 0.0
    return (
        one.schedule,
        f"{one.drop_ratio:.1%}",
        f"{one.predicted_drop_ratio:.1%}",
        f"{(one.predicted_drop_ratio - one.drop_ratio) * 100:+.2f}",
        f"{one.settled_drop_ratio:.1%}",
        f"{one.predicted_settled_drop_ratio:.1%}",
        f"{seconds:.2f} s",
        f"{predicted_seconds:.2f} s",
        f"{predicted_seconds / seconds - 1:+.0%}",
        f"{one.overrun_ratio or 0.0:.1%}",
    )


@click.command()
@benchmark_options
@click.option("--dilation", "ratio", type=float, default=DILATION_RATIO, show_default=True, help="Of every run.")
@click.option("--only", multiple=True, metavar="NUMBER", type=int, help="Only these schedules, from 1. Repeatable.")
@click.option("--device-model", "device", metavar="NAME|FILE", help="Emulated devices, in four schedules of their own.")
@click.option("--shape", type=(int, int), default=(4, 4), show_default=True, help="Emulated: replicas, stages.")
def main(
    as_json: bool,
    quick: bool,
    out: Path | None,
    ratio: float,
    only: tuple[int, ...],
    device: str | None,
    shape: tuple[int, int],
) -> None:
    """Forecasts and real runs side by side: of eight ranks, or of as many emulated ones as you say."""
    schedules, calibration_runs = SCHEDULES, CALIBRATION
    if device is not None:
        schedules = emulated_schedules(device, *shape)
        calibration_runs = (replace(schedules[0], strategy="exact"),)
    chosen = [schedules[number - 1] for number in only] or list(schedules[:2] if quick else schedules)
    machine = describe_machine()
    with confined_to(NUM_CORES) as cores, OtherLoad(cores) as load, run_folder(out) as folder:
        calibration = calibrate(calibration_runs, folder, 100, ratio)
        found = []
        for seed, schedule in enumerate(chosen):
            found.append(compare(schedule, calibration, folder, seed, ratio))
            progress("  ".join(_row(found[-1])))
    document: Mapping[str, Any] = {
        "machine": machine.to_dict(),
        "others_cores": load.num_cores,
        "calibration": asdict(calibration),
        "schedules": [asdict(one) for one in found],
    }
    has_failures = any(one.failure for one in found)
    finish(document, to_text(found, calibration, machine, load.num_cores), as_json=as_json, has_failures=has_failures)


if __name__ == "__main__":
    main()
