"""Feeds the event log of a run to an exporter: its present content, then what is added."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from chaos.host.run_files import EVENTS_FILE
from chaos.user_files import MAX_LINE_BYTES, open_regular
from harness.exporter.job import JobExporter
from harness.judging.stored import judge
from harness.store.log import LogError, parse_line

LOG_POLL_SECONDS = 0.25
_CHUNK_BYTES = 1 << 20


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
            tail = _Tail(file)
            while True:
                for line in tail.lines():
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


class _Tail:
    """What is added to a file, line by line; of a line that is too long nothing is kept but that there was one."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._rest = b""
        self._is_too_long = False

    def lines(self) -> Iterator[bytes]:
        """The lines that have come to their end since the last call."""
        while chunk := self._file.readline(_CHUNK_BYTES):
            self._rest += chunk
            if len(self._rest) > MAX_LINE_BYTES:
                self._rest, self._is_too_long = b"", True
            if chunk.endswith(b"\n"):
                yield b"?" if self._is_too_long else self._rest
                self._rest, self._is_too_long = b"", False
