"""The words that all reports share: what a verdict, a phase, a bucket of time and a gate's value mean."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.analysis.words import evidence_text, name_ranks, name_seconds, one_line, target_text, when

VERDICTS: Mapping[str, str] = {
    "pass": "Every fault took effect, the job came through it, and every gate holds.",
    "fail": "At least one gate (a condition that must hold) does not hold.",
    "inconclusive": "The run proves nothing: something that the verdict needs was not seen or not measured.",
    "halted": "The run was stopped before its end, so it was not judged to the end.",
    "error": "The tool or its environment failed. That says nothing about the training job.",
    "dirty": "Something was not undone or was left behind. Run `chaos heal` before anything else.",
}

# In the order in which they happen, from the fault to the first step committed after it: they add up to the recovery.
RECOVERY_PHASES: Mapping[str, str] = {
    "detection": "loss noticed by the job",
    "isolate": "broken step given up",
    "regroup": "survivors regrouped",
    "transfer": "model state moved",
    "first_step": "next step committed",
}
# Seconds from the fault, and seconds after that commit: none is part of the recovery time.
LATER_PHASES: Mapping[str, str] = {
    "verify": "effect seen from outside, after the fault",
    "restore": "back to 95% of the speed, after that commit",
    "rejoin": "lost ranks back in the job, after the fault",
}

BADPUT: Mapping[str, str] = {
    "startup": "starting up",
    "injection": "held by this tool for the fault",
    "detection": "noticing the fault",
    "regroup": "regrouping",
    "transfer": "moving model state",
    "repeated_work": "work thrown away and repeated",
    "degraded_speed": "slower steps under the fault",
    "restart": "waiting for a restart",
    "checkpoint": "writing checkpoints",
    "other": "other",
}


def headline(summary: Mapping[str, Any]) -> str:
    """What the verdict means, in one sentence."""
    gates = summary.get("gates") or ()
    if summary.get("verdict") == "fail" and gates and all(gate.get("passed") is not False for gate in gates):
        return "No gate failed, but the job did not come through as it has to."
    return VERDICTS.get(str(summary.get("verdict")), "The run has no verdict that this version knows.")


def incident_title(index: int, incident: Mapping[str, Any]) -> str:
    """`incident 0: kill-node on node 2 at step 300 (backward)`, numbered as in the log (`index` where it is not)."""
    planned = incident.get("step") is not None or incident.get("at_seconds") is not None
    what = f"{incident.get('fault')} on {target_text(incident.get('target'))}{f' {when(incident)}' if planned else ''}"
    return one_line(f"incident {incident.get('incident', index)}: {what}")


def effect_words(incident: Mapping[str, Any]) -> str:
    """What was seen of the fault's effect, or why it counts for nothing."""
    if incident.get("verified"):
        words, detail = "effect seen", evidence_text(incident.get("evidence"))
    elif incident.get("injected") is False:
        words, detail = "never applied, so it counts for nothing", ""
    else:
        words, detail = "effect NOT seen, so it counts for nothing", evidence_text(incident.get("unverified_reason"))
    return one_line(f"{words}: {detail}" if detail else words)


def phase_rows(incident: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(words, seconds) of every phase of the recovery that was measured, in order; none without a verified effect.

    None, too, where the job noticed only when it had recovered: what came then is no part of that.
    """
    phases = (incident.get("phases_seconds") or {}) if incident.get("verified") and not _noticed_late(incident) else {}
    phases = {**phases, "detection": incident.get("detection_seconds")} if phases else {}
    for key, words in RECOVERY_PHASES.items():
        if isinstance(phases.get(key), int | float):
            yield words, float(phases[key])


def later_rows(incident: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(words, seconds) of what else was measured, beside the recovery and after it; none without a verified effect."""
    phases = (incident.get("phases_seconds") or {}) if incident.get("verified") else {}
    if phases and _noticed_late(incident):
        yield "loss noticed by the job, after the fault", float(incident["detection_seconds"])
    for key, words in LATER_PHASES.items():
        if isinstance(phases.get(key), int | float):
            yield words, float(phases[key])


def _noticed_late(incident: Mapping[str, Any]) -> bool:
    """Whether a step had begun after the fault, and was committed, before the job noticed it."""
    detection, recovery = incident.get("detection_seconds"), incident.get("recovery_seconds")
    return isinstance(detection, int | float) and isinstance(recovery, int | float) and detection > recovery


def recovery_seconds(incident: Mapping[str, Any]) -> float | None:
    """From the fault to the next committed step; None where there was none, or no effect to recover from."""
    seconds = incident.get("recovery_seconds")
    return float(seconds) if incident.get("verified") and isinstance(seconds, int | float) else None


def how_it_recovered(incident: Mapping[str, Any]) -> str | None:
    """How a command's job came through, in new processes or in those that were left, and one that had gone back.

    None of any other, or if it did not.
    """
    attempt, recovery = incident.get("recovery_attempt"), recovery_seconds(incident)
    if recovery is None:
        return None
    if attempt is None:
        again = incident.get("progress_seconds")
        if again is None or again <= recovery or incident.get("recovery_step") is None:
            return None
        return (
            f"It went on from step {incident['recovery_step']}, which had been committed before; "
            f"{name_seconds(again)} after the fault it came to one that had not."
        )
    if attempt == incident.get("attempt"):
        return "It went on in the processes that were left."
    words = f"Its launcher started it again (attempt {attempt}), and it went on from step {incident['recovery_step']}."
    again = incident.get("progress_seconds")
    if again is None:
        return f"{words} It did not come to a step that had not been committed before."
    if again > float(incident["recovery_seconds"]):
        return f"{words} {name_seconds(again)} after the fault it came to a step that had not been committed before."
    return words


def repeat_command(summary: Mapping[str, Any], folder: Path | None) -> str:
    """The command line that does the run again; `folder` is where its files are."""
    path = Path("experiment.yaml") if folder is None else (folder / "experiment.yaml").absolute()
    # A command of the user's own finds its files only from where it was started.
    started_in = summary.get("started_in")
    there = f"cd {shlex.quote(str(started_in))} && " if started_in else ""
    return f"{there}chaos run {shlex.quote(str(path if started_in or folder is None else folder / 'experiment.yaml'))}"


def speeds(summary: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """(unit, throughput before, during and after as far as they are known): tokens, samples or steps per second."""
    values = summary.get("throughput_per_second") or summary.get("throughput_tokens_per_second") or {}
    return str(summary.get("throughput_unit") or "tokens"), {
        key: float(values[key]) for key in ("before", "during", "after") if values.get(key) is not None
    }


def has_recovered(incident: Mapping[str, Any]) -> bool | None:
    """Whether a step that began after the fault was committed; None when the run ended too early to tell."""
    if recovery_seconds(incident) is not None:
        return True
    recovered = incident.get("recovered", False)
    return None if recovered is None else bool(recovered)


def recovery_words(incident: Mapping[str, Any]) -> str | None:
    """What to say of a fault that took effect and has no recovery time; None when there is nothing to say."""
    if not incident.get("verified") or has_recovered(incident):
        return None
    if has_recovered(incident) is None:
        return "The run ended before it could show whether the job recovers."
    return "It did not recover: no step that began after the fault was committed and fit."


_HOW_NAMED: Mapping[str, str] = {
    "supervisor": "its processes had ended",
    "connection": "its connections had closed",
    "heartbeat": "its heartbeats had stopped",
    "peers": "other ranks could not reach it",
    "health": "it spoilt the steps",
    "step_unfit": "a step was not fit to be committed",
    "coordinator_restarted": "a new one was in its place",
    "torchrun": "its launcher said so",
}
_HOW_NAMED_SEVERAL: Mapping[str, str] = {
    **_HOW_NAMED,
    "supervisor": "their processes had ended",
    "connection": "their connections had closed",
    "heartbeat": "their heartbeats had stopped",
    "peers": "other ranks could not reach them",
    "health": "they spoilt the steps",
    "torchrun": "their launcher said so",
}
_DIAGNOSES: Mapping[str, str] = {
    "right": "the job named the cause",
    "partly": "the job named a part of the cause",
    "wrong": "the job named the wrong cause",
}


def diagnosis_words(incident: Mapping[str, Any]) -> str | None:
    """Whether the job knew what hit it; None where there was no effect, or nobody whom it could have named."""
    diagnosis = incident.get("diagnosis")
    if not isinstance(diagnosis, Mapping):
        return None
    score, named = str(diagnosis.get("score")), diagnosis.get("named") or ()
    if score not in _DIAGNOSES:
        return "the job named no cause"
    ranks = [rank for rank in named if isinstance(rank, int)]
    whom = " and ".join([*([name_ranks(ranks)] if ranks else []), *(f"the {w}" for w in named if isinstance(w, str))])
    seconds = diagnosis.get("seconds")
    after = f", {name_seconds(float(seconds))} after the fault" if isinstance(seconds, int | float) else ""
    ways = _HOW_NAMED_SEVERAL if len(ranks) > 1 else _HOW_NAMED
    how = f" ({ways.get(str(diagnosis['how']), diagnosis['how'])})" if diagnosis.get("how") else ""
    return one_line(f"{_DIAGNOSES[score]}: {whom}{after}{how}")


def time_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """(key, words, seconds) of how the wall clock was spent: productive training first, then what took time from it."""
    rows = [("productive", cause_words("productive"), float(summary.get("productive_seconds") or 0.0))]
    for key, seconds in (summary.get("badput_seconds") or {}).items():
        if seconds and name_seconds(seconds) != name_seconds(0.0):
            rows.append((key, cause_words(key), float(seconds)))
    return rows


def unaccounted_seconds(summary: Mapping[str, Any]) -> float:
    """Wall clock less all that it is said to have gone to; 0 when that is under a thousandth of it, or not known."""
    wall = summary.get("wall_clock_seconds")
    if not wall:
        return 0.0
    badput = sum(float(seconds or 0.0) for seconds in (summary.get("badput_seconds") or {}).values())
    rest = float(wall) - float(summary.get("productive_seconds") or 0.0) - badput
    return rest if abs(rest) > 1e-3 * float(wall) else 0.0


def cause_words(cause: str) -> str:
    """What the time went to, in words, by the name of the cause."""
    return "productive training" if cause == "productive" else BADPUT.get(cause, cause.replace("_", " "))


def percent(ratio: float | None, digits: int = 1) -> str:
    """A ratio as a percentage; `-` when unknown."""
    return "-" if ratio is None else f"{ratio:.{digits}%}"


def gate_value(gate: Mapping[str, Any]) -> str:
    """A gate's measured value in the unit in which its expression is written."""
    value, expression = gate.get("value"), str(gate.get("expression"))
    if not isinstance(value, int | float):
        return "no value"
    if gate.get("unit") == "ratio" or expression.rstrip().endswith("%"):
        return f"{value:.2%}"
    if gate.get("unit") == "seconds" or "seconds" in expression:
        return name_seconds(value)
    return f"{value:g}"


def gate_word(gate: Mapping[str, Any]) -> str:
    """`pass`, `FAIL`, or `open` for a gate that cannot be decided."""
    return {True: "pass", False: "FAIL"}.get(gate.get("passed"), "open")  # type: ignore[arg-type]
