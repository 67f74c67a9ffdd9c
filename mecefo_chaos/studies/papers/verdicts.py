"""Whether a claim holds here: as a verdict with one sentence, and as an exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mecefo_runtime.system.json_values import FLAT

Verdict = Literal[
    "reproduced", "better than the paper", "not reproduced", "cannot be decided here", "not checked", "no claim"
]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure from which a verdict is computed: the median, least and greatest of `n` values of one cell."""

    cell: str
    median: float
    least: float
    greatest: float
    n: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim, what we find, and the verdict. `rule` says how the verdict follows from the `figures`."""

    claim: str
    paper: str
    ours: str
    verdict: Verdict
    reason: str
    rule: str = ""
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether something holds; `passed` None: too little was measured to tell. `n` is of how many.

    `figures` are keys of its JSON that only this gate has; of the same name, they take the place of the words.
    """

    name: str
    passed: bool | None
    value: str
    limit: str
    n: int
    reason: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict, metadata=FLAT)


@dataclass(frozen=True, slots=True)
class Open:
    """What cannot be decided here, and what would decide it."""

    question: str
    what_decides: str


def exit_code_of(passed: Iterable[bool | None]) -> int:
    """Of gates, None: undecided. 0: all that is decided passed; 1: one failed; 5: nothing is decided."""
    decided = [one for one in passed if one is not None]
    if not decided:
        return 5
    return 0 if all(decided) else 1


def gate_word(passed: bool | None) -> str:
    """What stands before a gate."""
    return {True: "pass", False: "FAIL", None: "undecided"}[passed]
