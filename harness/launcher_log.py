"""Whom a launcher blames: what torchrun writes into its log when one of its workers fails.

torch 2.11-2.13, `torch/distributed/elastic/multiprocessing/api.py`: one line for the first worker that failed, at the
time at which it was noticed, whether or not it starts them again.
"""

from __future__ import annotations

import re
from pathlib import Path

# A progress bar ends its lines with carriage returns only.
_LINE_END = re.compile(rb"[\r\n]")
_FAILED = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")


class LauncherLog:
    """Follows the log of a launcher while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_culprits(self) -> list[int]:
        """The pids of the workers that it has blamed since the last call, in their order."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                data = log.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = _LINE_END.split(self._rest + data)
        return [int(match[3]) for line in lines if (match := _FAILED.search(line))]
