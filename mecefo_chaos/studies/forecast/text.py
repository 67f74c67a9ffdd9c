"""A study as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.words import name_seconds
from harness.report.text_table import Table, laid_out
from mecefo_chaos.studies.forecast.cluster_schema import DEGRADED_SAMPLE_WORTH, DEGRADED_SAMPLE_WORTH_SOURCE
from mecefo_chaos.studies.forecast.model import Forecast, Policy
from mecefo_chaos.studies.forecast.study import Answer, Study, young_seconds

CAUSE_WORDS = {
    "degraded_speed": "slower steps",
    "redundancy": "redundant computation",
    "detection": "noticing losses",
    "regroup": "regrouping",
    "transfer": "moving state",
    "repeated_work": "work done again",
    "restart": "restarts",
    "checkpoint": "checkpoints",
    "snapshot": "snapshots",
}
_HEADER = (
    *("strategy", "tokens/s", "goodput", "drop", "of it steps", "degraded", "projected", "hours to train"),
    *("time to loss", "min", "max", "recovery", "checkpoint every", "most is lost by"),
)
_RUNG_WORDS = {
    "peer": "from a peer",
    "snapshot": "from snapshots in memory",
    "parity": "with the help of parity",
    "checkpoint": "from a checkpoint",
    "start": "from nowhere",
}
# A change of the answer that is smaller says that the input does not matter.
_LEAST_CHANGE = 0.001


def policy_words(policy: Policy) -> str:
    """A policy in a table."""
    return str(policy)


def to_text(study: Study, width: int = 80) -> str:
    """All of it, within `width` cells: what was asked, a table, what decides the answer, and what to do."""
    return "\n".join(laid_out(_parts(study), width))


def _parts(study: Study) -> Iterator[str | Table]:
    yield from heading(study)
    yield ""
    head, rows = table_cells(study)
    yield Table(head, rows, left=(0, len(head) - 1), begins=(head.index("time to loss"),))
    yield ""
    yield from reading(study)
    yield ""
    if study.sensitivities:
        yield f"What decides the answer for {policy_words(study.best.policy)}"
        yield _sensitivity_table(study)
        yield ""
    yield recommendation(study)


def table_cells(study: Study) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """The header and a row for each strategy."""
    return _HEADER, [row(answer, study) for answer in study.answers]


def heading(study: Study) -> list[str]:
    """What was asked, in words."""
    question, file = study.question, study.question.file
    cluster, device, failures = question.job.cluster, question.device, question.failures
    unit: str = "node" if failures.trace is not None else failures.unit
    if device is None:
        unit = "group"
    if failures.trace is not None:
        process = f"{len(failures.trace)} failures from a trace"
    else:
        whose = f"each {unit} fails" if failures.per_unit else f"one {unit} fails somewhere"
        kind = "Poisson" if failures.shape == 1 else f"Weibull, shape {failures.shape:g}"
        process = f"{whose} every {duration(failures.interval_seconds)} on average ({kind})"
        process += f" and is back after {duration(failures.repair_seconds)}"
        if failures.burst_ratio:
            process += f"; {failures.burst_ratio:.0%} of the failures follow another one closely"
    down = study.best.down_ratio * cluster.num_ranks
    if file.group is not None:
        group = file.group
        what = (
            f"{cluster.data_parallel * group.gpus:,} GPUs in {cluster.data_parallel:,} groups of {group.gpus:,}, which "
            f"compute for {duration(group.compute)} a step and reduce for {duration(group.reduction)}"
        )
    else:
        assert device is not None, "there is one where there are no groups"
        what = (
            f"{cluster.num_ranks:,} ranks ({cluster.nodes} nodes of {cluster.gpus_per_node}), data parallel "
            f"{cluster.data_parallel} x pipeline {cluster.pipeline}, {device.model} on {device.name} "
            f"({device.provenance})"
        )
    return [
        f"{file.name}: {what}",
        f"{process}; {down:.1f} {'ranks' if file.group is None else 'groups'} are down on average",
        f"without failures: {duration(study.best.free_step_seconds)} a step, "
        f"{study.best.free_tokens_per_second:,.0f} tokens/s, {free_hours(study):,.1f} hours for "
        f"{file.training.steps:,} steps",
        f"simulated: {study.hours:,.0f} hours, {study.num_replications} times, seed {study.seed}; medians",
    ]


def free_hours(study: Study) -> float:
    """Hours to train without failures."""
    return study.question.file.training.steps * study.best.free_step_seconds / 3600


def row(answer: Answer, study: Study) -> tuple[str, ...]:
    """One strategy's cells."""
    found = answer.forecast
    loss = found.time_to_loss_ratio(study.worth)
    interval = found.checkpoint_interval_seconds
    return (
        policy_words(found.policy),
        f"{found.tokens_per_second.median:,.0f}",
        *(_percent(one.median) for one in (found.goodput_ratio, found.drop_ratio, found.settled_drop_ratio)),
        *(_percent(one.median) for one in (found.degraded_ratio, found.projected_ratio)),
        _hours(found.hours_to_train(study.question.file.training.steps).median),
        *(_ratio(value) for value in (loss.median, loss.least, loss.greatest)),
        "-" if found.recovery_seconds is None else duration(found.recovery_seconds.median),
        "-" if interval is None else duration(interval),
        most_lost(found),
    )


def most_lost(found: Forecast) -> str:
    """The cause that takes most of the wall clock."""
    cause, seconds = max(found.lost_seconds.items(), key=lambda item: item[1])
    share = seconds / found.wall_clock_seconds
    return f"{CAUSE_WORDS[cause]} ({share:.1%})" if share > 0 else "nothing"


def reading(study: Study) -> list[str]:
    """How to read the table."""
    source = "the cluster file" if study.worth.degraded != DEGRADED_SAMPLE_WORTH else DEGRADED_SAMPLE_WORTH_SOURCE
    lines = [
        "goodput: of the wall clock, what the steps would have taken without failures. drop: of the strategy's own "
        "tokens/s; of it steps: by slower steps alone.",
        f"time to loss: times the failure-free job's, until its loss, where a degraded sample is worth "
        f"{study.worth.degraded:g} of an exact one ({source}), and a projected one {study.worth.projected:g}.",
    ]
    young = young_seconds(study.question)
    if young is not None:
        lines.append(f"Young's checkpoint interval for a job that starts again: {duration(young)}.")
    lines += [line for answer in study.answers if (line := rungs_text(answer.forecast))]
    device = study.question.device
    if device is not None and device.provenance == "predicted":
        lines.append(f"The device is predicted, not measured: {device.basis}.")
    return lines


def rungs_text(found: Forecast) -> str:
    """From where a job's state came after its losses, where some of it was in memory or on disk; else empty."""
    total = sum(found.rungs.values())
    if not total or found.rungs["peer"] + found.rungs["checkpoint"] + found.rungs["start"] == total:
        return ""
    shares = (f"{number / total:.2%} {_RUNG_WORDS[rung]}" for rung, number in found.rungs.items() if number)
    return f"{policy_words(found.policy)}: after {total:,.1f} losses, state came {', '.join(shares)}."


def recommendation(study: Study) -> str:
    """What to do, in a sentence."""
    best, loss = study.best, study.time_to_loss(study.best)
    if loss == float("inf"):
        return "No strategy gets anywhere under these failures: more replicas, spares or checkpoints are needed."
    words = (
        f"{policy_words(best.policy)} is soonest at the failure-free loss: after {_ratio(loss)} times the time without "
        f"failures, at {best.goodput_ratio.median:.1%} of its tokens/s"
    )
    others = [answer.forecast for answer in study.answers[1:]]
    if not others:
        return f"{words}."
    near = best.time_to_loss_ratio(study.worth)
    second = others[0].time_to_loss_ratio(study.worth)
    if second.least <= near.greatest:
        return f"{words}; {policy_words(others[0].policy)} ({_ratio(second.median)}) is within the spread of it."
    return f"{words}; next is {policy_words(others[0].policy)} with {_ratio(second.median)}."


def _sensitivity_table(study: Study) -> Table:
    """The inputs, those that change most first."""
    by_input: dict[str, dict[float, str]] = {}
    for one in study.sensitivities:
        words = f"{one.change_ratio:+.1%}" if abs(one.change_ratio) >= _LEAST_CHANGE else "none"
        if one.best != study.best.policy:
            words += f", {policy_words(one.best)} is better then"
        by_input.setdefault(one.input, {})[one.factor] = words
    rows = [(name, found.get(0.5, "-"), found.get(2.0, "-")) for name, found in by_input.items()]
    return Table(("time to loss, if this is", "halved", "doubled"), rows, left=range(3))


def _percent(ratio: float) -> str:
    # Not -0.0%.
    return f"{round(ratio, 4) + 0.0:.1%}"


def duration(seconds: float) -> str:
    """A duration that may be hours: `35 ms`, `12.3 s`, `45 min`, `2.5 h`."""
    if seconds < 119.95:
        return name_seconds(seconds)
    minutes = seconds / 60
    return f"{minutes:.3g} min" if minutes < 99.5 else f"{minutes / 60:,.3g} h"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 100 else "never"


def _hours(value: float) -> str:
    return f"{value:,.1f}" if value < 1e7 else "never"
