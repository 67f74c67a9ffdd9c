"""Events -> the summary of a run: every figure, its gates and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from chaos.refusals import refusal_text
from harness.analysis import accounting, approximation, diagnosis, integrity, throughput
from harness.analysis.attribution import UnplannedLoss
from harness.analysis.command.attempts import attempt_at
from harness.analysis.contained import as_far_as_it_goes, attempt
from harness.analysis.incident import MeasuredIncident
from harness.analysis.integrity import first_non_finite
from harness.analysis.overlaps import read_overlaps
from harness.analysis.regroups import StateRestore
from harness.analysis.state import EventLog, RunState, state_of
from harness.analysis.steps import WARM_UP_STEPS, WORK_UNITS, CommittedStep, median_step_seconds, median_work_per_second
from harness.analysis.timeline import Timeline
from harness.analysis.violations import find_diverged_units
from harness.judging.caveat_reasons import caveat_text
from harness.judging.caveats import caveats
from harness.judging.doubts import doubts_of, left_open, without_failures
from harness.judging.gates import builtin_gates, evaluate_all
from harness.judging.series import recorded_of
from harness.judging.summary import Emulated, IncidentSummary, NamedCause, Summary, Throughput, UnplannedLossSummary
from harness.judging.undecided import why_undecided
from harness.judging.verdict import Verdict, judge
from mecefo_runtime.system.command_records import OrphansEnded
from mecefo_runtime.system.events import BASELINE_JOB, Event
from mecefo_runtime.system.job_records import (
    Detected,
    JobEnded,
    JobStarted,
    LayoutTold,
    OtherQualityPlanned,
    RankFinished,
    RatingsAgreed,
    Regrouped,
    Rejoined,
    StepCommitted,
    StepUnfit,
)
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import (
    Aborted,
    Injected,
    RepairStarted,
    RunEnded,
    RunOverlapped,
    RunStarted,
    Undone,
    Verified,
)

T = TypeVar("T")
_FIGURES_NEED = frozenset(
    record.KIND
    for record in (StepCommitted, Injected, Verified, Undone, RepairStarted, Detected, LayoutTold, Regrouped, Rejoined)
)
"""Kinds of events without one of which every figure may be wrong."""


def summarize(
    events: Sequence[Event],
    *,
    unreadable: Sequence[int] = (),
    ends_in_a_line: bool = False,
    doubts: Sequence[Reason] = (),
    gates: Sequence[str] | None = None,
) -> Summary:
    """The summary of a run, from its events alone; the same events give the same summary.

    A part of the analysis that fails leaves its figures None and makes the verdict inconclusive at best.

    Args:
        events: the log, whole or cut off, in any order.
        unreadable: the numbers of lines that were no events (see `harness.store.log.Log`).
        ends_in_a_line: whether half a line followed.
        doubts: what else was found to be wrong with the log (see `harness.judging.doubts`).
        gates: what is judged in place of the gates that were asked for.
    """
    problems = _Problems(len(events))
    if ends_in_a_line:
        problems.said.append(Reason("half_a_line"))
    state = problems.attempt("state of the run", lambda: state_of(events)) or RunState()
    problems.size = max(problems.size, state.size)
    checked = as_far_as_it_goes(
        "check of the log", lambda: doubts_of(events, state, unreadable), problems.said, size=problems.size
    )
    doubts = [*doubts, *checked]
    times, figures = _known(events, state, problems, len(unreadable))
    asked = _asked_gates(state) if gates is None else gates
    results = evaluate_all(
        asked,
        figures,
        builtin_gates(figures.runtime, figures.strategy, went_back=_went_back(figures)),
        None if times is None else problems.attempt("steps", lambda: recorded_of(state)),
        state.first_of(Aborted),
    )
    if doubts:
        results, figures = left_open(results, state.first_of(Aborted)), without_failures(figures)
    verdict = problems.attempt("verdict", lambda: judge(state, times, figures, results, problems.said, doubts))
    if verdict is None:
        verdict = Verdict.of("inconclusive", [("inconclusive", why) for why in (*doubts, *problems.said)])
    return replace(
        figures,
        verdict=verdict.verdict,
        exit_code=verdict.exit_code,
        reasons=verdict.sentences,
        reason_codes=verdict.reasons,
        gates=tuple(results),
    )


class _Problems:
    """What could not be computed; `size` is that of the log, by which its analyses are bounded."""

    def __init__(self, size: int, said: Sequence[Reason] = ()) -> None:
        self.size = size
        self.said = list(said)

    def attempt(self, what: str, compute: Callable[[], T]) -> T | None:
        """The result of `compute`, or None and a reason: an analysis that fails knows nothing."""
        return attempt(what, compute, self.said, size=self.size)


def _known(
    events: Sequence[Event], state: RunState, problems: _Problems, num_unreadable: int
) -> tuple[Timeline | None, Summary]:
    """The timeline and all that was measured: of a log that is judged again, by other gates, what is known of it."""

    def compute() -> tuple[Timeline | None, Summary, list[Reason]]:
        own = _Problems(problems.size)
        is_told = not state.unread.keys() & _FIGURES_NEED
        times = own.attempt("timeline", lambda: state.timeline) if is_told else None
        figures = own.attempt("figures", lambda: _figures(state, times, own)) or _nothing_known(state, own)

        def part(told: Callable[[], Iterable[Reason]]) -> list[Reason]:
            return as_far_as_it_goes("caveats", told, own.said, size=own.size)

        said = own.attempt("caveats", lambda: caveats(figures, times, num_unreadable, part)) or []
        sentences = tuple(map(caveat_text, said))
        return times, replace(figures, caveats=sentences, caveat_codes=tuple(said)), own.said

    times, figures, said = events.once("figures", compute) if isinstance(events, EventLog) else compute()
    problems.said += said
    return times, figures


def _nothing_known(state: RunState, problems: _Problems) -> Summary:
    """The figures of a run of which none is known."""
    identity = problems.attempt("identity of the run", lambda: _identity(state, None)) or {}
    return Summary(**identity | dict.fromkeys(_COUNTS))


def _went_back(figures: Summary) -> bool:
    """Whether all steps that were lost are those from before which the state was saved that the job went back to."""
    saved = [restore.steps_lost for restore in figures.state_restores if restore.rung != "peer"]
    return 0 < (figures.steps_lost or 0) <= sum(saved)


_COUNTS = ("steps_committed", "steps_lost", "steps_repeated", "samples_lost", "unrecovered_incidents", "layout_changes")
"""Figures that are 0 of nothing, and must not be 0 of what could not be read."""


def _figures(state: RunState, times: Timeline | None, problems: _Problems) -> Summary:
    """All that was measured; not judged yet."""
    known = _identity(state, times)
    if times is None:
        known |= _measured(RunState(), RunState().timeline, _Problems(0)) | dict.fromkeys(_COUNTS)
    else:
        known |= _measured(state, times, problems)
    job_started = state.first_of(JobStarted)
    emulation = None if job_started is None else job_started.emulation
    is_emulated = emulation is not None
    finished, steps = tuple(state.of(RankFinished)), times.steps.first if times else ()
    diverged = problems.attempt("diverged state", lambda: find_diverged_units(finished))
    known["diverged_units"] = None if diverged is None else len(diverged)
    replicas = problems.attempt("comparison of the replicas", lambda: None if times is None else times.replicas)
    if replicas is not None and replicas.failure is not None:
        known["diverged_units"] = None
        problems.said.append(replicas.failure)
    elif replicas is not None and replicas.unknown is None:
        known["diverged_units"] = len({one.tensor for one in replicas.lasting})
    known["degraded_share_ratio"] = problems.attempt(
        "approximation", lambda: approximation.degraded_share_ratio(state.of(LayoutTold), steps)
    )
    known["projected_share_ratio"] = problems.attempt(
        "approximation", lambda: approximation.projected_share_ratio(state.of(LayoutTold), steps)
    )
    known["approximation"] = problems.attempt("approximation", lambda: _approximation(state, steps))
    run_started = state.first_of(RunStarted)
    known["overlapping_runs"] = read_overlaps(
        state.of(RunOverlapped), 0.0 if run_started is None else run_started.monotonic_seconds
    )
    known["unfit_steps"] = sum(1 for _ in state.of(StepUnfit))
    seconds = problems.attempt("compute", lambda: integrity.compute_seconds(finished))
    known["compute_cpu_seconds"] = None if seconds is None else seconds[0]
    ratio = known["dilation_ratio"]
    known["dilation_overrun_ratio"] = problems.attempt(
        "dilation", lambda: integrity.dilation_overrun_ratio(finished, ratio, is_emulated=is_emulated)
    )
    if (ratio or 1) > 1 or is_emulated:
        ratings = state.first_of(RatingsAgreed)
        known["pacing"] = "measured" if ratings is None else "rated"
        if ratings is not None:
            told = {"rated_as": ratings.rated_as, "ranks": list(ratings.ranks), "were_given": ratings.were_given}
            known["ratings"] = {"costs": ratings.costs, **told}
            if ratings.time_scale is not None:
                known["ratings"]["time_scale"] = ratings.time_scale
        overrun = problems.attempt("overruns", lambda: integrity.overruns(finished))
        known["overrun_segments_ratio"], known["worst_overrun_seconds"] = overrun or (None, None)
    if emulation is not None:
        known["emulated"] = problems.attempt("emulation", lambda: Emulated.of(emulation, known))
    return Summary(**known)


def _identity(state: RunState, times: Timeline | None) -> dict[str, Any]:
    run_started, job_started = state.first_of(RunStarted), state.first_of(JobStarted)
    ended, baseline_ended = state.first_of(JobEnded), state.first_of(JobEnded, BASELINE_JOB)
    run_ended = next((one.reason for one in state.of(RunEnded)), None) if times is None else times.run_ended
    experiment = run_started.experiment if run_started and isinstance(run_started.experiment, Mapping) else {}
    job = experiment.get("job")
    dilation = job_started.dilation_ratio if job_started else None
    return {
        "name": experiment.get("name"),
        "status": run_ended or "cut off",
        "job_outcome": ended and ended.outcome,
        "baseline_outcome": baseline_ended and baseline_ended.outcome,
        "seed": run_started and run_started.seed,
        "experiment_hash": run_started and run_started.experiment_hash,
        "runtime": job_started.runtime if job_started else "mecefo",
        "command": job_started and job_started.command,
        "started_in": job_started and job_started.started_in,
        "strategy": job.get("strategy") if isinstance(job, Mapping) else None,
        "dilation_ratio": dilation if dilation is not None else run_started and run_started.dilation_ratio,
        "baseline_planned": bool(experiment.get("twin", False)),
        "data_parallel": job.get("data_parallel") if isinstance(job, Mapping) else None,
        "pipeline_bubble_ratio": _bubble_ratio(job) if isinstance(job, Mapping) else None,
    }


def _approximation(state: RunState, steps: Sequence[CommittedStep]) -> approximation.Approximation | None:
    """How much was approximated, and what another quality would have led to, of a strategy that may do so."""
    started = state.first_of(RunStarted)
    job = started.experiment.get("job") if started and isinstance(started.experiment, Mapping) else None
    if not isinstance(job, Mapping):
        return None
    return approximation.measure(state.of(LayoutTold), state.of(OtherQualityPlanned), steps, job)


def _bubble_ratio(job: Mapping[str, Any]) -> float | None:
    """The share of a fault-free step in which a rank waits for its pipeline: (p - 1) / (m + p - 1).

    For 1F1B with p stages and m microbatches (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
    """
    stages, microbatches = job.get("pipeline"), job.get("microbatches_per_replica")
    if not isinstance(stages, int) or not isinstance(microbatches, int) or stages + microbatches < 2:
        return None
    return (stages - 1) / (microbatches + stages - 1)


def _measured(state: RunState, times: Timeline, problems: _Problems) -> dict[str, Any]:
    segments = problems.attempt("time accounting", lambda: accounting.partition(times))
    total = None if segments is None else accounting.account(segments)
    named = problems.attempt("diagnoses", lambda: diagnosis.diagnose(state.of(Record), times))
    has_attempts = times.traits.restarts_by_launcher
    judged = problems.attempt("recovery", lambda: times.judged)
    recovered = {} if judged is None else {one.incident: times.recovered(one) for one in judged}
    own: dict[int | None, list[accounting.Segment]] = {}
    for segment in segments or ():
        own.setdefault(segment.incident, []).append(segment)
    return {
        "steps_planned": times.steps_planned,
        "steps_committed": len(times.steps.first) if times.steps_are_counted else None,
        "steps_unknown_because": times.steps_unknown_because,
        "steps_lost": problems.attempt("steps lost", lambda: integrity.count_steps_lost(times)),
        "steps_repeated": len(times.steps.redone) if times.steps_are_counted else None,
        "attempts": len(times.attempts) if has_attempts else None,
        **(problems.attempt("attempts", lambda: _of_the_attempts(times)) or {}),
        "steps_from_scratch": problems.attempt("steps from scratch", lambda: _steps_from_scratch(times))
        if has_attempts
        else None,
        "samples_lost": problems.attempt("samples lost", lambda: integrity.count_samples_lost(times)),
        **_speed(times, problems),
        "step_seconds": problems.attempt("duration of a step", lambda: median_step_seconds(times.before)),
        **_of_the_losses(times, problems),
        **(problems.attempt("figures of the baseline", lambda: _of_the_baseline(state, times, total)) or {}),
        "group_backends": _group_backends(state),
        "layout_changes": sum(stall.regrouped_seconds is not None for stall in times.stalls)
        if times.traits.has_layout
        else None,
        "incidents": tuple(
            _incident(
                one,
                times,
                None if segments is None else own.get(one.incident, ()),
                named,
                recovered.get(one.incident),
                problems,
            )
            for one in (times.incidents if judged is None else judged)
        ),
        "incidents_not_due": len(times.not_due),
        "checkpoints_failed": len(times.unsaved_checkpoints) if times.num_checkpoints else None,
        "unplanned_losses": tuple(_unplanned(loss, times) for loss in times.unplanned),
        "state_restores": tuple(_since_start(one.restore, times) for one in times.stalls if one.restore is not None),
        "diagnosis_recall_ratio": named and named.recall_ratio,
        "diagnosis_precision_ratio": named and named.precision_ratio,
        "false_accusations": named and named.num_false,
        "no_restart": problems.attempt("restarts that were left", lambda: times.no_restart),
        "unrecovered_incidents": None
        if judged is None
        else sum(recovered[one.incident] is False for one in judged if one.verified is not None),
        **((problems.attempt("generations", lambda: _of_the_generations(state, times)) or {}) if has_attempts else {}),
        "wall_clock_seconds": total and total.wall_clock_seconds,
        "productive_seconds": total and total.productive_seconds,
        "badput_seconds": dict(total.badput_seconds) if total else dict.fromkeys(accounting.BADPUT_CAUSES),
        "goodput_ratio": total and total.goodput_ratio,
    }


def _speed(times: Timeline, problems: _Problems) -> dict[str, Any]:
    speed = problems.attempt("throughput", lambda: throughput.measure(times))
    speeds = Throughput() if speed is None else Throughput(speed.before, speed.during, speed.after)
    return {
        "throughput_unit": times.steps.unit,
        "throughput_per_second": speeds,
        "throughput_tokens_per_second": speeds if times.steps.unit == WORK_UNITS[0] else Throughput(),
        "throughput_drop_ratio": speed and speed.drop_ratio,
        "throughput_drop_while_training_ratio": speed and speed.while_training_drop_ratio,
        "outage_seconds": speed and speed.outage_seconds,
        "throughput_noise_ratio": speed and speed.noise_ratio,
        "throughput_drop_whole_run_ratio": speed and speed.whole_run_drop_ratio,
        "paid_capacity_ratio": speed and speed.paid_capacity_ratio,
        "num_steps_before": speed and speed.num_steps_before,
        "num_steps_after": speed and speed.num_steps_after,
    }


def _of_the_losses(times: Timeline, problems: _Problems) -> dict[str, Any]:
    losses = problems.attempt("losses", lambda: _losses(times))
    return {
        "final_loss": losses and losses.final,
        "baseline_loss": losses and losses.baseline,
        "loss_deviation_ratio": losses and losses.deviation_ratio,
        "loss_curve_max_deviation_ratio": losses and losses.curve_max_deviation_ratio,
        "num_loss_steps": losses and losses.num_steps,
        # A loss that is not finite stays one, whatever else of the losses is not known.
        "first_non_finite_loss_step": problems.attempt("losses", lambda: first_non_finite(times.steps.every))
        if losses is None
        else losses.first_non_finite_step,
    }


def _of_the_attempts(times: Timeline) -> dict[str, Any]:
    """Which attempts of a command's job brought it no further, and how many of its ranks were observed."""
    known: dict[str, Any] = {}
    # Of two generations that train at once the older one may commit each step first.
    is_mixed = any(one.is_violation for one in times.overlaps)
    if times.fruitless is not None and times.steps_are_counted and not is_mixed:
        known["fruitless_attempts"] = times.fruitless.attempts
        known["fruitless_seconds"] = times.fruitless.seconds
        known["fruitless_steps"] = times.fruitless.steps
    if times.observation is not None:
        known["num_ranks"] = times.observation.num_ranks
        known["num_observed_ranks"] = times.observation.num_observed
    return known


def _losses(times: Timeline) -> integrity.LossComparison:
    every = times.steps.every
    if times.steps_are_counted:
        return integrity.compare_losses(times.kept, times.fault_free, every)
    # The step of the baseline that belongs to a step is not known; which steps were the last ones is.
    newest = [step for step in every if step.epoch == every[-1].epoch]
    return integrity.compare_losses(newest, (), every)


def _of_the_baseline(state: RunState, times: Timeline, total: accounting.Account | None) -> dict[str, Any]:
    """How fast the fault-free baseline of a command was, and how much longer the job took.

    Both had the machine to themselves.
    """
    if times.traits.has_baseline_beside:
        return {}
    began, ended = state.first_of(JobStarted, BASELINE_JOB), state.first_of(JobEnded, BASELINE_JOB)
    if began is None or ended is None or ended.outcome != "completed" or times.is_baseline_disturbed:
        return {}
    seconds = ended.monotonic_seconds - began.monotonic_seconds
    took = None if total is None or times.outcome != "completed" else total.wall_clock_seconds
    is_like = times.baseline.first and times.steps.first and times.baseline.unit == times.steps.unit
    return {
        "baseline_steps_committed": len(times.baseline.first),
        "baseline_wall_clock_seconds": seconds,
        "baseline_work_per_second": median_work_per_second(times.baseline.first[WARM_UP_STEPS:]) if is_like else None,
        "slowdown_ratio": None if took is None or seconds <= 0 else took / seconds - 1,
    }


def _of_the_generations(state: RunState, times: Timeline) -> dict[str, Any]:
    """Processes of earlier attempts that were there alongside later ones, or were left running at the end."""
    overlaps, orphans = times.overlaps, list(state.of(OrphansEnded))
    looked = any(one.not_finite_values is not None for one in times.state_checksums)
    return {
        "generations_overlap_seconds": max((one.alive_seconds for one in overlaps), default=0.0),
        "overlapping_steps": sum(one.steps for one in overlaps),
        "overlapping_saves": sum(one.saves for one in overlaps),
        "orphaned_processes": sum(one.num_processes for one in orphans),
        "orphaned_ranks": tuple(sorted({rank for one in orphans for rank in one.ranks})),
        "parameters_not_finite": sum(one.values for one in times.parameters_not_finite) if looked else None,
    }


def _steps_from_scratch(times: Timeline) -> int:
    """How many steps were done again by starts of an external job that began the whole training again."""
    anew = {one.number for one in times.attempts if one.began_anew}
    return sum(step.epoch in anew for step in times.steps.redone)


def _group_backends(state: RunState) -> tuple[str, ...] | None:
    """What carried tensors between ranks in the main job's epochs, each once, in order; None: nobody knows."""
    told = (layout.group_backend for layout in state.of(LayoutTold))
    return tuple(dict.fromkeys(backend for backend in told if backend is not None)) or None


def _incident(
    incident: MeasuredIncident,
    times: Timeline,
    segments: Sequence[accounting.Segment] | None,
    named: diagnosis.Diagnoses | None,
    recovered: bool | None,
    problems: _Problems,
) -> IncidentSummary:
    """What is known of an incident; `segments` are those that it answers for, None: nobody knows."""
    found = problems.attempt(
        f"figures of incident {incident.incident}",
        lambda: _incident_summary(incident, times, segments, named, recovered),
    )
    if found is not None:
        return found
    return IncidentSummary(
        incident=incident.incident,
        fault=incident.fault,
        target=incident.target,
        injected=incident.injected is not None,
        verified=incident.verified is not None,
        phases_seconds=dict.fromkeys(incident.phases_seconds),
        badput_seconds=dict.fromkeys(accounting.BADPUT_CAUSES),
    )


def _incident_summary(
    incident: MeasuredIncident,
    times: Timeline,
    segments: Sequence[accounting.Segment] | None,
    named: diagnosis.Diagnoses | None,
    recovered: bool | None,
) -> IncidentSummary:
    own = None if segments is None else accounting.account(segments)
    usual_seconds = median_step_seconds(times.before)
    said = None if named is None else named.by_incident.get(incident.incident)
    return IncidentSummary(
        incident=incident.incident,
        fault=incident.fault,
        target=incident.target,
        step=incident.step,
        phase=incident.phase,
        ranks=incident.ranks,
        nodes=incident.nodes,
        injected=incident.injected is not None,
        verified=incident.verified is not None,
        evidence=incident.evidence,
        unverified_reason=None if incident.reason is None else refusal_text(incident.reason),
        undone=incident.is_undone,
        recovered=recovered,
        is_of_launcher=incident.is_of_launcher,
        violations=incident.violations,
        continued_seconds=incident.continued_seconds,
        recovery_step=incident.committed_step if times.steps_are_counted else None,
        attempt=attempt_at(times.attempts, incident.injected),
        recovery_attempt=incident.committed_epoch if times.traits.restarts_by_launcher else None,
        recovery_seconds=incident.recovery_seconds,
        recovery_steps=incident.recovery_seconds / usual_seconds
        if incident.recovery_seconds is not None and usual_seconds
        else None,
        progress_seconds=incident.progress_seconds,
        detection_seconds=incident.detection_seconds,
        notice_seconds=incident.notice_seconds,
        diagnosis=None if said is None else _named_cause(said),
        diagnosis_seconds=None if said is None else said.seconds,
        phases_seconds=incident.phases_seconds,
        uncertainty_seconds=incident.uncertainty_seconds,
        phase_order_valid=incident.is_phase_order_valid,
        wall_clock_seconds=None if own is None else own.wall_clock_seconds,
        productive_seconds=None if own is None else own.productive_seconds,
        badput_seconds=dict(own.badput_seconds) if own else dict.fromkeys(accounting.BADPUT_CAUSES),
        state_restored=None if incident.restore is None else _since_start(incident.restore, times),
        undecided=None if incident.undecided is None else incident.undecided.code,
        why=incident.reason or why_undecided(incident),
    )


def _since_start(restore: StateRestore, times: Timeline) -> StateRestore:
    return replace(restore, at_seconds=restore.at_seconds - times.started_seconds)


def _named_cause(said: diagnosis.Diagnosis) -> NamedCause:
    struck, named = (tuple(sorted(culprits, key=str)) for culprits in (said.affected, said.named))
    return NamedCause(said.score, struck, named, said.how, said.seconds)


def _unplanned(loss: UnplannedLoss, times: Timeline) -> UnplannedLossSummary:
    return UnplannedLossSummary(
        ranks=loss.ranks,
        role=loss.role,
        step=loss.step,
        at_seconds=loss.since - times.started_seconds,
        how=loss.how,
        exit_codes=loss.exit_codes,
        detection_seconds=loss.detection_seconds,
        recovery_seconds=loss.recovery_seconds,
        rejoined=loss.rejoined is not None,
        mixed_with=loss.mixed_with,
        pids=loss.pids,
        attempts=loss.attempts,
        uncertainty_seconds=loss.uncertainty_seconds,
    )


def _asked_gates(state: RunState) -> list[str]:
    started = state.first_of(RunStarted)
    gates = (started and started.gates) or ()
    return [str(gate) for gate in gates] if isinstance(gates, list | tuple) else [str(gates)]
