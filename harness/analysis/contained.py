"""An analysis that fails, or that would take too long, costs its own figure and nothing else.

What is too long is a number of operations that goes with the length of the log, not a time: the same log has the same
answer on every machine. The loops whose work could grow beyond it charge what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar, TypeVar

from chaos.errors import ChaosError
from chaos.plain_text import blanked
from mecefo_runtime.system.reason import Reason, Table

T = TypeVar("T")

LEAST_OPERATIONS = 1_000_000
"""An analysis may take so many operations however short the log is ..."""
OPERATIONS_PER_EVENT = 200
"""... and so many more for each event; what is known to be right takes some twenty at most."""
PROBLEMS = Table({"analysis_failed": "the {what} could not be computed: {error}"})
# An error may repeat what a log said.
_MAX_CHARACTERS = 300


class BudgetExceeded(ChaosError):
    """An analysis was ended because it takes more operations than its log is worth."""

    exit_code: ClassVar[int] = 5


class _Budget:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left = limit


_BUDGET: ContextVar[_Budget | None] = ContextVar("budget", default=None)


def charge(number: int = 1) -> None:
    """So many operations are about to be done.

    Raises:
        BudgetExceeded: they are too many, with those done before.
    """
    budget = _BUDGET.get()
    if budget is None:
        return
    budget.left -= number
    if budget.left < 0:
        raise BudgetExceeded(f"it takes more than {budget.limit:,} operations, too many for a log of this length")


@contextmanager
def budget(size: int) -> Iterator[None]:
    """While one figure is computed from a log of that many events."""
    token = _BUDGET.set(_Budget(LEAST_OPERATIONS + OPERATIONS_PER_EVENT * size))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def analysis_failed(what: str, error: Exception) -> Reason:
    """The reason that `what` has no value: its analysis raised `error`."""
    message = blanked(str(error)).strip()[:_MAX_CHARACTERS]
    name = "" if isinstance(error, BudgetExceeded) else type(error).__name__
    return Reason("analysis_failed", what=what, error=": ".join(part for part in (name, message) if part))


def could_not(what: str, error: Exception) -> str:
    """`the time accounting could not be computed: ValueError: ...`."""
    return PROBLEMS.text(analysis_failed(what, error))


def attempt(what: str, compute: Callable[[], T], problems: list[Reason], *, size: int) -> T | None:
    """What `compute` makes of a log of `size` events; None, and an entry in `problems`, where it fails."""
    try:
        with budget(size):
            return compute()
    except Exception as error:  # of memory and of recursion, too
        problems.append(analysis_failed(what, error))
        return None


def as_far_as_it_goes(what: str, things: Callable[[], Iterable[T]], problems: list[Reason], *, size: int) -> list[T]:
    """All of `things`, or those that came before one failed, with an entry in `problems`."""
    found: list[T] = []

    def collect() -> None:
        for thing in things():
            found.append(thing)

    attempt(what, collect, problems, size=size)
    return found


class Shared:
    """Figures that several ask for, each computed once; one that failed fails again, at no cost."""

    def __init__(self) -> None:
        self._known: dict[str, object] = {}
        self._failed: dict[str, Exception] = {}

    def once(self, what: str, compute: Callable[[], T]) -> T:
        """What `compute` makes, the first time that `what` is asked for."""
        if what in self._failed:
            raise self._failed[what]
        if what not in self._known:
            try:
                self._known[what] = compute()
            except Exception as error:
                self._failed[what] = error.with_traceback(None)
                raise
        return self._known[what]  # type: ignore[return-value]
