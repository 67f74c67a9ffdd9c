"""A stored run -> its summary, from its log alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.judging.summary import summarize
from harness.store.log import read_events
from harness.store.runs import EVENTS_FILE
from mecefo_runtime.system.events import Event


def judge(folder: Path) -> tuple[dict[str, Any], list[Event]]:
    """The summary of a run, and its events, from the log alone.

    Raises:
        harness.store.log.LogError: there is no log to read.
    """
    events, num_unreadable = read_events(folder / EVENTS_FILE)
    return summarize(events, num_unreadable=num_unreadable), events
