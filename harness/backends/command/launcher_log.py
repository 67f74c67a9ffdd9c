"""Reads from torchrun's log which worker failed.

torch 2.11-2.13, `torch/distributed/elastic/multiprocessing/api.py`: one line for the first worker that failed, at the
time at which it was detected, whether or not it starts them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

# A progress bar ends its lines with carriage returns only.
_LINE_END = re.compile(rb"[\r\n]")
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_NOT_CONNECTED = "Gloo connectFullMesh failed"


STORE_SETTING = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
OLD_ADDRESSES = (
    "; ranks that were started again could not connect to each other: PyTorch (2.13) may have given them the addresses "
    f"of those before, which {STORE_SETTING}=1 avoids"
)
_TAIL_BYTES = 262_144
_TAIL_LINES = 8
_MAX_EXCEPTION = 300
_TRACEBACK = "Traceback (most recent call last)"
# What torch puts before each line of a rank's traceback, and torchrun's --tee before all that it prints.
_RANK_PREFIX = re.compile(r"^\[(?:rank|default)?\d+\]:\s?")
_FRAME = re.compile(r'\s+File "([^"]+)", line (\d+)')
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")
_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen", "/chaos/external/", "/chaos/in_process/")
_OF_LAUNCHERS = ("ChildFailedError", "SignalException", "CalledProcessError", "RendezvousConnectionError")
_OF_PEERS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "DistNetworkError")
# torchrun's summary of a failure, which names no exception (torch 2.11-2.13).
_BOILERPLATE = re.compile(
    r"\[\d+\]:$|(?:time|host|rank|exitcode|error_file|traceback)\s*:|Root Cause|Failures:|<NO_OTHER_FAILURES>"
    r"|\S+ FAILED$"
)


class LauncherLog:
    """Follows the log of a launcher while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        # Whether ranks could not connect to each other, none of which was of the first start.
        self.has_failed_restart = False
        self._has_failed = False

    def new_lines(self) -> list[str]:
        """What was written since the last call, whole lines."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                data = log.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = _LINE_END.split(self._rest + data)
        return [line.decode(errors="replace") for line in lines]

    def culprits(self, lines: Iterable[str]) -> list[int]:
        """The pids of the workers that it blames in these lines, in their order."""
        culprits: list[int] = []
        for line in lines:
            if match := _FAILED.search(line):
                self._has_failed = True
                culprits.append(int(match[3]))
            elif _NOT_CONNECTED in line and self._has_failed:
                self.has_failed_restart = True
        return culprits

    def why_it_failed(self) -> str:
        """The exception that ended it, with the place in the script; else the last lines that it printed."""
        try:
            with self._path.open("rb") as log:
                log.seek(max(0, self._path.stat().st_size - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        lines = [_RANK_PREFIX.sub("", line) for line in lines]
        if exception := _exception(lines):
            return f": {exception}; see logs/{self._path.name}"
        # What comes after it is the launcher's own end.
        lines = list(takewhile(lambda line: not line.startswith(_TRACEBACK), lines)) or lines
        # Launchers draw rulers.
        words = [line.strip() for line in lines if any(char.isalnum() for char in line)]
        last = [line for line in words if not _BOILERPLATE.match(line)][-_TAIL_LINES:]
        return f"; the last lines of logs/{self._path.name}: {' | '.join(last)}" if last else ""


def _exception(lines: Sequence[str]) -> str | None:
    """The last exception of the ranks' that is not for a peer that had gone; else the last of these."""
    found: list[tuple[str, bool]] = []
    place, is_inside = "", False
    for line in lines:
        if line.startswith(_TRACEBACK):
            place, is_inside = "", True
        elif is_inside and (frame := _FRAME.match(line)) is not None:
            is_of_library = any(part in frame[1] for part in _LIBRARIES)
            place = place if is_of_library else f" ({Path(frame[1]).name}, line {frame[2]})"
        elif is_inside and (match := _EXCEPTION.match(line)) is not None:
            is_inside = False
            if match[1].rpartition(".")[2] not in _OF_LAUNCHERS:
                is_consequence = any(word in line for word in _OF_PEERS)
                found.append((f"{line.strip()[:_MAX_EXCEPTION]}{place}", is_consequence))
    causes = [text for text, is_consequence in found if not is_consequence]
    return causes[-1] if causes else found[-1][0] if found else None
