"""Feeds the event log of a run to an exporter: its present content, then what is added."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from chaos.host.run_files import EVENTS_FILE
from chaos.user_files import open_regular
from harness.exporter.job import JobExporter
from harness.judging.stored import judge
from harness.store.log import LogError, parse_line

LOG_POLL_SECONDS = 0.25


def follow(folder: Path, exporter: JobExporter, on_ready: Callable[[], None]) -> None:
    """Feed the log of the run in `folder`, call `on_ready`, and go on until interrupted.

    A run whose log has come to its end is judged, so that its verdict is served too. Half a line at the end waits for
    its other half; one that is no event is left out.

    Raises:
        LogError: there is no log to read, or no event in it.
    """
    path = folder / EVENTS_FILE
    is_ready = is_over = False
    num_events = num_unreadable = 0
    try:
        with open_regular(path) as file:
            rest = b""
            while True:
                *lines, rest = (rest + file.read()).split(b"\n")
                for line in lines:
                    event = parse_line(line)
                    if event is None:
                        num_unreadable += bool(line.strip())
                    else:
                        exporter.feed(event)
                        num_events += 1
                        is_over = is_over or event.kind == "run_ended"
                if not num_events and not is_ready:
                    raise LogError.no_events(path, num_unreadable)
                if is_over and exporter.figures.summary is None:
                    exporter.judge(judge(folder)[0])
                if not is_ready:
                    on_ready()
                    is_ready = True
                time.sleep(LOG_POLL_SECONDS)
    except OSError as error:
        raise LogError.cannot_read(path, error) from error
