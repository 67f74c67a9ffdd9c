"""What the coordinator's mind knows of a rank, what it can be waiting for, and what it can do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from mecefo_runtime.wire import Message


class Effects(Protocol):
    """What the coordinator does to the world."""

    def send(self, rank: int, message: Message) -> None:
        """Queue `message` for `rank`; if it cannot be delivered, `lost` will be called."""

    def hang_up(self, rank: int) -> None:
        """Close the connection of `rank`; `lost` will not be called for it."""

    def emit(self, kind: str, *, step: int | None = None, **fields: Any) -> object:
        """Emit an event."""


class Stage(Enum):
    """What the coordinator waits for."""

    GATHERING = "gathering"  # for the ranks to say hello
    TRAINING = "training"  # for anything to happen
    JOINING = "joining"  # for the members to reach a step boundary
    PARKING = "parking"  # for the survivors to leave the old epoch
    FORMING = "forming"  # for the members to form the new one
    ENDED = "ended"


@dataclass(slots=True)
class Member:
    """A rank that is connected: `report` is what it has, once it has parked or said hello."""

    rank: int
    attempt: int
    last_heard_seconds: float
    status: str
    epoch: int
    address: str
    report: Message
    parked_for: int = 0
    formed: Message | None = None
