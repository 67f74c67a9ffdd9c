"""Why an incident did not fire, as a reason of `chaos.refusals.NOT_FIRED`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from chaos.faults.watch import Watch
from chaos.language.save_moment import SaveMoment
from chaos.language.target import WITHOUT_TARGET, Scope
from chaos.language.trigger import PHASES, SNAPSHOT_PHASES, Trigger
from chaos.plan.incident import Incident
from chaos.refusals import refusal_text
from chaos.step_ranges import ranks_text
from mecefo_runtime.job.traits import JobTraits
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.run_records import JOB_ENDED_BEFORE, WithoutEffect

R = TypeVar("R", bound=WithoutEffect)


def unfired(kind: type[R], incident: int, why: Reason, shown: Reason) -> R:
    """The event of an incident that never fired; `shown` is its reason, which holds `why` or is `why`.

    Earlier versions wrote fields of `why` in addition to the sentence. The event still has them.
    """
    return kind(
        incident=incident,
        reason=refusal_text(shown),
        why=shown,
        code=why.code,
        phase_steps=tuple((first, last) for first, last in why.get("steps") or ()),
        phase_ranks=tuple(why.get("ranks") or ()),
        phases_seen=tuple(why.get("phases") or ()),
        advice=why.get("advice"),
    )


def why_never_fired(
    incident: Incident, watch: Watch, scope: Scope, *, was_present: bool | None, traits: JobTraits, passed_by: int = 0
) -> Reason:
    """Why `incident`, whose fault has that `scope`, did not fire before the job ended.

    `was_present`: whether a rank of its target was connected when the job had committed the step of its trigger; None:
    that is not known. `passed_by`: the byte to which a file came, where the trigger waits for a later one.
    """
    trigger, target = incident.trigger, incident.target_text or "it"
    step, at = trigger.step or 0, str(trigger)
    if trigger.at_seconds is None and trigger.phase in SNAPSHOT_PHASES:
        return Reason("no_snapshot", phase=trigger.phase, step=trigger.step, target=target)
    if trigger.in_save is not None and (why := _within_save(incident, trigger.in_save, watch, passed_by)) is not None:
        return why
    if traits.keeps_own_checkpoints and watch.first_step is not None and 0 < step < watch.first_step:
        return Reason("began_behind", trigger=at, target=target, first_step=watch.first_step)
    if not has_passed(trigger, watch):
        return Reason(JOB_ENDED_BEFORE, trigger=at, target=None if incident.is_optional else target)
    if was_present is False:
        return Reason("rank_absent", trigger=at, target=target, is_command=traits.is_user_script or None)
    return _without_phase(incident, watch, scope, traits)


def _within_save(incident: Incident, moment: SaveMoment, watch: Watch, passed_by: int) -> Reason | None:
    """The save of the step came, and the moment within it did not; None: the save did not come."""
    trigger, target = incident.trigger, incident.target_text or "it"
    step, own = trigger.step or 0, incident.target.ranks
    if moment.is_open:
        return Reason("no_save_in_flight", target=target, step=step) if watch.last_step >= step else None
    if step not in watch.phases.of(trigger.phase, own or None, watch.last_step):
        return None
    if moment.num_bytes is not None:
        return Reason("bytes_not_seen", target=target, step=step, num_bytes=moment.num_bytes, reached=passed_by or None)
    return Reason("nothing_renamed" if moment.after == "rename" else "no_file_written", target=target, step=step)


def has_passed(trigger: Trigger, watch: Watch) -> bool:
    """Whether the job has committed the step of the trigger."""
    return not trigger.is_open and 0 < (trigger.step or 0) <= watch.last_step


def _without_phase(incident: Incident, watch: Watch, scope: Scope, traits: JobTraits) -> Reason:
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
        return Reason("rank_absent_or_no_phase", trigger=str(trigger), target=target)
    if steps:
        advice = _at(steps.nearest(step), trigger) if may_advise else None
        return Reason(
            "phase_in_other_steps",
            target=who,
            phase=phase,
            step=step,
            steps=steps.intervals,
            own=own,
            advice=advice,
        )
    if having:
        steps = watch.phases.of(phase, None, watch.last_step)
        on = "" if scope in (*WITHOUT_TARGET, "link") else f"--on rank={_nearest_rank(step, having, watch, phase)} "
        advice = f"{on}{_at(steps.nearest(step), trigger)}" if may_advise else None
        return Reason("phase_on_other_ranks", phase=phase, steps=steps.intervals, own=own, ranks=having, advice=advice)
    seen = watch.phases.phases_of(own or None)
    if seen:
        phases = tuple(sorted(seen, key=PHASES.index))
        return Reason("phase_never_came", phase=phase, phases=phases, is_command=traits.is_user_script or None)
    return Reason("rank_absent_or_no_phase", trigger=str(trigger), target=target)


def _nearest_rank(step: int, ranks: Collection[int], watch: Watch, phase: str) -> int:
    def distance(rank: int) -> int:
        return abs(watch.phases.of(phase, (rank,), watch.last_step).nearest(step) - step)

    return min(ranks, key=lambda rank: (distance(rank), rank))


def _at(step: int, trigger: Trigger) -> str:
    return f"--at {replace(trigger, step=step)}"
