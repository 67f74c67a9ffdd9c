"""The reasons of a verdict: each code, and its sentence.

A new reason is a line of `VERDICT`, and the place in `harness.judging.verdict` that yields it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chaos.refusals import refusal_text
from harness.analysis.command.failure_cause import PIPE, FailureCause, cause_words
from harness.analysis.command.no_restart import no_restart_text, supervisor_words
from harness.analysis.command.unseen import unseen_words
from harness.analysis.contained import PROBLEMS
from harness.analysis.job_failures import failure_text
from harness.analysis.words import count, exit_text, name_ranks
from harness.judging.gate_reasons import gate_text
from harness.judging.resume_words import training_differs_words
from harness.judging.shared_texts import SHARED, lower, shared_text
from harness.store.doubt_reasons import LOG_DOUBTS
from mecefo_runtime.system.reason import Made, Reason, Table

# Of the units that differ.
_NAMED_UNITS = 4


def verdict_text(reason: Reason) -> str:
    """The sentence of a reason."""
    return VERDICT.text(reason)


def _passed(num_gates: int, num_incidents: int) -> str:
    recovered = "every fault was verified and the job recovered"
    if not num_incidents:
        recovered = "no fault was planned, and the job completed"
    return f"{recovered}; {f'all {num_gates} gates passed' if num_gates > 1 else 'the gate passed'}"


def _from_scratch(steps: int) -> str:
    return f"the job did not resume: it started again from step 1 and recomputed {count(steps, 'step')}"


# ---- leftovers ----


def _processes_left(processes: Any) -> str:
    return f"processes were left behind: {_listed(processes)}; `chaos heal` ends them"


def _undo_pending(incidents: Any) -> str:
    return (
        f"not everything was undone: incidents {_listed(incidents)}; see the run's ledger.jsonl; "
        "`chaos heal` tries again"
    )


def _things_left(things: Any) -> str:
    named = [
        f"{thing.get('kind')} {thing.get('what')}" if isinstance(thing, Mapping) else str(thing) for thing in things
    ]
    return f"left behind: {_listed(named)}; `chaos heal` says what is still there"


def _not_undone(incident: int, why: Reason | None = None) -> str:
    reason = "no reason given" if why is None else refusal_text(why)
    return f"incident {incident} was not undone: {reason}; see the run's ledger.jsonl"


# ---- the end of the run ----


def _halt_condition(condition: str | None = None) -> str:
    return f"a halt condition became true: {condition or 'not recorded'}"


def _interrupted(signal: str | None = None) -> str:
    return f"the run was interrupted{f' ({signal})' if signal else ''}"


def _run_failed(message: str | None = None) -> str:
    return f"the run failed: {message or 'no message was recorded'}"


def _died(
    failure: Reason,
    other: Reason | None = None,
    no_restart: Reason | None = None,
    launcher_ended_by: Mapping[str, Any] | None = None,
) -> str:
    how = _how(failure, no_restart, launcher_ended_by)
    beside = "" if other is None else f". {shared_text(other)}"
    return f"the job did not survive: {how}{beside}{_cure(no_restart, launcher_ended_by)}"


def _failed_by_itself(
    failure: Reason,
    before_faults: bool = False,
    other: Reason | None = None,
    no_restart: Reason | None = None,
    launcher_ended_by: Mapping[str, Any] | None = None,
) -> str:
    before = ", before any fault was injected" if before_faults else ""
    how = f"the job failed by itself{before}: {_how(failure, no_restart, launcher_ended_by)}"
    return how if other is None else f"{how}. {shared_text(other)}"


def _never_trained(
    failure: Reason,
    other: Reason | None = None,
    no_restart: Reason | None = None,
    launcher_ended_by: Mapping[str, Any] | None = None,
) -> str:
    how = f"the job never began to train: {_how(failure, no_restart, launcher_ended_by)}"
    return how if other is None else f"{how}. {shared_text(other)}"


def _failed_in_doubt(
    failure: Reason,
    no_restart: Reason | None = None,
    launcher_ended_by: Mapping[str, Any] | None = None,
) -> str:
    return f"the job failed, and no injected fault is known: {_how(failure, no_restart, launcher_ended_by)}"


def _how(failure: Reason, no_restart: Reason | None, ended_by: Mapping[str, Any] | None) -> str:
    if ended_by is None:
        return failure_text(failure)
    cure = supervisor_words(no_restart)
    ended = (
        f"{ended_by.get('fault')} on {ended_by.get('target')} ended the command's own process, and nothing started it "
        "again"
    )
    return f"{failure_text(failure)}: {ended}. {cure[0].upper()}{cure[1:]} would"


def _cure(no_restart: Reason | None, ended_by: Mapping[str, Any] | None) -> str:
    return "" if no_restart is None or ended_by is not None else f". {no_restart_text(no_restart)}"


def _no_step_seen(
    why: str,
    cause: Reason | None = None,
    is_pipe: bool = False,
    user: str | None = None,
    unreachable: str | None = None,
) -> str:
    ended = f"the command ended with {exit_text(0)}"
    if cause is None:
        return f"{ended}, and {unseen_words(why, user, unreachable)}"
    known = FailureCause.of(cause)
    printed = "printed " if known.rank is None else ""
    hint = f" ({PIPE})" if is_pipe else ""
    return f"{ended}, but {printed}{cause_words(known)}{hint}, and no training step was seen in it"


# ---- figures ----


def _replicas_differ(tensor: str, ranks: Sequence[int], step: int, others: int = 0) -> str:
    more = f", and so do {others} more of its tensors" if others else ""
    return (
        f"{tensor} of {name_ranks(ranks)} differs from the other replicas' since step {step}, "
        f"to the end{more}: before the fault they were bitwise equal"
    )


def _units_differ(units: Mapping[str, Sequence[int]]) -> str:
    named = [f"{unit} (ranks {_listed(ranks)})" for unit, ranks in units.items()]
    more = f" and {len(named) - _NAMED_UNITS} more" if len(named) > _NAMED_UNITS else ""
    return (
        f"{len(named)} of the model's units differ at the end between the ranks that hold them: "
        f"{', '.join(named[:_NAMED_UNITS])}{more}"
    )


def _parameters_not_finite(
    values: int, rank: int, step: int, tensor: str | None = None, others: Sequence[int] = ()
) -> str:
    also = f"; the same holds for {name_ranks(others)}" if others else ""
    where = "" if tensor is None else f" (first in {tensor})"
    return (
        f"{values} more {'value' if values == 1 else 'values'} of rank {rank}'s parameters{where} "
        f"{'is' if values == 1 else 'are'} not finite than before the fault, from step {step} to the "
        f"end{also}"
    )


def _generations_overlap(overlap: Reason) -> str:
    return f"two generations of the job ran at once: {shared_text(overlap)}"


# ---- gates ----


def _gate_undecided(gate: str, why: Reason | None = None) -> str:
    return f"gate '{gate}' is undecided: {None if why is None else gate_text(why)}"


def _gate_failed(gate: str, why: Reason | None = None, mixed: bool = False) -> str:
    but = ", but not only because of the faults" if mixed else ""
    return f"gate '{gate}' failed{but}: {None if why is None else gate_text(why)}"


def _ended_by_gate(gate: str, step: int | None = None) -> str:
    return f"{_by_gate(gate, step)}: later steps were not measured"


def _ended_by_passing_gate(gate: str, step: int | None = None) -> str:
    return f"{_by_gate(gate, step)}, which did not fail in the end"


def _by_gate(gate: str, step: int | None) -> str:
    after = f" after step {step}" if step else ""
    return f"the run was ended{after} by gate '{gate}'"


# ---- incidents ----


def _name(incident: int, fault: str, target: Any = None) -> str:
    return f"incident {incident} ({fault} on {target})"


def _none_fired(incident: int, why: Reason) -> str:
    return f"none of the planned faults fired (incident {incident}: {refusal_text(why)}), so none was verified"


def _not_injected(incident: int, fault: str, target: Any = None, why: Reason | None = None) -> str:
    reason = "it did not fire" if why is None else refusal_text(why)
    return f"{_name(incident, fault, target)} was not injected: {reason}"


def _not_verified(incident: int, fault: str, target: Any = None, why: Reason | None = None) -> str:
    reason = "no evidence" if why is None else refusal_text(why)
    return f"{_name(incident, fault, target)} was injected, but could not be verified: {reason}"


def _recovery_undecided(incident: int, fault: str, why: Reason, target: Any = None) -> str:
    return f"{_name(incident, fault, target)}: {shared_text(why)}"


def _no_step_after_loss(incident: int, fault: str, target: Any = None) -> str:
    return f"{_name(incident, fault, target)}: no step began and committed after it and the other loss"


def _steps_rejected(incident: int, fault: str, target: Any = None) -> str:
    return f"{_name(incident, fault, target)}: every step that began after it was rejected"


def _not_recovered(
    incident: int, fault: str, target: Any = None, of_launcher: bool = False, why: Reason | None = None
) -> str:
    no_step = "no step began and committed after it"
    if of_launcher:
        no_step = "no later attempt took a step, so nothing restarted the job"
    return f"{_name(incident, fault, target)}: {no_step}{'' if why is None else f': {shared_text(why)}'}"


def _ended_too_early(incident: int, fault: str, target: Any = None, completed: bool = False) -> str:
    late = "no step was left" if completed else "the run ended before a step could commit"
    return f"{_name(incident, fault, target)}: {late}, so the recovery is unknown"


def _impossible_order(incident: int, fault: str, target: Any = None) -> str:
    return f"{_name(incident, fault, target)}: its phases are in an impossible order in the log"


def _loss_during_recovery(loss: Reason, incidents: Sequence[Mapping[str, Any]]) -> str:
    names = [_name(one["incident"], one["fault"], one.get("target")) for one in incidents]
    return (
        f"{shared_text(loss)}, while the job was recovering from {' and '.join(names)}: their costs cannot be separated"
    )


def _ranks_resumed_apart(attempt: int, steps: Sequence[Any]) -> str:
    return lower(shared_text(Reason("ranks_resumed_apart", attempt=attempt, steps=steps)))


# ---- a command ----


def _rank_failed(cause: Reason, why: Reason) -> str:
    return f"{cause_words(FailureCause.of(cause))}, and was not started again: {shared_text(why)}"


def _too_short(step: int, why: Reason) -> str:
    return f"the command ended by itself after step {step}: {shared_text(why)}"


def _listed(things: Any) -> str:
    return ", ".join(map(str, things)) if isinstance(things, list) else str(things)


_INCIDENT = "incident {incident} ({fault} on {target})"
VERDICT = Table(
    {
        "passed": Made(_passed, "every fault was verified and the job recovered; all {num_gates} gates passed"),
        "started_from_scratch": Made(
            _from_scratch, "the job did not resume: it started again from step 1 and recomputed {steps} steps"
        ),
        "training_differs": Made(
            training_differs_words, "it is another training since the restart (attempt {attempt}): {differences}"
        ),
        # leftovers
        "processes_left": Made(_processes_left, "processes were left behind: {processes}; `chaos heal` ends them"),
        "undo_pending": Made(_undo_pending, "not everything was undone: incidents {incidents}; ..."),
        "things_left": Made(_things_left, "left behind: {things}; `chaos heal` says what is still there"),
        "audit_missing": "the audit for leftovers is missing",
        "not_undone": Made(_not_undone, "incident {incident} was not undone: {why}; see the run's ledger.jsonl"),
        # end
        "halt_condition": Made(_halt_condition, "a halt condition became true: {condition}"),
        "interrupted": Made(_interrupted, "the run was interrupted ({signal})"),
        "job_died": Made(_died, "the job did not survive: {failure}. {other}. {no_restart}"),
        "job_failed_by_itself": Made(
            _failed_by_itself, "the job failed by itself, before any fault was injected: {failure}. {other}"
        ),
        "job_never_trained": Made(_never_trained, "the job never began to train: {failure}. {other}"),
        "job_failed_in_doubt": Made(_failed_in_doubt, "the job failed, and no injected fault is known: {failure}"),
        "no_step_seen": Made(_no_step_seen, "the command ended with exit code 0, and {why}"),
        "run_failed": Made(_run_failed, "the run failed: {message}"),
        "job_not_completed": "the job ended as {outcome}, not as completed",
        "log_cut_off": "the log was cut off: the end of the run is missing",
        # finite_loss
        "no_step": "no step was committed",
        "no_step_before_fault": (
            "no step was committed before the first fault, so no throughput before the fault is known"
        ),
        "loss_not_finite": "the training loss is not finite from step {step} on",
        "loss_of_rank_not_finite": "the loss of rank {rank} is not finite from step {step} on",
        # equal_replicas, finite_parameters, one_generation
        "units_differ": Made(
            _units_differ, "{units} of the model's units differ at the end between the ranks that hold them"
        ),
        "replicas_differ": Made(
            _replicas_differ,
            "{tensor} of {ranks} differs from the other replicas' since step {step}, to the end: before the fault they "
            "were bitwise equal",
        ),
        "parameters_not_finite": Made(
            _parameters_not_finite,
            "{values} more values of rank {rank}'s parameters (first in {tensor}) are not finite than before the "
            "fault, from step {step} to the end",
        ),
        "generations_overlap": Made(
            _generations_overlap,
            "two generations of the job ran at once: {overlap}",
        ),
        # gates, abort
        "gate_failed": Made(_gate_failed, "gate '{gate}' failed: {why}"),
        "gate_undecided": Made(_gate_undecided, "gate '{gate}' is undecided: {why}"),
        "ended_by_gate": Made(
            _ended_by_gate,
            "the run was ended after step {step} by gate '{gate}': later steps were not measured",
        ),
        "ended_by_passing_gate": Made(
            _ended_by_passing_gate,
            "the run was ended after step {step} by gate '{gate}', which did not fail in the end",
        ),
        # verified_and_recovered
        "no_fault_planned": "no fault was planned, so none was verified",
        "none_fired": Made(
            _none_fired, "none of the planned faults fired (incident {incident}: {why}), so none was verified"
        ),
        "not_injected": Made(_not_injected, f"{_INCIDENT} was not injected: {{why}}"),
        "not_verified": Made(_not_verified, f"{_INCIDENT} was injected, but could not be verified: {{why}}"),
        "recovery_undecided": Made(_recovery_undecided, f"{_INCIDENT}: {{why}}"),
        "not_recovered": Made(_not_recovered, f"{_INCIDENT}: no step began and committed after it: {{why}}"),
        "steps_rejected": Made(_steps_rejected, f"{_INCIDENT}: every step that began after it was rejected"),
        "not_recovered_from_several": Made(
            _no_step_after_loss, f"{_INCIDENT}: no step began and committed after it and the other loss"
        ),
        "ended_too_early": Made(_ended_too_early, f"{_INCIDENT}: no step was left, so the recovery is unknown"),
        "impossible_order": Made(_impossible_order, f"{_INCIDENT}: its phases are in an impossible order in the log"),
        # unexplained_losses, repairs, own_failures, same_step
        "loss_during_recovery": Made(
            _loss_during_recovery,
            "{loss}, while the job was recovering from {incidents}: their costs cannot be separated",
        ),
        "rank_failed": Made(_rank_failed, "{cause}, and was not started again: {why}"),
        "too_short": Made(_too_short, "the command ended by itself after step {step}: {why}"),
        "ranks_resumed_apart": Made(
            _ranks_resumed_apart, "in attempt {attempt} the ranks continued from different steps ({steps})"
        ),
    },
    SHARED.of("repair_unfinished"),
    PROBLEMS,
    LOG_DOUBTS,
)
