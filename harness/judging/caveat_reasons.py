"""The caveats of a run: each code, and its sentence.

A new caveat is a line of `CAVEATS`, and the place in `harness.judging.caveats` that yields it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chaos.refusals import refusal_text
from harness.analysis.command.failure_cause import FailureCause, cause_words
from harness.analysis.contained import PROBLEMS
from harness.analysis.incident import RESTORED_STEPS
from harness.analysis.integrity import LOSS_STEPS
from harness.analysis.job_failures import failure_text
from harness.analysis.steps import WARM_UP_STEPS, WORK_UNITS
from harness.analysis.words import count, exit_text, name_numbers, name_ranks, name_seconds, one_line
from harness.judging.checkpoint_words import damage_text, error_text
from harness.judging.resume_words import NOT_COMPARED
from harness.judging.shared_texts import capital, lost_words, shared_text
from mecefo_runtime.system.reason import Made, Reason, Table

_MAX_NAMED_RANKS = 8
"""So many ranks are named one by one."""
_MAX_OTHER_RUNS = 3
"""So many other runs on the machine are named."""


def caveat_text(caveat: Reason) -> str:
    """The sentence, with its full stop."""
    return CAVEATS.text(caveat)


# ---- the log and the set-up ----


def _lines_left_out(number: int) -> str:
    return f"{number} {'line of the log was' if number == 1 else 'lines of the log were'} unreadable and left out."


def _dilated(ratio: float, rated: bool = False) -> str:
    padded = "its rated time, measured once at the start" if rated else f"{ratio:g} times its CPU time"
    return (
        f"Time dilation {ratio:g} was active: every compute segment was padded to {padded}, so that each rank "
        "behaves like a device of its own. Compare throughputs within this run only; they are not this "
        "machine's speed."
    )


def _overrun(
    emulated: bool = False,
    overrun_ratio: float | None = None,
    late_ratio: float | None = None,
    worst_seconds: float | None = None,
) -> str:
    busy = []
    if overrun_ratio is not None and overrun_ratio > 0:
        busy.append(f"compute took {overrun_ratio:.0%} longer than it should have")
    by_how_much = f" by up to {name_seconds(worst_seconds)}" if worst_seconds else ""
    if late_ratio:
        busy.append(f"{late_ratio:.1%} of its segments were late{by_how_much}")
    pace, option = ("time scale", "--time-scale") if emulated else ("dilation", "--dilation")
    return (
        f"The machine was too busy for the {pace}: {', and '.join(busy)}. The throughputs show it. Repeat the run "
        f"on a quieter machine, or with a larger {option}."
    )


def _bubble(ratio: float) -> str:
    return (
        f"Between its microbatches a rank waits {ratio:.0%} of a fault-free step for its pipeline. A rank that "
        "also runs a lost stage uses that time, so the drop is smaller here than with many microbatches."
    )


def _other_runs(runs: Sequence[Mapping[str, Any]]) -> str:
    whose = [_other_run(**one) for one in runs[:_MAX_OTHER_RUNS]]
    more = len(runs) - len(whose)
    subject = f"{len(runs)} other runs of chaos" if len(runs) > 1 else "Another run of chaos"
    named = f"{'; '.join(whose)}{f'; and {more} more' if more else ''}"
    return (
        f"{subject} shared the machine ({named}): times are longer than those of a run that has the machine to itself, "
        "recovery included."
    )


def _other_run(
    run: str,
    from_seconds: float,
    folder: str | None = None,
    uid: int | None = None,
    until_seconds: float | None = None,
) -> str:
    """`chaos-runs/kill-node/20261126T110000Z, from 3.20 s to 41.0 s of this run`."""
    where = folder or f"{run} of the user with the number {uid}"
    until = "the end" if until_seconds is None else name_seconds(until_seconds)
    since = name_seconds(from_seconds) if from_seconds else "the start"
    return one_line(f"{where}, from {since} to {until} of this run")


def _message_rated(seconds: float) -> str:
    return (
        f"A message between two ranks was rated at {name_seconds(seconds)}: a slower link shows in the throughput when "
        "its messages take longer than that."
    )


def _time_scaled(scale: float) -> str:
    weight = f"{1 / scale:.3g} of what" if scale > 1 else f"{1 / scale:.3g} times what"
    return (
        f"A second of the device lasted {scale:g} s. Noticing a loss and regrouping took real time all "
        f"the same: beside the device's they weigh {weight} they would at a time scale of 1."
    )


# ---- a command ----


def _throughput_unit(unit: str) -> str:
    return (
        f"Throughput is in {unit} per second: the script does not show its tokens"
        f"{'' if unit == WORK_UNITS[1] else ' or samples'}. chaos.agent.step() can report them."
    )


def _optimizer_fresh(attempt: int, step: int, optimizer_steps: int | None = None) -> str:
    count_words = "" if optimizer_steps is None else ", and its count of steps began with 1"
    return (
        f"Attempt {attempt} continued without the state of its optimizer: that was empty{count_words}, "
        f"while the parameters are those of step {step}."
    )


def _resumed_apart(attempt: int, steps: Sequence[Any]) -> str:
    where = shared_text(Reason("ranks_resumed_apart", attempt=attempt, steps=steps))
    return (
        f"{where}: it is not known how many steps were lost or recomputed, and no loss is compared with a baseline's."
    )


def _unobserved(
    ranks: int,
    unobserved: int,
    silent: Sequence[int] = (),
    without_step: Sequence[int] = (),
    on_lost_hosts: Sequence[int] | None = None,
) -> str:
    parts = []
    if silent:
        parts.append(
            f"no agent ran in {_in_short(silent)} (another machine or container, a Python older than 3.10, its "
            "options -I, -E or -S, or a cleaned environment)"
        )
    if without_step:
        parts.append(f"no step of a training was seen in {_in_short(without_step)}")
    if on_lost_hosts:
        parts.append(f"the agent on the host of {_in_short(on_lost_hosts)} was lost")
    are = "is" if unobserved == 1 else "are"
    return (
        f"{unobserved} of {count(ranks, 'rank')} {are} not observed: {', and '.join(parts)}. What happened there "
        "is not known, and a gate that needs every rank is undecided."
    )


def _in_short(ranks: Sequence[int]) -> str:
    if len(ranks) <= _MAX_NAMED_RANKS:
        return name_numbers("rank", ranks)
    return f"{name_numbers('rank', ranks[:_MAX_NAMED_RANKS])} and {len(ranks) - _MAX_NAMED_RANKS} more"


def _beside_later(overlap: Reason) -> str:
    return f"{capital(shared_text(overlap))}."


def _orphans(processes: int, ranks: Sequence[int] = ()) -> str:
    among = f", {name_ranks(ranks)} among them" if ranks else ""
    return (
        f"The command left {count(processes, 'process')} running at its end{among}: chaos ended them. "
        "A later start would have run alongside them."
    )


REPLICAS_UNKNOWN: Mapping[str, str] = {
    "no_looks": "no two ranks reported their state after the same step",
    "none_before_fault": "the fault came before the first checksum of the ranks' state: choose a later step",
    "sharded": "no two ranks hold the same tensors, as where a model is sharded over all of them",
    "none_after_fault": "the ranks' state was not checked after the fault",
}


def _replicas_unknown(because: Reason) -> str:
    why = REPLICAS_UNKNOWN.get(because.code) or PROBLEMS.text(because)
    return (
        f"Whether the replicas still agree is not known: {why}. A value that is wrong in one rank shows only where the "
        "loss does."
    )


def _replicas_differed(tensor: str, from_step: int, to_step: int, others: int = 0) -> str:
    more = f" and {others} more" if others else ""
    return f"{tensor}{more} differed between replicas after step {from_step}, and no longer after step {to_step}."


def _notice_not_reached(
    incident: int, signal: str, deliver: str, ranks: Sequence[int], dropped: int | None = None
) -> str:
    why = "whoever got it did not pass it on"
    if dropped:
        why = "the kernel drops a signal for which the first process of a container has no handler"
    torchrun = "" if signal == "SIGTERM" else f"; torchrun passes {signal} on with `--signals-to-handle {signal},...`"
    return (
        f"The notice of incident {incident} ({signal}, deliver: {deliver}) did not reach {name_ranks(ranks)}: {why}. "
        f"With `exec PROGRAM` a shell becomes the program that gets it{torchrun}."
    )


def _notice_reach_unknown(incident: int, signal: str, deliver: str, ranks: Sequence[int]) -> str:
    return (
        f"It was not observed whether the notice of incident {incident} ({signal}, deliver: {deliver}) reached "
        f"{name_ranks(ranks)}."
    )


def _notice_ended_data_workers(incident: int, signal: str, deliver: str, saved_step: int | None = None) -> str:
    saved = "before a checkpoint was saved" if saved_step is None else f"after the checkpoint of step {saved_step}"
    return (
        f"The notice of incident {incident} ({signal}) ended DataLoader workers too, and ranks ended of that {saved}. "
        f"Workers that ignore {signal} (worker_init_fn) live on until the rank has saved."
    )


def _launcher_ended_ranks(
    incident: int, signal: str, deliver: str, ranks: Sequence[int], seconds: float | None = None
) -> str:
    after = "" if seconds is None else f" {name_seconds(seconds)} after the notice"
    return (
        f"SIGKILL ended {name_ranks(ranks)}{after}, before the end of the grace of incident {incident}, and chaos did "
        "not send it: torchrun waits 30 s for its ranks after a signal."
    )


def _fewer_ranks(before: int, after: int) -> str:
    return f"Ranks: {before} -> {after} for good. The job went on with fewer, and did not get them back."


def _rank_ended(cause: Reason, known: bool = False, further: Reason | None = None) -> str:
    left = "no step was left" if known else "whether steps were left is not known"
    if further is not None:
        left = shared_text(further)
    words = capital(cause_words(FailureCause.of(cause)))
    return f"{words}, which no fault explains; the command ended with {exit_text(0)}: {left}."


def _length_unknown(step: int, baseline_ranks: int | None = None) -> str:
    hint = "Give --steps, or a fault-free baseline (--baseline-run)."
    if baseline_ranks is not None:
        hint = f"The fault-free baseline ran with {count(baseline_ranks, 'rank')}. Give --steps."
    return f"Nothing says how long the job should be: it ended by itself after step {step}. {hint}"


# ---- speed and losses ----


def _few_before(steps: int) -> str:
    return (
        f"The throughput before the fault is a median over {count(steps, 'step')} only (the first {WARM_UP_STEPS} "
        "are left out if enough others remain): a fault at a later step gives a more stable figure."
    )


def _few_after(steps: int) -> str:
    return f"The throughput after the repair is a median over {count(steps, 'step')} only."


def _within_noise(drop_ratio: float, noise_ratio: float) -> str:
    return (
        f"The drop of {drop_ratio:.1%} is within the run's own noise: without any fault, two neighbouring stretches of "
        f"as many steps differ by {noise_ratio:.1%} (median)."
    )


def _approximated(share_ratio: float) -> str:
    return (
        f"{share_ratio:.1%} of the run's samples x layers were computed approximately. Tokens per second count them in "
        "full; for the training they count for less (see docs/explanation/convergence.md)."
    )


def _held(fault_seconds: float, held_seconds: float) -> str:
    return (
        f"Of the {name_seconds(fault_seconds)} during the fault chaos itself held ranks for "
        f"{name_seconds(held_seconds)}, to verify its effect: this is part of the drop and of the recovery."
    )


def _baseline_disturbed(losses: Sequence[Mapping[str, Any]] = (), failure: Reason | None = None) -> str:
    disturbed = [lost_words(**loss) for loss in losses]
    disturbed += [] if failure is None else [f"it failed: {failure_text(failure)}"]
    return f"Nothing is compared with the fault-free baseline, which was disturbed itself: {'; '.join(disturbed)}."


NO_DEVIATION: Mapping[str, str] = {
    "no_baseline": "the run had no fault-free baseline",
    "baseline_without_loss": "the fault-free baseline has no loss to compare with",
    "loss_not_reported": ("the loss of the command is not known. A script can report it: chaos.agent.step(loss=loss)"),
    "baseline_without_step": (
        "the fault-free baseline took no step. A job that resumes from its own checkpoint has nothing left "
        "to do: --reset 'rm -rf ...' removes the checkpoint before each start"
    ),
    "steps_not_counted": "the numbers of the steps after the restart are not known",
    "job_not_completed": "the job did not complete, and neither did its fault-free baseline",
}


def _not_compared(attempt: int, because: str, against: str | None = None) -> str:
    why = NOT_COMPARED.get(because, because)
    if against == "baseline":
        return f"Batches, learning rates and states were not compared with the fault-free baseline: {why}."
    return (
        f"Whether it is still the same training after the restart (attempt {attempt}) is not known. Nothing was "
        f"compared: {why}."
    )


def _no_deviation(because: str) -> str:
    return f"No loss deviation: {NO_DEVIATION.get(because, because)}."


def _few_losses(steps: int) -> str:
    return f"The losses are means over {count(steps, 'step')} that both jobs committed, not {LOSS_STEPS}."


def _rejected(steps: int, first_step: int) -> str:
    whose = f"Step {first_step} was" if steps == 1 else f"{steps} steps, from {first_step} on, were"
    return f"{whose} rejected: committed, but the model learned nothing from their samples."


# ---- incidents ----


def _not_fired(incident: int, why: Reason) -> str:
    return f"Incident {incident} was planned and not injected: {refusal_text(why)}."


def _more_not_fired(number: int) -> str:
    return f"The same holds for {number} more {'incident' if number == 1 else 'incidents'}."


def _outlasted(incident: int, fault: str, planned: str, steps: int) -> str:
    return (
        f"Incident {incident}: {fault} was to last {planned} and went on for "
        f"{count(steps, 'step')}, until its effect was seen."
    )


def _not_restored(incidents: Sequence[int]) -> str:
    return (
        f"{name_numbers('Incident', incidents)}: throughput did not come back to 95% over {RESTORED_STEPS} steps "
        "before the run ended."
    )


def _shared_badput(incident: int, seconds: float, others: Sequence[int]) -> str:
    return (
        f"{name_seconds(seconds)} of the badput of incident {incident} fell into a time when "
        f"{name_numbers('incident', others)} {'were' if len(others) > 1 else 'was'} active, too, and may "
        "have caused part of it: it is not split."
    )


def _more_shared_badput(seconds: float, incidents: int) -> str:
    return (
        f"The same holds for {name_seconds(seconds)} of the badput of {incidents} further "
        f"{'incident' if incidents == 1 else 'incidents'}."
    )


def _before_save(incident: int, fault: str, step: int | None = None) -> str:
    save = "a save" if step is None else f"the save of step {step}"
    return (
        f"Incident {incident} ({fault}) came before the first byte of {save} was written: a fault in the middle of the "
        "write is not covered by this run."
    )


def _unplanned(loss: Reason) -> str:
    return f"{shared_text(loss)}. Its cost is unplanned badput, and counts for no incident."


def _unsaved(unsaved: int, checkpoints: int, step: int, error: str, during_faults: int = 0) -> str:
    while_active = f", {during_faults} of them while a fault was active" if during_faults else ""
    older = "an older one, or to its start" if unsaved < checkpoints else "its start"
    return (
        f"{unsaved} of {count(checkpoints, 'checkpoint')} could not be saved{while_active}. The "
        f"first was that of step {step}: {error}. A job that needs one of them goes back to {older}."
    )


def _unusable(
    step: int,
    path: str | None,
    damage: Sequence[Mapping[str, Any]] = (),
    moment: str | None = None,
    incident: int | None = None,
) -> str:
    when = "" if moment is None else " was found when an attempt had ended: it"
    by = "" if incident is None else f". Incident {incident} damaged it"
    of = "" if path is None else f" ({path})"
    return f"The checkpoint of step {step}{of}{when} {damage_text(damage, path)}{by}."


def _older_loaded(attempt: int, step: int, newest: int, error: str | None = None, failed: str | None = None) -> str:
    why = "" if error is None else f": {failed} raised {error_text(error)}"
    return f"Attempt {attempt} loaded the checkpoint of step {step}, not that of step {newest}, the newest saved{why}."


def _loaded_apart(attempt: int, steps: Sequence[int]) -> str:
    return f"In attempt {attempt} the ranks loaded the checkpoints of different steps: {', '.join(map(str, steps))}."


def _repair(repair: Reason) -> str:
    return f"{capital(shared_text(repair))}."


CAVEATS = Table(
    {
        "log_cut_off": (
            "The log was cut off: the figures describe the run until then, and it is not known what was left behind."
        ),
        "lines_left_out": Made(_lines_left_out, "{number} lines of the log were unreadable and left out."),
        "dilated": Made(_dilated, "Time dilation {ratio} was active: every compute segment was padded to ..."),
        "emulated": (
            "Emulated: the {provenance} table {device_model} gave the times of {device} with "
            "the model {model}, of computing, messages and state. A small model of as many layers did the "
            "arithmetic: the loss is that of the small model, and says nothing about {model}."
        ),
        "saving_not_emulated": (
            "Checkpoints were those of the small model, on this machine's disk, and processes were started on this "
            "machine: what that takes of the device's job is not emulated."
        ),
        "time_scaled": Made(_time_scaled, "A second of the device lasted {scale} s. ..."),
        "message_rated": Made(_message_rated, "A message between two ranks was rated at {seconds}: ..."),
        "machine_too_busy": Made(
            _overrun,
            "The machine was too busy for the dilation: compute took {overrun_ratio} longer than it should have ...",
        ),
        "pipeline_bubble": Made(
            _bubble, "Between its microbatches a rank waits {ratio} of a fault-free step for its pipeline. ..."
        ),
        "no_peer": (
            "Data parallel is 1: no rank has a peer with the same layers, so no copy of a lost rank's state exists."
        ),
        "other_runs": Made(_other_runs, "{runs} other runs of chaos shared the machine: times are longer than ..."),
        "no_tokens": Made(
            _throughput_unit, "Throughput is in {unit} per second: the script does not show its tokens ..."
        ),
        "steps_may_differ": (
            "The number of ranks changed, and it is not known how many samples a step of each attempt had: the speed "
            "after the fault is not compared with that before."
        ),
        "steps_not_counted": (
            "A later attempt's steps were counted from 1 again. Something was loaded, but its parameters are not those "
            "of one step that was seen being saved, and the optimizer keeps no count of its own or began it with 1: it "
            "is not known whether it resumed from a checkpoint, nor how many steps were lost or recomputed, and no "
            "loss is compared with a baseline's. Goodput counts each number once. chaos.agent.step(number=...) reports "
            "the number."
        ),
        "ranks_resumed_apart": Made(
            _resumed_apart,
            "In attempt {attempt} the ranks continued from different steps ({steps}): it is not known how many steps "
            "were lost or recomputed, and no loss is compared with a baseline's.",
        ),
        "optimizer_fresh": Made(
            _optimizer_fresh,
            "Attempt {attempt} continued without the state of its optimizer: that was empty, while the parameters are "
            "those of step {step}.",
        ),
        "baseline_began_elsewhere": (
            "The fault-free baseline began at step {baseline_step}, and the job at "
            "{step}: it continued from what the job had saved; --reset puts it back to its "
            "beginning before each start."
        ),
        "ranks_unobserved": Made(_unobserved, "{unobserved} of {ranks} ranks are not observed: ..."),
        "replicas_unknown": Made(
            _replicas_unknown,
            "Whether the replicas still agree is not known: {because}. A value that is wrong in one rank shows only "
            "where the loss does.",
        ),
        "replicas_differed": Made(
            _replicas_differed,
            "{tensor} and {others} more differed between replicas after step {from_step}, and no longer after step "
            "{to_step}.",
        ),
        "replicas_compared_early": (
            "The replicas' state was last compared after step {compared_step} of {last_step}: what "
            "differed later is not known."
        ),
        "beside_later_attempt": Made(_beside_later, "{overlap}."),
        "orphans_ended": Made(
            _orphans,
            "The command left {processes} processes running at its end, {ranks} among them: chaos ended them. ...",
        ),
        "notice_not_reached": Made(
            _notice_not_reached,
            "The notice of incident {incident} ({signal}, deliver: {deliver}) did not reach {ranks}: ...",
        ),
        "notice_reach_unknown": Made(
            _notice_reach_unknown,
            "It was not observed whether the notice of incident {incident} ({signal}, deliver: {deliver}) reached "
            "{ranks}.",
        ),
        "notice_ended_data_workers": Made(
            _notice_ended_data_workers,
            "The notice of incident {incident} ({signal}) ended DataLoader workers, and the ranks ended of that ...",
        ),
        "launcher_ended_ranks": Made(
            _launcher_ended_ranks,
            "SIGKILL ended {ranks} {seconds} after the notice, before the end of the grace of incident {incident}: ...",
        ),
        "fewer_ranks": Made(
            _fewer_ranks, "Ranks: {before} -> {after} for good. The job went on with fewer, and did not get them back."
        ),
        "rank_ended": Made(
            _rank_ended, "{cause}, which no fault explains; the command ended with exit code 0: {further}."
        ),
        "length_unknown": Made(
            _length_unknown,
            "Nothing says how long the job should be: it ended by itself after step {step}. Give --steps ...",
        ),
        "all_started_again": (
            "After the loss all ranks ended and were started again. They are forked from a process that has torch "
            "imported, the loss was noticed at once, and a repair that is due after so many steps came after as long "
            "as those usually take: with an external launcher a job waits longer."
        ),
        "few_steps_before": Made(
            _few_before, "The throughput before the fault is a median over {steps} steps only ..."
        ),
        "drop_within_noise": Made(_within_noise, "The drop of {drop_ratio} is within the run's own noise: ..."),
        "approximated": Made(
            _approximated, "{share_ratio} of the run's samples x layers were computed approximately. ..."
        ),
        "no_step_after": "No step came after the fault was repaired or over, so there is no throughput after that.",
        "few_steps_after": Made(_few_after, "The throughput after the repair is a median over {steps} steps only."),
        "held_by_chaos": Made(
            _held, "Of the {fault_seconds} during the fault chaos itself held ranks for {held_seconds}, ..."
        ),
        "baseline_disturbed": Made(
            _baseline_disturbed,
            "Nothing is compared with the fault-free baseline, which was disturbed itself: {losses}; it "
            "failed: {failure}.",
        ),
        "no_loss_deviation": Made(_no_deviation, "No loss deviation: {because}."),
        "few_losses": Made(_few_losses, "The losses are means over {steps} steps that both jobs committed, not 10."),
        "steps_rejected": Made(
            _rejected,
            "{steps} steps, from {first_step} on, were rejected: committed, but the model learned nothing from their "
            "samples.",
        ),
        "restart_not_compared": Made(
            _not_compared, "Attempt {attempt} was not compared with the steps before the restart: {because}."
        ),
        "no_verified_effect": "Incident {incident} ({fault}) had no verified effect: it counts in no figure.",
        "outlasted": Made(
            _outlasted,
            "Incident {incident}: {fault} was to last {planned} and went on for {steps} steps, until its effect was "
            "seen.",
        ),
        "impossible_order": (
            "Incident {incident}: its phases are in an impossible order in the log; do not trust their durations."
        ),
        "throughput_not_restored": Made(
            _not_restored,
            "Incidents {incidents}: throughput did not come back to 95% over 5 steps before the run ended.",
        ),
        "badput_shared": Made(
            _shared_badput,
            "{seconds} of the badput of incident {incident} fell into a time when {others} were active, too, and may "
            "have caused part of it: it is not split.",
        ),
        "more_badput_shared": Made(
            _more_shared_badput, "The same holds for {seconds} of the badput of {incidents} further incidents."
        ),
        "before_the_save": Made(
            _before_save,
            "Incident {incident} ({fault}) came before the first byte of the save of step {step} was written: a fault "
            "in the middle of the write is not covered by this run.",
        ),
        "ranks_only": (
            "Incident {incident} ({fault}) reached the ranks of the node only: their launcher serves other nodes too "
            "and was left running. With a real node its launcher is lost."
        ),
        "more_milder_faults": "The same holds for {number} more of the faults.",
        "not_fired": Made(_not_fired, "Incident {incident} was planned and not injected: {why}."),
        "more_not_fired": Made(_more_not_fired, "The same holds for {number} more incidents."),
        "unplanned_loss": Made(_unplanned, "{loss}. Its cost is unplanned badput, and counts for no incident."),
        "checkpoints_unsaved": Made(
            _unsaved,
            "{unsaved} of {checkpoints} checkpoints could not be saved, {during_faults} of them while a fault was "
            "active. The first was that of step {step}: {error}. ...",
        ),
        "checkpoint_unusable": Made(_unusable, "The checkpoint of step {step} ({path}) {damage}."),
        "pointer_names_nothing": "{pointer} says {says}, and there is no such checkpoint.",
        "pointer_names_damaged": "{pointer} names {says}, the checkpoint of step {step}, which cannot be loaded.",
        "highest_number_damaged": (
            "A loader that takes the highest number in {folder} reads {target}, the checkpoint of step {step}, which "
            "cannot be loaded."
        ),
        "damage_loaded": (
            "Attempt {attempt} loaded the checkpoint of step {step} ({path}), which incident {incident} had damaged, "
            "and raised nothing."
        ),
        "older_loaded": Made(
            _older_loaded,
            "Attempt {attempt} loaded the checkpoint of step {step}, not that of step {newest}, the newest saved: "
            "{failed} raised {error}.",
        ),
        "ranks_loaded_apart": Made(
            _loaded_apart, "In attempt {attempt} the ranks loaded the checkpoints of different steps: {steps}."
        ),
        "repair_unfinished": Made(_repair, "{repair}."),
    }
)
