"""Stops a process from outside once it has written a number of bytes: torch and safetensors write natively.

The position of the open file is read in `/proc/PID/fdinfo`, which takes some microseconds; the process continues
in that time, so that it is stopped at that byte or later. The byte is read again once it stands still.
"""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chaos.host.process_table import is_stopped
from mecefo_runtime.system.process import ProcessId

POLL_SECONDS = 0.0002
# At first it polls without a pause: a small file is written within a millisecond.
EAGER_SECONDS = 0.5
LOOK_SECONDS = 0.001
STOP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Written:
    """The process was stopped with `offset` bytes of the file at `path` written, of which `num_bytes` are there."""

    path: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Open:
    descriptor: int
    path: str
    offset: int


class WriteWatch:
    """Follows what `process` writes from now on; `path` is what it is about to save to, where that is known.

    A file that it has open already, and has written to, is none of the save.
    """

    def __init__(self, process: ProcessId, num_bytes: int, path: str | None = None) -> None:
        self._process = process
        self._num_bytes = num_bytes
        self._path = path
        self._is_over = threading.Event()
        self.has_begun = threading.Event()
        self._passed = {(one.descriptor, one.path) for one in self._open_files() if one.offset and one.path != path}
        # Of the file that came furthest.
        self.largest = 0

    def end(self) -> None:
        """What was to be watched is over."""
        self._is_over.set()

    def wait(self) -> Written | None:
        """Until the process is stopped there; None: it was over before, or the process has ended."""
        until = time.monotonic() + EAGER_SECONDS
        looked_seconds = 0.0
        while not self._is_over.is_set() and self._process.is_running():
            now = time.monotonic()
            # The size of one file is known much sooner than which files are open.
            if self._has_grown() or now - looked_seconds >= LOOK_SECONDS:
                looked_seconds = now
                if (written := self._look()) is not None:
                    return written
            self.has_begun.set()
            time.sleep(0.0 if now < until else POLL_SECONDS)
        self.has_begun.set()
        return None

    def _has_grown(self) -> bool:
        if self._path is None:
            return False
        try:
            return os.stat(self._path).st_size >= self._num_bytes  # noqa: PTH116  (a fifth of the time of Path.stat)
        except OSError:
            return False

    def _look(self) -> Written | None:
        for one in self._open_files():
            if (one.descriptor, one.path) in self._passed:
                continue
            self.largest = max(self.largest, one.offset)
            if one.offset >= self._num_bytes and (written := self._stopped_at(one)) is not None:
                return written
        return None

    def let_go(self) -> None:
        """Let the process continue, if it still exists."""
        self._process.signal(signal.SIGCONT)

    def _stopped_at(self, found: _Open) -> Written | None:
        """Stop it; None, and it continues, where it has written the file to its end by then."""
        self._process.signal(signal.SIGSTOP)
        until = time.monotonic() + STOP_SECONDS
        while not is_stopped(self._process) and self._process.is_running() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        now = next((one for one in self._open_files() if one.descriptor == found.descriptor), None)
        if now is not None and now.path == found.path:
            with suppress(OSError):
                return Written(now.path, now.offset, Path(now.path).stat().st_size)
        self.let_go()
        # It is not looked at again: the file is whole.
        self._passed.add((found.descriptor, found.path))
        return None

    def _open_files(self) -> Iterator[_Open]:
        """The regular files that it has open for writing, and not only for appending as logs are."""
        pid = self._process.local_pid
        try:
            descriptors = [int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            return
        for descriptor in descriptors:
            # It may be closed at any moment.
            with suppress(OSError, ValueError, KeyError):
                path = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
                if not path.startswith("/") or path.startswith(("/dev/", "/proc/")):
                    continue
                if not stat.S_ISREG(Path(f"/proc/{pid}/fd/{descriptor}").stat().st_mode):
                    continue
                lines = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
                facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
                flags = int(facts["flags"], 8)
                if flags & os.O_ACCMODE != os.O_RDONLY and not flags & os.O_APPEND:
                    yield _Open(descriptor, path, int(facts["pos"]))
