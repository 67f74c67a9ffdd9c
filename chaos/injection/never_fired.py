"""Why an incident did not fire: a code with fields, and the sentence that is made of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from chaos.faults.phase_steps import Steps, joined, on_other_ranks, ranks_text
from chaos.faults.watch import Watch
from chaos.language.target import WITHOUT_TARGET, Scope
from chaos.language.trigger import OPEN_PHASES, PHASES, SNAPSHOT_PHASES, Trigger
from chaos.plan.incident import Incident

Code = Literal[
    "no_snapshot",
    "began_behind",
    "rank_absent",
    "rank_absent_or_no_phase",
    "phase_in_other_steps",
    "phase_on_other_ranks",
    "phase_never_came",
    "job_ended_before",
]
SAVES = "torch.save, safetensors and torch.distributed.checkpoint on the training thread"
"""How a script saves what is seen."""


@dataclass(frozen=True, slots=True)
class NeverFired:
    """Why the incident did not fire.

    `own` are its ranks. `steps` are those in which its phase came: on these, or on the other `ranks`. `phases` are the
    phases that were seen instead. `advice` are options with which the fault would have fired.
    """

    code: Code
    trigger: Trigger
    target: str
    own: tuple[int, ...] = ()
    steps: Steps | None = None
    ranks: tuple[int, ...] = ()
    phases: tuple[str, ...] = ()
    advice: str | None = None
    first_step: int | None = None
    is_command: bool = False

    def fields(self) -> dict[str, Any]:
        """Of the event: the code, what belongs to it, and the sentence."""
        fields: dict[str, Any] = {"code": self.code, "reason": str(self)}
        if self.steps is not None:
            fields["phase_steps"] = [list(interval) for interval in self.steps.intervals]
        if self.ranks:
            fields["phase_ranks"] = list(self.ranks)
        if self.phases:
            fields["phases_seen"] = list(self.phases)
        if self.advice is not None:
            fields["advice"] = self.advice
        return fields

    def __str__(self) -> str:
        phase, step = self.trigger.phase, self.trigger.step
        advice = "" if self.advice is None else f": write {self.advice}"
        match self.code:
            case "no_snapshot":
                what = "copied by" if phase == "snapshot" else "encoded on the nodes of"
                return f"no snapshot of step {step} or a later one was {what} {self.target} before the job ended"
            case "began_behind":
                return (
                    f"the job began at step {self.first_step}, behind {self.trigger}: it went on from a checkpoint of "
                    "its own; --reset 'rm -rf ...' removes it before each start; of a command in containers, remove it "
                    "yourself"
                )
            case "rank_absent":
                missing = "was not in the job, or not observed," if self.is_command else "was not in the job"
                return f"{self.target} {missing} when the job reached {self.trigger}"
            case "rank_absent_or_no_phase":
                return (
                    f"{self.target} was not in the job when the job reached {self.trigger}, or has no such phase in "
                    "that step"
                )
            case "phase_in_other_steps":
                assert self.steps is not None
                have = "have" if len(self.own) > 1 else "has"
                return f"{self.target} {have} no {phase} phase in step {step}; it came {self.steps.when}{advice}"
            case "phase_on_other_ranks":
                assert self.steps is not None
                return on_other_ranks(phase, self.own, self.ranks, self.steps, self.advice)
            case "phase_never_came":
                how = f", and saves are seen by {SAVES}" if self.is_command and phase == "checkpoint" else ""
                return f"no {phase} phase came in the job; the phases seen are {joined(self.phases)}{how}"
            case "job_ended_before":
                return f"the job ended before {f'{self.target} came to ' if self.target else ''}{self.trigger}"


def why_never_fired(
    incident: Incident, watch: Watch, scope: Scope, *, was_present: bool | None, is_command: bool
) -> NeverFired:
    """Why `incident`, whose fault has that `scope`, did not fire before the job ended.

    `was_present`: whether a rank of its target was connected when the job had committed the step of its trigger; None:
    that is not known.
    """
    trigger, target = incident.trigger, incident.target_text or "it"
    step = trigger.step or 0
    if trigger.at_seconds is None and trigger.phase in SNAPSHOT_PHASES:
        return NeverFired("no_snapshot", trigger, target)
    if is_command and watch.first_step is not None and 0 < step < watch.first_step:
        return NeverFired("began_behind", trigger, target, first_step=watch.first_step)
    if not has_passed(trigger, watch):
        return NeverFired("job_ended_before", trigger, "" if incident.is_optional else target)
    if was_present is False:
        return NeverFired("rank_absent", trigger, target, is_command=is_command)
    return _without_phase(incident, watch, scope, is_command=is_command)


def has_passed(trigger: Trigger, watch: Watch) -> bool:
    """Whether the job has committed the step of the trigger."""
    return trigger.phase not in OPEN_PHASES and 0 < (trigger.step or 0) <= watch.last_step


def _without_phase(incident: Incident, watch: Watch, scope: Scope, *, is_command: bool) -> NeverFired:
    """The target was in the job, and was not held in the phase of the trigger."""
    trigger, target = incident.trigger, incident.target_text or "it"
    phase, step = trigger.phase, trigger.step or 0
    having, own = watch.phases.ranks_of(phase), incident.target.ranks
    steps = watch.phases.of(phase, own or None, watch.last_step)
    who = ranks_text(own) if own else "the job"
    # What chance planned cannot be written otherwise.
    may_advise = not (incident.is_optional or incident.may_be_left_out)
    if step in steps:
        # It came to the phase, and was not held there: it joined in that step.
        return NeverFired("rank_absent_or_no_phase", trigger, target)
    if steps:
        advice = _at(steps.nearest(step), phase) if may_advise else None
        return NeverFired("phase_in_other_steps", trigger, who, own, steps=steps, advice=advice)
    if having:
        steps = watch.phases.of(phase, None, watch.last_step)
        on = "" if scope in (*WITHOUT_TARGET, "link") else f"--on rank={_nearest_rank(step, having, watch, phase)} "
        advice = f"{on}{_at(steps.nearest(step), phase)}" if may_advise else None
        return NeverFired("phase_on_other_ranks", trigger, who, own, steps=steps, ranks=having, advice=advice)
    seen = watch.phases.phases_of(own or None)
    if seen:
        phases = tuple(sorted(seen, key=PHASES.index))
        return NeverFired("phase_never_came", trigger, who, phases=phases, is_command=is_command)
    return NeverFired("rank_absent_or_no_phase", trigger, target)


def _nearest_rank(step: int, ranks: Collection[int], watch: Watch, phase: str) -> int:
    def distance(rank: int) -> int:
        return abs(watch.phases.of(phase, (rank,), watch.last_step).nearest(step) - step)

    return min(ranks, key=lambda rank: (distance(rank), rank))


def _at(step: int, phase: str) -> str:
    return f"--at {Trigger(step=step, phase=phase)}"
