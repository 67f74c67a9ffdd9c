"""The words that all reports share: for verdicts, phases, causes of time and gate values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.analysis.command.preemption import Preemption
from harness.analysis.regroups import StateRestore
from harness.analysis.words import (
    count,
    evidence_text,
    name_bytes,
    name_numbers,
    name_ranks,
    name_seconds,
    name_uncertain,
    one_line,
    speed_text,
    target_text,
    when,
)
from harness.judging.summary import GateResult, IncidentSummary, Summary
from mecefo_runtime.planners.mecefo import PROJECTED_LOSS_RATIO
from mecefo_runtime.system.run_records import PlannedIncident

VERDICTS: Mapping[str, str] = {
    "pass": "Every fault was verified, the job recovered from each, and all gates passed.",
    "fail": "At least one gate failed.",
    "inconclusive": "No verdict is possible: something that it needs was not verified or not measured.",
    "halted": "The run was stopped before its end.",
    "error": "The tool or its environment failed. This says nothing about the training job.",
    "dirty": "A fault was not undone, or something was left behind. Run `chaos heal` first.",
}

# In the order in which they happen, from the fault to the first step committed after it: they add up to the recovery.
RECOVERY_PHASES: Mapping[str, str] = {
    "detection": "failure detected",
    "isolate": "in-flight step aborted",
    "regroup": "process groups rebuilt",
    "transfer": "state transferred",
    "first_step": "next step committed",
}

LAUNCH_PHASES: Mapping[str, str] = {
    "reaction": "first reaction of the job",
    "teardown": "old processes ended",
    "failed_attempts": "attempts without a step",
    "launch": "first new process started",
    "start": "last new process started",
    "imports": "imports, until init_process_group",
    "process_group": "process group formed",
    "model": "model built",
    "load": "checkpoint loaded",
    "resumed_step": "next step committed",
    "unobserved": "in phases that were not observed",
}
"""Of a command whose launcher started its ranks again; see `harness.analysis.command.recovery`."""

BADPUT: Mapping[str, str] = {
    "startup": "startup",
    "injection": "injection overhead",
    "detection": "failure detection",
    "regroup": "rebuilding process groups",
    "transfer": "state transfer",
    "repeated_work": "recomputed work",
    "degraded_speed": "degraded throughput",
    "restart": "waiting for a restart",
    "unplanned": "losses that no fault explains",
    "checkpoint": "writing checkpoints",
    "shutdown": "shutdown after the last step",
    "other": "not explained by any event",
}


def headline(summary: Summary) -> str:
    """What the verdict means, in one sentence."""
    gates = summary.gates
    if _has_failed_by_itself(summary):
        return "The job failed by itself, without any fault."
    if summary.verdict == "fail" and gates and all(gate.passed is not False for gate in gates):
        return "No gate failed, but the job did not recover as it must."
    if _has_never_trained(summary):
        return "The command never began to train. This says nothing about what it survives."
    is_unseen = summary.job_outcome == "completed" and summary.steps_committed == 0
    if summary.verdict == "inconclusive" and summary.traits.is_user_script and is_unseen:
        return "No training step was seen in the command. This says nothing about what it survives."
    if summary.verdict == "pass" and not summary.incidents:
        return "The job completed without a fault, and all gates passed."
    if summary.verdict == "pass" and summary.steps_from_scratch:
        again = count(summary.steps_from_scratch, "step")
        return f"The job completed, but it restarted from scratch: {again} recomputed. All gates passed."
    return VERDICTS.get(summary.verdict, "The run has no verdict that this version knows.")


def verdict_sentences(summary: Summary) -> tuple[str | None, Sequence[str]]:
    """What the verdict means, None where its reasons say it, and the reasons that add something: each fact once."""
    if not summary.reasons:
        return headline(summary), ()
    if summary.verdict == "pass":
        # One of its reasons has the same words.
        return headline(summary), tuple(text for _, text in summary.reasons_without(lambda one: one.code == "passed"))
    if summary.verdict == "halted" or _has_failed_by_itself(summary):
        return None, summary.reasons
    if _has_never_trained(summary):
        return "This says nothing about what the command survives.", summary.reasons
    return headline(summary), summary.reasons


def _has_failed_by_itself(summary: Summary) -> bool:
    is_failed = summary.verdict == "fail" and summary.job_outcome == "failed"
    return is_failed and not any(one.injected for one in summary.incidents)


def _has_never_trained(summary: Summary) -> bool:
    return summary.verdict == "error" and summary.traits.is_user_script and summary.job_outcome == "failed"


def approximation_words(summary: Summary) -> str | None:
    """How many layers a run approximated, why no more, and what another quality would have led to, as predicted.

    None of a strategy that never approximates.
    """
    found = summary.approximation
    if found is None:
        return None
    words = _approximated(found.degraded_layers, found.projected_layers, found.num_layers)
    if found.steps:
        words += f" in {found.steps} of {count(summary.steps_committed or found.steps, 'step')}"
    elif found.steps_with_fewer_ranks:
        words += f" in the {count(found.steps_with_fewer_ranks, 'step')} with fewer ranks"
    why = _WHY_APPROXIMATED.get(found.reason, "").format(
        quality=f"quality {found.quality}",
        saved=percent(found.projected_saved_ratio, 0),
        least=percent(PROJECTED_LOSS_RATIO, 0),
        strategy=f"strategy {summary.strategy}",
    )
    words += f": {why}." if why else "."
    other, drop = found.other, found.predicted_drop_ratio
    if other is not None:
        words += f" With --quality {other.quality}: {_approximated(other.degraded_layers, other.projected_layers)}"
        if other.predicted_drop_ratio is not None and drop is not None:
            words += f", predicted throughput drop {percent(other.predicted_drop_ratio)} instead of {percent(drop)}"
        words += "."
    elif drop is not None:
        words += f" Predicted throughput drop: {percent(drop)}."
    return one_line(words)


_WHY_APPROXIMATED: Mapping[str, str] = {
    "no_fewer_ranks": "no step ran with fewer ranks",
    "exact_is_fast_enough": "exact layers keep the failure-free speed",
    "quality_allows_none": "{quality} allows none",
    "projection_saves_too_little": "{quality} degrades none, and projects one only where that saves more than {least} "
    "of its time (here {saved})",
    "none_is_faster": "{quality} allows some, but none makes a step shorter",
    "no_takeover": "no rank took over the layers of another",
    "all_of_the_neighbour": "{strategy} approximates all layers of a rank that takes over others",
    "keeps_speed": "{quality}, as many as keep the failure-free speed",
    "all_that_help": "{quality}, all that it allows and that make a step shorter",
    "no_exact_layout": "{quality} allows none, but no exact layout fits into memory",
}


def _approximated(num_degraded: int, num_projected: int, num_layers: int | None = None) -> str:
    """`8 layers degraded` or, with `num_layers`, `8 of 16 layers degraded`; or `projected`, or both."""
    first = num_degraded or num_projected
    how = "degraded" if num_degraded else "projected" if num_projected else "approximated"
    number = count(first, "layer") if num_layers is None else f"{first} of {count(num_layers, 'layer')}"
    return f"{number} {how}" + (f" and {num_projected} projected" if num_degraded and num_projected else "")


def baseline_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    """(words, value) of what an external job and its fault-free baseline took; each had the machine to itself."""
    if summary.baseline_wall_clock_seconds is None:
        return
    if summary.baseline_work_per_second is not None:
        speed = speed_text(summary.baseline_work_per_second)
        yield "fault-free baseline (median)", f"{speed} {summary.throughput_unit}/s"
    yield "duration of the fault-free baseline", name_seconds(summary.baseline_wall_clock_seconds)
    if summary.slowdown_ratio is not None:
        yield "duration of this run", name_seconds(summary.wall_clock_seconds)
        yield "slowdown vs. the baseline", percent(summary.slowdown_ratio)


def drop_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    """(words, value) of the throughput drop, of the noise that it has to be compared with, and of the whole run's."""
    drop, noise = summary.throughput_drop_ratio, summary.throughput_noise_ratio
    whole = summary.throughput_drop_whole_run_ratio
    if drop is not None:
        yield "throughput drop", percent(drop, 2)
    if summary.outage_seconds:
        yield "outage, without a committed step", name_seconds(summary.outage_seconds)
    if (training := summary.throughput_drop_while_training_ratio) is not None:
        yield "throughput drop while training again", percent(training, 2)
    if drop is not None:
        yield "baseline noise", "not measurable" if noise is None else percent(noise, 2)
    if whole is not None:
        yield "drop over the whole run", percent(whole, 2)


def comparable_baseline(summary: Summary) -> float | None:
    """Work per second of the fault-free baseline, where it ran at the pace of the job and had the machine to itself."""
    is_dilated = summary.dilation_ratio is not None and summary.dilation_ratio != 1.0
    return None if is_dilated or summary.baseline_wall_clock_seconds is None else summary.baseline_work_per_second


def moment(incident: IncidentSummary) -> str:
    """`at step 300 (backward)`, or `before the first step`; empty where it did not fire, and is due at a time."""
    if incident.step is None:
        return "before the first step" if incident.injected else ""
    return when(PlannedIncident(incident.incident, step=incident.step, phase=incident.phase, in_save=incident.in_save))


def story_words(incident: IncidentSummary) -> str:
    """Which incident made the job read what another one damaged; empty where none did."""
    if incident.read_by_incident is not None:
        return f"read when incident {incident.read_by_incident} had ended ranks, which were started again"
    if incident.reads_damage_of:
        which = name_numbers("incident", incident.reads_damage_of)
        return f"the restart after it read what {which} damaged"
    return ""


def save_words(incident: IncidentSummary) -> str:
    """`at byte 1,620 of state.pt`: what a save had come to when a fault came within it; empty where it did not."""
    path, offset, num_bytes = (incident.save.get(key) for key in ("path", "offset", "num_bytes"))
    if isinstance(offset, int):
        at = f"at byte {offset:,} of {path}, which had {num_bytes:,} bytes then"
        return f"{incident.in_save}: the process was stopped {at}"
    if not path:
        return ""
    there = f" ({num_bytes:,} bytes)" if isinstance(num_bytes, int) else ""
    return f"{incident.in_save}: {path}{there}"


def incident_title(incident: IncidentSummary) -> str:
    """`incident 0: kill-node on node 2 at step 300 (backward)`."""
    what = f"{incident.fault} on {target_text(incident.target)} {moment(incident)}".rstrip()
    return one_line(f"incident {incident.incident}: {what}")


def effect_words(incident: IncidentSummary) -> str:
    """The evidence of the fault's effect, or why the fault does not count."""
    if incident.verified:
        words, detail = "verified", evidence_text(incident.evidence)
    elif not incident.injected:
        words, detail = "not injected, so it does not count", ""
    else:
        words, detail = "NOT verified, so it does not count", evidence_text(incident.unverified_reason)
    return one_line(f"{words}: {detail}" if detail else words)


def phase_rows(incident: IncidentSummary) -> Iterator[tuple[str, float]]:
    """(words, seconds) of every phase of the recovery that was measured, in order; none without a verified effect.

    None, too, where the job detected it only after it had recovered: what came then is no part of that.
    """
    phases = incident.phases_seconds if incident.verified and not _noticed_late(incident) else {}
    if is_by_launcher(incident):
        phases = incident.phases_seconds if incident.verified else {}
        for key, words in LAUNCH_PHASES.items():
            if (seconds := phases.get(key)) is not None:
                yield words, seconds
        return
    phases = {**phases, "detection": incident.detection_seconds} if phases else {}
    for key, words in RECOVERY_PHASES.items():
        if (seconds := phases.get(key)) is not None:
            yield words, seconds


def is_by_launcher(incident: IncidentSummary) -> bool:
    """Whether the launcher of a command started its ranks again, and it was observed when it decided to."""
    return incident.phases_seconds.get("launch") is not None


def recovery_label(incident: IncidentSummary) -> str:
    """What `recovery_seconds` is the time of."""
    since = "fault" if incident.notice_seconds is None else "the ranks' departure"
    return f"recovery, from {since} to next committed step"


def later_rows(incident: IncidentSummary) -> Iterator[tuple[str, float]]:
    """(words, seconds) of what else was measured, beside the recovery and after it; none without a verified effect."""
    phases = incident.phases_seconds if incident.verified else {}
    is_apart = _noticed_late(incident) or is_by_launcher(incident)
    if phases and incident.detection_seconds is not None and is_apart:
        yield "failure detected, after the fault", incident.detection_seconds
    if phases and incident.hang_rule_fired_seconds is not None:
        yield "your hang rule fired, after the fault", incident.hang_rule_fired_seconds
    if phases and incident.notice_seconds is not None:
        yield "ranks departed, after the notice", incident.notice_seconds
    if (seconds := phases.get("verify")) is not None:
        yield "effect verified, after the fault", seconds
    back = phases.get("rejoin")
    after_repair = phases.get("rejoin_after_repair")
    if back is not None:
        # The experiment says when a repair starts: only the rest is a figure of the job.
        if after_repair is not None:
            yield "configured wait before the repair", back - after_repair
            yield "lost ranks rejoined, after repair started", after_repair
        else:
            yield "lost ranks rejoined, after the fault", back
    if (seconds := phases.get("restore")) is not None:
        since_back = _restored_after_rejoin_seconds(incident)
        if since_back is None:
            yield "back to 95% of full speed, after that step", seconds
        else:
            yield "back to 95% of full speed, after the rejoin", since_back


def rejoin_words(incident: IncidentSummary) -> str | None:
    """When the lost ranks were back, without the wait that the experiment asks for; None where they were not."""
    back, after_repair = (incident.phases_seconds.get(key) for key in ("rejoin", "rejoin_after_repair"))
    if back is None:
        return None
    if after_repair is None:
        return f"{name_seconds(back)} after the fault"
    return f"{name_seconds(after_repair)} after the repair started"


def _restored_after_rejoin_seconds(incident: IncidentSummary) -> float | None:
    """How long after the return of the lost ranks full speed was reached; None if before it, or not known."""
    back, restored = (incident.phases_seconds.get(key) for key in ("rejoin", "restore"))
    if back is None or restored is None or incident.recovery_seconds is None:
        return None
    since_fault = (incident.notice_seconds or 0.0) + incident.recovery_seconds + restored
    return since_fault - back if since_fault >= back else None


def _noticed_late(incident: IncidentSummary) -> bool:
    """Whether a step had begun after the fault, and was committed, before the job detected it."""
    detection, recovery = incident.detection_seconds, incident.recovery_seconds
    return detection is not None and recovery is not None and detection > recovery


def recovery_seconds(incident: IncidentSummary) -> float | None:
    """From the fault to the next committed step; None where there was none, or no effect to recover from."""
    return incident.recovery_seconds if incident.verified else None


def recovery_text(incident: IncidentSummary) -> str | None:
    """`0.33 s (1.9 usual steps)`: how long the recovery took; None as with `recovery_seconds`."""
    seconds, steps = recovery_seconds(incident), incident.recovery_steps
    if seconds is None:
        return None
    usual = usual_steps(steps)
    doubt = incident.uncertainty_seconds.get("recovery_seconds")
    return f"{name_uncertain(seconds, doubt)}{f' ({usual})' if usual else ''}"


def usual_steps(steps: float | None) -> str:
    """A time as a multiple of the median step before the first fault: `1.9 usual steps`.

    Empty if it is unknown, and from 100 on: such a time does not depend on the length of a step.
    """
    return "" if steps is None or steps >= 100 else f"{steps:.1f} usual steps"


def how_it_recovered(incident: IncidentSummary) -> str | None:
    """How a command's job recovered: in new processes or in the surviving ones, and from which step.

    None of any other, or if it did not.
    """
    attempt, recovery = incident.recovery_attempt, recovery_seconds(incident)
    if recovery is None:
        return None
    if attempt is None:
        again = incident.progress_seconds
        if again is None or again <= recovery or incident.recovery_step is None:
            return None
        return (
            f"It continued from step {incident.recovery_step}, which had been committed before; "
            f"it made new progress {name_seconds(again)} after the fault."
        )
    if attempt == incident.attempt:
        return "It continued in the surviving processes."
    how = {None: "continued, at an unknown step", 1: "started from step 1 again"}.get(
        incident.recovery_step, f"continued from step {incident.recovery_step}"
    )
    is_requeued = incident.preemption is not None and incident.preemption.is_requeued
    who = "The command was started again" if is_requeued else "Its launcher restarted it"
    words = f"{who} (attempt {attempt}), and it {how}."
    if incident.recovery_step is None:
        return words
    again = incident.progress_seconds
    if again is None:
        return f"{words} It did not reach a step that had not been committed before."
    if again > recovery:
        return f"{words} It made new progress {name_seconds(again)} after the fault."
    return words


_FROM: Mapping[str, str] = {
    "peer": "peers",
    "snapshot": "snapshots in the nodes' memory",
    "parity": "parity of lost nodes' snapshots",
    "checkpoint": "the checkpoint on disk",
}
_NO: Mapping[str, str] = {
    "peer": "no peer",
    "snapshot": "no snapshot",
    "parity": "no parity",
    "checkpoint": "no checkpoint",
}


def preemption_lines(preemption: Preemption) -> list[str]:
    """The figures of a preemption, a sentence each."""
    return [one_line(words) for words in _preemption_lines(preemption)]


def _preemption_lines(one: Preemption) -> Iterator[str]:
    if one.ranks_not_reached:
        yield f"The notice did not reach {name_ranks(one.ranks_not_reached)}."
    if one.ranks_reach_unknown:
        yield f"It was not observed whether the notice reached {name_ranks(one.ranks_reach_unknown)}."
    if one.checkpoint_step is not None:
        saved = name_seconds(one.notice_to_checkpoint_seconds)
        is_newest = one.newest_checkpoint_step == one.checkpoint_step
        newer = "" if is_newest else f", and later one of step {one.newest_checkpoint_step}"
        yield f"A checkpoint of step {one.checkpoint_step} was saved {saved} after the notice{newer}."
    else:
        yield "No checkpoint was seen being saved after the notice."
    ends = (
        ("left in order", one.ranks_left_in_order),
        ("failed", one.ranks_failed),
        (f"ended by {one.signal}", one.ranks_ended_by_signal),
        ("killed at the end of the grace", one.ranks_killed),
        ("killed before the end of the grace, not by chaos", one.ranks_killed_by_launcher),
        ("ended in an unknown way", one.ranks_ended_unknown),
        ("stood still until they were killed", one.ranks_stood_still),
    )
    yield f"Ranks: {'; '.join(f'{name_ranks(ranks)} {how}' for how, ranks in ends if ranks)}."
    if one.launcher_killed_seconds is not None:
        after = name_seconds(one.launcher_killed_seconds)
        yield f"The launcher ended ranks by SIGKILL {after} after the notice: torchrun gives them 30 s."
    for raised in one.raised:
        worker = ": the notice ended a DataLoader worker" if raised.names_data_worker else ""
        yield f"Rank {raised.rank} raised {raised.exception}{worker}: {raised.message[:200]}"
    if one.grace_used_seconds is not None:
        used = f"{name_seconds(one.grace_used_seconds)} of {name_seconds(one.grace_seconds)}"
        yield f"Grace used: {used} ({percent(one.grace_used_ratio or 0.0)})."
    if one.is_requeued:
        if one.steps_lost is None:
            yield "The command was started again; how many steps were lost is not known."
        else:
            lost = "no step" if not one.steps_lost else count(one.steps_lost, "step")
            yield f"The command was started again and continued after step {one.resumed_after}: {lost} lost."


def timeout_words(summary: Summary, incident: IncidentSummary) -> str:
    """How soon a fault was noticed, and the process group's time-out; empty where one of the two is not known."""
    noticed, limit = incident.detection_seconds, summary.process_group_timeout_seconds
    if noticed is None:
        noticed = incident.phases_seconds.get("reaction")
    if noticed is None or limit is None or not incident.verified:
        return ""
    return f"Noticed after {name_seconds(noticed)}; the process group's time-out is {name_seconds(limit)}."


def hang_rule_words(summary: Summary) -> str:
    """What the user's own rule for a hang would have said; empty where there is none."""
    if summary.hang_rule is None:
        return ""
    fired = [one for one in summary.incidents if one.hang_rule_fired_seconds is not None]
    of = sum(one.verified for one in summary.incidents)
    rule = f"Your hang rule, no line that matches {summary.hang_rule!r} for {name_seconds(summary.hang_rule_seconds)},"
    alarms = summary.hang_rule_false_alarms
    if alarms is None:
        return f"{rule} is not judged: no line of the log matched the pattern."
    false = f"{count(alarms, 'false alarm')} before the first fault" if alarms else "no false alarm before it"
    return f"{rule} would have fired in {len(fired)} of {count(of, 'incident')}, with {false}."


def state_words(restore: StateRestore) -> str:
    """Where the state came from, what that cost, and why no better source served."""
    sources = [
        f"{_FROM.get(rung, rung)} ({count(int(of.get('pieces', 0)), 'piece')}, {name_bytes(of.get('num_bytes', 0))})"
        for rung, of in restore.sources.items()
    ]
    if restore.rung == "start":
        words = "No source of state was left: all ranks started from the first step again"
    elif restore.rung == "peer" and not sources:
        words = "State was in place: the survivors held all of it"
    else:
        words = f"State came from {' and '.join(sources) or _FROM.get(restore.rung, restore.rung)}"
        words += f", in {name_seconds(restore.seconds)}"
    lost = "no step was lost" if not restore.steps_lost else f"{count(restore.steps_lost, 'step')} recomputed"
    words = f"{words}; {lost}."
    if restore.passed_over:
        reasons = "; ".join(f"{_NO.get(rung, rung)}: {reason}" for rung, reason in restore.passed_over.items())
        words = f"{words} {reasons[0].upper()}{reasons[1:]}."
    return one_line(words)


def emulated_words(summary: Summary) -> str:
    """`emulated NVIDIA A100 (a100-7b, predicted), time scale 2`; empty where ranks stood for themselves."""
    emulated = summary.emulated
    if emulated is None:
        return ""
    table = f"{emulated.device_model}, {emulated.provenance}"
    return one_line(f"emulated {emulated.device} ({table}), time scale {emulated.time_scale:g}")


def speeds(summary: Summary) -> tuple[str, dict[str, float]]:
    """(unit, throughput before, during and after as far as they are known): tokens, samples or steps per second.

    Of an emulated device by its own seconds.
    """
    emulated = summary.emulated
    speeds = summary.throughput_per_second if emulated is None else emulated.throughput_tokens_per_second
    known = {"before": speeds.before, "during": speeds.during, "after": speeds.after}
    unit = summary.throughput_unit if emulated is None else "emulated tokens"
    return unit, {key: speed for key, speed in known.items() if speed is not None}


_VIOLATIONS: Mapping[str, str] = {
    "loss_not_finite": "its loss stayed not finite",
    "parameters_not_finite": "its parameters stayed not finite",
    "replicas_differ": "its replicas stayed different",
    "generations_overlap": "two generations of it trained at once",
    "damaged_state_loaded": "it loaded a damaged checkpoint without an error",
}


def has_recovered(incident: IncidentSummary) -> bool | None:
    """Whether the job recovered; None when the run ended too early to tell."""
    return True if recovery_seconds(incident) is not None else incident.recovered


def recovery_words(incident: IncidentSummary) -> str | None:
    """What to say of a fault that took effect and has no recovery time; None when there is nothing to say."""
    if not incident.verified or has_recovered(incident):
        return None
    if incident.violations:
        wrong = " and ".join(_VIOLATIONS.get(code, code.replace("_", " ")) for code in incident.violations)
        after = "" if incident.continued_seconds is None else f" {name_seconds(incident.continued_seconds)} after it"
        return f"Training continued{after}, but the job did not recover: {wrong}."
    if has_recovered(incident) is None:
        return "The run ended before it was known whether the job recovers."
    if incident.is_of_launcher:
        return "It did not recover: no later attempt took a step. What its ranks did without a launcher does not count."
    return "It did not recover: no valid step that began after the fault was committed."


_HOW_NAMED: Mapping[str, str] = {
    "supervisor": "its processes ended",
    "connection": "its connections closed",
    "heartbeat": "its heartbeats stopped",
    "peers": "peers could not reach it",
    "health": "its values were corrupted",
    "step_unfit": "a step was rejected",
    "coordinator_restarted": "it was replaced by a new one",
    "torchrun": "reported by its launcher",
}
_HOW_NAMED_SEVERAL: Mapping[str, str] = {
    **_HOW_NAMED,
    "supervisor": "their processes ended",
    "connection": "their connections closed",
    "heartbeat": "their heartbeats stopped",
    "peers": "peers could not reach them",
    "health": "their values were corrupted",
    "torchrun": "reported by their launcher",
}
_DIAGNOSES: Mapping[str, str] = {
    "right": "diagnosed correctly",
    "partly": "diagnosed in part",
    "wrong": "diagnosed wrongly",
}


def diagnosis_words(incident: IncidentSummary) -> str | None:
    """Whether the job diagnosed the fault; None where there was no effect, or nothing that it could have named."""
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return None
    score, named = diagnosis.score, diagnosis.named
    if score not in _DIAGNOSES:
        return "not diagnosed: the job named no rank"
    ranks = [rank for rank in named if isinstance(rank, int)]
    whom = " and ".join([*([name_ranks(ranks)] if ranks else []), *(f"the {w}" for w in named if isinstance(w, str))])
    after = "" if diagnosis.seconds is None else f", {name_seconds(diagnosis.seconds)} after the fault"
    ways = _HOW_NAMED_SEVERAL if len(ranks) > 1 else _HOW_NAMED
    how = f" ({ways.get(diagnosis.how, diagnosis.how)})" if diagnosis.how else ""
    return one_line(f"{_DIAGNOSES[score]}: {whom}{after}{how}")


GOODPUT_FROM_SECONDS = 600.0
"""The goodput of a job that took less time is not shown on a terminal, nor in summaries of one line.

It says how much of a long training is lost. In a trial of a minute it mostly shows how long the start took.
"""


def shows_goodput(wall_clock_seconds: float | None) -> bool:
    """Whether a job took long enough for its goodput to mean something."""
    return wall_clock_seconds is not None and wall_clock_seconds >= GOODPUT_FROM_SECONDS


def time_rows(of: Summary | IncidentSummary) -> list[tuple[str, str, float]]:
    """(key, words, seconds) of how the wall clock was spent: productive training first, then the causes of badput."""
    rows = [("productive", cause_words("productive"), of.productive_seconds or 0.0)]
    for key, seconds in of.badput_seconds.items():
        if seconds and name_seconds(seconds) != name_seconds(0.0):
            rows.append((key, cause_words(key), seconds))
    return rows


def unaccounted_seconds(summary: Summary) -> float:
    """Wall clock less productive time and badput; 0 when that is under a thousandth of it, or not known."""
    wall = summary.wall_clock_seconds
    if not wall:
        return 0.0
    badput = sum(seconds or 0.0 for seconds in summary.badput_seconds.values())
    rest = wall - (summary.productive_seconds or 0.0) - badput
    return rest if abs(rest) > 1e-3 * wall else 0.0


def cause_words(cause: str) -> str:
    """What the time went to, in words, by the name of the cause."""
    return "productive training" if cause == "productive" else BADPUT.get(cause, cause.replace("_", " "))


def percent(ratio: float | None, digits: int = 1) -> str:
    """A ratio as a percentage; `-` when unknown."""
    return "-" if ratio is None else f"{ratio:.{digits}%}"


def gate_value(gate: GateResult) -> str:
    """A gate's measured value in the unit in which its expression is written."""
    value, expression = gate.value, gate.expression
    if value is None:
        return "no value"
    if gate.unit == "ratio" or expression.rstrip().endswith("%"):
        return f"{value:.2%}"
    if gate.unit == "seconds" or "seconds" in expression:
        return name_seconds(value)
    return f"{value:g}"


def gate_word(gate: GateResult) -> str:
    """`pass`, `FAIL`, or `undecided`."""
    return "undecided" if gate.passed is None else "pass" if gate.passed else "FAIL"
