"""When: a training step and one of its phases, or a time; and how long: seconds or steps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from chaos.errors import UsageError, nearest, shown
from chaos.language.save_moment import CHECKPOINT, OPEN_MOMENTS, SaveMoment
from mecefo_runtime.job.setting import SECONDS_PER_UNIT

# In the order in which a step goes through them; a rank can be held before it enters one.
PHASES = ("data", "forward", "backward", "reduce", "optimizer", "commit", "checkpoint")
DEFAULT_PHASE = "forward"
# The snapshot of a step: a rank is in the middle of copying its share, a snapshot process of encoding the parity. Both
# go on beside the steps after it, and steps may be passed over: it is of that step, or of the first one after it.
SNAPSHOT_PHASES = ("snapshot", "encode")
# What ranks go through between two steps: they agree on a new epoch, and state moves to its new holders.
OUTSIDE_PHASES = ("regroup", "transfer")
# Their step is not known beforehand.
OPEN_PHASES = (*SNAPSHOT_PHASES, *OUTSIDE_PHASES)

_STEP_UNITS = ("step", "steps")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-z]*)")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time (`seconds`, at least 0), or of training (`steps`, at least 1); exactly one of the two."""

    seconds: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.steps is None):
            raise UsageError("a duration is either in seconds or in steps")
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise UsageError(f"a duration cannot be {self.seconds} seconds: write at least 0s")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"a duration cannot be {self.steps} steps: write at least 1step")

    def __str__(self) -> str:
        return f"{self.steps}steps" if self.steps is not None else _seconds_text(self.seconds or 0.0)

    @classmethod
    def parse(cls, text: object, *, in_steps: bool = True) -> Duration:
        """Read `30s`, `1500ms`, `2min`, `1h` or `15steps`; where not `in_steps`, no steps are suggested.

        Raises:
            UsageError: it is none of these.
        """
        if isinstance(text, Duration):
            return text
        units = (*SECONDS_PER_UNIT, *(_STEP_UNITS if in_steps else ()))
        is_none = f"is not a duration: write 30s, 1500ms, 2min{', 1h or 15steps' if in_steps else ' or 1h'}"
        other = units[-1] if in_steps else "ms"
        match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
        if isinstance(text, int | float) and not isinstance(text, bool):
            if not math.isfinite(text):
                raise UsageError(f"{text} {is_none}")
            raise UsageError(f"{text} has no unit: write {text}s or {text}{other}")
        if match is None:
            raise UsageError(f"{shown(text)} {is_none}")
        number, unit = match.groups()
        if unit in _STEP_UNITS:
            return cls(steps=_whole(number, "steps"))
        if unit in SECONDS_PER_UNIT:
            return cls(seconds=round(float(number) * SECONDS_PER_UNIT[unit], 9))
        if not unit:
            raise UsageError(f"{shown(text)} has no unit: write {number}s or {number}{other}")
        raise UsageError(f"{unit!r} is no unit: use one of {', '.join(units)}", suggestion=nearest(unit, units))


@dataclass(frozen=True, slots=True)
class Trigger:
    """At `phase` of training step `step` (from 1), or `at_seconds` after the job began to run; exactly one of the two.

    A phase outside of steps is that of the next regroup; with a step, of the first one at which training continues with
    that step or a later one. A phase of snapshots is of the first one that is taken of that step or a later one. A
    fault at a time is not held at a phase, and `phase` means nothing then. `in_save` is a moment within the save of a
    checkpoint, of a command's job alone.
    """

    step: int | None = None
    phase: str = DEFAULT_PHASE
    at_seconds: float | None = None
    in_save: SaveMoment | None = None

    def __post_init__(self) -> None:
        if self.in_save is not None and (self.step is None or self.phase != CHECKPOINT):
            key = "after" if self.in_save.during is None else "during"
            if self.step is None:
                raise UsageError(f"{self.in_save} is of the save of a step: write step=20,{self.in_save}", key=key)
            raise UsageError(f"{self.in_save} is of the phase checkpoint: leave phase={self.phase} out", key="phase")
        if self.step is not None and self.at_seconds is not None:
            raise UsageError("step and time contradict each other: give one of them")
        if self.step is None and self.at_seconds is None and self.phase not in OUTSIDE_PHASES:
            raise UsageError("it is not said when: write step=500 or time=10s")
        if self.step is not None and self.step < 1:
            raise UsageError(f"step={self.step}: steps count from 1", key="step")
        if self.phase not in (*PHASES, *OPEN_PHASES):
            raise UsageError(
                f"there is no phase {shown(self.phase)}: the phases of a step are {', '.join(PHASES)}; "
                f"of its snapshot {', '.join(SNAPSHOT_PHASES)}; outside of steps there are {', '.join(OUTSIDE_PHASES)}",
                key="phase",
                suggestion=nearest(self.phase, (*PHASES, *OPEN_PHASES)),
            )
        if self.at_seconds is not None and not (math.isfinite(self.at_seconds) and self.at_seconds >= 0):
            raise UsageError(f"time={self.at_seconds}: a time is at least 0s", key="time")

    def __str__(self) -> str:
        if self.at_seconds is not None:
            return f"time={_seconds_text(self.at_seconds)}"
        step = [] if self.step is None else [f"step={self.step}"]
        phase = [f"phase={self.phase}"] if self.phase != DEFAULT_PHASE else []
        return ",".join([*step, *phase, *([] if self.in_save is None else [str(self.in_save)])])

    @property
    def announced(self) -> str:
        """The word that the agent announces where it fires: the phase, or the moment of a save."""
        return self.phase if self.in_save is None else self.in_save.announced

    @property
    def is_open(self) -> bool:
        """Whether it is of the first time that this is announced in its step or a later one."""
        return self.at_seconds is None and (self.announced in OPEN_PHASES or self.announced in OPEN_MOMENTS)

    @property
    def is_outside_steps(self) -> bool:
        """Whether it waits for a regroup, whose step is not known beforehand."""
        return self.at_seconds is None and self.phase in OUTSIDE_PHASES

    @classmethod
    def parse(cls, value: object) -> Trigger:
        """Read `step=500,phase=backward`, `phase=regroup` or `time=10s`, or a mapping such as `{step: 500}`.

        Raises:
            UsageError: it is none of these; `key` is the part that is wrong, where it is one part.
        """
        if isinstance(value, Trigger):
            return value
        number = whole_number(value)
        if number is not None:
            raise UsageError(f"{number} of what? write step={number} or time={number}s")
        parts: Mapping[object, object]
        if isinstance(value, str):
            parts = dict(split_pairs(value))
        elif isinstance(value, Mapping):
            parts = value
        else:
            raise UsageError(f"{shown(value)} is no trigger: write step=500, step=500,phase=backward or time=10s")
        words = ("step", "phase", "time", "after", "during")
        for key in parts:
            if key not in words:
                if meant := _meant(key):
                    raise UsageError(f"{shown(key)} is no trigger: write {meant}")
                raise UsageError(
                    f"there is no {shown(key)} in a trigger: write {', '.join(words)}",
                    key=str(key) if isinstance(value, Mapping) else None,
                    suggestion=nearest(str(key), words),
                )
        if "time" in parts and "phase" in parts and "step" not in parts:
            raise UsageError("time and phase contradict each other: a phase belongs to a step", key="phase")
        in_save = SaveMoment.parse(*((parts[key] or "") if key in parts else None for key in ("after", "during")))
        if in_save is not None and "time" in parts:
            raise UsageError(f"time and {in_save} contradict each other: a save belongs to a step", key="time")
        return cls(
            step=_step(parts["step"]) if "step" in parts else None,
            phase=_phase(parts["phase"]) if "phase" in parts else DEFAULT_PHASE if in_save is None else CHECKPOINT,
            in_save=in_save,
            at_seconds=_time(parts["time"]) if "time" in parts else None,
        )


def _meant(text: object) -> str | None:
    """How a trigger is written that lacks its key or its sign: `10s`, `step5`."""
    text = str(text)
    if match := re.fullmatch(r"(step|time)[ :_-]?([0-9]+(s|ms|min|h)?)", text):
        return f"{match[1]}={match[2]}"
    with suppress(UsageError):
        duration = Duration.parse(text)
        return f"step={duration.steps}" if duration.seconds is None else f"time={text}"
    return None


def split_pairs(text: str) -> list[tuple[str, str | None]]:
    """Split `a=1,b` into [("a", "1"), ("b", None)].

    Raises:
        UsageError: a part is empty, or a key is there twice.
    """
    pairs: list[tuple[str, str | None]] = []
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or (equals and not value):
            raise UsageError(f"{shown(text)} has an empty part: write KEY=VALUE, or several with a comma between them")
        if any(key == known for known, _ in pairs):
            raise UsageError(f"{shown(text)} says {shown(key)} twice")
        pairs.append((key, value if equals else None))
    return pairs


def whole_number(value: object) -> int | None:
    """`value` as a number of at most nine digits, if it is one or the text of one."""
    if isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
        return int(value)
    return value if type(value) is int and 0 <= value < 10**9 else None


def _step(value: object) -> int:
    step = whole_number(value)
    if step is None:
        raise UsageError(f"step must be a whole number from 1, not {shown(value)}", key="step")
    return step


def _phase(value: object) -> str:
    if not isinstance(value, str):
        phases = ", ".join((*PHASES, *OPEN_PHASES))
        raise UsageError(f"phase must be one of {phases}, not {shown(value)}", key="phase")
    return value


def _time(value: object) -> float:
    try:
        duration = Duration.parse(value, in_steps=False)
    except UsageError as error:
        raise UsageError(error.message, key="time", suggestion=error.suggestion) from None
    if duration.seconds is None:
        raise UsageError(f"a time is not in steps: write step={duration.steps} instead", key="time")
    return duration.seconds


def _whole(number: str, what: str) -> int:
    if "." in number:
        raise UsageError(f"{number} {what}: {what} are whole numbers")
    return int(number)


def _seconds_text(seconds: float) -> str:
    # Never in scientific notation, which `parse` does not read.
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
