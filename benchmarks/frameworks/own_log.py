"""What the script itself wrote of its steps (`step_log.py`), and the figures that follow from it alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Stamp:
    """A line: a step of a rank `began`, was `done`, was `resumed` from, or was the last (`ended`).

    `seconds` are of the host's monotonic clock, `checksum` of all parameters at the end.
    """

    rank: int
    what: str
    step: int
    seconds: float
    pid: int
    checksum: str | None = None


def read_stamps(folder: Path) -> list[Stamp]:
    """All ranks' lines; the last one of a process that was killed may be cut short and is left out then."""
    stamps = []
    for path in sorted(folder.glob("steps-*.jsonl")):
        rank = int(path.stem.removeprefix("steps-"))
        for line in path.read_text().splitlines():
            try:
                said = json.loads(line)
            except json.JSONDecodeError:
                continue
            stamps.append(Stamp(rank, said["what"], said["step"], said["seconds"], said["pid"], said.get("checksum")))
    return stamps


def steps_repeated(stamps: Sequence[Stamp]) -> int:
    """Steps that were done again, of the rank that did most of them."""
    done = Counter((stamp.rank, stamp.step) for stamp in stamps if stamp.what == "done")
    by_rank: Counter[int] = Counter()
    for (rank, _), times in done.items():
        by_rank[rank] += times - 1
    return max(by_rank.values(), default=0)


def recovery_seconds(stamps: Sequence[Stamp], injected_seconds: float) -> float | None:
    """From the fault until the first rank was done with a step that it had begun after it; None: none was."""
    began: dict[tuple[int, int, int], float] = {}
    first: float | None = None
    for stamp in stamps:
        step = (stamp.rank, stamp.pid, stamp.step)
        if stamp.what == "began":
            began[step] = stamp.seconds
        elif stamp.what == "done" and began.get(step, 0.0) > injected_seconds:
            first = stamp.seconds if first is None else min(first, stamp.seconds)
    return None if first is None else first - injected_seconds


def last_step(stamps: Sequence[Stamp]) -> int:
    """The highest that any rank was done with."""
    return max((stamp.step for stamp in stamps if stamp.what == "done"), default=0)


def are_replicas_equal(stamps: Sequence[Stamp]) -> bool | None:
    """Whether all ranks ended with the same parameters; None: fewer than two came to the end, or they are sharded."""
    last = {stamp.rank: stamp.checksum for stamp in stamps if stamp.what == "ended"}
    return None if len(last) < 2 else len(set(last.values())) == 1


def injected_at(events: Iterable[Mapping[str, Any]]) -> float | None:
    """When the run's only fault took effect, on the same clock; None: it did not."""
    return next((event["monotonic"] for event in events if event["kind"] == "injected"), None)
