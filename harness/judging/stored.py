"""Judges a stored run from its log alone."""

from __future__ import annotations

from pathlib import Path

from chaos.host.run_files import EVENTS_FILE
from harness.judging.summarize import summarize
from harness.judging.summary import Summary
from harness.store.log import read_events
from mecefo_runtime.system.events import Event


def judge(folder: Path) -> tuple[Summary, list[Event]]:
    """The summary of a run, and its events, from the log alone.

    Raises:
        harness.store.log.LogError: there is no log to read.
    """
    events, num_unreadable = read_events(folder / EVENTS_FILE)
    return summarize(events, num_unreadable=num_unreadable), events
