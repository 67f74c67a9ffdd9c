"""The client of a snapshot process: used by ranks that restore, and by other snapshot processes."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from mecefo_runtime.job.protection import SnapshotOffers
from mecefo_runtime.snapshots.checksums import crc32
from mecefo_runtime.snapshots.messages import (
    Describe,
    Described,
    Fetch,
    Fetched,
    FromSnapshots,
    Offers,
    Read,
    ReadParity,
    Refused,
    Welcome,
    from_snapshots,
)
from mecefo_runtime.system.wire import Connection, WireError
from mecefo_runtime.system.wire_messages import to_wire

CONNECT_TIMEOUT_SECONDS = 2.0
ANSWER_TIMEOUT_SECONDS = 30.0


def open_connection(address: str, token: str, timeout_seconds: float) -> Connection:
    """A connection to the snapshot process at `address`, which has answered; its time-out is set.

    The kernel accepts connections for a stopped process too, so an answer is required.

    Raises:
        OSError: nobody answers within the time.
    """
    connection = Connection.open(address, {"token": token}, timeout_seconds)
    try:
        connection.set_timeout(timeout_seconds)
        if not isinstance(from_snapshots(connection.receive()), Welcome):
            raise WireError("it is no snapshot process")
    except BaseException:
        with suppress(OSError):
            connection.close()
        raise
    return connection


class SnapshotPeer:
    """A connection to the snapshot process at `address`, as a context.

    Raises:
        OSError: it cannot be reached; so do all methods when it is gone, or refuses: then the text says why.
    """

    def __init__(self, address: str, token: str) -> None:
        self._connection = open_connection(address, token, CONNECT_TIMEOUT_SECONDS)
        self._connection.set_timeout(ANSWER_TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._connection.close()

    def offers(self) -> SnapshotOffers:
        """What the process can provide."""
        answer = self._ask(Offers())
        if not isinstance(answer, SnapshotOffers):
            raise WireError(f"offers are expected, not {type(answer).__name__}")
        return answer

    def wait_for_end(self) -> None:
        """Return when the process is gone."""
        self._connection.set_timeout(None)
        with suppress(OSError):
            self._connection.receive()

    def describe(self, wanted: Describe) -> Described:
        """What it keeps at a version, as soon as it has all of it."""
        answer = self._ask(wanted)
        if not isinstance(answer, Described):
            raise WireError(f"a description is expected, not {type(answer).__name__}")
        return answer

    def read_into(self, memory: memoryview, wanted: Fetch | Read | ReadParity) -> None:
        """Fill `memory`, which must have the size of what is `wanted`."""
        answer = self._ask(wanted)
        if not isinstance(answer, Fetched) or answer.num_bytes != len(memory):
            raise WireError(f"{len(memory)} bytes are expected, not {answer}")
        self._connection.receive_into(memory)
        if crc32(memory) != answer.crc32:
            raise WireError("what was sent arrived damaged")

    def _ask(self, wanted: Offers | Describe | Fetch | Read | ReadParity) -> FromSnapshots:
        self._connection.send(to_wire(wanted))
        answer: FromSnapshots = from_snapshots(self._connection.receive())
        if isinstance(answer, Refused):
            raise WireError(answer.reason)
        return answer
