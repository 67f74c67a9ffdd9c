"""What the coordinator knows of a rank, the stages in which it waits, and its effects."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median
from typing import Protocol

from mecefo_runtime.comm.messages import Formed, FromCoordinator, Hello, RankReport, RankStatus
from mecefo_runtime.job.costs import Costs, median_costs
from mecefo_runtime.recovery.commit import lacks_step
from mecefo_runtime.snapshots.messages import ToSnapshotProcess
from mecefo_runtime.system.record import Record


class Effects(Protocol):
    """The side effects of the coordinator."""

    def send(self, rank: int, message: FromCoordinator) -> None:
        """Queue `message` for `rank`; if it cannot be delivered, `Membership.on_lost` will be called."""

    def tell_snapshots(self, node: int, message: ToSnapshotProcess) -> None:
        """Queue `message` for the snapshot process of `node`; if that is gone, `Membership.on_snapshots` is called."""

    def hang_up(self, rank: int) -> None:
        """Close the connection of `rank`; `Membership.on_lost` will not be called for it."""

    def emit(self, record: Record, *, step: int | None = None) -> object:
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

    `costs` and `bytes_per_second` (between ranks) are what it measured, None where it has not. `nccl_device` is the GPU
    on which it can use NCCL. `target` is the newest epoch that it had been called to when it said hello.
    """

    rank: int
    attempt: int
    last_heard_seconds: float
    status: RankStatus
    epoch: int
    address: str
    report: RankReport
    target: int = 0
    parked_for: int = 0
    formed: Formed | None = None
    costs: Costs | None = None
    bytes_per_second: float | None = None
    nccl_device: str | None = None

    @classmethod
    def of(cls, hello: Hello, now_seconds: float) -> Member:
        """The rank that says `hello`."""
        # A fresh one that has been told an epoch is on its way: it may have trained there before we hear of it again.
        is_on_its_way = hello.report.status == "fresh" and hello.target > 0
        return cls(
            rank=hello.rank,
            attempt=hello.attempt,
            last_heard_seconds=now_seconds,
            status="forming" if is_on_its_way else hello.report.status,
            epoch=hello.report.epoch,
            address=hello.address,
            report=hello.report,
            target=hello.target,
            costs=hello.costs,
            nccl_device=hello.nccl_device,
        )

    @property
    def has_left(self) -> bool:
        """Whether it has parked, or has been called to by a coordinator that is no more."""
        return self.status == "parked" or self.target > self.epoch

    def is_not(self, newcomer: Member) -> bool:
        """Whether `newcomer`, of the same rank, is another process, or the same one, which has started over."""
        return self.attempt != newcomer.attempt or (newcomer.status == "fresh" and self.status != "fresh")


class MemberTable(dict[int, Member]):
    """The ranks that are connected."""

    def survivors(self, members: Collection[int]) -> list[int]:
        """Those of an epoch's `members` that are still connected, without `fresh` ones (replacements)."""
        return sorted(rank for rank in members if rank in self and self[rank].status != "fresh")

    def addresses(self, ranks: Collection[int]) -> dict[int, str]:
        """The addresses of the connected ones of `ranks`."""
        return {rank: self[rank].address for rank in sorted(ranks) if rank in self}

    def newcomers(self) -> list[int]:
        """The connected ranks that are in no epoch."""
        return sorted(rank for rank, member in self.items() if member.status == "fresh")

    def sleepers(self, members: Collection[int]) -> list[Member]:
        """Those of `members` who hung while the others committed without them, to be asked after a restart.

        Whoever is behind and lacks the gradients was no member then, for a commit takes all members' gradients.
        """
        stateful = [self[rank] for rank in self.survivors(members) if not self[rank].report.is_stateless]
        committed = max((member.report.committed_step for member in stateful), default=0)
        return [member for member in stateful if lacks_step(member.report, committed)]

    def take_silent(self, now_seconds: float, timeout_seconds: float) -> list[int]:
        """The ranks without a heartbeat for `timeout_seconds`.

        If this call is itself long overdue, the coordinator was stopped (or the machine was): then the result is
        empty, and the ranks get time to send again.
        """
        overdue = {rank: now_seconds - member.last_heard_seconds - timeout_seconds for rank, member in self.items()}
        silent = [rank for rank, seconds in overdue.items() if seconds > 0]
        grace_seconds = timeout_seconds / 4
        if all(overdue[rank] <= grace_seconds for rank in silent):
            return silent
        for rank in silent:
            self[rank].last_heard_seconds = now_seconds - timeout_seconds + grace_seconds
        return []

    def costs(self) -> Costs | None:
        """What the ranks measured: the median one's, with the speed at which state really moved; None if nobody did."""
        measured = [member.costs for member in self.values() if member.costs is not None]
        if not measured:
            return None
        speeds = [member.bytes_per_second for member in self.values() if member.bytes_per_second is not None]
        costs = median_costs(measured)
        return replace(costs, transfer_bytes_per_second=median(speeds)) if speeds else costs

    def agree_on(self, costs: Costs) -> None:
        """Fix the costs for all ranks, even when a rank that measured them is lost later."""
        for member in self.values():
            member.costs = costs
