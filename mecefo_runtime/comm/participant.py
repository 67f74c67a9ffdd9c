"""The interface between a rank and its coordinator client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mecefo_runtime.comm.messages import RankReport


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """The address of a job's coordinator (`host:port`), and its token."""

    address: str
    token: str


class Participant(Protocol):
    """The rank that a client represents. Called from the client's threads, once it was started."""

    @property
    def committed_step(self) -> int:
        """The last committed step. While it does not change for a heartbeat's time-out, the client probes the peers."""
        ...

    def report(self) -> RankReport:
        """The state that this rank holds now."""
        ...

    def abort(self) -> None:
        """The epoch must be left: called again and again until the training thread parks."""
        ...
