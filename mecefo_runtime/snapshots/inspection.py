"""The snapshots of a process as a hook inside it sees them: where they are stored, and whether they are complete."""

from __future__ import annotations

from contextlib import AbstractContextManager

from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.snapshots.refusal import Refusal
from mecefo_runtime.snapshots.shelf import NotHeld, Shelf, StoredPart


class SnapshotInspection:
    """The snapshots on `shelf`, which is used by one thread at a time: `lock` is held meanwhile."""

    def __init__(self, shelf: Shelf, lock: AbstractContextManager[object]) -> None:
        self._shelf = shelf
        self._lock = lock

    def newest(self) -> tuple[Version, bool, tuple[StoredPart, ...]] | None:
        """What a restore would read here, whether all ranks have agreed on it, and where it lies; None: nothing.

        That is the newest version on which all ranks have agreed, else the newest of all.
        """
        with self._lock:
            by_version = self._shelf.stored_parts()
            kept = self._shelf.kept
        if not by_version:
            return None
        version = kept if kept in by_version else max(by_version, key=lambda version: version.step)
        return version, version == kept, by_version[version]

    def why_refused(self, version: Version, unit: str, share: Share) -> Refusal | None:
        """The reason with which a request for a part is refused; None: it is served."""
        try:
            with self._lock:
                found = self._shelf.find(version, unit, share)
            found.checked()
        except NotHeld as error:
            return Refusal(error.code, str(error))
        return None
