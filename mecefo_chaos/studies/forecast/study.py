"""A study of a cluster: every strategy's forecast, the best of them, and the most sensitive inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from typing import Any

from harness.live.working import Progress, no_progress
from mecefo_chaos.studies.forecast.cluster_file import Question
from mecefo_chaos.studies.forecast.forecast import (
    best_checkpoint_interval,
    forecast,
    mean_interval_seconds,
    rates_of,
    young_interval_seconds,
)
from mecefo_chaos.studies.forecast.model import (
    Failures,
    Forecast,
    JobModel,
    Loss,
    Policy,
    Recovery,
    SampleWorth,
    Saving,
    with_costs,
)
from mecefo_chaos.studies.forecast.simulation import Rates
from mecefo_runtime.system.json_values import to_json

# Where nothing else is asked for: so many failures are seen, in so many hours at least and at most.
_WANTED_FAILURES = 200
_LEAST_HOURS, _MOST_HOURS = 24.0, 10_000.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One strategy's forecast, and its best checkpoint interval where one was sought."""

    forecast: Forecast
    best_interval_seconds: float | None = None
    tried_intervals: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What the best strategy's time to loss becomes with one input `factor` times as large.

    `change_ratio` is relative to what it is; `best` the strategy that is then the best of the two best ones.
    """

    input: str
    factor: float
    time_to_loss_ratio: float
    change_ratio: float
    best: Policy


@dataclass(frozen=True, slots=True)
class Study:
    """All answers, from the strategy that is soonest at the failure-free loss to the last one."""

    question: Question
    hours: float
    seed: int
    num_replications: int
    answers: tuple[Answer, ...]
    sensitivities: tuple[Sensitivity, ...]

    @property
    def best(self) -> Forecast:
        """That of the strategy that is soonest at the failure-free loss."""
        return self.answers[0].forecast

    @property
    def worth(self) -> SampleWorth:
        """What samples that are not exact are taken to be worth."""
        return self.question.file.worth

    def time_to_loss(self, found: Forecast) -> float:
        """The median, over that of a job without failures."""
        return found.time_to_loss_ratio(self.worth).median

    def document(self) -> dict[str, Any]:
        """As plain JSON values."""
        file, steps = self.question.file, self.question.file.training.steps
        device = self.question.device
        return {
            "cluster": file.model_dump(mode="json", exclude={"strategies"}),
            "device": device and {"name": device.name, "provenance": device.provenance, "basis": device.basis},
            "hours": self.hours,
            "seed": self.seed,
            "replications": self.num_replications,
            "degraded_sample_worth": self.worth.degraded,
            "projected_sample_worth": self.worth.projected,
            "strategies": [_answer_dict(answer, self.worth, steps) for answer in self.answers],
            "best": policy_dict(self.best.policy),
            "sensitivity": [
                {
                    "input": one.input,
                    "factor": one.factor,
                    "time_to_loss_ratio": _finite(one.time_to_loss_ratio),
                    "change_ratio": _finite(one.change_ratio),
                    "best": policy_dict(one.best),
                }
                for one in self.sensitivities
            ],
        }


def policy_dict(policy: Policy) -> dict[str, Any]:
    """A policy as plain JSON values."""
    return asdict(policy)


def _answer_dict(answer: Answer, worth: SampleWorth, steps: int) -> dict[str, Any]:
    found = answer.forecast
    return {
        "strategy": policy_dict(found.policy),
        "step_seconds": found.policy_step_seconds,
        "tokens_per_second": to_json(found.tokens_per_second),
        "failure_free_tokens_per_second": found.free_tokens_per_second,
        "settled_drop_ratio": to_json(found.settled_drop_ratio),
        "drop_ratio": to_json(found.drop_ratio),
        "goodput_ratio": to_json(found.goodput_ratio),
        "degraded_ratio": to_json(found.degraded_ratio),
        "projected_ratio": to_json(found.projected_ratio),
        "hours_to_train": to_json(found.hours_to_train(steps)),
        "time_to_loss_ratio": to_json(found.time_to_loss_ratio(worth)),
        "recovery_seconds": None if found.recovery_seconds is None else to_json(found.recovery_seconds),
        "wall_clock_seconds": found.wall_clock_seconds,
        "productive_seconds": found.productive_seconds,
        "lost_seconds": dict(found.lost_seconds),
        "losses": found.num_losses,
        "regroups": found.num_regroups,
        "down_ratio": found.down_ratio,
        "rungs": dict(found.rungs),
        "best_checkpoint_interval_seconds": answer.best_interval_seconds,
        "checkpoint_intervals": [
            {"seconds": seconds, "goodput_ratio": goodput} for seconds, goodput in answer.tried_intervals
        ],
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of a forecast, of which each sensitivity changes one."""

    job: JobModel
    failures: Failures
    recovery: Recovery
    worth: SampleWorth


@dataclass(frozen=True, slots=True)
class _Simulator:
    """Forecasts for one question, all with the same failures; what a strategy's layouts yield is computed once."""

    question: Question
    hours: float
    seed: int
    rates: Mapping[Policy, Rates]

    def forecast(self, policy: Policy, inputs: _Inputs, num_replications: int) -> Forecast:
        """What `policy` yields with these inputs."""
        return forecast(
            inputs.job,
            policy,
            inputs.failures,
            self.question.recovery_of(policy, inputs.recovery),
            hours=self.hours,
            seed=self.seed,
            num_replications=num_replications,
            rates=self.rates[policy] if inputs.job is self.question.job else None,
        )

    def answer(self, policy: Policy, inputs: _Inputs, num_replications: int) -> Answer:
        """The forecast of `policy`, with its best checkpoint interval where one is sought."""
        recovery = inputs.recovery
        if not self.question.wants_best_interval or recovery.checkpoint is None:
            return Answer(self.forecast(policy, inputs, num_replications))
        best = best_checkpoint_interval(
            inputs.job,
            policy,
            inputs.failures,
            self.question.recovery_of(policy, recovery),
            hours=self.hours,
            seed=self.seed,
            rates=self.rates[policy],
        )
        with_best = replace(inputs, recovery=_with_interval(recovery, best.seconds))
        return Answer(self.forecast(policy, with_best, num_replications), best.seconds, best.tried)

    def sensitivity(self, name: str, factor: float, inputs: _Inputs, best_two: Sequence[Forecast]) -> Sensitivity:
        """What the changed `inputs` make of the best strategy's time to loss.

        The first replication represents all: the same failures before and after.
        """
        times: dict[Policy, float] = {}
        for before in best_two:
            recovery = _with_interval(inputs.recovery, before.checkpoint_interval_seconds)
            after = self.forecast(before.policy, replace(inputs, recovery=recovery), 1)
            # Against the job as it is, without failures: a slower device takes longer to any loss.
            slower = after.free_step_seconds / before.free_step_seconds
            times[before.policy] = after.outcome_time_to_loss(0, inputs.worth) * slower
        best = best_two[0]
        time_before = best.outcome_time_to_loss(0, self.question.file.worth)
        time_after = times[best.policy]
        change = time_after / time_before - 1 if isfinite(time_after) and isfinite(time_before) else inf
        return Sensitivity(name, factor, time_after, change, min(times, key=times.__getitem__))


def study(
    question: Question,
    *,
    hours: float | None = None,
    seed: int = 0,
    num_replications: int = 5,
    with_sensitivities: bool = True,
    progress: Progress = no_progress,
) -> Study:
    """Forecast every strategy of `question`; `progress` takes what is being computed.

    Raises:
        ValueError: there is nothing to simulate.
    """
    hours = hours or _hours(question)
    rates = {policy: rates_of(question.job, policy) for policy in question.policies}
    simulator = _Simulator(question, hours, seed, rates)
    inputs = _Inputs(question.job, question.failures, question.recovery, question.file.worth)
    changes = list(_changes(inputs)) if with_sensitivities else []
    num_parts = len(question.policies) + len(changes)
    answers: list[Answer] = []
    for number, policy in enumerate(question.policies):
        progress(f"{policy}", number, num_parts)
        answers.append(simulator.answer(policy, inputs, num_replications))
    answers.sort(key=lambda answer: answer.forecast.time_to_loss_ratio(inputs.worth).median)
    best_two = [answer.forecast for answer in answers[:2]]
    sensitivities: list[Sensitivity] = []
    for number, (name, factor, changed) in enumerate(changes, start=len(question.policies)):
        progress(f"{name} x {factor:g}", number, num_parts)
        sensitivities.append(simulator.sensitivity(name, factor, changed, best_two))
    sensitivities.sort(key=lambda one: -abs(one.change_ratio))
    return Study(question, hours, seed, num_replications, tuple(answers), tuple(sensitivities))


def _hours(question: Question) -> float:
    failures, cluster = question.failures, question.job.cluster
    if failures.trace is not None:
        last_seconds = max((loss.at_seconds for loss in failures.trace), default=0.0)
        return max(_LEAST_HOURS, 1.05 * last_seconds / 3600)
    num_units = cluster.num_ranks if failures.unit == "rank" else cluster.nodes
    interval_hours = mean_interval_seconds(failures, num_units) / 3600
    return min(_MOST_HOURS, max(_LEAST_HOURS, _WANTED_FAILURES * interval_hours))


def _with_interval(recovery: Recovery, interval_seconds: float | None) -> Recovery:
    if recovery.checkpoint is None or interval_seconds is None:
        return recovery
    return replace(recovery, checkpoint=replace(recovery.checkpoint, interval_seconds=interval_seconds))


def _changes(now: _Inputs) -> Iterator[tuple[str, float, _Inputs]]:
    """Each input by itself, halved and doubled: (its name, factor, what becomes of the question)."""
    job, failures, recovery, worth = now.job, now.failures, now.recovery, now.worth
    for factor in (0.5, 2.0):
        yield "time between failures", factor, replace(now, failures=_rarer(failures, factor))
        yield "repair time", factor, replace(now, failures=_longer_repair(failures, factor))
        for name, changed in _other_recoveries(recovery, factor).items():
            if changed != recovery:
                yield name, factor, replace(now, recovery=changed)
        if recovery.checkpoint is not None and recovery.checkpoint.save_seconds:
            saving = replace(recovery.checkpoint, save_seconds=recovery.checkpoint.save_seconds * factor)
            yield "checkpoint save time", factor, replace(now, recovery=replace(recovery, checkpoint=saving))
        if recovery.memory is not None:
            rarer = replace(recovery.memory, interval_seconds=recovery.memory.interval_seconds * factor)
            yield "snapshot interval", factor, replace(now, recovery=replace(recovery, memory=rarer))
        yield "compute time", factor, replace(now, job=with_costs(job, factor))
        if job.link is not None:
            yield "link bandwidth", factor, replace(now, job=replace(job, link=job.link.scaled(1 / factor)))
        if 0 < worth.degraded * factor <= 1:
            other_worth = replace(worth, degraded=worth.degraded * factor)
            yield "worth of a degraded sample", factor, replace(now, worth=other_worth)
        # What a projected sample loses: its worth is near 1 and cannot be doubled.
        if worth.projected < 1 and (1 - worth.projected) * factor <= 1:
            other_worth = replace(worth, projected=1 - (1 - worth.projected) * factor)
            yield "loss of a projected sample", factor, replace(now, worth=other_worth)


def _other_recoveries(recovery: Recovery, factor: float) -> Mapping[str, Recovery]:
    replacement_seconds = recovery.replacement_seconds
    return {
        "detection time": replace(recovery, detection_seconds=recovery.detection_seconds * factor),
        "regroup time": replace(recovery, regroup_seconds=recovery.regroup_seconds * factor),
        "restart time": replace(recovery, restart_seconds=recovery.restart_seconds * factor),
        "time until a spare": replace(
            recovery, replacement_seconds=None if replacement_seconds is None else replacement_seconds * factor
        ),
    }


def _rarer(failures: Failures, factor: float) -> Failures:
    if failures.trace is None:
        return replace(failures, interval_seconds=failures.interval_seconds * factor)
    moved = (replace(loss, at_seconds=loss.at_seconds * factor) for loss in failures.trace)
    return replace(failures, trace=tuple(moved))


def _longer_repair(failures: Failures, factor: float) -> Failures:
    def longer(loss: Loss) -> Loss:
        return replace(loss, repair_seconds=loss.repair_seconds * factor)

    trace = None if failures.trace is None else tuple(map(longer, failures.trace))
    return replace(failures, repair_seconds=failures.repair_seconds * factor, trace=trace)


def young_seconds(question: Question) -> float | None:
    """Young's interval for this question, None where no checkpoint costs anything."""
    saving: Saving | None = question.recovery.checkpoint
    if saving is None or not saving.save_seconds:
        return None
    cluster = question.job.cluster
    num_units = cluster.num_ranks if question.failures.unit == "rank" else cluster.nodes
    return young_interval_seconds(saving.save_seconds, mean_interval_seconds(question.failures, num_units))
