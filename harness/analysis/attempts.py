"""The attempts of an external job: its launcher ends all ranks and starts them again, from a checkpoint or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.analysis.steps import CommittedStep, Epochs
from mecefo_runtime.system.events import Event

COMMAND_RUNTIME = "command"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the ranks, `number` from 1. Times are CLOCK_MONOTONIC seconds; None: never.

    `started_seconds` is when its first rank reported, `ended_seconds` when the first of its ranks ended; between
    `first_began_seconds` and `last_committed_seconds` lie its steps.
    """

    number: int
    started_seconds: float
    ended_seconds: float | None
    first_began_seconds: float | None
    last_committed_seconds: float | None
    first_step: int | None


def epochs_of_pids(main: Sequence[Event]) -> Epochs:
    """Which attempts the process of a rank belongs to; what the launcher counts may say less (a shell loop).

    It is of several where it replaces itself (`os.execv`).
    """
    epochs: dict[int, list[tuple[float, int]]] = {}
    for event in main:
        if event.kind == "process_started" and event.fields.get("role") == "rank" and "rank_attempt" in event.fields:
            since = event.monotonic_seconds, int(event.fields["rank_attempt"])
            epochs.setdefault(int(event.fields["started_pid"]), []).append(since)
    return epochs


def read_attempts(main: Sequence[Event], steps: Sequence[CommittedStep]) -> tuple[Attempt, ...]:
    """The attempts of a job in order; `main` holds its events by time, `steps` all its steps, those redone as well."""
    found = []
    for event in main:
        if event.kind != "attempt_started":
            continue
        number = int(event.fields["attempt_number"])
        own = [step for step in steps if step.epoch == number]
        found.append(
            Attempt(
                number=number,
                started_seconds=event.monotonic_seconds,
                ended_seconds=_first_exit(main, number),
                first_began_seconds=min((step.began_seconds for step in own), default=None),
                last_committed_seconds=max((step.committed_seconds for step in own), default=None),
                first_step=own[0].step if own else None,
            )
        )
    return tuple(found)


def attempt_at(attempts: Sequence[Attempt], seconds: float | None) -> int | None:
    """Which attempt was under way then; None before the first, or when `seconds` is None."""
    begun = [one.number for one in attempts if seconds is not None and one.started_seconds <= seconds]
    return max(begun, default=None)


def read_restarts(attempts: Sequence[Attempt], ended_seconds: float) -> tuple[tuple[float, float], ...]:
    """The times (from, to) from the end of an attempt to the first step of the next one that came to a step."""
    restarts: list[tuple[float, float]] = []
    for earlier, later in pairwise(attempts):
        ended = later.started_seconds if earlier.ended_seconds is None else earlier.ended_seconds
        since = max(ended, earlier.last_committed_seconds or ended)
        until = ended_seconds if later.first_began_seconds is None else later.first_began_seconds
        if restarts and earlier.first_began_seconds is None:
            # It was over before it came to a step: all of it was waiting.
            since = restarts.pop()[0]
        restarts.append((since, max(since, until)))
    return tuple(restarts)


def _first_exit(main: Sequence[Event], attempt: int) -> float | None:
    return next(
        (
            event.monotonic_seconds
            for event in main
            if event.kind == "process_exited"
            and event.fields.get("role") == "rank"
            and event.fields.get("rank_attempt") == attempt
        ),
        None,
    )
