"""A busy loop on one core: the load of somebody else, as a process of its own.

That process runs this file, which therefore imports nothing but the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from types import TracebackType
from typing import Self

_ROUNDS_BETWEEN_LOOKS = 1_000_000


class BusyCore:
    """While it is entered, a process pinned to `core` computes without pause; on leaving it is killed and waited for.

    Afterwards `cpu_ratio` is the CPU time that it got over the wall time that it ran.
    """

    def __init__(self, core: int) -> None:
        self._core = core
        self._pid = 0
        self._began_seconds = 0.0
        self.cpu_ratio = 0.0

    def __enter__(self) -> Self:
        arguments = [sys.executable, "-I", __file__, str(self._core), str(os.getpid())]
        self._began_seconds = time.monotonic()
        self._pid = os.posix_spawn(sys.executable, arguments, os.environ, setsid=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.kill(self._pid, signal.SIGKILL)
        usage = os.wait4(self._pid, 0)[2]
        wall_seconds = time.monotonic() - self._began_seconds
        self.cpu_ratio = round((usage.ru_utime + usage.ru_stime) / wall_seconds, 3)


def burn(core: int, parent_pid: int) -> None:
    """Compute on `core` while `parent_pid` is the parent: a benchmark that is killed leaves nothing behind."""
    os.sched_setaffinity(0, {core})
    while os.getppid() == parent_pid:
        for _ in range(_ROUNDS_BETWEEN_LOOKS):
            continue


if __name__ == "__main__":
    burn(int(sys.argv[1]), int(sys.argv[2]))
