"""A run that is in the store, for commands that start from one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.errors import EnvironmentFailure, UsageError, shown

if TYPE_CHECKING:
    from mecefo_runtime.events import Event


def read_run(out: Path, reference: str) -> tuple[Path, Mapping[str, Any], Sequence[Event]]:
    """(folder, summary, events) of the run that `reference` names, judged again from its log.

    Raises:
        UsageError: there is no such run.
        EnvironmentFailure: it cannot be read.
    """
    from harness.execute import judge
    from harness.log import LogError
    from harness.runs import RunNotFound, StoreError, find_run

    try:
        folder = find_run(out, reference)
        with legible(folder):
            summary, events = judge(folder)
    except RunNotFound as error:
        raise UsageError(str(error)) from error
    except (StoreError, LogError) as error:
        raise EnvironmentFailure(str(error)) from error
    return folder, summary, events


@contextmanager
def legible(folder: Path) -> Iterator[None]:
    """While something is computed from the log of the run in `folder`, whose events may be none that a run writes.

    Raises:
        EnvironmentFailure: it broke down of them.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise EnvironmentFailure(
            f"the events of {folder} are not such as a run writes: its log is damaged, or of another version "
            f"({type(error).__name__}: {shown(str(error))})"
        ) from error
