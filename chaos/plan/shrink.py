"""The smallest schedule that still fails: delta debugging over incidents, then over their steps.

Pure but for `fails`, which runs an experiment; what it answered is remembered. After Zeller and Hildebrandt,
"Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002 (ddmin).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class BudgetSpent(Exception):
    """No more trials are allowed."""


class Trials:
    """Asks whether an experiment (plain values) fails, each only once, and at most `max_trials` in all."""

    def __init__(self, fails: Callable[[Mapping[str, Any]], bool], max_trials: int) -> None:
        self._fails = fails
        self._max_trials = max_trials
        self._answers: dict[str, bool] = {}

    @property
    def num_trials(self) -> int:
        """How many experiments were tried."""
        return len(self._answers)

    def __call__(self, experiment: Mapping[str, Any]) -> bool:
        """Whether `experiment` fails.

        Raises:
            BudgetSpent: it would have to be tried, and no trial is left.
        """
        key = json.dumps(experiment, sort_keys=True)
        if key not in self._answers:
            if len(self._answers) >= self._max_trials:
                raise BudgetSpent
            self._answers[key] = self._fails(experiment)
        return self._answers[key]


def minimize(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """A part of `items`, in their order, that fails and of which no item can be left out (1-minimal).

    `items` as a whole must fail. What `fails` raises ends the search.
    """
    kept = tuple(items)
    num_parts = 2
    while len(kept) > 1:
        size = -(-len(kept) // num_parts)
        parts = [kept[start : start + size] for start in range(0, len(kept), size)]
        # At two parts each is the other's rest.
        rests = [] if len(parts) == 2 else [_without(kept, i * size, size) for i in range(len(parts))]
        smaller = next((part for part in (*parts, *rests) if fails(part)), None)
        if smaller is not None:
            num_parts = 2 if smaller in parts else max(2, len(parts) - 1)
            kept = smaller
        elif size == 1:
            break
        else:
            num_parts = min(len(kept), 2 * len(parts))
    return kept


def lowest(value: int, floor: int, fails: Callable[[int], bool]) -> int:
    """A number from `floor` to `value` that fails, the lowest if all above it do; `value` itself must fail."""
    low = floor
    while low < value:
        middle = (low + value) // 2
        if fails(middle):
            value = middle
        else:
            low = middle + 1
    return value


def _without(items: tuple[T, ...], first: int, size: int) -> tuple[T, ...]:
    return items[:first] + items[first + size :]
