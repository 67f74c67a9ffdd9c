"""What a rank and its client know of each other: where the coordinator is, and what the client asks of the rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mecefo_runtime.comm.messages import RankReport


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """Where a job's coordinator is (`host:port`), and the secret that it wants to hear."""

    address: str
    token: str


class Participant(Protocol):
    """The rank that a client speaks for. Asked from the client's threads, once it was started."""

    @property
    def committed_step(self) -> int:
        """While it stays what it is for a heartbeat's time-out, it is tried whether the peers can be reached."""
        ...

    def report(self) -> RankReport:
        """What this rank has by now."""
        ...

    def abort(self) -> None:
        """The epoch must be left: called again and again until the training thread parks."""
        ...
