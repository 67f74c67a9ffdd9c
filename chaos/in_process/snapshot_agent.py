"""The agent inside a node's snapshot process: it waits where it is told to, and answers questions at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from chaos.in_process.agent import Agent
from chaos.in_process.base import InProcessFault
from chaos.in_process.protocol import At, Begin, Lift, Release, from_injector
from mecefo_runtime.job.state_source import Share, Version
from mecefo_runtime.system.wire import Connection, WireError

if TYPE_CHECKING:
    from mecefo_runtime.snapshots.refusal import Refusal
    from mecefo_runtime.snapshots.shelf import StoredPart


class SnapshotAgent(Agent):
    """`announce` is called on the thread that encodes; what is asked is answered on another one.

    So a process that is held while it encodes serves everybody else meanwhile.
    """

    def announce(self, step: int, phase: str) -> None:
        """Wait here if the injector wants this process held at (step, phase)."""
        if not self._is_wanted(step, phase) or not self._send(At(step, phase)):
            return
        message = self._inbox.get()
        self._set_holds(message.holds if isinstance(message, Release) else ())

    def _start(self, connection: Connection) -> None:
        # It forks nobody, and is asked while it announces nothing.
        self._start_reader(connection)

    def _read(self, connection: Connection) -> None:
        message = None
        while True:
            try:
                message = from_injector(connection.receive())
            except WireError:
                # Without an injector there is nothing to wait for.
                self._set_holds(())
                self._inbox.put(None)
                connection.abandon()
                return
            match message:
                case Begin():
                    self._begin(message, 0, "")
                case Lift():
                    self._obey(message)
                case Release():
                    self._inbox.put(message)


class Snapshots(Protocol):
    """What a snapshot process keeps, see `mecefo_runtime.snapshots.inspection`."""

    def newest(self) -> tuple[Version, bool, tuple[StoredPart, ...]] | None:
        """What a restore would read, whether all ranks have agreed on it, and where it lies."""
        ...

    def why_refused(self, version: Version, unit: str, share: Share) -> Refusal | None:
        """Why a part is not delivered; None: it is."""
        ...


class _Question(InProcessFault):
    """Something that is asked, and changes nothing; `subject` is a `Snapshots`."""

    @property
    def snapshots(self) -> Snapshots:
        """What the process keeps."""
        return cast(Snapshots, self.subject)


class NewestSnapshot(_Question):
    """Where the parts lie that a restore would read here."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Its step, lineage, whether all ranks have agreed on it, and its parts; none: nothing is whole."""
        newest = self.snapshots.newest()
        if newest is None:
            return {"parts": []}
        version, is_agreed, parts = newest
        described = [
            {
                "rank": one.rank,
                "unit": one.part.unit,
                "share": [one.part.share.index, one.part.share.of],
                "num_bytes": one.part.num_bytes,
                "descriptor": one.descriptor,
                "offset": one.offset,
                "sequence": one.sequence,
                "sequence_offset": one.sequence_offset,
            }
            for one in parts
        ]
        return {"step": version.step, "lineage": version.lineage, "is_agreed": is_agreed, "parts": described}


class AskForPart(_Question):
    """Whether `share` of `unit` at (`step`, `lineage`) is given to whoever asks for it."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Why it is `refused`, and the `code` of that; both None: it is delivered."""
        wanted = self.arguments
        version = Version(wanted["step"], wanted["lineage"])
        refusal = self.snapshots.why_refused(version, wanted["unit"], Share(*wanted["share"]))
        return {
            "refused": None if refusal is None else refusal.details,
            "code": None if refusal is None else refusal.code,
        }
