"""Notices, in a rank, that nothing goes on because a peer cannot be reached: packets that vanish break no connection.

Only while no step is committed: a cut link that nobody needs harms nobody, and a slow one lets connections through.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from mecefo_runtime.probe import find_unreachable

# Of the patience, how often it is looked whether anything goes on.
_LOOKS = 4


class LinkWatch:
    """Tries all of `peers` (rank -> address) whenever `progress` has not changed for `patience_seconds`.

    `report` gets those that took no connection within half of that; it is called on the watch's own thread.
    """

    def __init__(
        self,
        patience_seconds: float,
        progress: Callable[[], object],
        peers: Callable[[], Mapping[int, str]],
        report: Callable[[list[int]], None],
    ) -> None:
        self._patience_seconds = patience_seconds
        self._progress = progress
        self._peers = peers
        self._report = report
        self._closed = threading.Event()

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._watch, name="link-watch", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _watch(self) -> None:
        known, since_seconds = self._progress(), time.monotonic()
        while not self._closed.wait(self._patience_seconds / _LOOKS):
            progress, now_seconds = self._progress(), time.monotonic()
            if progress != known:
                known, since_seconds = progress, now_seconds
            elif now_seconds - since_seconds >= self._patience_seconds:

                def is_over(known: object = known) -> bool:
                    return self._closed.is_set() or self._progress() != known

                if unreachable := find_unreachable(self._peers(), self._patience_seconds / 2, is_over):
                    self._report(unreachable)
                since_seconds = time.monotonic()
