"""How a rank leaves an epoch while it computes: at once, or after it has drained its pipeline.

A rank whose own replica lost nobody finishes what its pipeline has in flight: then all ranks of the replica have the
gradients of the same microbatches, which count when the step is completed. A rank that waits for a lost rank, in its
own pipeline or in a reduction, leaves at once. Only the amount of lost work depends on this: contributions are
compared after all ranks have left.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NoReturn

from mecefo_runtime.comm.coordinator_client import CoordinatorClient
from mecefo_runtime.comm.operations import EpochBroken, EpochOver


class Drain:
    """Says, to the training thread and to the one that ends what it is blocked in, whether the rank finishes first.

    Draining takes at most `patience_seconds`, or as long as the last pipeline took: a rank that is delayed longer
    leaves.
    """

    def __init__(self, client: CoordinatorClient, patience_seconds: float) -> None:
        self._client = client
        self._patience_seconds = patience_seconds
        self._computed_seconds = 0.0
        # None: nothing is being computed.
        self._ranks: frozenset[int] | None = None
        self._called_seconds: float | None = None

    @contextmanager
    def computing(self, ranks: Collection[int]) -> Iterator[None]:
        """The context in which the pipeline of `ranks` computes."""
        self._called_seconds, self._ranks = None, frozenset(ranks)
        began_seconds = time.monotonic()
        try:
            yield
            self._computed_seconds = time.monotonic() - began_seconds
        finally:
            self._ranks = None

    def is_under_way(self) -> bool:
        """Whether the rank is called out and still drains its pipeline."""
        ranks, lost = self._ranks, self._client.lost
        if ranks is None or not lost or lost & ranks:
            return False
        now_seconds = time.monotonic()
        if self._called_seconds is None:
            self._called_seconds = now_seconds
        return now_seconds - self._called_seconds < self._patience_seconds + self._computed_seconds

    def must_stop(self) -> bool:
        """Whether the rank is called out, and its pipeline stops as soon as all its ranks have the same microbatches.

        Raises:
            EpochOver: leave at once.
        """
        if not self._client.must_leave:
            return False
        if self.is_under_way():
            return True
        raise EpochOver("the coordinator started a new epoch")

    def stopped(self) -> NoReturn:
        """All ranks of the pipeline have stopped after the same microbatch.

        Raises:
            EpochBroken: always; the call may be yet to come.
        """
        self._client.wait_until(lambda: False, self._patience_seconds)
        raise EpochBroken("the pipeline was stopped, and nobody called")
