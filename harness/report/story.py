"""A run in a few sentences: what it was, which faults were injected, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from harness.analysis.narrator import Narrator
from harness.analysis.state import state_of
from harness.analysis.steps import step_under_way
from harness.analysis.words import count, name_seconds, name_uncertain, one_line, speed_text, target_text
from harness.judging.facts import unplanned_words
from harness.judging.summary import IncidentSummary, Summary
from harness.report import attempt_words, wording
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import JobStarted
from mecefo_runtime.system.run_records import RunStarted

_TOLD_ONE_BY_ONE = 3
_CHRONICLE_HEAD, _CHRONICLE_TAIL = 150, 50


def about(summary: Summary, events: Iterable[Event]) -> list[str]:
    """What the run was: when, on what, with what. Only what is known."""
    state, said = state_of(events), []
    run, started = state.first_of(RunStarted), state.first_of(JobStarted)
    if run is not None:
        said.append(f"{datetime.fromtimestamp(run.time_seconds, UTC):%Y-%m-%d %H:%M:%S} UTC")
    job = _mapping(_mapping(run and run.experiment).get("job"))
    if summary.command:
        said.append(f"command {summary.command}")
    if started is not None and started.num_ranks is not None:
        nodes = f" on {count(started.nodes, 'node')}" if isinstance(started.nodes, int) else ""
        said.append(f"{count(started.num_ranks, 'rank')}{nodes}")
    if words := wording.emulated_words(summary):
        said.append(words)
    if job.get("model"):
        said.append(f"model {job['model']}")
    if isinstance(job.get("data_parallel"), int) and isinstance(job.get("pipeline"), int):
        said.append(f"{count(job['data_parallel'], 'replica')} of {count(job['pipeline'], 'stage')}")
    if summary.strategy:
        said.append(f"takeover strategy {summary.strategy}")
    if backends := backends_text(summary):
        said.append(f"groups over {backends}")
    if summary.seed is not None:
        said.append(f"seed {summary.seed}")
    return said


def backends_text(summary: Summary) -> str:
    """`NCCL`, `gloo` or, where epochs differed, both in the order in which they came; empty: nobody knows."""
    names = [{"nccl": "NCCL"}.get(backend, one_line(backend)) for backend in summary.group_backends or ()]
    return ", then ".join(names)


def story(summary: Summary) -> list[str]:
    """What happened and what it cost, sentence by sentence."""
    unplanned = [f"{unplanned_words(loss)}." for loss in summary.unplanned_losses]
    return [*_steps(summary), *_faults(summary), *unplanned, *_cost(summary)]


def steps_text(summary: Summary) -> str:
    """`committed 117 of 120 planned steps`, as far as it is known."""
    committed, planned = summary.steps_committed, summary.steps_planned
    if committed is None:
        return "committed an unknown number of steps"
    if planned:
        return f"committed {committed} of {planned} planned {'step' if planned == 1 else 'steps'}"
    return f"committed {count(committed, 'step')}"


def lost_words(summary: Summary) -> str:
    """What `steps_lost` counts: of a job that did not complete it is unknown which steps it would have lost."""
    return "steps lost" if summary.job_outcome == "completed" else "steps recomputed"


@dataclass(frozen=True, slots=True)
class Row:
    """A key event: its number in the log, from 1, when it happened, the job's step then, and a sentence."""

    number: int
    at: str
    step: str
    words: str


def chronicle(events: Iterable[Event], also: Collection[int] = ()) -> tuple[list[Row], int]:
    """(rows of the key events, in order; how many in their middle were left out).

    The step is the job's current one, so that the rows go back only where the job does. Events whose number is in
    `also` have a row, whatever they are.
    """
    ordered = sorted(
        enumerate(events, start=1), key=lambda pair: (pair[1].monotonic_seconds, step_under_way(pair[1]) or 0)
    )
    narrator = Narrator()
    begin = ordered[0][1].monotonic_seconds if ordered else 0.0
    rows = []
    for number, event in ordered:
        sentence = narrator.tell(event)
        if sentence is None and number in also:
            sentence = f"{event.kind.replace('_', ' ')}, reported by {_reporter(event)}"
        if sentence is not None:
            step = step_under_way(event)
            at = f"{event.monotonic_seconds - begin:.2f} s"
            rows.append(Row(number, at, "" if step is None else str(step), sentence))
    if len(rows) <= _CHRONICLE_HEAD + _CHRONICLE_TAIL:
        return rows, 0
    middle = rows[_CHRONICLE_HEAD:-_CHRONICLE_TAIL]
    kept = [row for row in middle if row.number in also]
    return [*rows[:_CHRONICLE_HEAD], *kept, *rows[-_CHRONICLE_TAIL:]], len(middle) - len(kept)


def _reporter(event: Event) -> str:
    return one_line(event.source) if event.rank is None else f"rank {event.rank}"


def _steps(summary: Summary) -> Iterator[str]:
    attempts = summary.attempts
    starts = f", in {count(attempts, 'attempt')} of its launcher" if attempts else ""
    lost = summary.steps_lost
    # Steps that the command's own checkpoint gives back are told by how often they were done.
    repeated = summary.steps_repeated
    again = f"; {repeated} of them recomputed" if repeated else ""
    missing = f"; {count(lost, 'step')} lost" if lost and lost != repeated else ""
    committed, planned = summary.steps_committed, summary.steps_planned
    whole = "; none lost" if lost == 0 and committed and committed >= (planned or 0) else ""
    yield f"The job {steps_text(summary)}{starts}{whole}{again}{missing}."
    if fruitless := attempt_words.fruitless_words(summary):
        yield f"{fruitless}."
    if world := attempt_words.world_words(summary):
        yield f"{world}."
    if rule := wording.hang_rule_words(summary):
        yield rule
    for incident in summary.incidents:
        if timeout := wording.timeout_words(summary, incident):
            yield timeout


def _faults(summary: Summary) -> Iterator[str]:
    incidents = summary.incidents
    if not incidents:
        yield "No fault was injected."
    elif len(incidents) <= _TOLD_ONE_BY_ONE:
        for incident in incidents:
            yield from _fault(incident)
    else:
        kinds = Counter(incident.fault for incident in incidents)
        named = ", ".join(f"{number} x {kind}" for kind, number in kinds.most_common(6))
        seen = sum(incident.verified for incident in incidents)
        took_effect = "all" if seen == len(incidents) else "none" if not seen else str(seen)
        yield f"{len(incidents)} faults were planned ({named}); {took_effect} of them were verified."
        recoveries = [s for incident in incidents if (s := wording.recovery_seconds(incident)) is not None]
        if recoveries:
            through = "all" if len(recoveries) == seen else str(len(recoveries))
            yield (
                f"The job recovered from {through} of those: median {name_seconds(median(recoveries))}, "
                f"maximum {name_seconds(max(recoveries))}."
            )


def _fault(incident: IncidentSummary) -> Iterator[str]:
    fault, target = incident.fault, target_text(incident.target)
    moment = wording.moment(incident)
    at = f" {moment}" if moment else ""
    if not incident.verified:
        if not incident.injected:
            yield one_line(f"The fault {fault} on {target}{at} was never injected.")
        else:
            yield one_line(f"The fault {fault} was injected on {target}{at}, but its effect could not be verified.")
        return
    noticed, recovery = incident.detection_seconds, wording.recovery_seconds(incident)
    sentence = f"{fault} hit {target}{at}"
    doubts = incident.uncertainty_seconds
    detection = name_uncertain(noticed, doubts.get("detection_seconds"))
    said = [f"detected it after {detection}"] if noticed is not None else []
    since = "the fault"
    if incident.notice_seconds is not None:
        said, since = [f"released its ranks {name_seconds(incident.notice_seconds)} after the notice"], "that"
    if recovery is not None:
        took = name_uncertain(recovery, doubts.get("recovery_seconds"))
        said.append(f"committed its next step {took} after {since}")
    if said:
        sentence += f"; the job {' and '.join(said)}"
    yield one_line(f"{sentence}.")
    if (back := wording.rejoin_words(incident)) is not None:
        yield f"Its ranks rejoined {back}."
    if incident.state_restored is not None:
        yield wording.state_words(incident.state_restored)
    if failure := wording.recovery_words(incident):
        yield failure
    if incident.preemption is not None:
        yield from wording.preemption_lines(incident.preemption)


def _cost(summary: Summary) -> Iterator[str]:
    unit, speeds = wording.speeds(summary)
    drop = summary.throughput_drop_ratio
    if drop is not None and {"before", "during"} <= speeds.keys():
        how = "lower" if drop > 0 else "higher"
        yield (
            f"During the fault throughput was {wording.percent(abs(drop))} {how} than before "
            f"({speed_text(speeds['before'])} to {speed_text(speeds['during'])} {unit} per second)."
        )
    if summary.goodput_ratio is not None and summary.wall_clock_seconds:
        wall = name_seconds(summary.wall_clock_seconds)
        yield f"Of the job's {wall}, {wording.percent(summary.goodput_ratio)} was productive training."
    if summary.loss_deviation_ratio is not None:
        apart = wording.percent(summary.loss_deviation_ratio, 2)
        yield f"Its final loss differs by {apart} from that of the fault-free baseline."
    if words := wording.approximation_words(summary):
        yield f"Approximation: {words}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
