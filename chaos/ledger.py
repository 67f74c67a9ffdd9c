"""The ledger: what was planned to be done and must perhaps be undone, written down and synced before it is done.

One JSON line per change of an entry, each fsynced, so that it survives the death of the tool and of the machine's
power. An entry is `prepared` before the fault is applied, `applied` after, and `struck` once its undo was verified.
What is not struck is pending: somebody has to undo it from the record alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chaos.errors import EnvironmentFailure


@dataclass(frozen=True, slots=True)
class Entry:
    """The newest state of one incident in the ledger."""

    incident: int
    fault: str
    state: str
    record: Mapping[str, Any]


class Ledger:
    """The ledger of one run, open for writing."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot open the undo ledger {path}: {error.strerror}; nothing was injected"
            ) from error
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def prepare(self, incident: int, fault: str, record: Mapping[str, Any]) -> None:
        """On disk when this returns; only then may the fault be applied.

        Raises:
            EnvironmentFailure: it could not be written; do not apply.
        """
        self._write(incident, fault, "prepared", record)

    def applied(self, incident: int, fault: str) -> None:
        """The fault was applied."""
        self._write(incident, fault, "applied", {})

    def strike(self, incident: int, fault: str) -> None:
        """The undo was verified (or there is nothing to undo): nothing of the incident is left."""
        self._write(incident, fault, "struck", {})

    def _write(self, incident: int, fault: str, state: str, record: Mapping[str, Any]) -> None:
        line = json.dumps({"incident": incident, "fault": fault, "state": state, "record": dict(record)}) + "\n"
        try:
            self._file.write(line.encode())
            os.fsync(self._file.fileno())
        except OSError as error:
            raise EnvironmentFailure(f"cannot write the undo ledger {self._path}: {error.strerror}") from error


def read_pending(path: Path) -> tuple[Entry, ...]:
    """The entries that are not struck; a last line that was cut off was never acted on."""
    entries: dict[int, Entry] = {}
    if not path.exists():
        return ()
    for line in path.read_bytes().splitlines():
        try:
            raw = json.loads(line)
        except ValueError:
            continue
        known = entries.get(raw["incident"])
        record = raw["record"] or (known.record if known else {})
        entries[raw["incident"]] = Entry(raw["incident"], raw["fault"], raw["state"], record)
    return tuple(entry for entry in entries.values() if entry.state != "struck")
