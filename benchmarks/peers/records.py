"""What the ranks of a peer's job write down about their steps, and what that says about the recovery from a kill."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.analysis.steps import CommittedStep, median_step_seconds, steps_before


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rank's attempt at one step. Times are CLOCK_MONOTONIC seconds, the same for all processes of a machine.

    `restart` counts how often the rank's process has been started again. `committed_seconds` is when its optimizer had
    stepped, None where the peer gave the attempt up. `num_ranks` shared the gradients; `loss` is the mean over the
    rank's own tokens.
    """

    rank: int
    restart: int
    step: int
    began_seconds: float
    committed_seconds: float | None
    num_ranks: int
    loss: float


@dataclass(frozen=True, slots=True)
class Kill:
    """The SIGKILL: of which rank, in which step, when."""

    rank: int
    step: int
    at_seconds: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """What followed a kill.

    `first` is the first commit that counts, None if there was none. `num_given_up` attempts of survivors were not
    committed between the kill and that, `num_redone` steps from before the kill were committed again.
    """

    seconds: float | None
    first: Attempt | None
    num_given_up: int
    num_redone: int


class Recorder:
    """Appends the records of one process to a file of its own in `folder`, each written out at once."""

    def __init__(self, folder: Path, rank: int, restart: int) -> None:
        self._rank = rank
        self._restart = restart
        self._path = folder / f"{rank}-{restart}.jsonl"

    def attempt(
        self, step: int, began_seconds: float, committed_seconds: float | None, num_ranks: int, loss: float
    ) -> None:
        """One attempt at a step is over."""
        found = Attempt(self._rank, self._restart, step, began_seconds, committed_seconds, num_ranks, loss)
        self._write({"attempt": asdict(found)})

    def kill(self, step: int) -> None:
        """Note the time, and end this process by SIGKILL."""
        self._write({"kill": asdict(Kill(self._rank, step, time.monotonic()))})
        os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, record: dict[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def read_records(folder: Path) -> tuple[Kill | None, list[Attempt]]:
    """(the kill, None if it has not come to it; all attempts); a line that is being written is left out."""
    kill: Kill | None = None
    attempts: list[Attempt] = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            record = json.loads(line)
            if "kill" in record:
                kill = Kill(**record["kill"])
            else:
                attempts.append(Attempt(**record["attempt"]))
    return kill, attempts


def find_recovery(kill: Kill, attempts: Sequence[Attempt]) -> Recovery:
    """The first commit, on whichever rank, of an attempt that began after the kill and at a step not committed before.

    A step in flight at the kill that commits nevertheless is no recovery; nor is one that only does again what had
    been done, behind a checkpoint.
    """
    after = [attempt for attempt in attempts if attempt.began_seconds > kill.at_seconds]
    new = [(a.committed_seconds, a.rank, a) for a in after if a.committed_seconds is not None and a.step >= kill.step]
    seconds, _, first = min(new, key=lambda found: found[:2], default=(None, None, None))
    given_up = [
        attempt
        for attempt in attempts
        if attempt.committed_seconds is None and (seconds is None or attempt.began_seconds < seconds)
    ]
    redone = {attempt.step for attempt in after if attempt.committed_seconds is not None and attempt.step < kill.step}
    return Recovery(None if seconds is None else seconds - kill.at_seconds, first, len(given_up), len(redone))


def usual_step_seconds(kill: Kill, attempts: Sequence[Attempt]) -> float | None:
    """The usual step before the kill, by the rule of our own runs, on the lowest rank that survives it."""
    ranks = {attempt.rank for attempt in attempts if attempt.rank != kill.rank}
    committed = [
        (attempt.committed_seconds, attempt)
        for attempt in attempts
        if attempt.committed_seconds is not None and attempt.rank == min(ranks, default=None)
    ]
    steps: list[CommittedStep] = []
    for seconds, attempt in sorted(committed, key=lambda found: found[0]):
        previous = steps[-1].committed_seconds if steps else attempt.began_seconds
        steps.append(
            CommittedStep(
                step=attempt.step,
                epoch=attempt.restart,
                loss=attempt.loss,
                work=0.0,
                samples=None,
                samples_checksum=None,
                began_seconds=attempt.began_seconds,
                committed_seconds=seconds,
                previous_seconds=previous,
            )
        )
    return median_step_seconds(steps_before(steps, kill.at_seconds))
