"""The caveats of a run: what a reader must know before trusting its figures."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import accumulate
from math import inf
from typing import Any

from chaos.faults import registry
from chaos.faults.network.link import SlowLink
from harness.analysis.integrity import LOSS_STEPS
from harness.analysis.steps import WORK_UNITS
from harness.analysis.throughput import num_within, windows_under_fault
from harness.analysis.timeline import NOT_COUNTED, Timeline
from harness.analysis.words import name_seconds
from harness.judging import checkpoint_words
from harness.judging.facts import overlap_of, ranks_resumed_apart, unplanned_loss
from harness.judging.milder_faults import milder_faults
from harness.judging.own_failures import own_caveats
from harness.judging.shared_badput import shared_badput
from harness.judging.summary import Summary
from harness.judging.unfinished_repairs import unfinished_repairs
from mecefo_runtime.system.reason import Reason

_FEW_STEPS = 10
"""Medians over fewer steps than this are named as such."""

MUCH_OVERRUN = 0.05
"""Compute that took this much longer than the dilation says is named."""
MANY_OVERRUNS = 0.05
"""So are segments that took longer than they were to, when they are more than this share of all."""

_MAX_NOT_FIRED = 5
"""So many incidents that did not fire are told of one by one."""
_MAX_UNUSABLE = 3
"""The number of damaged checkpoints, the newest ones, that have a caveat each."""
_MAX_SHARED = 5
"""So many incidents whose badput may be that of others are told of one by one."""
MUCH_HELD = 0.1
"""Ranks that this tool held for such a share of the time under the fault are named."""


Part = Callable[[], Iterable[Reason]]


def caveats(
    summary: Summary,
    timeline: Timeline | None,
    num_unreadable: int,
    part: Callable[[Part], Iterable[Reason]] = lambda part: part(),
) -> list[Reason]:
    """The caveats of a run; `summary` holds its figures already. `part` contains those of which one fails."""
    return [
        *part(lambda: _of_the_log(summary, num_unreadable)),
        *part(lambda: _of_the_resumes(summary)),
        *part(lambda: _of_the_set_up(summary)),
        *part(lambda: _of_other_runs(summary)),
        *part(lambda: _of_the_command(summary, timeline)),
        *part(lambda: own_caveats(timeline)),
        *part(lambda: _of_the_restarts(timeline)),
        *part(lambda: _of_the_speed(summary)),
        *part(lambda: _of_the_holds(summary, timeline)),
        *part(lambda: _of_the_losses(summary, timeline)),
        *part(lambda: _of_the_steps_left_out(timeline)),
        *part(lambda: _of_the_incidents(summary, timeline) if timeline is not None else ()),
        *part(lambda: () if timeline is None else _of_the_shared_badput(timeline)),
        *part(lambda: _of_the_preemptions(summary)),
        *part(lambda: milder_faults(summary, timeline)),
        *part(lambda: _of_what_did_not_fire(timeline)),
        *part(lambda: _of_the_unplanned(summary)),
        *part(lambda: _of_the_checkpoints(timeline)),
        *part(lambda: _of_the_loads(summary)),
        *part(lambda: _of_the_repairs(timeline)),
    ]


def _of_the_log(summary: Summary, num_unreadable: int) -> Iterator[Reason]:
    if summary.status == "cut off":
        yield Reason("log_cut_off")
    if num_unreadable:
        yield Reason("lines_left_out", number=num_unreadable)


def _of_the_resumes(summary: Summary) -> Iterator[Reason]:
    """Restarts that were compared with nothing."""
    for one in summary.resumes:
        if not one.kinds:
            why = "nothing_compared" if one.unknown is None else one.unknown.code
            against = one.against if one.against == "baseline" else None
            yield Reason("restart_not_compared", attempt=one.attempt, because=why, against=against)


def _of_the_set_up(summary: Summary) -> Iterator[Reason]:
    dilation = summary.dilation_ratio
    if isinstance(dilation, int | float) and dilation > 1:
        yield Reason("dilated", ratio=dilation, rated=summary.pacing == "rated" or None)
    yield from _of_the_emulation(summary)
    yield from _of_the_links(summary)
    overrun, share = summary.dilation_overrun_ratio, summary.overrun_segments_ratio
    if (overrun is not None and overrun > MUCH_OVERRUN) or (share is not None and share > MANY_OVERRUNS):
        yield Reason(
            "machine_too_busy",
            emulated=summary.emulated is not None or None,
            overrun_ratio=overrun,
            late_ratio=share,
            worst_seconds=summary.worst_overrun_seconds,
        )
    if summary.pipeline_bubble_ratio:
        yield Reason("pipeline_bubble", ratio=summary.pipeline_bubble_ratio)
    if summary.data_parallel == 1:
        yield Reason("no_peer")


def _of_other_runs(summary: Summary) -> Iterator[Reason]:
    """Other runs of chaos on the same machine, which make everything take longer."""
    if summary.overlapping_runs:
        yield Reason("other_runs", runs=[_known(asdict(one)) for one in summary.overlapping_runs])


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _of_the_links(summary: Summary) -> Iterator[Reason]:
    """What ratings hide of a link that is slower than it was, but no slower than messages were rated."""
    costs = (summary.ratings or {}).get("costs", {})
    seconds = costs.get("message_seconds") if isinstance(costs, Mapping) else None
    if isinstance(seconds, int | float) and any(one.fault == SlowLink.kind for one in summary.incidents):
        yield Reason("message_rated", seconds=seconds)


def _of_the_emulation(summary: Summary) -> Iterator[Reason]:
    emulated = summary.emulated
    if emulated is None:
        return
    yield Reason(
        "emulated",
        provenance=emulated.provenance,
        device_model=emulated.device_model,
        device=emulated.device,
        model=emulated.model,
    )
    if any(summary.badput_seconds.get(cause) for cause in ("checkpoint", "restart")):
        yield Reason("saving_not_emulated")
    if emulated.time_scale != 1:
        yield Reason("time_scaled", scale=emulated.time_scale)


def _of_the_command(summary: Summary, timeline: Timeline | None) -> Iterator[Reason]:
    """What cannot be seen of an external job, or is seen in another way than of ours."""
    if timeline is None or not timeline.traits.is_user_script:
        return
    if summary.throughput_unit != WORK_UNITS[0]:
        yield Reason("no_tokens", unit=summary.throughput_unit)
    if timeline.steps_may_differ:
        yield Reason("steps_may_differ")
    yield from _of_the_count(timeline)
    baseline, own = timeline.baseline.first, timeline.steps.first
    if baseline and own and baseline[0].step != own[0].step:
        yield Reason("baseline_began_elsewhere", baseline_step=baseline[0].step, step=own[0].step)
    yield from _of_the_unobserved(timeline)
    yield from _of_the_replicas(timeline)
    yield from _of_the_generations(timeline)
    yield from _of_the_orphans(summary)


def _of_the_unobserved(timeline: Timeline) -> Iterator[Reason]:
    """Ranks of the job of which nothing is known, or only that they were started."""
    seen = timeline.observation
    if seen is not None and seen.num_observed != seen.num_ranks:
        yield Reason(
            "ranks_unobserved",
            ranks=seen.num_ranks,
            unobserved=seen.num_ranks - seen.num_observed,
            silent=seen.silent,
            without_step=seen.without_step,
            on_lost_hosts=seen.on_lost_hosts or None,
        )


def _of_the_count(timeline: Timeline) -> Iterator[Reason]:
    """Where a later attempt continued, as far as that is not known, or its optimizer did not."""
    if timeline.steps_unknown_because == NOT_COUNTED:
        yield Reason("steps_not_counted")
    for attempt in timeline.attempts[1:]:
        if attempt.ranks_differ:
            yield ranks_resumed_apart(attempt)
        elif attempt.is_optimizer_fresh:
            after = max(attempt.resumed_after.values(), default=0)
            steps = attempt.optimizer_steps
            yield Reason("optimizer_fresh", attempt=attempt.number, step=after, optimizer_steps=steps)


_BRIEF_SECONDS = 0.1
"""Processes of an earlier attempt that are there for less than this alongside a later one are not named."""


def _of_the_generations(timeline: Timeline) -> Iterator[Reason]:
    """Processes of an earlier attempt that were there alongside a later one, and neither saved nor trained for long."""
    for one in timeline.overlaps:
        if not one.is_violation and one.alive_seconds >= _BRIEF_SECONDS:
            yield Reason("beside_later_attempt", overlap=overlap_of(one))


def _of_the_orphans(summary: Summary) -> Iterator[Reason]:
    """Processes that the command left running: a scheduler that starts it again would have both."""
    if summary.orphaned_processes:
        yield Reason("orphans_ended", processes=summary.orphaned_processes, ranks=summary.orphaned_ranks)


def _of_the_preemptions(summary: Summary) -> Iterator[Reason]:
    """A notice that was of no use."""
    for incident in summary.incidents:
        one = incident.preemption
        if one is None:
            continue
        known = {"incident": incident.incident, "signal": one.signal, "deliver": one.deliver}
        if one.ranks_not_reached and not one.deliver.startswith("rank="):
            dropped = one.notices_dropped or None
            yield Reason("notice_not_reached", **known, ranks=one.ranks_not_reached, dropped=dropped)
        elif one.ranks_reach_unknown and one.ranks_killed:
            yield Reason("notice_reach_unknown", **known, ranks=one.ranks_reach_unknown)
        if any(raised.names_data_worker for raised in one.raised):
            yield Reason("notice_ended_data_workers", **known, saved_step=one.newest_checkpoint_step)
        if one.ranks_killed_by_launcher:
            yield Reason(
                "launcher_ended_ranks", **known, ranks=one.ranks_killed_by_launcher, seconds=one.launcher_killed_seconds
            )


def _of_the_replicas(timeline: Timeline) -> Iterator[Reason]:
    """What became of the state that ranks have in common, where a fault changed values in some of them."""
    replicas, kinds = timeline.replicas, registry()
    is_corrupted = any(
        one.verified is not None and kinds[one.fault].changes_values for one in timeline.incidents if one.fault in kinds
    )
    if replicas is None or not is_corrupted:
        return
    if replicas.unknown is not None:
        yield Reason("replicas_unknown", because=replicas.unknown)
        return
    if passing := [one for one in replicas.differences if one.until_step is not None]:
        first, others = passing[0], len(passing) - 1
        yield Reason(
            "replicas_differed",
            tensor=first.tensor,
            others=others or None,
            from_step=first.since_step,
            to_step=first.until_step,
        )
    if replicas.last_step is not None and replicas.last_step < timeline.last_step:
        yield Reason("replicas_compared_early", compared_step=replicas.last_step, last_step=timeline.last_step)


def _of_the_restarts(timeline: Timeline | None) -> Iterator[Reason]:
    if timeline is not None and any(stall.is_restart for stall in timeline.stalls):
        yield Reason("all_started_again")


def _of_the_speed(summary: Summary) -> Iterator[Reason]:
    before, after = summary.num_steps_before, summary.num_steps_after
    if not summary.incidents or before is None:
        return
    if 0 < before < _FEW_STEPS:
        yield Reason("few_steps_before", steps=before)
    drop, noise = summary.throughput_drop_ratio, summary.throughput_noise_ratio
    if drop is not None and noise is not None and abs(drop) <= noise:
        yield Reason("drop_within_noise", drop_ratio=drop, noise_ratio=noise)
    if summary.degraded_share_ratio:
        yield Reason("approximated", share_ratio=summary.degraded_share_ratio)
    if not after and any(incident.verified for incident in summary.incidents):
        yield Reason("no_step_after")
    elif after and after < _FEW_STEPS:
        yield Reason("few_steps_after", steps=after)


def _of_the_holds(summary: Summary, timeline: Timeline | None) -> Iterator[Reason]:
    """That the drop is in part the tool's own doing: it holds ranks until the effect of a fault was seen."""
    seconds = [end - start for start, end in windows_under_fault(timeline)] if timeline is not None else []
    held = [one.badput_seconds["injection"] or 0.0 for one in summary.incidents if one.verified]
    if (summary.throughput_drop_ratio or 0.0) > 0.0 and sum(held) > MUCH_HELD * sum(seconds):
        yield Reason("held_by_chaos", fault_seconds=sum(seconds), held_seconds=sum(held))


def _of_the_losses(summary: Summary, timeline: Timeline | None) -> Iterator[Reason]:
    if timeline is not None and timeline.is_baseline_disturbed:
        losses = [unplanned_loss(loss).fields for loss in timeline.baseline_losses]
        yield Reason("baseline_disturbed", losses=losses, failure=timeline.baseline_failed)
    elif summary.baseline_loss is None:
        if summary.incidents or summary.baseline_planned:
            has_steps = timeline is not None and bool(timeline.baseline.first)
            yield Reason("no_loss_deviation", because=_why_no_deviation(summary, has_steps))
    elif summary.num_loss_steps is not None and summary.num_loss_steps < LOSS_STEPS:
        yield Reason("few_losses", steps=summary.num_loss_steps)


def _why_no_deviation(summary: Summary, baseline_has_steps: bool) -> str:
    """A code of the caveat `no_loss_deviation`."""
    if summary.baseline_planned and summary.baseline_outcome is None and summary.job_outcome != "completed":
        return "job_not_completed"
    if baseline_has_steps and summary.steps_unknown_because is not None:
        return "steps_not_counted"
    if not summary.baseline_planned:
        return "no_baseline"
    if summary.traits.is_user_script and not baseline_has_steps:
        return "baseline_without_step"
    if summary.traits.is_user_script and summary.final_loss is None:
        return "loss_not_reported"
    return "baseline_without_loss"


def _of_the_steps_left_out(timeline: Timeline | None) -> Iterator[Reason]:
    """Steps that count as committed, with all their samples, although no optimizer took them in."""
    left_out = [] if timeline is None else [step.step for step in timeline.steps.first if step.is_left_out]
    if left_out:
        yield Reason("steps_rejected", steps=len(left_out), first_step=left_out[0])


def _of_what_did_not_fire(timeline: Timeline | None) -> Iterator[Reason]:
    """Incidents that were planned by chance and are none of the run's, those that came too late for it left out."""
    not_fired = [] if timeline is None else [one for one in timeline.not_due if not one.is_after_the_end]
    for one in not_fired[:_MAX_NOT_FIRED]:
        yield Reason("not_fired", incident=one.incident, why=one.because)
    if len(not_fired) > _MAX_NOT_FIRED:
        yield Reason("more_not_fired", number=len(not_fired) - _MAX_NOT_FIRED)


def _of_the_loads(summary: Summary) -> Iterator[Reason]:
    """Checkpoints that cannot be loaded, and what attempts loaded that is not the newest."""
    unusable = [one for one in summary.checkpoints if one.usable is False and one.is_exposed]
    for one in unusable[-_MAX_UNUSABLE:]:
        yield Reason("checkpoint_unusable", **checkpoint_words.of_damage(one))
    for pointer in summary.checkpoint_pointers:
        if not pointer.is_there:
            yield Reason("pointer_names_nothing", pointer=pointer.path, says=pointer.says)
        elif pointer.usable is False and pointer.is_highest_number:
            yield Reason("highest_number_damaged", folder=pointer.path, target=pointer.target, step=pointer.step)
        elif pointer.usable is False:
            yield Reason("pointer_names_damaged", pointer=pointer.path, says=pointer.says, step=pointer.step)
    for load in summary.attempt_loads:
        if load.differs:
            yield Reason("ranks_loaded_apart", attempt=load.attempt, steps=load.differs)
        if load.damaged_by is not None and load.path is not None:
            yield Reason(
                "damage_loaded", attempt=load.attempt, step=load.step, path=load.path, incident=load.damaged_by
            )
        if load.is_fallback:
            why = load.failed[-1] if load.failed else None
            yield Reason(
                "older_loaded",
                attempt=load.attempt,
                step=load.step,
                newest=load.newest_step,
                error=None if why is None else why.error,
                failed=None if why is None else why.path,
            )


def _of_the_checkpoints(timeline: Timeline | None) -> Iterator[Reason]:
    """Checkpoints that were not saved: a job that needs one goes back to an older one, or to the start."""
    unsaved = {} if timeline is None else timeline.unsaved_checkpoints
    if timeline is None or not unsaved:
        return
    step, (_, error) = next(iter(unsaved.items()))
    active = sorted(one.active for one in timeline.incidents if one.active is not None)
    longest = list(accumulate((until for _, until in active), max))
    begun = (bisect_right(active, (at, inf)) for at, _ in unsaved.values())
    of_faults = sum(
        number > 0 and at <= longest[number - 1] for number, (at, _) in zip(begun, unsaved.values(), strict=True)
    )
    yield Reason(
        "checkpoints_unsaved",
        unsaved=len(unsaved),
        checkpoints=timeline.num_checkpoints,
        during_faults=of_faults or None,
        step=step,
        error=str(error),
    )


def _of_the_unplanned(summary: Summary) -> Iterator[Reason]:
    for loss in summary.unplanned_losses:
        yield Reason("unplanned_loss", loss=unplanned_loss(loss))


def _of_the_repairs(timeline: Timeline | None) -> Iterator[Reason]:
    """What was to come back and did not: one that had time to makes the run inconclusive, and is told as its reason."""
    for one in () if timeline is None else unfinished_repairs(timeline):
        if not one.had_time:
            yield Reason("repair_unfinished", repair=one.why)


def _outlasted(timeline: Timeline) -> Iterator[tuple[int, Reason]]:
    for one in timeline.incidents:
        if one.outlasted and one.injected is not None:
            until = inf if one.lifted is None else one.lifted
            steps = num_within(timeline.steps, [(one.injected, until)])
            fields = {"incident": one.incident, "fault": one.fault, "planned": one.outlasted, "steps": steps}
            yield one.incident, Reason("outlasted", **fields)


def _of_the_incidents(summary: Summary, timeline: Timeline) -> Iterator[Reason]:
    outlasted = dict(_outlasted(timeline))
    slow: list[int] = []
    for incident in summary.incidents:
        if not incident.verified:
            yield Reason("no_verified_effect", incident=incident.incident, fault=incident.fault)
        elif incident.recovered and incident.phases_seconds["restore"] is None:
            slow.append(incident.incident)
        if incident.incident in outlasted:
            yield outlasted[incident.incident]
        if not incident.phase_order_valid:
            yield Reason("impossible_order", incident=incident.incident)
    if slow and not timeline.steps_may_differ:
        yield Reason("throughput_not_restored", incidents=slow)


def _of_the_shared_badput(timeline: Timeline) -> Iterator[Reason]:
    """Seconds that are counted for one incident although others were active, too, and may have caused them."""
    shared = [one for one in shared_badput(timeline) if name_seconds(one.seconds) != name_seconds(0.0)]
    for one in shared[:_MAX_SHARED]:
        yield Reason("badput_shared", incident=one.incident, seconds=one.seconds, others=one.others)
    if more := shared[_MAX_SHARED:]:
        yield Reason("more_badput_shared", seconds=sum(one.seconds for one in more), incidents=len(more))
