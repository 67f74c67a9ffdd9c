"""The caveats of a run: what a reader must know before trusting its figures."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf

from chaos.faults import registry
from chaos.faults.network.link import SlowLink
from harness.analysis.attribution import SUPERVISOR, UnplannedLoss
from harness.analysis.command.attempts import COMMAND_RUNTIME, Attempt
from harness.analysis.command.generations import Overlap
from harness.analysis.incident import RESTORED_STEPS
from harness.analysis.integrity import LOSS_STEPS
from harness.analysis.overlaps import OverlappingRun
from harness.analysis.steps import WARM_UP_STEPS, WORK_UNITS
from harness.analysis.throughput import num_within, windows_under_fault
from harness.analysis.timeline import NOT_COUNTED, Timeline
from harness.analysis.words import count, exit_text, name_numbers, name_ranks, name_seconds, one_line
from harness.judging.milder_faults import milder_faults
from harness.judging.own_failures import own_caveats
from harness.judging.shared_badput import shared_badput
from harness.judging.summary import Summary, UnplannedLossSummary
from harness.judging.unfinished_repairs import unfinished_repairs

_FEW_STEPS = 10
"""Medians over fewer steps than this are named as such."""

MUCH_OVERRUN = 0.05
"""Compute that took this much longer than the dilation says is named."""
MANY_OVERRUNS = 0.05
"""So are segments that took longer than they were to, when they are more than this share of all."""

_MAX_NOT_FIRED = 5
"""So many incidents that did not fire are told of one by one."""
_MAX_NAMED_RANKS = 8
"""So many ranks are named one by one."""
_MAX_SHARED = 5
"""So many incidents whose badput may be that of others are told of one by one."""
_MAX_OTHER_RUNS = 3
"""So many other runs on the machine are named."""
MUCH_HELD = 0.1
"""Ranks that this tool held for such a share of the time under the fault are named."""


Part = Callable[[], Iterable[str]]


def caveats(
    summary: Summary,
    timeline: Timeline | None,
    num_unreadable: int,
    part: Callable[[Part], Iterable[str]] = lambda part: part(),
) -> list[str]:
    """The caveats of a run; `summary` holds its figures already. `part` contains those of which one fails."""
    return [
        *part(lambda: _of_the_log(summary, num_unreadable)),
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
        *part(lambda: milder_faults(summary, timeline)),
        *part(lambda: _of_what_did_not_fire(timeline)),
        *part(lambda: _of_the_unplanned(summary)),
        *part(lambda: _of_the_checkpoints(timeline)),
        *part(lambda: _of_the_repairs(timeline)),
    ]


def _of_the_log(summary: Summary, num_unreadable: int) -> list[str]:
    found: list[str] = []
    if summary.status == "cut off":
        found.append(
            "The log was cut off: the figures describe the run until then, and it is not known what was left behind."
        )
    if num_unreadable:
        lines = "line of the log was" if num_unreadable == 1 else "lines of the log were"
        found.append(f"{num_unreadable} {lines} unreadable and left out.")
    return found


def _of_the_set_up(summary: Summary) -> list[str]:
    found: list[str] = []
    dilation = summary.dilation_ratio
    if isinstance(dilation, int | float) and dilation > 1:
        padded = (
            "its rated time, measured once at the start"
            if summary.pacing == "rated"
            else f"{dilation:g} times its CPU time"
        )
        found.append(
            f"Time dilation {dilation:g} was active: every compute segment was padded to {padded}, so that each rank "
            "behaves like a device of its own. Compare throughputs within this run only; they are not this "
            "machine's speed."
        )
    found += _of_the_emulation(summary)
    found += _of_the_links(summary)
    overrun, share = summary.dilation_overrun_ratio, summary.overrun_segments_ratio
    if (overrun is not None and overrun > MUCH_OVERRUN) or (share is not None and share > MANY_OVERRUNS):
        worst = summary.worst_overrun_seconds
        busy = [f"compute took {overrun:.0%} longer than it should have"] if overrun is not None and overrun > 0 else []
        by_how_much = f" by up to {name_seconds(worst)}" if worst else ""
        busy += [f"{share:.1%} of its segments were late{by_how_much}"] if share else []
        pace, option = ("dilation", "--dilation") if summary.emulated is None else ("time scale", "--time-scale")
        found.append(
            f"The machine was too busy for the {pace}: {', and '.join(busy)}. The throughputs show it. Repeat the run "
            f"on a quieter machine, or with a larger {option}."
        )
    bubble = summary.pipeline_bubble_ratio
    if bubble:
        found.append(
            f"Between its microbatches a rank waits {bubble:.0%} of a fault-free step for its pipeline. A rank that "
            "also runs a lost stage uses that time, so the drop is smaller here than with many microbatches."
        )
    if summary.data_parallel == 1:
        found.append(
            "Data parallel is 1: no rank has a peer with the same layers, so no copy of a lost rank's state exists."
        )
    return found


def _of_other_runs(summary: Summary) -> Iterator[str]:
    """Other runs of chaos on the same machine, which make everything take longer."""
    others = summary.overlapping_runs
    if not others:
        return
    whose = [_other_run_words(one) for one in others[:_MAX_OTHER_RUNS]]
    more = len(others) - len(whose)
    subject = f"{len(others)} other runs of chaos" if len(others) > 1 else "Another run of chaos"
    named = f"{'; '.join(whose)}{f'; and {more} more' if more else ''}"
    yield (
        f"{subject} shared the machine ({named}): times are longer than those of a run that has the machine to itself, "
        "recovery included."
    )


def _other_run_words(one: OverlappingRun) -> str:
    """`chaos-runs/kill-node/20261126T110000Z, from 3.20 s to 41.0 s of this run`."""
    where = one.folder or f"{one.run} of the user with the number {one.uid}"
    until = "the end" if one.until_seconds is None else name_seconds(one.until_seconds)
    since = name_seconds(one.from_seconds) if one.from_seconds else "the start"
    return one_line(f"{where}, from {since} to {until} of this run")


def _of_the_links(summary: Summary) -> list[str]:
    """What ratings hide of a link that is slower than it was, but no slower than messages were rated."""
    costs = (summary.ratings or {}).get("costs", {})
    seconds = costs.get("message_seconds") if isinstance(costs, Mapping) else None
    if not isinstance(seconds, int | float) or not any(one.fault == SlowLink.kind for one in summary.incidents):
        return []
    return [
        f"A message between two ranks was rated at {name_seconds(seconds)}: a slower link shows in the throughput when "
        "its messages take longer than that."
    ]


def _of_the_emulation(summary: Summary) -> list[str]:
    emulated = summary.emulated
    if emulated is None:
        return []
    found = [
        f"Emulated: the {emulated.provenance} table {emulated.device_model} gave the times of {emulated.device} with "
        f"the model {emulated.model}, of computing, messages and state. A small model of as many layers did the "
        f"arithmetic: the loss is that of the small model, and says nothing about {emulated.model}."
    ]
    if any(summary.badput_seconds.get(cause) for cause in ("checkpoint", "restart")):
        found.append(
            "Checkpoints were those of the small model, on this machine's disk, and processes were started on this "
            "machine: what that takes of the device's job is not emulated."
        )
    scale = emulated.time_scale
    if scale != 1:
        weight = f"{1 / scale:.3g} of what" if scale > 1 else f"{1 / scale:.3g} times what"
        found.append(
            f"A second of the device lasted {scale:g} s. Noticing a loss and regrouping took real time all "
            f"the same: beside the device's they weigh {weight} they would at a time scale of 1."
        )
    return found


def _of_the_command(summary: Summary, timeline: Timeline | None) -> list[str]:
    """What cannot be seen of an external job, or is seen in another way than of ours."""
    if timeline is None or timeline.runtime != COMMAND_RUNTIME:
        return []
    found: list[str] = []
    if summary.throughput_unit != WORK_UNITS[0]:
        found.append(
            f"Throughput is in {summary.throughput_unit} per second: the script does not show its tokens"
            f"{'' if summary.throughput_unit == WORK_UNITS[1] else ' or samples'}. chaos.agent.step() can report them."
        )
    found += _of_the_count(timeline)
    if timeline.twin.first and timeline.steps.first and timeline.twin.first[0].step != timeline.steps.first[0].step:
        found.append(
            f"The fault-free baseline began at step {timeline.twin.first[0].step}, and the job at "
            f"{timeline.steps.first[0].step}: it continued from what the job had saved; --reset puts it back to its "
            "beginning before each start."
        )
    return [
        *found,
        *_of_the_unobserved(timeline),
        *_of_the_replicas(timeline),
        *_of_the_generations(timeline),
        *_of_the_orphans(summary),
    ]


def _of_the_unobserved(timeline: Timeline) -> list[str]:
    """Ranks of the job of which nothing is known, or only that they were started."""
    seen = timeline.observation
    if seen is None or seen.num_observed == seen.num_ranks:
        return []
    parts = []
    if seen.silent:
        parts.append(
            f"no agent ran in {_ranks_in_short(seen.silent)} (another machine or container, another Python, its "
            "options -I, -E or -S, or a cleaned environment)"
        )
    if seen.without_step:
        parts.append(f"no step of a training was seen in {_ranks_in_short(seen.without_step)}")
    missing = seen.num_ranks - seen.num_observed
    are = "is" if missing == 1 else "are"
    return [
        f"{missing} of {count(seen.num_ranks, 'rank')} {are} not observed: {', and '.join(parts)}. What happened there "
        "is not known, and a gate that needs every rank is undecided."
    ]


def _ranks_in_short(ranks: Sequence[int]) -> str:
    if len(ranks) <= _MAX_NAMED_RANKS:
        return name_numbers("rank", ranks)
    return f"{name_numbers('rank', ranks[:_MAX_NAMED_RANKS])} and {len(ranks) - _MAX_NAMED_RANKS} more"


def _of_the_count(timeline: Timeline) -> list[str]:
    """Where a later attempt continued, as far as that is not known, or its optimizer did not."""
    found: list[str] = []
    if timeline.steps_unknown_because == NOT_COUNTED:
        found.append(
            "A later attempt's steps were counted from 1 again. Something was loaded, but its parameters are not those "
            "of one step that was seen being saved, and the optimizer keeps no count of its own or began it with 1: it "
            "is not known whether it resumed from a checkpoint, nor how many steps were lost or recomputed, and no "
            "loss is compared with a baseline's. Goodput counts each number once. chaos.agent.step(number=...) reports "
            "the number."
        )
    for attempt in timeline.attempts[1:]:
        if attempt.ranks_differ:
            found.append(
                f"{ranks_differ_words(attempt)}: it is not known how many steps were lost or recomputed, and no loss "
                "is compared with a baseline's."
            )
        elif attempt.is_optimizer_fresh:
            after = max(attempt.resumed_after.values(), default=0)
            count_words = "" if attempt.optimizer_steps is None else ", and its count of steps began with 1"
            found.append(
                f"Attempt {attempt.number} continued without the state of its optimizer: that was empty{count_words}, "
                f"while the parameters are those of step {after}."
            )
    return found


def ranks_differ_words(attempt: Attempt) -> str:
    """`In attempt 2 the ranks continued from different steps (rank 0 after step 30, rank 1 after step 20)`."""
    by_step: dict[int, list[int]] = {}
    for rank, after in attempt.resumed_after.items():
        by_step.setdefault(after, []).append(rank)
    said = [f"{name_ranks(ranks)} after step {after}" for after, ranks in by_step.items()]
    return f"In attempt {attempt.number} the ranks continued from different steps ({', '.join(said)})"


_BRIEF_SECONDS = 0.1
"""Processes of an earlier attempt that are there for less than this alongside a later one are not named."""


def _of_the_generations(timeline: Timeline) -> Iterator[str]:
    """Processes of an earlier attempt that were there alongside a later one, and neither saved nor trained for long."""
    for one in timeline.overlaps:
        if not one.is_violation and one.alive_seconds >= _BRIEF_SECONDS:
            words = overlap_words(one)
            yield f"{words[0].upper()}{words[1:]}."


def overlap_words(one: Overlap) -> str:
    """`ranks 0 and 1 of attempt 1 still trained when attempt 2 took its first step, for 3 s: 20 steps and 2 saves`."""
    whom = f"{name_ranks(one.ranks) or 'processes'} of attempt {one.earlier}"
    if not one.steps and not one.saves:
        were = "were" if len(one.ranks) > 1 else "was"
        return (
            f"{whom} {were} still there when attempt {one.attempt} took its first step, for "
            f"{name_seconds(one.alive_seconds)} more, and took no step"
        )
    saved = f"saved {count(one.saves, 'checkpoint')}" if one.saves else "saved nothing"
    return (
        f"{whom} still trained when attempt {one.attempt} took its first step: {count(one.steps, 'step')} more in "
        f"{name_seconds(one.training_seconds)}, {saved}, and ended after {name_seconds(one.alive_seconds)}"
    )


def _of_the_orphans(summary: Summary) -> Iterator[str]:
    """Processes that the command left running: a scheduler that starts it again would have both."""
    if not summary.orphaned_processes:
        return
    ranks = f", {name_ranks(summary.orphaned_ranks)} among them" if summary.orphaned_ranks else ""
    yield (
        f"The command left {count(summary.orphaned_processes, 'process')} running at its end{ranks}: chaos ended them. "
        "A later start would have run alongside them."
    )


def _of_the_replicas(timeline: Timeline) -> list[str]:
    """What became of the state that ranks have in common, where a fault changed values in some of them."""
    replicas, kinds = timeline.replicas, registry()
    is_corrupted = any(
        one.verified is not None and kinds[one.fault].changes_values for one in timeline.incidents if one.fault in kinds
    )
    if replicas is None or not is_corrupted:
        return []
    if replicas.unknown is not None:
        return [
            f"Whether the replicas still agree is not known: {replicas.unknown}. A value that is wrong in one rank "
            "shows only where the loss does."
        ]
    found: list[str] = []
    if passing := [one for one in replicas.differences if one.until_step is not None]:
        first = passing[0]
        more = f" and {len(passing) - 1} more" if len(passing) > 1 else ""
        found.append(
            f"{first.tensor}{more} differed between replicas after step {first.since_step}, and no longer after step "
            f"{first.until_step}."
        )
    if replicas.last_step is not None and replicas.last_step < timeline.last_step:
        found.append(
            f"The replicas' state was last compared after step {replicas.last_step} of {timeline.last_step}: what "
            "differed later is not known."
        )
    return found


def _of_the_restarts(timeline: Timeline | None) -> list[str]:
    if timeline is None or not any(stall.is_restart for stall in timeline.stalls):
        return []
    return [
        "After the loss all ranks ended and were started again. They are forked from a process that has torch "
        "imported, the loss was noticed at once, and a repair that is due after so many steps came after as long as "
        "those usually take: with an external launcher a job waits longer."
    ]


def _of_the_speed(summary: Summary) -> list[str]:
    found: list[str] = []
    before, after = summary.num_steps_before, summary.num_steps_after
    if not summary.incidents or before is None:
        return found
    if 0 < before < _FEW_STEPS:
        found.append(
            f"The throughput before the fault is a median over {count(before, 'step')} only (the first {WARM_UP_STEPS} "
            "are left out if enough others remain): a fault at a later step gives a more stable figure."
        )
    drop, noise = summary.throughput_drop_ratio, summary.throughput_noise_ratio
    if drop is not None and noise is not None and abs(drop) <= noise:
        found.append(
            f"The drop of {drop:.1%} is within the run's own noise: without any fault, two neighbouring stretches of "
            f"as many steps differ by {noise:.1%} (median)."
        )
    share = summary.degraded_share_ratio
    if share:
        found.append(
            f"{share:.1%} of the run's samples x layers were computed approximately. Tokens per second count them in "
            "full; for the training they count for less (see docs/explanation/convergence.md)."
        )
    if not after and any(incident.verified for incident in summary.incidents):
        found.append("No step came after the fault was repaired or over, so there is no throughput after that.")
    elif after and after < _FEW_STEPS:
        found.append(f"The throughput after the repair is a median over {count(after, 'step')} only.")
    return found


def _of_the_holds(summary: Summary, timeline: Timeline | None) -> list[str]:
    """That the drop is in part the tool's own doing: it holds ranks until the effect of a fault was seen."""
    seconds = [end - start for start, end in windows_under_fault(timeline)] if timeline is not None else []
    held = [one.badput_seconds["injection"] or 0.0 for one in summary.incidents if one.verified]
    if not (summary.throughput_drop_ratio or 0.0) > 0.0 or not sum(held) > MUCH_HELD * sum(seconds):
        return []
    return [
        f"Of the {name_seconds(sum(seconds))} during the fault chaos itself held ranks for "
        f"{name_seconds(sum(held))}, to verify its effect: this is part of the drop and of the recovery."
    ]


def _of_the_losses(summary: Summary, timeline: Timeline | None) -> list[str]:
    timeline_has_twin = timeline is not None and bool(timeline.twin.first)
    if timeline is not None and timeline.is_twin_disturbed:
        failed = timeline.twin_failed
        said = [*map(_lost_words, timeline.twin_losses), *([f"it failed: {failed}"] if failed is not None else [])]
        return [f"Nothing is compared with the fault-free baseline, which was disturbed itself: {'; '.join(said)}."]
    if summary.twin_loss is None:
        why = "the run had no fault-free baseline"
        if summary.twin_planned:
            why = "the fault-free baseline has no loss to compare with"
            if summary.command and timeline_has_twin and summary.final_loss is None:
                why = "the loss of the command is not known. A script can report it: chaos.agent.step(loss=loss)"
        if summary.twin_planned and summary.command and not timeline_has_twin:
            why = (
                "the fault-free baseline took no step. A job that resumes from its own checkpoint has nothing left "
                "to do: --reset 'rm -rf ...' removes the checkpoint before each start"
            )
        if timeline_has_twin and summary.steps_unknown_because is not None:
            why = "the numbers of the steps after the restart are not known"
        if summary.twin_planned and summary.twin_outcome is None and summary.job_outcome != "completed":
            why = "the fault-free baseline runs after the job, and the job did not complete"
        return [f"No loss deviation: {why}."] if summary.incidents or summary.twin_planned else []
    if summary.num_loss_steps is not None and summary.num_loss_steps < LOSS_STEPS:
        return [
            f"The losses are means over {count(summary.num_loss_steps, 'step')} that both jobs committed, "
            f"not {LOSS_STEPS}."
        ]
    return []


def _of_the_steps_left_out(timeline: Timeline | None) -> list[str]:
    """Steps that count as committed, with all their samples, although no optimizer took them in."""
    left_out = [] if timeline is None else [step.step for step in timeline.steps.first if step.is_left_out]
    if not left_out:
        return []
    whose = f"Step {left_out[0]} was" if len(left_out) == 1 else f"{len(left_out)} steps, from {left_out[0]} on, were"
    return [f"{whose} rejected: committed, but the model learned nothing from their samples."]


def _of_what_did_not_fire(timeline: Timeline | None) -> list[str]:
    """Incidents that were planned by chance and are none of the run's, those that came too late for it left out."""
    not_fired = [] if timeline is None else [one for one in timeline.not_due if not one.is_after_the_end]
    shown = [
        f"Incident {one.incident} was planned and not injected: {one.reason}." for one in not_fired[:_MAX_NOT_FIRED]
    ]
    if len(not_fired) > len(shown):
        others = len(not_fired) - len(shown)
        shown.append(f"The same holds for {others} more {'incident' if others == 1 else 'incidents'}.")
    return shown


def _of_the_checkpoints(timeline: Timeline | None) -> list[str]:
    """Checkpoints that were not saved: a job that needs one goes back to an older one, or to the start."""
    unsaved = {} if timeline is None else timeline.unsaved_checkpoints
    if timeline is None or not unsaved:
        return []
    step, (_, reason) = next(iter(unsaved.items()))
    active = sorted(one.active for one in timeline.incidents if one.active is not None)
    longest = list(accumulate((until for _, until in active), max))
    begun = (bisect_right(active, (at, inf)) for at, _ in unsaved.values())
    of_faults = sum(
        number > 0 and at <= longest[number - 1] for number, (at, _) in zip(begun, unsaved.values(), strict=True)
    )
    while_active = f", {of_faults} of them while a fault was active" if of_faults else ""
    older = "an older one, or to its start" if len(unsaved) < timeline.num_checkpoints else "its start"
    return [
        f"{len(unsaved)} of {count(timeline.num_checkpoints, 'checkpoint')} could not be saved{while_active}. The "
        f"first was that of step {step}: {reason}. A job that needs one of them goes back to {older}."
    ]


def unplanned_words(loss: UnplannedLossSummary) -> str:
    """`Rank 3 was lost after step 57 (killed by SIGKILL), which no fault explains`."""
    said = f"{_lost_words(loss)}, which no fault explains"
    return said[0].upper() + said[1:]


def _lost_words(loss: UnplannedLossSummary | UnplannedLoss) -> str:
    parts = [name_numbers("rank", loss.ranks)] if loss.ranks else []
    if loss.role == SUPERVISOR:
        parts.append("the supervisor of their node" if len(loss.ranks) > 1 else "its node's supervisor")
    elif loss.role:
        parts.append(f"the {loss.role}")
    after = f"after step {loss.step}" if loss.step else "before the first step was committed"
    said = [", ".join(exit_text(code) for code in loss.exit_codes)] if loss.exit_codes else []
    if loss.pids:
        of = f", {name_numbers('attempt', loss.attempts)}" if loss.attempts else ""
        said.append(f"{name_numbers('pid', loss.pids)}{of}")
    how = f" ({'; '.join(said)})" if said else ""
    were = "were" if len(loss.ranks) > 1 or len(parts) > 1 else "was"
    return f"{' and '.join(parts)} {were} lost {after}{how}"


def _of_the_unplanned(summary: Summary) -> list[str]:
    return [
        f"{unplanned_words(loss)}. Its cost is unplanned badput, and counts for no incident."
        for loss in summary.unplanned_losses
    ]


def _of_the_repairs(timeline: Timeline | None) -> list[str]:
    """What was to come back and did not: one that had time to makes the run inconclusive, and is told as its reason."""
    found = [] if timeline is None else [one.words for one in unfinished_repairs(timeline) if not one.had_time]
    return [f"{words[0].upper()}{words[1:]}." for words in found]


def _outlasted(timeline: Timeline) -> Iterator[tuple[int, str]]:
    for one in timeline.incidents:
        if one.outlasted and one.injected is not None:
            until = inf if one.lifted is None else one.lifted
            steps = num_within(timeline.steps, [(one.injected, until)])
            yield (
                one.incident,
                f"Incident {one.incident}: {one.fault} was to last {one.outlasted} and went on for "
                f"{count(steps, 'step')}, until its effect was seen.",
            )


def _of_the_incidents(summary: Summary, timeline: Timeline) -> list[str]:
    outlasted = dict(_outlasted(timeline))
    found: list[str] = []
    slow: list[int] = []
    for incident in summary.incidents:
        name = f"Incident {incident.incident}"
        if not incident.verified:
            found.append(f"{name} ({incident.fault}) had no verified effect: it counts in no figure.")
        elif incident.recovered and incident.phases_seconds["restore"] is None:
            slow.append(incident.incident)
        if incident.incident in outlasted:
            found.append(outlasted[incident.incident])
        if not incident.phase_order_valid:
            found.append(f"{name}: its phases are in an impossible order in the log; do not trust their durations.")
    if slow:
        found.append(
            f"{name_numbers('Incident', slow)}: throughput did not come back to 95% over {RESTORED_STEPS} steps "
            "before the run ended."
        )
    return found


def _of_the_shared_badput(timeline: Timeline) -> Iterator[str]:
    """Seconds that are counted for one incident although others were active, too, and may have caused them."""
    shared = [one for one in shared_badput(timeline) if name_seconds(one.seconds) != name_seconds(0.0)]
    for one in shared[:_MAX_SHARED]:
        yield (
            f"{name_seconds(one.seconds)} of the badput of incident {one.incident} fell into a time when "
            f"{name_numbers('incident', one.others)} {'were' if len(one.others) > 1 else 'was'} active, too, and may "
            "have caused part of it: it is not split."
        )
    if len(shared) > _MAX_SHARED:
        more = shared[_MAX_SHARED:]
        yield (
            f"The same holds for {name_seconds(sum(one.seconds for one in more))} of the badput of {len(more)} further "
            f"{'incident' if len(more) == 1 else 'incidents'}."
        )
