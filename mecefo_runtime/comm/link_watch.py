"""Detects, in a rank, that training is stalled by a link: dropped packets break no connection.

It only looks while no step is committed: a cut link that nobody uses does no harm. A slow link still accepts
connections, and so does a flapping one, which is recognised by unacknowledged data (see `stalls`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from mecefo_runtime.comm.probe import find_unreachable
from mecefo_runtime.comm.stalls import find_stalled

# Of the patience, how often it is looked whether anything continues.
_LOOKS = 4
# So many times its patience nothing goes on before a peer that can be reached is held to be at the end of a bad link.
STALLED_AFTER = 3


class LinkWatch:
    """Tries all of `peers` (rank -> address) whenever `progress` has not changed for `patience_seconds`.

    `report` gets those that took no connection within half of that, and, when it has not changed for three times as
    long, those of other hosts than `own_host` on whose links a connection is stalled. It is called on the watch's own
    thread.
    """

    def __init__(
        self,
        patience_seconds: float,
        progress: Callable[[], object],
        peers: Callable[[], Mapping[int, str]],
        report: Callable[[list[int]], None],
        own_host: str,
    ) -> None:
        self._patience_seconds = patience_seconds
        self._progress = progress
        self._peers = peers
        self._report = report
        self._own_host = own_host
        self._closed = threading.Event()
        self._changed_seconds = time.monotonic()

    def start(self) -> None:
        """Start the watch."""
        threading.Thread(target=self._watch, name="link-watch", daemon=True).start()

    def close(self) -> None:
        """Stop the watch."""
        self._closed.set()

    def find_stalled(self) -> list[int]:
        """The peers on whose links a connection is stalled, when no step has been committed for long enough."""
        if time.monotonic() - self._changed_seconds < STALLED_AFTER * self._patience_seconds:
            return []
        return find_stalled(self._peers(), self._own_host, self._patience_seconds)

    def _watch(self) -> None:
        known, tried_seconds = self._progress(), time.monotonic()
        while not self._closed.wait(self._patience_seconds / _LOOKS):
            progress, now_seconds = self._progress(), time.monotonic()
            if progress != known:
                known, tried_seconds = progress, now_seconds
                self._changed_seconds = now_seconds
                continue

            def is_over(known: object = known) -> bool:
                return self._closed.is_set() or self._progress() != known

            bad: list[int] = []
            if now_seconds - tried_seconds >= self._patience_seconds:
                bad = find_unreachable(self._peers(), self._patience_seconds / 2, is_over)
                tried_seconds = time.monotonic()
            if not self._closed.is_set() and (bad := bad or self.find_stalled()):
                self._report(bad)
