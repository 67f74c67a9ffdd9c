"""What the coordinator's mind knows of a rank, what it can be waiting for, and what it can do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median
from typing import Any, Protocol

from mecefo_runtime.costs import Costs, median_costs
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
    """A rank that is connected: `report` is what it has, once it has parked or said hello.

    `costs` and `bytes_per_second` (between ranks) are what it measured, None where it has not.
    """

    rank: int
    attempt: int
    last_heard_seconds: float
    status: str
    epoch: int
    address: str
    report: Message
    parked_for: int = 0
    formed: Message | None = None
    costs: Costs | None = None
    bytes_per_second: float | None = None


def costs_of(members: Iterable[Member]) -> Costs | None:
    """What `members` measured: the median rank's, with the speed at which state really moved; None if nobody did."""
    members = tuple(members)
    measured = [member.costs for member in members if member.costs is not None]
    if not measured:
        return None
    speeds = [member.bytes_per_second for member in members if member.bytes_per_second is not None]
    costs = median_costs(measured)
    return replace(costs, transfer_bytes_per_second=median(speeds)) if speeds else costs
