"""Counts the operations of a piece of code: what it does, not how long it takes."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_HERE = str(Path(__file__).resolve().parents[2] / "harness")
# Built-in methods that look through a whole list in one call.
_THROUGH_ALL = frozenset({"remove", "index", "count", "insert", "pop", "copy", "reverse"})


def operations(work: Callable[[], Any]) -> int:
    """Lines of our own code that `work` runs, each time that it does, and the lengths of lists that it looks through.

    A line is also counted for each round of a loop or comprehension in it.
    """
    count = 0
    ours: dict[CodeType, bool] = {}

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        known = ours.get(code)
        if known is None:
            # What a dataclass has made for it has no file.
            known = ours[code] = code.co_filename.startswith((_HERE, "<string>"))
        return on_line if known else None

    def on_profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event == "c_call" and argument.__name__ in _THROUGH_ALL and isinstance(argument.__self__, list):
            # Cheap for each, and still as many as there are.
            is_at_end = argument.__name__ == "pop"
            count += 0 if is_at_end else len(argument.__self__) // 8

    sys.setprofile(on_profile)
    sys.settrace(on_call)
    try:
        work()
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    return count


def peak_bytes(work: Callable[[], Any]) -> int:
    """The most memory that Python objects took while `work` ran, beyond what they took before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def growth(counts: tuple[int, int, int]) -> float:
    """By what the last doubling of the size cost more than the doubling before it.

    2 of work that goes with the size, 4 of work that goes with its square; what is done once drops out.
    """
    once, twice, four_times = counts
    return (four_times - twice) / max(1, twice - once)
