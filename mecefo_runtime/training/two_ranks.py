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
_NUM_TRIES = 5


def on_two_ranks(act: Callable[[Groups], T]) -> list[T]:
    """What `act` returns as rank 0, and as rank 1. On a busy machine the connection may take several attempts.

    Raises:
        EpochBroken: one of them failed, each time that it was tried.
    """
    errors: list[Exception] = []
    for attempt in range(1, _NUM_TRIES + 1):
        results = _try(act, attempt, errors)
        if len(results) == 2:
            return [results[0], results[1]]
    raise EpochBroken(f"two ranks of this process could not reach each other: {errors[-1]}") from errors[-1]


def _try(act: Callable[[Groups], T], attempt: int, errors: list[Exception]) -> dict[int, T]:
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
        try:
            groups = Groups(RendezvousStore(put, take), attempt, rank, (0, 1), (), _TIMEOUT_SECONDS)
            try:
                results[rank] = act(groups)
            finally:
                groups.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
