"""The verdict of a run: one word, one exit code, and a sentence for each reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Literal

from harness.analysis.command.no_restart import NoRestart, no_restart_words, supervisor_words
from harness.analysis.contained import as_far_as_it_goes
from harness.analysis.incident import MeasuredIncident
from harness.analysis.integrity import first_non_finite
from harness.analysis.state import RunState
from harness.analysis.timeline import Timeline
from harness.analysis.undecided import LEFT_IN_ORDER
from harness.analysis.violations import find_diverged_units
from harness.analysis.words import count, name_ranks
from harness.judging.always_checked import CheckCode, checks_of, kind_of_job
from harness.judging.caveats import overlap_words, ranks_differ_words, unplanned_words
from harness.judging.own_failures import has_failed_by_itself, idle_words, no_step_words, own_failures
from harness.judging.summary import GateResult, Summary, UnplannedLossSummary
from harness.judging.undecided import undecided_words
from harness.judging.unfinished_repairs import unfinished_repairs
from mecefo_runtime.system.events import MAIN_JOB
from mecefo_runtime.system.job_records import JobFailed, ProcessStarted, RankFinished
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

Reason = tuple[Outcome, str]
# Of the units that differ.
_NAMED_UNITS = 4


@dataclass(frozen=True, slots=True)
class _Case:
    """All that a verdict follows from."""

    state: RunState
    timeline: Timeline | None
    summary: Summary
    gates: Sequence[GateResult]
    doubts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reasons` are sentences, those of the verdict itself first, then those of the lesser ones."""

    verdict: Outcome
    exit_code: int
    reasons: tuple[str, ...]


def judge(
    state: RunState,
    timeline: Timeline | None,
    summary: Summary,
    gates: Sequence[GateResult],
    problems: Sequence[str] = (),
    doubts: Sequence[str] = (),
) -> Verdict:
    """Judge a run by its log; the worst reason wins.

    `timeline` is None when it could not be made out; `problems` are the checks that broke down: either makes the
    verdict inconclusive at best. With `doubts` about the log it is no failure either that may be one of missing lines.
    """
    case = _Case(state, timeline, summary, gates, tuple(doubts))
    parts = [partial(_REASONS[check.code], case) for check in checks_of(kind_of_job(summary.runtime))]
    found: list[tuple[Outcome, str]] = [("inconclusive", problem) for problem in (*doubts, *problems)]
    for part in parts:
        failed: list[str] = []
        found += as_far_as_it_goes("verdict", part, failed, size=state.size)
        found += [("inconclusive", why) for why in failed]
    found.sort(key=lambda reason: WORST_FIRST.index(reason[0]))
    if not found:
        hold = f"all {len(gates)} gates passed" if len(gates) > 1 else "the gate passed"
        recovered = "every fault was verified and the job recovered"
        if timeline is not None and not timeline.incidents:
            recovered = "no fault was planned, and the job completed"
        fine = f"{recovered}; {hold}"
        return Verdict("pass", EXIT_CODES["pass"], (*_from_scratch(summary), fine))
    verdict = found[0][0]
    sentences = dict.fromkeys((*_from_scratch(summary), *(sentence for _, sentence in found)))
    return Verdict(verdict, EXIT_CODES[verdict], tuple(sentences))


def _capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _unless(doubts: Sequence[str], reasons: Iterable[tuple[Outcome, str]]) -> Iterable[tuple[Outcome, str]]:
    """`reasons` that follow from what the log does not tell; with `doubts` about it they prove no failure."""
    for outcome, sentence in reasons:
        yield ("inconclusive" if doubts else outcome), sentence


def _from_scratch(summary: Summary) -> Iterable[str]:
    again = summary.steps_from_scratch
    if again:
        yield f"the job did not resume: it started again from step 1 and recomputed {count(again, 'step')}"


def _left_behind(state: RunState) -> Iterable[tuple[Outcome, str]]:
    audits = list(state.of(Residue))
    if audits:
        audit = audits[-1]
        if audit.processes:
            yield "dirty", f"processes were left behind: {_listed(audit.processes)}; `chaos heal` ends them"
        if audit.undo_pending:
            yield (
                "dirty",
                f"not everything was undone: incidents {_listed(audit.undo_pending)}; see the run's ledger.jsonl; "
                "`chaos heal` tries again",
            )
        if audit.left:
            things = [
                f"{thing.get('kind')} {thing.get('what')}" if isinstance(thing, Mapping) else str(thing)
                for thing in audit.left
            ]
            yield "dirty", f"left behind: {_listed(things)}; `chaos heal` says what is still there"
    elif state.num_injected:
        yield "inconclusive", "the audit for leftovers is missing"
    undone = {one.incident: one.monotonic_seconds for one in state.of(Undone)}
    for failed in state.of(UndoFailed):
        if undone.get(failed.incident, -inf) < failed.monotonic_seconds:
            yield (
                "dirty",
                f"incident {failed.incident} was not undone: {failed.reason or 'no reason given'}; "
                "see the run's ledger.jsonl",
            )


def _ending(
    state: RunState, timeline: Timeline | None, losses: Sequence[UnplannedLossSummary], *, is_doubtful: bool
) -> Iterable[tuple[Outcome, str]]:
    ends, halted, interrupted = list(state.of(RunEnded)), state.first_of(Halted), state.first_of(Interrupted)
    reason = ends[-1].reason if ends else None
    if halted is not None or reason == "halted":
        yield "halted", f"a halt condition became true: {halted.condition if halted else 'not recorded'}"
    if interrupted is not None or reason == "interrupted":
        signal = interrupted.signal if interrupted else None
        yield "halted", f"the run was interrupted{f' ({signal})' if signal else ''}"
    failed = state.first_of(JobFailed)
    if left := list(_left_in_order(timeline)):
        # Its end is what a fault had asked for, however its launcher calls that.
        yield from left
    elif failed is not None:
        died_of = any(one.monotonic_seconds <= failed.monotonic_seconds for one in state.of(Injected))
        no_restart = None if timeline is None else timeline.no_restart
        ended = _ended_with_its_launcher(state, failed, no_restart)
        said = f"{failed.reason}{ended}"
        cure = "" if ended or no_restart is None else f". {no_restart_words(no_restart)}"
        others = [unplanned_words(loss) for loss in losses if loss.recovery_seconds is None]
        others += _stopped_by_others(state, failed)
        if died_of and others:
            yield "inconclusive", f"the job did not survive: {said}. {others[-1]}{cure}"
        elif died_of:
            yield "fail", f"the job did not survive: {said}{cure}"
        elif is_doubtful:
            yield "inconclusive", f"the job failed, and no injected fault is known: {said}"
        elif has_failed_by_itself(state, failed):
            before = "" if _is_without_faults(state) else ", before any fault was injected"
            yield "fail", ". ".join([f"the job failed by itself{before}: {said}", *others[-1:]])
        else:
            yield "error", ". ".join([f"the job never began to train: {said}", *others[-1:]])
    elif timeline is not None and timeline.no_step_seen is not None:
        yield "inconclusive", no_step_words(timeline.no_step_seen)
    elif reason == "failed":
        yield "error", f"the run failed: {ends[-1].message or 'no message was recorded'}"
    elif reason == "completed" and timeline is not None and timeline.outcome != "completed":
        yield "inconclusive", f"the job ended as {timeline.outcome or 'unknown'}, not as completed"
    if not ends:
        yield "inconclusive", "the log was cut off: the end of the run is missing"


def _ended_with_its_launcher(state: RunState, failed: JobFailed, no_restart: NoRestart | None) -> str:
    """That a fault ended the command's own process, which nobody was to start again; else nothing."""
    if failed.exit is None or failed.exit >= 0:
        return ""
    own = {one.started_pid for one in state.of(ProcessStarted) if one.role == "launcher"} - {None}
    for one in state.of(Injected):
        pids = {process.get("pid") for process in one.processes if isinstance(process, Mapping)}
        if one.monotonic_seconds <= failed.monotonic_seconds and own & pids:
            ended = f"{one.fault} on {one.target} ended the command's own process, and nothing started it again"
            return f": {ended}. {_capital(supervisor_words(no_restart))} would"
    return ""


def _left_in_order(timeline: Timeline | None) -> Iterable[tuple[Outcome, str]]:
    for incident in () if timeline is None else timeline.incidents:
        if incident.undecided is not None and incident.undecided.code == LEFT_IN_ORDER:
            yield "inconclusive", f"{_name(incident)}: {undecided_words(incident)}"


def _stopped_by_others(state: RunState, failed: JobFailed) -> Iterable[str]:
    """Who was stopped when the job stood still, and by none of the faults that were active then."""
    before = failed.monotonic_seconds
    undone = {one.incident for one in state.of(Undone) if one.monotonic_seconds <= before}
    active = (one for one in state.of(Injected) if one.monotonic_seconds <= before and one.incident not in undone)
    ours = {process.get("pid") for one in active for process in one.processes if isinstance(process, Mapping)}
    names = [_process(one) for one in failed.stopped if isinstance(one, Mapping) and one.get("pid") not in ours]
    if names:
        yield f"A signal that no fault of this run sent had stopped {_listed(names)}"


def _process(told: Mapping[str, Any]) -> str:
    role, node = told.get("role"), told.get("node")
    if role == "rank":
        return f"rank {told.get('rank')}"
    return f"the {role}" if node is None else f"the {role} of node {node}"


def _gate_reasons(gates: Sequence[GateResult], losses: Sequence[UnplannedLossSummary]) -> Iterable[tuple[Outcome, str]]:
    is_mixed = any(loss.mixed_with for loss in losses)
    for gate in gates:
        if gate.passed is None:
            yield "inconclusive", f"gate '{gate.expression}' is undecided: {gate.reason}"
        elif not gate.passed and is_mixed:
            yield "inconclusive", f"gate '{gate.expression}' failed, but not only because of the faults: {gate.reason}"
        elif not gate.passed:
            yield "fail", f"gate '{gate.expression}' failed: {gate.reason}"


def _end_by_a_gate(state: RunState, gates: Sequence[GateResult]) -> Iterable[tuple[Outcome, str]]:
    aborted = state.first_of(Aborted)
    if aborted is None:
        return
    asked = aborted.gate
    after = f" after step {aborted.step}" if aborted.step else ""
    ended = f"the run was ended{after} by gate '{asked}' (abort_on_fail)"
    if any(gate.expression == asked and gate.passed is False for gate in gates):
        yield "fail", f"{ended}: later steps were not measured"
    else:
        yield "inconclusive", f"{ended}, which did not fail in the end"


def _mixed_reasons(timeline: Timeline, losses: Sequence[UnplannedLossSummary]) -> Iterable[tuple[Outcome, str]]:
    """Losses that no fault explains, during the recovery from a fault: their costs cannot be separated."""
    names = {incident.incident: _name(incident) for incident in timeline.incidents}
    for loss in losses:
        if mixed := [names[number] for number in loss.mixed_with if number in names]:
            yield (
                "inconclusive",
                f"{unplanned_words(loss)}, while the job was recovering from {' and '.join(mixed)}: their costs "
                "cannot be separated",
            )


def _name(incident: MeasuredIncident) -> str:
    return f"incident {incident.incident} ({incident.fault} on {incident.target})"


def _is_without_faults(state: RunState) -> bool:
    """Whether the experiment asks for none: one that asks for some by chance and draws none proves nothing."""
    started = state.first_of(RunStarted)
    said = started.experiment if started is not None else None
    return isinstance(said, Mapping) and said.get("faults") == [] and said.get("profile") is None


def _incident_reasons(
    timeline: Timeline, losses: Sequence[UnplannedLossSummary], is_without_faults: bool
) -> Iterable[tuple[Outcome, str]]:
    mixed = {number for loss in losses for number in loss.mixed_with}
    if not timeline.incidents and timeline.not_due:
        first = timeline.not_due[0]
        why = f"incident {first.incident}: {first.reason}"
        yield "inconclusive", f"none of the planned faults fired ({why}), so none was verified"
    elif not timeline.incidents and not is_without_faults:
        yield "inconclusive", "no fault was planned, so none was verified"
    for incident in timeline.incidents:
        name = _name(incident)
        if incident.injected is None:
            yield "inconclusive", f"{name} was not injected: {incident.reason or 'it did not fire'}"
        elif incident.verified is None:
            yield (
                "inconclusive",
                f"{name} was injected, but could not be verified: {incident.reason or 'no evidence'}",
            )
        elif timeline.recovered(incident) is None and (undecided := undecided_words(incident)) is not None:
            yield "inconclusive", f"{name}: {undecided}"
        elif timeline.continued(incident) is False and incident.incident in mixed:
            yield "inconclusive", f"{name}: no step began and committed after it and the other loss"
        elif timeline.continued(incident) is False and incident.is_left_out:
            yield "fail", f"{name}: every step that began after it was rejected"
        elif timeline.continued(incident) is False:
            why = _left_out(timeline) or idle_words(timeline)
            yield "fail", f"{name}: {_no_step(incident)}{why}"
        elif timeline.continued(incident) is None:
            late = "no step was left" if timeline.is_complete else "the run ended before a step could commit"
            yield "inconclusive", f"{name}: {late}, so the recovery is unknown"
        elif not incident.is_phase_order_valid:
            yield "inconclusive", f"{name}: its phases are in an impossible order in the log"


def _no_step(incident: MeasuredIncident) -> str:
    if incident.is_of_launcher:
        return "no later attempt took a step, so nothing restarted the job"
    return "no step began and committed after it"


def _left_out(timeline: Timeline) -> str:
    if (given_up := timeline.steps_given_up) is not None:
        first, last = given_up
        which = f"step {first}" if first == last else f"steps {first} to {last}"
        return (
            f": attempt {timeline.attempts[-1].number} ended without a step, and {which}, after the newest checkpoint, "
            "stayed lost"
        )
    if timeline.steps_left_out:
        return f": its GradScaler skipped the next {count(timeline.steps_left_out, 'step')}"
    if timeline.spoilt_passes_left_out:
        passes = count(timeline.spoilt_passes_left_out, "pass")
        return f": none of the next {passes} was finite, and the script skipped its step"
    return ""


def _data_reasons(timeline: Timeline, summary: Summary) -> Iterable[tuple[Outcome, str]]:
    if not timeline.steps.first:
        if timeline.no_step_seen is None:
            yield "inconclusive", "no step was committed"
    elif timeline.first_injected is not None and not timeline.baseline:
        yield "inconclusive", "no step was committed before the first fault, so no throughput before the fault is known"
    bad_step = summary.first_non_finite_loss_step
    if bad_step is not None:
        is_after = any(i.step is None or i.step <= bad_step for i in timeline.incidents if i.injected is not None)
        outcome: Outcome = "fail" if is_after else "inconclusive"
        yield outcome, f"the training loss is not finite from step {bad_step} on"
    elif timeline.not_finite and timeline.first_injected is not None:
        rank, step = min(timeline.not_finite, key=lambda one: one[1])
        yield "fail", f"the loss of rank {rank} is not finite from step {step} on"


def _loss_without_a_timeline(state: RunState) -> Iterable[tuple[Outcome, str]]:
    """That a loss is not finite is known without anything that follows from the rest of the log."""
    first = first_non_finite(state.last_steps(MAIN_JOB, state.num_steps()[0]))
    if first is not None:
        is_after = any(one.step is None or one.step <= first for one in state.of(Injected))
        outcome: Outcome = "fail" if is_after else "inconclusive"
        yield outcome, f"the training loss is not finite from step {first} on"


def _differing_replicas(timeline: Timeline) -> Iterable[tuple[Outcome, str]]:
    replicas = timeline.replicas
    if replicas is None or not replicas.lasting:
        return
    first = min(replicas.lasting, key=lambda one: one.since_step)
    others = {one.tensor for one in replicas.lasting} - {first.tensor}
    more = f", and so do {len(others)} more of its tensors" if others else ""
    yield (
        "fail",
        f"{first.tensor} of {name_ranks(first.ranks)} differs from the other replicas' since step {first.since_step}, "
        f"to the end{more}: before the fault they were bitwise equal",
    )


def _lost_parameters(timeline: Timeline) -> Iterable[tuple[Outcome, str]]:
    """Weights that stay NaN or infinite, of a script whose loss may hide it."""
    found = timeline.parameters_not_finite
    if not found:
        return
    first = min(found, key=lambda one: (one.since_seconds, one.rank))
    others = name_ranks(sorted({one.rank for one in found} - {first.rank}))
    also = f"; the same holds for {others}" if others else ""
    where = "" if first.tensor is None else f" (first in {first.tensor})"
    yield (
        "fail",
        f"{first.values} more {'value' if first.values == 1 else 'values'} of rank {first.rank}'s parameters{where} "
        f"{'is' if first.values == 1 else 'are'} not finite than before the fault, from step {first.since_step} to the "
        f"end{also}",
    )


def _overlapping_generations(timeline: Timeline) -> Iterable[tuple[Outcome, str]]:
    """Ranks of an earlier attempt trained or saved alongside a later one: no checkpoint of either can be trusted."""
    for one in timeline.overlaps:
        if one.is_violation:
            yield "fail", f"two generations of the job ran at once: {overlap_words(one)}"


def _divergence(state: RunState, summary: Summary) -> Iterable[tuple[Outcome, str]]:
    # Without a count the comparison broke down, and is one of the problems.
    if not summary.diverged_units:
        return
    units = find_diverged_units(state.of(RankFinished)) or {}
    named = [f"{unit} (ranks {_listed(sorted(ranks))})" for unit, ranks in units.items()]
    more = f" and {len(named) - _NAMED_UNITS} more" if len(named) > _NAMED_UNITS else ""
    yield (
        "fail",
        f"{len(named)} of the model's units differ at the end between the ranks that hold them: "
        f"{', '.join(named[:_NAMED_UNITS])}{more}",
    )


def _listed(things: object) -> str:
    return ", ".join(str(thing) for thing in things) if isinstance(things, list | tuple) else str(things)


def _of_timeline(find: Callable[[_Case, Timeline], Iterable[Reason]]) -> Callable[[_Case], Iterable[Reason]]:
    """A check that has nothing to go by where the timeline could not be made out."""
    return lambda case: () if case.timeline is None else find(case, case.timeline)


def _finite_loss(case: _Case) -> Iterable[Reason]:
    if case.timeline is None:
        return _loss_without_a_timeline(case.state)
    return _data_reasons(case.timeline, case.summary)


def _equal_replicas(case: _Case) -> Iterable[Reason]:
    if case.timeline is None:
        return ()
    if case.timeline.replicas is None:
        return _divergence(case.state, case.summary)
    return _unless(case.doubts, _differing_replicas(case.timeline))


_REASONS: Mapping[CheckCode, Callable[[_Case], Iterable[Reason]]] = {
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
        lambda _, timeline: (("inconclusive", one.words) for one in unfinished_repairs(timeline) if one.had_time)
    ),
    "own_failures": _of_timeline(
        lambda case, timeline: _unless(case.doubts, ((one.outcome, one.words) for one in own_failures(timeline)))
    ),
    "same_step": _of_timeline(
        lambda _, timeline: (
            ("inconclusive", _lower(ranks_differ_words(one))) for one in timeline.attempts[1:] if one.ranks_differ
        )
    ),
}
"""The reasons that each check of `always_checked.CHECKS` yields; which of them a job has stands there."""
