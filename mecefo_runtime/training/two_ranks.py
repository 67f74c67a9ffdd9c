"""Two ranks in one process, a thread each, over real groups: for measuring what messages between them take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import EpochBroken
from mecefo_runtime.comm.rendezvous import RendezvousStore

T = TypeVar("T")
_TIMEOUT_SECONDS = 60.0


def on_two_ranks(act: Callable[[Groups], T]) -> list[T]:
    """What `act` returns as rank 0, and as rank 1.

    Raises:
        EpochBroken: one of them failed.
    """
    values: dict[str, bytes] = {}
    changed = threading.Condition()
    results: dict[int, T] = {}

    def put(key: str, value: bytes) -> None:
        with changed:
            values[key] = value
            changed.notify_all()

    def take(key: str, timeout_seconds: float) -> bytes:
        with changed:
            if not changed.wait_for(lambda: key in values, timeout_seconds):
                raise EpochBroken(f"nobody published {key}")
            return values[key]

    def run(rank: int) -> None:
        groups = Groups(RendezvousStore(put, take), 1, rank, (0, 1), (), _TIMEOUT_SECONDS)
        try:
            results[rank] = act(groups)
        finally:
            groups.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(results) != len(threads):
        raise EpochBroken("two ranks of this process could not reach each other")
    return [results[rank] for rank in range(2)]
