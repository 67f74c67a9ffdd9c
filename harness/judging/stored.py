"""Judges a stored run by its log, which the files beside it must not contradict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.errors import UsageError
from chaos.host.run_files import EVENTS_FILE, EXPERIMENT_FILE, SUMMARY_FILE
from chaos.language.yaml_lines import read
from chaos.user_files import read_regular
from harness.analysis.contained import as_far_as_it_goes
from harness.judging.summarize import summarize
from harness.judging.summary import Summary
from harness.store.agreement import RUN_STARTED, contradictions_of_files, no_beginning
from harness.store.log import read_events
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import loads
from mecefo_runtime.system.reason import Reason


def judge(
    folder: Path, gates: Sequence[str] | None = None, progress: Callable[[str, int, int], None] = lambda *_: None
) -> tuple[Summary, list[Event]]:
    """The summary of a run, and its events, from the log alone.

    With `gates` these are judged in place of those that were asked for. `progress`: see `harness.live.working`.

    Raises:
        harness.store.log.LogError: there is no log to read.
    """
    doubts: list[Reason] = []
    log = read_events(
        folder / EVENTS_FILE, lambda done, of: progress("MB of the event log", done // 10**6, -(-of // 10**6))
    )
    progress("figures", 0, 0)
    summary = summarize(
        log.events,
        unreadable=log.unreadable,
        ends_in_a_line=log.ends_in_a_line,
        doubts=as_far_as_it_goes("check of the files", lambda: _doubts(folder, log.events), doubts, size=0) + doubts,
        gates=gates,
    )
    return summary, log.events


def _doubts(folder: Path, events: Sequence[Event]) -> Iterator[Reason]:
    """What is wrong with the order of `events`, and with the files beside them."""
    start = next((event for event in events if event.kind == RUN_STARTED), None)
    if start is not None:
        yield from no_beginning(events[0])
        experiment, summary = _experiment_of(folder / EXPERIMENT_FILE), _summary_of(folder / SUMMARY_FILE)
        yield from contradictions_of_files(start.fields, experiment, summary)


def _experiment_of(path: Path) -> Mapping[str, Any] | None:
    """The experiment in a file; None where there is none that can be read, which contradicts nothing."""
    try:
        return read(path).values
    except UsageError:
        return None


def _summary_of(path: Path) -> Mapping[str, Any] | None:
    """The same of a summary."""
    try:
        found = loads(read_regular(path))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, Mapping) else None
