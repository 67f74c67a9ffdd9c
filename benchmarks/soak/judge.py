"""What must hold of every run of the soak, from its events: a list of what does not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.soak.driver import Loss, Record
from benchmarks.soak.plan import RunPlan
from harness.analysis.state import state_of
from harness.analysis.step_ledger import read_steps
from harness.analysis.steps import CommittedStep
from harness.analysis.violations import find_diverged_units
from mecefo_runtime.job.config import JOB_FAILED
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.model.data import checksum, samples_of_step
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.job_records import RankFinished
from mecefo_runtime.system.json_values import from_json

# Sums of float32 in another order; 1.4e-7 has been seen.
MAX_LOSS_DEVIATION_RATIO = 1e-5
KILLED = -9
# A rank that is told that the job cannot continue.
STOPPED = 1


def judge(plan: RunPlan, record: Record, reference: Mapping[int, float] | None) -> list[str]:
    """Everything that is wrong with a run; `reference` holds the losses of the fault-free run by step."""
    events = record.events
    violations = [f"left behind: {what}" for what in record.leftovers]
    violations += [f"crashed: {text}" for text in find_crashes(events, record.losses, is_fatal=plan.is_fatal)]
    violations += check_samples(events, plan.job().samples_per_step)
    diverged = find_diverged_units(state_of(events).of(RankFinished)) or {}
    violations += [f"{unit} differs among its holders: {sums}" for unit, sums in diverged.items()]
    if plan.is_fatal:
        return violations + check_stop(record)
    reasons = [str(event.fields["reason"]) for event in events if event.kind == "job_failed"]
    if record.outcome != "completed":
        return [*violations, "; ".join([record.outcome, *reasons])]
    violations += check_steps(events, plan.num_steps) + check_end(events, record.losses, plan.num_steps)
    if plan.is_exact and reference is not None:
        violations += check_losses(events, reference)
    return violations


def check_steps(events: Iterable[Event], num_steps: int) -> list[str]:
    """Every step is committed, once and in order."""
    steps = read_steps(events, MAIN_JOB)
    numbers = [step.step for step in steps.first]
    violations = [f"step {step.step} was committed again in epoch {step.epoch}" for step in steps.redone]
    missing = sorted(set(range(1, num_steps + 1)) - set(numbers))
    if missing:
        violations.append(f"steps {missing} were never committed")
    if numbers != sorted(numbers):
        violations.append("steps were committed out of order")
    return violations


def check_samples(events: Iterable[Event], samples_per_step: int) -> list[str]:
    """Whoever tells of a step tells of its very samples, and of the same loss."""
    violations = []
    told: dict[int, float] = {}
    for event in events:
        if event.kind != "step_committed":
            continue
        step, fields = event.step or 0, event.fields
        if fields["samples"] != samples_per_step:
            violations.append(f"step {step} used {fields['samples']} samples of {samples_per_step}")
        elif int(fields["samples_checksum"]) != checksum(samples_of_step(step, samples_per_step)):
            violations.append(f"step {step} used other samples than its own")
        if fields["loss"] is None or not math.isfinite(fields["loss"]):
            violations.append(f"the loss of step {step} is {fields['loss']}")
        elif not math.isclose(told.setdefault(step, fields["loss"]), fields["loss"], rel_tol=1e-6):
            violations.append(f"step {step} was committed with losses {told[step]} and {fields['loss']}")
    return violations


def check_end(events: Sequence[Event], losses: Sequence[Loss], num_steps: int) -> list[str]:
    """Every rank of the last layout that was not affected since says what it ends with, after the last step."""
    last = max((event for event in events if event.kind == "layout"), key=lambda event: event.monotonic_seconds)
    affected = {rank for loss in losses if loss.monotonic_seconds > last.monotonic_seconds for rank in loss.ranks}
    expected = from_json(Layout, last.fields["layout"], lenient=True).ranks() - affected
    told = {event.rank: event.step for event in events if event.kind == "rank_finished" and event.fields["checksums"]}
    violations = [f"rank {rank} did not finish" for rank in sorted(expected - told.keys())]
    return violations + [f"rank {rank} finished at step {told[rank]}" for rank in told if told[rank] != num_steps]


def check_losses(events: Iterable[Event], reference: Mapping[int, float]) -> list[str]:
    """The losses are the fault-free run's but for rounding."""
    deviations = loss_deviations(read_steps(events, MAIN_JOB).first, reference)
    far = [step for step, deviation in deviations.items() if deviation > MAX_LOSS_DEVIATION_RATIO]
    if not far:
        return []
    worst = max(deviations.values())
    return [f"the loss deviates from the fault-free run's from step {min(far)} on, by up to {worst:.1e}"]


def loss_deviations(steps: Iterable[CommittedStep], reference: Mapping[int, float]) -> dict[int, float]:
    """Per step |loss - reference| / reference."""
    losses = {step.step: step.loss for step in steps if step.loss is not None}
    return {step: abs(loss - reference[step]) / reference[step] for step, loss in losses.items()}


def check_stop(record: Record) -> list[str]:
    """The run ended because of what was taken from it, and says what that is."""
    reasons = [str(event.fields["reason"]) for event in record.events if event.kind == "job_failed"]
    if record.outcome != "failed" or len(reasons) != 1:
        return [f"should have stopped: {record.outcome} {reasons}"]
    if reasons[0].startswith("a bug") or "lost" not in reasons[0]:
        return [f"stopped for another reason: {reasons[0]}"]
    return []


def find_crashes(events: Sequence[Event], losses: Sequence[Loss], *, is_fatal: bool) -> list[str]:
    """Processes that ended otherwise than in order or by the soak's hand."""
    ended = next((event.monotonic_seconds for event in events if event.kind == "job_ended"), math.inf)
    affected: dict[int, list[float]] = defaultdict(list)
    for loss in losses:
        for rank in loss.ranks:
            affected[rank].append(loss.monotonic_seconds)
    # That the job failed is said elsewhere, with the reason.
    allowed = {0, STOPPED, JOB_FAILED} if is_fatal else {0, JOB_FAILED}
    crashes = []
    for event in events:
        if event.kind != "process_exited" or event.fields["exit"] in allowed:
            continue
        code = int(event.fields["exit"])
        exited: int | None = event.fields.get("exited_rank")
        was_affected = exited is None or any(seconds <= event.monotonic_seconds for seconds in affected[exited])
        if code != KILLED or (not was_affected and event.monotonic_seconds < ended):
            name = event.fields["role"] if exited is None else f"rank {exited}"
            crashes.append(f"{name} (pid {event.fields['exited_pid']}) exited with {code}")
    return crashes


def recovery_seconds(events: Iterable[Event], losses: Iterable[Loss]) -> list[float]:
    """For every loss of ranks: from the blow to the first committed step that began after it, where there is one."""
    steps = read_steps(events, MAIN_JOB).first
    recoveries = []
    for loss in losses:
        after = [step.committed_seconds for step in steps if step.began_seconds > loss.monotonic_seconds]
        if loss.ranks and after:
            recoveries.append(min(after) - loss.monotonic_seconds)
    return recoveries


def count_rejoins(events: Iterable[Event]) -> int:
    """Ranks that were taken back."""
    return sum(len(event.fields["ranks"]) for event in events if event.kind == "rejoined")
