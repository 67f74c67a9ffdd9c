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
_NOT_CONNECTED = b"Gloo connectFullMesh failed"


STORE_SETTING = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
OLD_ADDRESSES = (
    "; ranks that were started again could not connect to each other: PyTorch (2.13) may have given them the addresses "
    f"of those before, which {STORE_SETTING}=1 avoids"
)
_TAIL_BYTES = 4096
_TAIL_LINES = 8


class LauncherLog:
    """Follows the log of a launcher while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        # Whether ranks could not connect to each other, none of which was of the first start.
        self.has_failed_restart = False
        self._has_failed = False

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
        culprits: list[int] = []
        for line in lines:
            if match := _FAILED.search(line):
                self._has_failed = True
                culprits.append(int(match[3]))
            elif _NOT_CONNECTED in line and self._has_failed:
                self.has_failed_restart = True
        return culprits

    def last_lines(self) -> list[str]:
        """The end of what it printed."""
        try:
            with self._path.open("rb") as log:
                log.seek(max(0, self._path.stat().st_size - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        # Launchers draw rulers.
        return [line.strip() for line in lines if any(char.isalnum() for char in line)][-_TAIL_LINES:]
