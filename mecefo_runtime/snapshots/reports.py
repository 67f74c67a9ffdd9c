"""What a snapshot process keeps, told to the coordinator, and what that says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from mecefo_runtime.job.protection import SnapshotOffers
from mecefo_runtime.snapshots.messages import ToSnapshotProcess, to_snapshot_process
from mecefo_runtime.system.wire import Connection, Message, WireError
from mecefo_runtime.system.wire_messages import to_wire

RECONNECT_SECONDS = 0.05
# What can be had is told again so often, though nothing has changed.
REPORT_SECONDS = 1.0
CONNECT_TIMEOUT_SECONDS = 0.5


class Reports:
    """Tells the coordinator what this process can provide: after each change, and when there is a new coordinator.

    `obey` receives the coordinator's requests.
    """

    def __init__(
        self,
        address: str,
        hello: Message,
        kept: Callable[[], SnapshotOffers],
        obey: Callable[[ToSnapshotProcess], None],
    ) -> None:
        self._address = address
        self._hello = hello
        self._kept = kept
        self._obey = obey
        self._has_changed = threading.Event()
        self._connection: Connection | None = None
        self._is_sending = threading.Lock()
        # Whether the coordinator has heard anything yet.
        self.has_told = threading.Event()
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def note(self) -> None:
        """Something has changed."""
        self._has_changed.set()

    def tell(self) -> None:
        """Send the report now, if there is a coordinator."""
        with self._is_sending:
            if self._connection is not None:
                # That it broke is seen by who reads from it.
                with suppress(OSError):
                    self._connection.send(to_wire(self._kept()))
                    self.has_told.set()

    def attend(self, address: str, hello: Message) -> None:
        """The coordinator is there from now on, and wants this `hello`."""
        if address != self._address:
            self._hello, self._address = hello, address
            if (connection := self._connection) is not None:
                connection.close()

    def _run(self) -> None:
        while True:
            address = self._address
            try:
                connection = Connection.open(address, self._hello, CONNECT_TIMEOUT_SECONDS)
            except OSError:
                time.sleep(RECONNECT_SECONDS)
                continue
            self._connection = connection
            if address != self._address:
                # There was another one meanwhile.
                connection.close()
            is_over = threading.Event()
            threading.Thread(target=self._listen, args=(connection, is_over), daemon=True).start()
            self._has_changed.set()
            while not is_over.is_set():
                self._has_changed.wait(REPORT_SECONDS)
                self._has_changed.clear()
                self.tell()
            with self._is_sending:
                self._connection = None
            with suppress(OSError):
                connection.close()

    def _listen(self, connection: Connection, is_over: threading.Event) -> None:
        with suppress(WireError):
            while True:
                self._obey(to_snapshot_process(connection.receive()))
        is_over.set()
        self._has_changed.set()
