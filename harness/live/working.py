"""What a long command is doing, on standard error: nothing in its first two seconds, then how far it is.

A terminal shows one line, which is rewritten and removed at the end. Elsewhere, such as in the log of CI, a whole line
is written after two seconds and then every half minute.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TextIO

from chaos.host.streams import forgiving
from chaos.host.terminal import cells, columns
from chaos.plain_text import plain
from harness.live.lines import rounded

FIRST_SECONDS = 2.0
_LINE_SECONDS = 30.0
_TICK_SECONDS = 0.25
_CLEAR_LINE = "\r\x1b[K"


class Progress(Protocol):
    """Takes what is being done, and how many parts of how many are done; 0 of 0 where that is not known."""

    def __call__(self, part: str, done: int = 0, of: int = 0) -> None:
        """Called when a part begins."""
        ...


def no_progress(part: str, done: int = 0, of: int = 0) -> None:
    """For work that nobody watches."""


class Working:
    """Shows the progress of `what` as long as it is entered.

    Its thread shows the time that passes within a part. Whatever else is to be written to the terminal meanwhile goes
    through `message`.
    """

    def __init__(
        self,
        what: str,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        first_seconds: float | None = None,
    ) -> None:
        stream = sys.stderr if stream is None else stream
        self._what = what
        self._stream = forgiving(stream)
        # A dumb terminal cannot remove a line.
        self._is_rewritten = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._clock = clock
        self._first_seconds = FIRST_SECONDS if first_seconds is None else first_seconds
        self._part, self._done, self._of = "", 0, 0
        self._began = clock()
        self._next = self._began + self._first_seconds
        self._shown = ""
        self._lock = threading.RLock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        with self._lock:
            self._clear()

    def __call__(self, part: str, done: int = 0, of: int = 0) -> None:
        """See `Progress`."""
        with self._lock:
            self._part, self._done, self._of = part, done, of
            self.tick()

    def message(self, text: str) -> None:
        """Write a line that stays."""
        with self._lock:
            self._clear()
            self._write(f"{plain(text)}\n")

    def tick(self) -> None:
        """Show how far the work is, if it is time to."""
        with self._lock:
            now = self._clock()
            if now < self._next:
                return
            line = self._line(now - self._began)
            if not self._is_rewritten:
                self._next = now + _LINE_SECONDS
                self._write(f"{line}\n")
            elif (short := _shortened(line, columns() - 1)) != self._shown:
                self._write(f"{_CLEAR_LINE}{short}")
                self._shown = short

    def _line(self, elapsed_seconds: float) -> str:
        how_far = f"{self._done} of {self._of}" if self._of else ""
        parts = ", ".join(part for part in (how_far, plain(self._part), rounded(elapsed_seconds)) if part)
        return f"{plain(self._what)}: {parts}"

    def _clear(self) -> None:
        if self._shown:
            self._write(_CLEAR_LINE)
            self._shown = ""

    def _watch(self) -> None:
        while not self._is_over.wait(_TICK_SECONDS):
            self.tick()

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _shortened(line: str, width: int) -> str:
    if cells(line) <= width:
        return line
    while cells(line) > width - 3:
        line = line[:-1]
    return f"{line}..."
