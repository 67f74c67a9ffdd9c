"""Facts that reasons of the verdict, caveats and reports have in common: each code, and its words.

They are parts of other sentences: `why`, `other` or `loss` of a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.attribution import SUPERVISOR
from harness.analysis.words import count, exit_text, name_numbers, name_ranks, name_seconds
from mecefo_runtime.system.reason import Made, Reason, Table


def shared_text(fact: Reason) -> str:
    """The words of a fact."""
    return SHARED.text(fact)


def capital(sentence: str) -> str:
    """With a capital, as a sentence begins."""
    return sentence[:1].upper() + sentence[1:]


def lower(sentence: str) -> str:
    """As the rest of a sentence."""
    return sentence[:1].lower() + sentence[1:]


# ---- losses ----


def lost_words(
    ranks: Sequence[int] = (),
    role: str | None = None,
    step: int | None = None,
    exit_codes: Sequence[int] = (),
    pids: Sequence[int] = (),
    attempts: Sequence[int] = (),
) -> str:
    """`rank 3 was lost after step 57 (killed by SIGKILL)`."""
    parts = [name_numbers("rank", ranks)] if ranks else []
    if role == SUPERVISOR:
        parts.append("the supervisor of their node" if len(ranks) > 1 else "its node's supervisor")
    elif role:
        parts.append(f"the {role}")
    after = f"after step {step}" if step else "before the first step was committed"
    details = [", ".join(exit_text(code) for code in exit_codes)] if exit_codes else []
    if pids:
        of = f", {name_numbers('attempt', attempts)}" if attempts else ""
        details.append(f"{name_numbers('pid', pids)}{of}")
    how = f" ({'; '.join(details)})" if details else ""
    were = "were" if len(ranks) > 1 or len(parts) > 1 else "was"
    return f"{' and '.join(parts)} {were} lost {after}{how}"


def _unplanned(
    ranks: Sequence[int] = (),
    role: str | None = None,
    step: int | None = None,
    exit_codes: Sequence[int] = (),
    pids: Sequence[int] = (),
    attempts: Sequence[int] = (),
) -> str:
    return capital(f"{lost_words(ranks, role, step, exit_codes, pids, attempts)}, which no fault explains")


def _stopped(processes: Sequence[Mapping[str, object]]) -> str:
    return f"A signal that no fault of this run sent had stopped {', '.join(_process(one) for one in processes)}"


def _process(one: Mapping[str, object]) -> str:
    role, node = one.get("role"), one.get("node")
    if role == "rank":
        return f"rank {one.get('rank')}"
    return f"the {role}" if node is None else f"the {role} of node {node}"


# ---- why it is not known whether the job recovers ----


def _left_in_order(saved_step: int, step: int | None = None) -> str:
    after = f" after step {step}" if step else ""
    return f"the job left in order{after}, checkpoint of step {saved_step}, restart not tried"


# ---- why it did not recover ----


def _given_up(attempt: int, first_step: int, last_step: int) -> str:
    which = f"step {first_step}" if first_step == last_step else f"steps {first_step} to {last_step}"
    return f"attempt {attempt} ended without a step, and {which}, after the newest checkpoint, stayed lost"


def _scaler_skipped(steps: int) -> str:
    return f"its GradScaler skipped the next {count(steps, 'step')}"


def _passes_skipped(passes: int) -> str:
    return f"none of the next {count(passes, 'pass')} was finite, and the script skipped its step"


# ---- how far a job should have come ----


def _rank_further(step: int, rank: int = 0) -> str:
    return f"{name_ranks([rank])} came to step {step}"


# ---- attempts of a command ----


def _resumed_apart(attempt: int, steps: Sequence[Sequence[object]]) -> str:
    named = [f"{name_ranks(ranks)} after step {after}" for ranks, after in steps]  # type: ignore[arg-type]
    return f"In attempt {attempt} the ranks continued from different steps ({', '.join(named)})"


def _trained_on(
    attempt: int,
    earlier: int,
    alive_seconds: float,
    ranks: Sequence[int] = (),
    training_seconds: float = 0.0,
    steps: int = 0,
    saves: int = 0,
) -> str:
    saved = f"saved {count(saves, 'checkpoint')}" if saves else "saved nothing"
    return (
        f"{_older(ranks, earlier)} still trained when attempt {attempt} took its first step: {count(steps, 'step')} "
        f"more in {name_seconds(training_seconds)}, {saved}, and ended after {name_seconds(alive_seconds)}"
    )


def _still_there(attempt: int, earlier: int, alive_seconds: float, ranks: Sequence[int] = ()) -> str:
    were = "were" if len(ranks) > 1 else "was"
    return (
        f"{_older(ranks, earlier)} {were} still there when attempt {attempt} took its first step, for "
        f"{name_seconds(alive_seconds)} more, and took no step"
    )


def _older(ranks: Sequence[int], earlier: int) -> str:
    return f"{name_ranks(ranks) or 'processes'} of attempt {earlier}"


# ---- repairs ----


def _repair(
    incident: int,
    fault: str,
    ranks: Sequence[int],
    due: str,
    target: object = None,
    began_seconds: float | None = None,
    after_steps: int | None = None,
    after_seconds: float | None = None,
    step: int | None = None,
) -> str:
    name = f"incident {incident} ({fault} on {target})"
    left = f"{name_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'} not in the job at its end"
    if due == "never":
        return f"{name}: {left}"
    if due == "began":
        return f"{name}: its repair began {name_seconds(began_seconds)} before the end of the job, and {left}"
    when = f"{name_seconds(after_seconds)} after it"
    if after_steps is not None:
        since = "its injection before the first step" if step is None else f"step {step}"
        when = f"{count(after_steps, 'step')} after {since}"
    whether = "did not begin" if due == "missed" else "the job ended before that"
    return f"{name}: its repair was due {when}, and {whether}; {left}"


_DAMAGED = "nothing can have read the damaged {what}: "
SHARED = Table(
    {
        "unplanned_loss": Made(
            _unplanned, "Rank {ranks} was lost after step {step} ({exit_codes}), which no fault explains"
        ),
        "stopped_by_signal": Made(_stopped, "A signal that no fault of this run sent had stopped {processes}"),
        "left_in_order": Made(
            _left_in_order,
            "the job left in order after step {step}, checkpoint of step {saved_step}, restart not tried",
        ),
        "put_back": _DAMAGED + "it was put back before the restart (--for says when)",
        "newer_saved": _DAMAGED + "a newer {what}, of step {saved_step}, was saved before the restart",
        "never_read": _DAMAGED + "no restart came after it",
        "steps_stayed_lost": Made(
            _given_up,
            "attempt {attempt} ended without a step, and steps {first_step} to {last_step}, after the newest "
            "checkpoint, stayed lost",
        ),
        "scaler_skipped_steps": Made(_scaler_skipped, "its GradScaler skipped the next {steps} steps"),
        "script_skipped_steps": Made(
            _passes_skipped, "none of the next {passes} passes was finite, and the script skipped its step"
        ),
        "idle_attempt": "attempt {attempt} took no step and ended with exit code 0",
        "rank_came_further": Made(_rank_further, "rank {rank} came to step {step}"),
        "job_came_further": "the job came to step {step}",
        "more_steps_planned": "job.steps is {step}",
        "baseline_came_further": "the fault-free baseline came to step {step}",
        "earlier_attempt_came_further": "attempt {attempt} had come to step {step}",
        "ranks_resumed_apart": Made(
            _resumed_apart, "In attempt {attempt} the ranks continued from different steps ({steps})"
        ),
        "trained_beside_later_attempt": Made(
            _trained_on,
            "{ranks} of attempt {earlier} still trained when attempt {attempt} took its first step: {steps} steps more "
            "in {training_seconds}, saved {saves} checkpoints, and ended after {alive_seconds}",
        ),
        "there_beside_later_attempt": Made(
            _still_there,
            "{ranks} of attempt {earlier} were still there when attempt {attempt} took its first step, for "
            "{alive_seconds} more, and took no step",
        ),
        "repair_unfinished": Made(
            _repair, "incident {incident} ({fault} on {target}): its repair was due ..., and did not begin; {ranks} ..."
        ),
    }
)
