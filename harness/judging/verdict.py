"""The verdict of a run: one word, one exit code, and its reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Literal

from harness.analysis.command.failure_cause import FailureCause
from harness.analysis.contained import as_far_as_it_goes
from harness.analysis.incident import MeasuredIncident
from harness.analysis.integrity import first_non_finite
from harness.analysis.state import RunState
from harness.analysis.timeline import Timeline
from harness.analysis.undecided import LEFT_IN_ORDER
from harness.analysis.violations import find_diverged_units
from harness.judging.always_checked import CheckCode, checks_of, kind_of_job
from harness.judging.facts import overlap_of, ranks_resumed_apart, training_differs, unplanned_loss
from harness.judging.own_failures import has_failed_by_itself, idle_attempt, own_failures
from harness.judging.summary import GateResult, Summary, UnplannedLossSummary
from harness.judging.undecided import why_undecided
from harness.judging.unfinished_repairs import unfinished_repairs
from harness.judging.verdict_reasons import verdict_text
from mecefo_runtime.system.events import MAIN_JOB
from mecefo_runtime.system.host import pid_of
from mecefo_runtime.system.job_records import JobFailed, ProcessStarted, RankFinished
from mecefo_runtime.system.json_values import from_json, to_json
from mecefo_runtime.system.reason import Reason, reason_of
from mecefo_runtime.system.run_records import (
    Aborted,
    Halted,
    Injected,
    Interrupted,
    Residue,
    RunEnded,
    RunStarted,
    UndoFailed,
    Undone,
)

Outcome = Literal["pass", "fail", "halted", "error", "inconclusive", "dirty"]

EXIT_CODES: Mapping[Outcome, int] = {"pass": 0, "fail": 1, "halted": 2, "error": 3, "inconclusive": 5, "dirty": 6}
WORST_FIRST: tuple[Outcome, ...] = ("dirty", "error", "halted", "fail", "inconclusive", "pass")
"""Which verdict a run gets for which several reasons speak.

A failure outranks what is inconclusive: gates leave unverified incidents out, so one that failed did so on an effect
that was seen, and nothing that is still unknown can take that back.
"""

GATE_FAILED, GATE_UNDECIDED, HALT_CONDITION, LOSS_NOT_FINITE = (
    "gate_failed",
    "gate_undecided",
    "halt_condition",
    "loss_not_finite",
)
"""Codes of reasons by which reports and `harness.judging.failure` decide."""
Against = tuple[Outcome, Reason]
"""A reason, and the verdict that it speaks for."""


@dataclass(frozen=True, slots=True)
class _Case:
    """All that a verdict follows from."""

    state: RunState
    timeline: Timeline | None
    summary: Summary
    gates: Sequence[GateResult]
    doubts: Sequence[Reason]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reasons of the verdict itself come first, then those of lesser ones.

    The field `verdict` of a reason is the one that it speaks for.
    """

    verdict: Outcome
    exit_code: int
    reasons: tuple[Reason, ...]

    @classmethod
    def of(cls, verdict: Outcome, against: Iterable[Against]) -> Verdict:
        """The verdict with these reasons, each once."""
        once: dict[str, Reason] = {}
        for outcome, reason in against:
            once.setdefault(verdict_text(reason), reason.with_fields(verdict=outcome))
        return cls(verdict, EXIT_CODES[verdict], tuple(once.values()))

    @property
    def sentences(self) -> tuple[str, ...]:
        """One for each reason."""
        return tuple(map(verdict_text, self.reasons))


def judge(
    state: RunState,
    timeline: Timeline | None,
    summary: Summary,
    gates: Sequence[GateResult],
    problems: Sequence[Reason] = (),
    doubts: Sequence[Reason] = (),
) -> Verdict:
    """Judge a run by its log; the worst reason wins.

    `timeline` is None when it could not be made out; `problems` are the checks that broke down: either makes the
    verdict inconclusive at best. With `doubts` about the log it is no failure either that may be one of missing lines.
    """
    case = _Case(state, timeline, summary, gates, tuple(doubts))
    parts = [partial(_REASONS[check.code], case) for check in checks_of(kind_of_job(summary.runtime))]
    found: list[Against] = [("inconclusive", problem) for problem in (*doubts, *problems)]
    for part in parts:
        failed: list[Reason] = []
        found += as_far_as_it_goes("verdict", part, failed, size=state.size)
        found += [("inconclusive", why) for why in failed]
    found.sort(key=lambda reason: WORST_FIRST.index(reason[0]))
    verdict: Outcome = found[0][0] if found else "pass"
    if not found:
        num_incidents = 1 if timeline is None else len(timeline.incidents)
        found = [("pass", Reason("passed", num_gates=len(gates), num_incidents=num_incidents))]
    again = summary.steps_from_scratch
    scratch: list[Against] = [(verdict, Reason("started_from_scratch", steps=again))] if again else []
    return Verdict.of(verdict, [*scratch, *_other_trainings(verdict, summary), *found])


def _other_trainings(verdict: Outcome, summary: Summary) -> Iterable[Against]:
    """What must not be read past, whatever the verdict: a gate decides whether the run fails because of it."""
    named: set[str] = set()
    for one in summary.resumes:
        kinds = {difference.kind for difference in one.judged}
        # Against the baseline the same differences show again.
        if kinds and not (one.against == "baseline" and kinds <= named):
            yield verdict, training_differs(summary, one)
        named |= kinds


def _unless(doubts: Sequence[Reason], reasons: Iterable[Against]) -> Iterable[Against]:
    """`reasons` that follow from what the log does not tell; with `doubts` about it they prove no failure."""
    for outcome, reason in reasons:
        yield ("inconclusive" if doubts else outcome), reason


def _left_behind(state: RunState) -> Iterable[Against]:
    audits = list(state.of(Residue))
    if audits:
        audit = audits[-1]
        if audit.processes:
            yield "dirty", Reason("processes_left", processes=audit.processes)
        if audit.undo_pending:
            yield "dirty", Reason("undo_pending", incidents=audit.undo_pending)
        if audit.left:
            yield "dirty", Reason("things_left", things=audit.left)
    elif state.num_injected:
        yield "inconclusive", Reason("audit_missing")
    undone = {one.incident: one.monotonic_seconds for one in state.of(Undone)}
    for failed in state.of(UndoFailed):
        if undone.get(failed.incident, -inf) < failed.monotonic_seconds:
            yield "dirty", Reason("not_undone", incident=failed.incident, why=failed.because)


def _ending(
    state: RunState, timeline: Timeline | None, losses: Sequence[UnplannedLossSummary], *, is_doubtful: bool
) -> Iterable[Against]:
    ends, halted, interrupted = list(state.of(RunEnded)), state.first_of(Halted), state.first_of(Interrupted)
    reason = ends[-1].reason if ends else None
    if halted is not None or reason == "halted":
        yield "halted", Reason(HALT_CONDITION, condition=halted.condition if halted else None)
    if interrupted is not None or reason == "interrupted":
        yield "halted", Reason("interrupted", signal=interrupted.signal if interrupted else None)
    failed = state.first_of(JobFailed)
    if left := list(_left_in_order(timeline)):
        # Its end is what a fault had asked for, however its launcher calls that.
        yield from left
    elif failed is not None:
        yield _failure(state, timeline, losses, failed, is_doubtful=is_doubtful)
    elif timeline is not None and (seen := timeline.no_step_seen) is not None:
        yield (
            "inconclusive",
            Reason(
                "no_step_seen",
                why=seen.why,
                cause=_readable(seen.cause),
                is_pipe=seen.is_pipe or None,
                user=seen.user,
                unreachable=seen.unreachable,
            ),
        )
    elif reason == "failed":
        yield "error", Reason("run_failed", message=ends[-1].message)
    elif reason == "completed" and timeline is not None and timeline.outcome != "completed":
        yield "inconclusive", Reason("job_not_completed", outcome=timeline.outcome or "unknown")
    if not ends:
        yield "inconclusive", Reason("log_cut_off")


def _readable(cause: Mapping[str, object] | None) -> Reason | None:
    """The cause that a log has; None where it is none, as in a damaged one."""
    with suppress(TypeError, ValueError):
        return None if cause is None else reason_of(to_json(from_json(FailureCause, cause, lenient=True)))
    return None


def _failure(
    state: RunState,
    timeline: Timeline | None,
    losses: Sequence[UnplannedLossSummary],
    failed: JobFailed,
    *,
    is_doubtful: bool,
) -> Against:
    """The job failed: because of a fault (or also of something else), without a fault, or before it began to train."""
    common = {
        "failure": failed.because,
        "no_restart": None if timeline is None else timeline.no_restart,
        "launcher_ended_by": _launcher_ended_by(state, failed),
    }
    others = [unplanned_loss(loss) for loss in losses if loss.recovery_seconds is None]
    others += _stopped_by_others(state, failed)
    other = others[-1] if others else None
    if any(one.monotonic_seconds <= failed.monotonic_seconds for one in state.of(Injected)):
        return "fail" if other is None else "inconclusive", Reason("job_died", **common, other=other)
    if is_doubtful:
        return "inconclusive", Reason("job_failed_in_doubt", **common)
    if has_failed_by_itself(state, failed):
        before_faults = None if _is_without_faults(state) else True
        return "fail", Reason("job_failed_by_itself", **common, other=other, before_faults=before_faults)
    return "error", Reason("job_never_trained", **common, other=other)


def _launcher_ended_by(state: RunState, failed: JobFailed) -> dict[str, object] | None:
    """The fault that ended the command's own process; None where none did."""
    if failed.exit is None or failed.exit >= 0:
        return None
    own = {one.started_pid for one in state.of(ProcessStarted) if one.role == "launcher"} - {None}
    for one in state.of(Injected):
        pids = {pid_of(process) for process in one.processes if isinstance(process, Mapping)}
        if one.monotonic_seconds <= failed.monotonic_seconds and own & pids:
            return {"incident": one.incident, "fault": one.fault, "target": one.target}
    return None


def _left_in_order(timeline: Timeline | None) -> Iterable[Against]:
    for incident in () if timeline is None else timeline.incidents:
        if incident.undecided is not None and incident.undecided.code == LEFT_IN_ORDER:
            yield "inconclusive", _about(incident, "recovery_undecided", why=why_undecided(incident))


def _stopped_by_others(state: RunState, failed: JobFailed) -> Iterable[Reason]:
    """Who was stopped when the job stood still, and by none of the faults that were active then."""
    before = failed.monotonic_seconds
    undone = {one.incident for one in state.of(Undone) if one.monotonic_seconds <= before}
    active = (one for one in state.of(Injected) if one.monotonic_seconds <= before and one.incident not in undone)
    ours = {pid_of(process) for one in active for process in one.processes if isinstance(process, Mapping)}
    stopped = [
        {key: one.get(key) for key in ("role", "rank", "node") if one.get(key) is not None}
        for one in failed.stopped
        if isinstance(one, Mapping) and pid_of(one) not in ours
    ]
    if stopped:
        yield Reason("stopped_by_signal", processes=stopped)


def _gate_reasons(gates: Sequence[GateResult], losses: Sequence[UnplannedLossSummary]) -> Iterable[Against]:
    is_mixed = any(loss.mixed_with for loss in losses)
    for gate in gates:
        if gate.passed is None:
            yield "inconclusive", Reason(GATE_UNDECIDED, gate=gate.expression, why=gate.why)
        elif not gate.passed and is_mixed:
            yield "inconclusive", Reason(GATE_FAILED, gate=gate.expression, why=gate.why, mixed=True)
        elif not gate.passed:
            yield "fail", Reason(GATE_FAILED, gate=gate.expression, why=gate.why)


def _end_by_a_gate(state: RunState, gates: Sequence[GateResult]) -> Iterable[Against]:
    aborted = state.first_of(Aborted)
    if aborted is None:
        return
    asked, step = aborted.gate, aborted.step or None
    if any(gate.expression == asked and gate.passed is False for gate in gates):
        yield "fail", Reason("ended_by_gate", gate=str(asked), step=step)
    else:
        yield "inconclusive", Reason("ended_by_passing_gate", gate=str(asked), step=step)


def _mixed_reasons(timeline: Timeline, losses: Sequence[UnplannedLossSummary]) -> Iterable[Against]:
    """Losses that no fault explains, during the recovery from a fault: their costs cannot be separated."""
    names = {one.incident: _about(one, "").fields for one in timeline.incidents}
    for loss in losses:
        if mixed := [names[number] for number in loss.mixed_with if number in names]:
            yield "inconclusive", Reason("loss_during_recovery", loss=unplanned_loss(loss), incidents=mixed)


def _about(incident: MeasuredIncident, code: str, **fields: object) -> Reason:
    """A reason of that incident."""
    return Reason(code, incident=incident.incident, fault=incident.fault, target=incident.target, **fields)


def _is_without_faults(state: RunState) -> bool:
    """Whether the experiment asks for none: one that asks for some by chance and draws none proves nothing."""
    started = state.first_of(RunStarted)
    said = started.experiment if started is not None else None
    return isinstance(said, Mapping) and said.get("faults") == [] and said.get("profile") is None


def _incident_reasons(
    timeline: Timeline, losses: Sequence[UnplannedLossSummary], is_without_faults: bool
) -> Iterable[Against]:
    mixed = {number for loss in losses for number in loss.mixed_with}
    if not timeline.incidents and timeline.not_due:
        first = timeline.not_due[0]
        yield "inconclusive", Reason("none_fired", incident=first.incident, why=first.because)
    elif not timeline.incidents and not is_without_faults:
        yield "inconclusive", Reason("no_fault_planned")
    for incident in timeline.incidents:
        if incident.injected is None:
            yield "inconclusive", _about(incident, "not_injected", why=incident.reason)
        elif incident.verified is None:
            yield "inconclusive", _about(incident, "not_verified", why=incident.reason)
        elif timeline.recovered(incident) is None and (undecided := why_undecided(incident)) is not None:
            yield "inconclusive", _about(incident, "recovery_undecided", why=undecided)
        elif timeline.continued(incident) is False and incident.incident in mixed:
            yield "inconclusive", _about(incident, "not_recovered_from_several")
        elif timeline.continued(incident) is False and incident.is_left_out:
            yield "fail", _about(incident, "steps_rejected")
        elif timeline.continued(incident) is False:
            why, of_launcher = _left_out(timeline) or idle_attempt(timeline), incident.is_of_launcher or None
            yield "fail", _about(incident, "not_recovered", of_launcher=of_launcher, why=why)
        elif timeline.continued(incident) is None:
            yield "inconclusive", _about(incident, "ended_too_early", completed=timeline.is_complete or None)
        elif not incident.is_phase_order_valid:
            yield "inconclusive", _about(incident, "impossible_order")


def _left_out(timeline: Timeline) -> Reason | None:
    if (given_up := timeline.steps_given_up) is not None:
        first, last = given_up
        number = timeline.attempts[-1].number
        return Reason("steps_stayed_lost", attempt=number, first_step=first, last_step=last)
    if timeline.steps_left_out:
        return Reason("scaler_skipped_steps", steps=timeline.steps_left_out)
    if timeline.spoilt_passes_left_out:
        return Reason("script_skipped_steps", passes=timeline.spoilt_passes_left_out)
    return None


def _data_reasons(timeline: Timeline, summary: Summary) -> Iterable[Against]:
    if not timeline.steps.first:
        if timeline.no_step_seen is None:
            yield "inconclusive", Reason("no_step")
    elif timeline.first_injected is not None and not timeline.before:
        yield "inconclusive", Reason("no_step_before_fault")
    bad_step = summary.first_non_finite_loss_step
    if bad_step is not None:
        is_after = any(i.step is None or i.step <= bad_step for i in timeline.incidents if i.injected is not None)
        yield "fail" if is_after else "inconclusive", Reason(LOSS_NOT_FINITE, step=bad_step)
    elif timeline.not_finite and timeline.first_injected is not None:
        rank, step = min(timeline.not_finite, key=lambda one: one[1])
        yield "fail", Reason("loss_of_rank_not_finite", rank=rank, step=step)


def _loss_without_a_timeline(state: RunState) -> Iterable[Against]:
    """That a loss is not finite is known without anything that follows from the rest of the log."""
    first = first_non_finite(state.last_steps(MAIN_JOB, state.num_steps()[0]))
    if first is not None:
        is_after = any(one.step is None or one.step <= first for one in state.of(Injected))
        yield "fail" if is_after else "inconclusive", Reason(LOSS_NOT_FINITE, step=first)


def _differing_replicas(timeline: Timeline) -> Iterable[Against]:
    replicas = timeline.replicas
    if replicas is None or not replicas.lasting:
        return
    first = min(replicas.lasting, key=lambda one: one.since_step)
    others = len({one.tensor for one in replicas.lasting} - {first.tensor})
    yield (
        "fail",
        Reason("replicas_differ", tensor=first.tensor, ranks=first.ranks, step=first.since_step, others=others or None),
    )


def _lost_parameters(timeline: Timeline) -> Iterable[Against]:
    """Weights that stay NaN or infinite, of a script whose loss may hide it."""
    found = timeline.parameters_not_finite
    if not found:
        return
    first = min(found, key=lambda one: (one.since_seconds, one.rank))
    others = sorted({one.rank for one in found} - {first.rank})
    yield (
        "fail",
        Reason(
            "parameters_not_finite",
            values=first.values,
            rank=first.rank,
            tensor=first.tensor,
            step=first.since_step,
            others=others or None,
        ),
    )


def _overlapping_generations(timeline: Timeline) -> Iterable[Against]:
    """Ranks of an earlier attempt trained or saved alongside a later one: no checkpoint of either can be trusted."""
    for one in timeline.overlaps:
        if one.is_violation:
            yield "fail", Reason("generations_overlap", overlap=overlap_of(one))


def _divergence(state: RunState, summary: Summary) -> Iterable[Against]:
    # Without a count the comparison broke down, and is one of the problems.
    if summary.diverged_units:
        units = find_diverged_units(state.of(RankFinished)) or {}
        yield "fail", Reason("units_differ", units={unit: sorted(ranks) for unit, ranks in units.items()})


def _of_timeline(find: Callable[[_Case, Timeline], Iterable[Against]]) -> Callable[[_Case], Iterable[Against]]:
    """A check that has nothing to go by where the timeline could not be made out."""
    return lambda case: () if case.timeline is None else find(case, case.timeline)


def _finite_loss(case: _Case) -> Iterable[Against]:
    if case.timeline is None:
        return _loss_without_a_timeline(case.state)
    return _data_reasons(case.timeline, case.summary)


def _equal_replicas(case: _Case) -> Iterable[Against]:
    if case.timeline is None:
        return ()
    if case.timeline.replicas is None:
        return _divergence(case.state, case.summary)
    return _unless(case.doubts, _differing_replicas(case.timeline))


_REASONS: Mapping[CheckCode, Callable[[_Case], Iterable[Against]]] = {
    "leftovers": lambda case: _left_behind(case.state),
    "end": lambda case: _ending(
        case.state, case.timeline, case.summary.unplanned_losses, is_doubtful=bool(case.doubts)
    ),
    "finite_loss": _finite_loss,
    "equal_replicas": _equal_replicas,
    "finite_parameters": _of_timeline(lambda _, timeline: _lost_parameters(timeline)),
    "one_generation": _of_timeline(lambda _, timeline: _overlapping_generations(timeline)),
    "gates": lambda case: () if case.doubts else _gate_reasons(case.gates, case.summary.unplanned_losses),
    "abort": lambda case: _end_by_a_gate(case.state, case.gates),
    "verified_and_recovered": _of_timeline(
        lambda case, timeline: _unless(
            case.doubts,
            _incident_reasons(timeline, case.summary.unplanned_losses, _is_without_faults(case.state)),
        )
    ),
    "unexplained_losses": _of_timeline(lambda case, timeline: _mixed_reasons(timeline, case.summary.unplanned_losses)),
    "repairs": _of_timeline(
        lambda _, timeline: (("inconclusive", one.why) for one in unfinished_repairs(timeline) if one.had_time)
    ),
    "own_failures": _of_timeline(
        lambda case, timeline: _unless(case.doubts, ((one.outcome, one.why) for one in own_failures(timeline)))
    ),
    "same_step": _of_timeline(
        lambda _, timeline: (
            ("inconclusive", ranks_resumed_apart(one)) for one in timeline.attempts[1:] if one.ranks_differ
        )
    ),
}
"""The reasons that each check of `always_checked.CHECKS` yields; which of them a job has stands there."""
