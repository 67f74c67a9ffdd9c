"""Events -> the summary of a run: every figure, its gates and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from chaos.refusals import refusal_text
from harness.analysis import accounting, approximation, diagnosis, integrity, throughput
from harness.analysis.attribution import UnplannedLoss
from harness.analysis.command.attempt_list import ListedAttempt
from harness.analysis.command.attempts import attempt_at
from harness.analysis.command.fruitless import Fruitless
from harness.analysis.command.hang_rule import HangRuleFigures, fired_seconds, read_hang_rule
from harness.analysis.command.world import read_sizes
from harness.analysis.contained import as_far_as_it_goes, attempt
from harness.analysis.incident import MeasuredIncident
from harness.analysis.integrity import LossFigures, first_non_finite
from harness.analysis.overlaps import read_overlaps
from harness.analysis.regroups import StateRestore
from harness.analysis.resume.read import ResumeFigures, read_own_job, read_resume_figures
from harness.analysis.state import EventLog, RunState, state_of
from harness.analysis.steps import WARM_UP_STEPS, CommittedStep, median_step_seconds, median_work_per_second
from harness.analysis.throughput import ThroughputFigures
from harness.analysis.timeline import Timeline
from harness.analysis.violations import find_diverged_units
from harness.judging.caveat_reasons import caveat_text
from harness.judging.caveats import caveats
from harness.judging.doubts import doubts_of, left_open, without_failures
from harness.judging.gates import builtin_gates, evaluate_all
from harness.judging.own_failures import fewer_ranks
from harness.judging.series import recorded_of
from harness.judging.summary import (
    UNKNOWN,
    BaselineFigures,
    CheckpointFigures,
    Emulated,
    GenerationFigures,
    IncidentFigures,
    IncidentSummary,
    MachineFigures,
    NamedCause,
    PacingFigures,
    PlanFigures,
    RunFigures,
    StateFigures,
    StepFigures,
    Summary,
    TimeFigures,
    UnplannedLossSummary,
    WorldFigures,
    unknown,
)
from harness.judging.undecided import why_undecided
from harness.judging.verdict import Verdict, judge
from mecefo_runtime.system.command_records import (
    HangRuleCleared,
    HangRuleFired,
    OrphansEnded,
    ProcessGroupFormed,
    TimeoutsConfigured,
)
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
    named = problems.attempt("identity of the run", lambda: vars(_run(state, None)) | vars(_plan(state))) or {}
    return replace(UNKNOWN, **named)


def _went_back(figures: Summary) -> bool:
    """Whether all steps that were lost are those from before which the state was saved that the job went back to."""
    saved = [restore.steps_lost for restore in figures.state_restores if restore.rung != "peer"]
    return 0 < (figures.steps_lost or 0) <= sum(saved)


def _figures(state: RunState, times: Timeline | None, problems: _Problems) -> Summary:
    """All that was measured; not judged yet."""
    run, empty = _run(state, times), RunState()
    # Without a timeline these figures are those of an empty log.
    log, timeline, own = (empty, empty.timeline, _Problems(0)) if times is None else (state, times, problems)
    segments = own.attempt("time accounting", lambda: accounting.partition(timeline))
    total = None if segments is None else accounting.account(segments)
    named = own.attempt("diagnoses", lambda: diagnosis.diagnose(log.of(Record), timeline))
    judged = own.attempt("recovery", lambda: timeline.judged)
    steps, speed = _steps(timeline, own), _throughput(timeline, own)
    losses = _losses(timeline, own)
    baseline = own.attempt("figures of the baseline", lambda: _baseline(log, timeline, total))
    incidents = _incidents(log, timeline, segments, named, judged, own)
    no_restart = own.attempt("restarts that were left", lambda: timeline.no_restart)
    generations = own.attempt("generations", lambda: _generations(log, timeline))
    figures = Summary.of(
        run,
        _plan(state),
        steps,
        speed,
        own.attempt("world size", lambda: _world(timeline)) or unknown(WorldFigures),
        losses,
        baseline or unknown(BaselineFigures),
        incidents,
        generations or unknown(GenerationFigures),
        own.attempt("comparison of the restarts", lambda: _resumes(log, timeline)) or unknown(ResumeFigures),
        _time(total),
        _state(state, times, problems),
        own.attempt("checkpoints", lambda: _checkpoints(timeline)) or unknown(CheckpointFigures),
        _machine(state, run.dilation_ratio, problems),
        _pacing(state, run.dilation_ratio, speed, problems),
    )
    figures = replace(figures, no_restart=no_restart)
    return figures if times is not None else _without_counts(figures)


def _without_counts(figures: Summary) -> Summary:
    """The figures that are 0 of an empty log must not be 0 of what could not be read."""
    return replace(
        figures,
        steps_committed=None,
        steps_lost=None,
        steps_repeated=None,
        samples_lost=None,
        unrecovered_incidents=None,
        layout_changes=None,
    )


def _time(total: accounting.Account | None) -> TimeFigures:
    if total is None:
        return replace(unknown(TimeFigures), badput_seconds=dict.fromkeys(accounting.BADPUT_CAUSES))
    return TimeFigures(
        wall_clock_seconds=total.wall_clock_seconds,
        productive_seconds=total.productive_seconds,
        badput_seconds=dict(total.badput_seconds),
        goodput_ratio=total.goodput_ratio,
    )


def _experiment(state: RunState) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The experiment as the log has it, and its job; empty where there is none."""
    started = state.first_of(RunStarted)
    experiment = started.experiment if started and isinstance(started.experiment, Mapping) else {}
    job = experiment.get("job")
    return experiment, job if isinstance(job, Mapping) else {}


def _run(state: RunState, times: Timeline | None) -> RunFigures:
    run_started, job_started = state.first_of(RunStarted), state.first_of(JobStarted)
    ended, baseline_ended = state.first_of(JobEnded), state.first_of(JobEnded, BASELINE_JOB)
    run_ended = next((one.reason for one in state.of(RunEnded)), None) if times is None else times.run_ended
    experiment, job = _experiment(state)
    dilation = job_started.dilation_ratio if job_started else None
    if dilation is None and run_started:
        dilation = run_started.dilation_ratio
    rule = None if times is None else _hang_rule(state, times)
    return RunFigures(
        name=experiment.get("name"),
        status=run_ended or "cut off",
        job_outcome=ended.outcome if ended else None,
        baseline_outcome=baseline_ended.outcome if baseline_ended else None,
        seed=run_started.seed if run_started else None,
        experiment_hash=run_started.experiment_hash if run_started else None,
        runtime=job_started.runtime if job_started else "mecefo",
        command=job_started.command if job_started else None,
        started_in=job_started.started_in if job_started else None,
        strategy=job.get("strategy"),
        dilation_ratio=dilation,
        process_group_timeout_seconds=_process_group_timeout(state),
        timeouts=dict(next((one.timeouts for one in state.of(TimeoutsConfigured)), {})),
        hang_rule=None if rule is None else rule.pattern,
        hang_rule_seconds=None if rule is None else rule.seconds,
        hang_rule_false_alarms=None if rule is None else rule.false_alarms,
    )


def _process_group_timeout(state: RunState) -> float | None:
    """The one that all ranks had in the first attempt that formed a group; None: not observed, or not the same."""
    told = {one.timeout_seconds for one in state.of(ProcessGroupFormed) if one.error is None}
    return told.pop() if len(told) == 1 else None


def _hang_rule(state: RunState, times: Timeline) -> HangRuleFigures | None:
    told = (*state.of(HangRuleFired), *state.of(HangRuleCleared))
    return read_hang_rule(_experiment(state)[1].get("hang_rule"), told, times.incidents)


def _plan(state: RunState) -> PlanFigures:
    experiment, job = _experiment(state)
    return PlanFigures(
        baseline_planned=bool(experiment.get("twin", False)),
        data_parallel=job.get("data_parallel"),
        pipeline_bubble_ratio=_bubble_ratio(job),
    )


def _state(state: RunState, times: Timeline | None, problems: _Problems) -> StateFigures:
    steps = times.steps.first if times else ()
    return StateFigures(
        diverged_units=_diverged_units(state, times, problems),
        degraded_share_ratio=problems.attempt(
            "approximation", lambda: approximation.degraded_share_ratio(state.of(LayoutTold), steps)
        ),
        projected_share_ratio=problems.attempt(
            "approximation", lambda: approximation.projected_share_ratio(state.of(LayoutTold), steps)
        ),
        approximation=problems.attempt("approximation", lambda: _approximation(state, steps)),
        unfit_steps=sum(1 for _ in state.of(StepUnfit)),
        checkpoints_failed=len(times.unsaved_checkpoints) if times and times.num_checkpoints else None,
    )


def _checkpoints(times: Timeline) -> CheckpointFigures:
    facts = times.saved_checkpoints
    if facts is None:
        return unknown(CheckpointFigures)
    return CheckpointFigures(
        checkpoints_saved=facts.saved or None,
        checkpoints_unusable=facts.unusable,
        checkpoint_fallbacks=facts.fallbacks,
        newest_usable_step=facts.newest_usable_step,
        checkpoints=facts.health,
        attempt_loads=facts.loads,
        checkpoint_pointers=facts.pointers,
    )


def _diverged_units(state: RunState, times: Timeline | None, problems: _Problems) -> int | None:
    diverged = problems.attempt("diverged state", lambda: find_diverged_units(tuple(state.of(RankFinished))))
    replicas = problems.attempt("comparison of the replicas", lambda: None if times is None else times.replicas)
    if replicas is not None and replicas.failure is not None:
        problems.said.append(replicas.failure)
        return None
    if replicas is not None and replicas.unknown is None:
        return len({one.tensor for one in replicas.lasting})
    return None if diverged is None else len(diverged)


def _machine(state: RunState, dilation_ratio: float | None, problems: _Problems) -> MachineFigures:
    run_started, finished = state.first_of(RunStarted), tuple(state.of(RankFinished))
    is_emulated, is_paced = _emulation(state) is not None, _is_paced(state, dilation_ratio)
    seconds = problems.attempt("compute", lambda: integrity.compute_seconds(finished))
    overrun_ratio = problems.attempt(
        "dilation", lambda: integrity.dilation_overrun_ratio(finished, dilation_ratio, is_emulated=is_emulated)
    )
    overruns = problems.attempt("overruns", lambda: integrity.overruns(finished)) if is_paced else None
    segments_ratio, worst_seconds = overruns or (None, None)
    return MachineFigures(
        compute_cpu_seconds=None if seconds is None else seconds[0],
        dilation_overrun_ratio=overrun_ratio,
        overrun_segments_ratio=segments_ratio,
        worst_overrun_seconds=worst_seconds,
        overlapping_runs=read_overlaps(
            state.of(RunOverlapped), 0.0 if run_started is None else run_started.monotonic_seconds
        ),
        hosts=problems.attempt("hosts", lambda: state.hosts.figures) or (),
    )


def _pacing(
    state: RunState, dilation_ratio: float | None, speed: ThroughputFigures, problems: _Problems
) -> PacingFigures:
    emulation, agreed = _emulation(state), state.first_of(RatingsAgreed)
    is_paced, ratings = _is_paced(state, dilation_ratio), None
    if is_paced and agreed is not None:
        ratings = {
            "costs": agreed.costs,
            "rated_as": agreed.rated_as,
            "ranks": list(agreed.ranks),
            "were_given": agreed.were_given,
        }
        if agreed.time_scale is not None:
            ratings["time_scale"] = agreed.time_scale
    return PacingFigures(
        pacing=None if not is_paced else "measured" if agreed is None else "rated",
        ratings=ratings,
        emulated=None if emulation is None else problems.attempt("emulation", lambda: Emulated.of(emulation, speed)),
    )


def _emulation(state: RunState) -> Mapping[str, Any] | None:
    started = state.first_of(JobStarted)
    return None if started is None else started.emulation


def _is_paced(state: RunState, dilation_ratio: float | None) -> bool:
    """Whether compute segments are padded."""
    return (dilation_ratio or 1) > 1 or _emulation(state) is not None


def _approximation(state: RunState, steps: Sequence[CommittedStep]) -> approximation.Approximation | None:
    """How much was approximated, and what another quality would have led to, of a strategy that may do so."""
    _, job = _experiment(state)
    return approximation.measure(state.of(LayoutTold), state.of(OtherQualityPlanned), steps, job) if job else None


def _bubble_ratio(job: Mapping[str, Any]) -> float | None:
    """The share of a fault-free step in which a rank waits for its pipeline: (p - 1) / (m + p - 1).

    For 1F1B with p stages and m microbatches (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
    """
    stages, microbatches = job.get("pipeline"), job.get("microbatches_per_replica")
    if not isinstance(stages, int) or not isinstance(microbatches, int) or stages + microbatches < 2:
        return None
    return (stages - 1) / (microbatches + stages - 1)


def _steps(times: Timeline, problems: _Problems) -> StepFigures:
    is_counted, has_attempts = times.steps_are_counted, times.traits.restarts_by_launcher
    lost = problems.attempt("steps lost", lambda: integrity.count_steps_lost(times))
    fruitless, ranks = problems.attempt("attempts", lambda: (_fruitless(times), times.observation)) or (None, None)
    return StepFigures(
        steps_planned=times.steps_planned,
        steps_committed=len(times.steps.first) if is_counted else None,
        steps_lost=lost,
        steps_repeated=len(times.steps.redone) if is_counted else None,
        steps_unknown_because=times.steps_unknown_because,
        attempts=len(times.attempts) if has_attempts else None,
        fruitless_attempts=fruitless.attempts if fruitless else None,
        fruitless_seconds=fruitless.seconds if fruitless else None,
        fruitless_steps=() if fruitless is None else fruitless.steps,
        attempt_list=(problems.attempt("attempts", lambda: _listed(times)) or ()) if has_attempts else (),
        num_ranks=ranks.num_ranks if ranks else None,
        num_observed_ranks=ranks.num_observed if ranks else None,
        steps_from_scratch=problems.attempt("steps from scratch", lambda: _steps_from_scratch(times))
        if has_attempts
        else None,
        samples_lost=problems.attempt("samples lost", lambda: integrity.count_samples_lost(times)),
    )


def _fruitless(times: Timeline) -> Fruitless | None:
    """The attempts of a command's job that brought it no further; None where that is not known."""
    # Of two generations that train at once the older one may commit each step first.
    is_mixed = any(one.is_violation for one in times.overlaps)
    return times.fruitless if times.steps_are_counted and not is_mixed else None


def _listed(times: Timeline) -> tuple[ListedAttempt, ...]:
    """The attempts; the numbers of steps are left out where they are not those of the training."""
    if times.steps_are_counted:
        return times.listed_attempts
    return tuple(replace(one, first_step=None, last_step=None, is_fruitless=False) for one in times.listed_attempts)


def _world(times: Timeline) -> WorldFigures:
    attempts = [one for one in times.attempts if one.last_step is not None] or times.attempts
    if not times.traits.restarts_by_launcher or not attempts:
        return unknown(WorldFigures)
    worlds = [(one.started_seconds, one.world_size) for one in attempts]
    batches = [(one.started_seconds, times.batches.get(one.number)) for one in attempts]
    fewer = list(fewer_ranks(times))
    return WorldFigures(
        world_size=read_sizes(worlds, times.first_injected),
        global_batch_samples=read_sizes(batches, times.first_injected),
        ranks_lost_for_good=sum(before - after for before, after in fewer),
    )


def _throughput(times: Timeline, problems: _Problems) -> ThroughputFigures:
    return problems.attempt("throughput", lambda: throughput.measure(times)) or replace(
        unknown(ThroughputFigures),
        throughput_unit=times.steps.unit,
        step_seconds=problems.attempt("duration of a step", lambda: median_step_seconds(times.before)),
    )


def _losses(times: Timeline, problems: _Problems) -> LossFigures:
    # A loss that is not finite stays one, whatever else of the losses is not known.
    return problems.attempt("losses", lambda: integrity.losses_of(times)) or replace(
        unknown(LossFigures),
        first_non_finite_loss_step=problems.attempt("losses", lambda: first_non_finite(times.steps.every)),
    )


def _baseline(state: RunState, times: Timeline, total: accounting.Account | None) -> BaselineFigures:
    """The figures compare a command with a baseline that had the machine to itself, too."""
    if times.traits.has_baseline_beside:
        return unknown(BaselineFigures)
    began, ended = state.first_of(JobStarted, BASELINE_JOB), state.first_of(JobEnded, BASELINE_JOB)
    if began is None or ended is None or ended.outcome != "completed" or times.is_baseline_disturbed:
        return unknown(BaselineFigures)
    seconds = ended.monotonic_seconds - began.monotonic_seconds
    took = None if total is None or times.outcome != "completed" else total.wall_clock_seconds
    is_like = times.baseline.first and times.steps.first and times.baseline.unit == times.steps.unit
    return BaselineFigures(
        baseline_steps_committed=len(times.baseline.first),
        baseline_wall_clock_seconds=seconds,
        baseline_work_per_second=median_work_per_second(times.baseline.first[WARM_UP_STEPS:]) if is_like else None,
        slowdown_ratio=None if took is None or seconds <= 0 else took / seconds - 1,
    )


def _incidents(
    state: RunState,
    times: Timeline,
    segments: Sequence[accounting.Segment] | None,
    named: diagnosis.Diagnoses | None,
    judged: Sequence[MeasuredIncident] | None,
    problems: _Problems,
) -> IncidentFigures:
    """The incidents; `segments`, `named` and `judged` are None where their analysis failed."""
    recovered = {} if judged is None else {one.incident: times.recovered(one) for one in judged}
    own: dict[int | None, list[accounting.Segment]] = {}
    for segment in segments or ():
        own.setdefault(segment.incident, []).append(segment)
    return IncidentFigures(
        group_backends=_group_backends(state),
        layout_changes=sum(stall.regrouped_seconds is not None for stall in times.stalls)
        if times.traits.has_layout
        else None,
        incidents=tuple(
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
        incidents_not_due=len(times.not_due),
        unplanned_losses=tuple(_unplanned(loss, times) for loss in times.unplanned),
        state_restores=tuple(_since_start(one.restore, times) for one in times.stalls if one.restore is not None),
        diagnosis_recall_ratio=named.recall_ratio if named else None,
        diagnosis_precision_ratio=named.precision_ratio if named else None,
        false_accusations=named.num_false if named else None,
        unrecovered_incidents=None
        if judged is None
        else sum(recovered[one.incident] is False for one in judged if one.verified is not None),
    )


def _generations(state: RunState, times: Timeline) -> GenerationFigures:
    if not times.traits.restarts_by_launcher:
        return unknown(GenerationFigures)
    overlaps, orphans = times.overlaps, list(state.of(OrphansEnded))
    looked = any(one.not_finite_values is not None for one in times.state_checksums)
    return GenerationFigures(
        generations_overlap_seconds=max((one.alive_seconds for one in overlaps), default=0.0),
        overlapping_steps=sum(one.steps for one in overlaps),
        overlapping_saves=sum(one.saves for one in overlaps),
        orphaned_processes=sum(one.num_processes for one in orphans),
        orphaned_ranks=tuple(sorted({rank for one in orphans for rank in one.ranks})),
        parameters_not_finite=sum(one.values for one in times.parameters_not_finite) if looked else None,
    )


def _resumes(state: RunState, times: Timeline) -> ResumeFigures:
    if not times.traits.restarts_by_launcher:
        return read_own_job(times.steps.every, times.baseline.first)
    # Whose baseline was disturbed itself is compared with nothing.
    baseline = [] if times.is_baseline_disturbed else list(state.of(Record, BASELINE_JOB))
    return read_resume_figures(
        list(state.of(Record)),
        baseline,
        () if times.told is None else times.told.saved,
        first_fault_seconds=times.first_injected,
        are_steps_counted=times.steps_are_counted,
    )


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
    preemption = times.preemptions.get(incident.incident)
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
        hang_rule_fired_seconds=_hang_rule_fired(times).get(incident.incident),
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
        in_save=incident.in_save,
        save=incident.save,
        newest_usable_step=_usable_after(incident, times),
        read_by_incident=incident.read_by,
        reads_damage_of=tuple(one.incident for one in times.incidents if one.read_by == incident.incident),
        preemption=preemption,
        grace_used_ratio=None if preemption is None else preemption.grace_used_ratio,
    )


def _usable_after(incident: MeasuredIncident, times: Timeline) -> int | None:
    facts = times.saved_checkpoints
    return None if facts is None or incident.injected is None else facts.usable_after(incident.injected)


def _hang_rule_fired(times: Timeline) -> Mapping[int, float]:
    return {} if times.told is None else fired_seconds(times.told.records, times.incidents)


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
