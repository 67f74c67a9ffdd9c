"""A run that is in the store, for commands that start from one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.judging.summary import Summary
    from mecefo_runtime.system.events import Event


def read_run(out: Path, reference: str) -> tuple[Path, Summary, Sequence[Event]]:
    """(folder, summary, events) of the run that `reference` names, judged again from its log.

    Raises:
        UsageError: there is no such run.
        EnvironmentFailure: it cannot be read.
    """
    from harness.judging.stored import judge
    from harness.live.working import Working
    from harness.store.log import legible
    from harness.store.runs import find_run

    folder = find_run(out, reference)
    with legible(folder), Working(f"judging {folder}") as progress:
        summary, events = judge(folder, progress=progress)
    return folder, summary, events
