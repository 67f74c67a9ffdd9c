"""What all ways say side by side: values in, a table, a JSON document and the aims out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks._machine import Machine
from benchmarks._spread import Spread, name_milliseconds, spread, table
from benchmarks.peers.records import Attempt, Kill, find_recovery, usual_step_seconds

AIM_STEPS, AIM_SECONDS = 2, 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one way. `recovery_seconds` None is never, and `failure` says why a run was not as it should be.

    A kill that did not take place (not `is_injected`) says nothing about recovery. `num_given_up` and `num_redone` are
    as in `records.Recovery`, None where nobody counts them; so is `num_ranks_after`, that shared the first new step.
    """

    way: str
    round_number: int
    target: str
    is_injected: bool
    recovery_seconds: float | None
    step_seconds: float | None
    failure: str | None
    others_cores: float | None = None
    num_given_up: int | None = None
    num_redone: int | None = None
    num_ranks_after: int | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """A row of the comparison: `is_ours`, or `group` names the peer; `settings` says what its user could change."""

    name: str
    group: str
    settings: str

    @property
    def is_ours(self) -> bool:
        """Whether it is no peer."""
        return self.group == "ours"


def outcome_of(
    way: Way, round_number: int, kill: Kill | None, attempts: Sequence[Attempt], failure: str | None
) -> Outcome:
    """The outcome of a peer's run, from what its ranks wrote down."""
    if kill is None:
        reason = f"there was no kill: {failure or 'the job ended before it'}"
        return Outcome(way.name, round_number, "?", False, None, None, reason)
    recovery = find_recovery(kill, attempts)
    if failure is not None:
        failure = f"{'did not recover' if recovery.first is None else 'recovered, and then failed'}: {failure}"
    return Outcome(
        way=way.name,
        round_number=round_number,
        target=f"rank={kill.rank}",
        is_injected=True,
        recovery_seconds=recovery.seconds,
        step_seconds=usual_step_seconds(kill, attempts),
        failure=failure,
        num_given_up=recovery.num_given_up,
        num_redone=recovery.num_redone,
        num_ranks_after=None if recovery.first is None else recovery.first.num_ranks,
    )


def name_recovery(outcome: Outcome) -> str:
    """The recovery of one run, in milliseconds."""
    return name_milliseconds(_or_never(outcome.recovery_seconds))


def recoveries(outcomes: Sequence[Outcome], way: Way) -> Spread:
    """All recoveries of a way whose kill took effect, never as infinity."""
    return _collect(outcomes, way, lambda outcome: outcome.recovery_seconds)


def steps(outcomes: Sequence[Outcome], way: Way) -> Spread:
    """The usual steps of a way."""
    return spread(o.step_seconds for o in outcomes if o.way == way.name and o.step_seconds is not None)


def recoveries_in_steps(outcomes: Sequence[Outcome], way: Way) -> Spread:
    """The recoveries of a way as multiples of the usual step of the same run."""
    known = [outcome for outcome in outcomes if outcome.step_seconds]
    return _collect(known, way, lambda o: _ratio(o.recovery_seconds, o.step_seconds))


def num_within_aim(outcomes: Sequence[Outcome], way: Way) -> tuple[int, int]:
    """(runs of a way that recovered within two usual steps and 200 ms, its runs)."""
    own = [o for o in outcomes if o.way == way.name and o.is_injected]
    met = [
        o
        for o in own
        if o.recovery_seconds is not None
        and o.step_seconds is not None
        and o.recovery_seconds <= AIM_STEPS * o.step_seconds + AIM_SECONDS
    ]
    return len(met), len(own)


def num_not_slower(outcomes: Sequence[Outcome], way: Way, others: Sequence[Way]) -> tuple[int, int]:
    """(rounds in which `way` recovered no later than the quickest of `others`, rounds that can be compared)."""
    names = {other.name for other in others}
    num_met = num_rounds = 0
    for own in outcomes:
        theirs = [o for o in outcomes if o.way in names and o.round_number == own.round_number and o.is_injected]
        if own.way != way.name or not own.is_injected or not theirs:
            continue
        num_rounds += 1
        quickest = min(_or_never(o.recovery_seconds) for o in theirs)
        num_met += own.recovery_seconds is not None and own.recovery_seconds <= quickest
    return num_met, num_rounds


def has_failures(outcomes: Sequence[Outcome], ways: Sequence[Way]) -> bool:
    """Whether ours failed, or any kill did not take place: that a peer never recovers is a result."""
    ours = {way.name for way in ways if way.is_ours}
    return any(not o.is_injected or (o.way in ours and o.failure is not None) for o in outcomes)


def report(
    outcomes: Sequence[Outcome], ways: Sequence[Way], machine: Machine, notes: Sequence[str], missing: Sequence[str]
) -> str:
    """The result as text; `notes` say what is the same for all ways and what not, `missing` what is not there."""
    rows = []
    for way in ways:
        step = steps(outcomes, way)
        cells = [
            *recoveries(outcomes, way).to_text(name_milliseconds),
            step.to_text(name_milliseconds)[0],
            recoveries_in_steps(outcomes, way).to_text(_name_multiple)[0],
        ]
        rows.append((way.name, *cells))
    others = max((outcome.others_cores or 0.0 for outcome in outcomes), default=0.0)
    return "\n".join(
        [
            f"machine: {machine}; others used at most {others:.2f} cores meanwhile",
            *notes,
            "",
            table(("killed -> new step committed", "median", "min", "max", "n", "usual step", "in steps"), rows),
            "",
            *(f"{way.name}: {way.settings}" for way in ways),
            *missing,
            "",
            *_aims(outcomes, ways),
            *(f"round {o.round_number}, {o.way}, {o.target}: FAILED: {o.failure}" for o in outcomes if o.failure),
        ]
    )


def to_document(
    outcomes: Sequence[Outcome], ways: Sequence[Way], machine: Machine, job: Mapping[str, Any], notes: Sequence[str]
) -> dict[str, Any]:
    """The result as plain JSON values."""
    return {
        "benchmark": "failover --peers",
        "machine": machine.to_dict(),
        "job": dict(job),
        "notes": list(notes),
        "ways": {
            way.name: {
                "settings": way.settings,
                "recovery_seconds": recoveries(outcomes, way).to_dict(),
                "step_seconds": steps(outcomes, way).to_dict(),
                "recovery_in_steps": recoveries_in_steps(outcomes, way).to_dict(),
            }
            for way in ways
        },
        "aims": _aims(outcomes, ways),
        "runs": [asdict(outcome) for outcome in outcomes],
    }


def _aims(outcomes: Sequence[Outcome], ways: Sequence[Way]) -> list[str]:
    lines = []
    torchft = [way for way in ways if way.group == "torchft"]
    for way in ways:
        if not way.is_ours:
            continue
        met, of = num_within_aim(outcomes, way)
        within = f"{AIM_STEPS} usual steps + {name_milliseconds(AIM_SECONDS)}"
        lines.append(f"aim: {way.name} within {within}: {met} of {of} runs")
        if torchft:
            met, of = num_not_slower(outcomes, way, torchft)
            lines.append(f"aim: {way.name} never slower than torchft: {met} of {of} rounds")
    return lines


def _collect(outcomes: Sequence[Outcome], way: Way, of: Callable[[Outcome], float | None]) -> Spread:
    return spread(_or_never(of(o)) for o in outcomes if o.way == way.name and o.is_injected)


def _ratio(seconds: float | None, step_seconds: float | None) -> float | None:
    return seconds / step_seconds if seconds is not None and step_seconds else None


def _or_never(value: float | None) -> float:
    return math.inf if value is None else value


def _name_multiple(ratio: float) -> str:
    return f"{ratio:.1f}" if math.isfinite(ratio) else "never"
