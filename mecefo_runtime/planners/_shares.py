"""Divides a step's microbatches over the replicas: how many each can do within a time, and how many it should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import NamedTuple

from mecefo_runtime.planners._partition import Need, Pace, Partition
from mecefo_runtime.planners._stages import ROUNDING_RATIO

# Until two budgets are as near to each other as rounding.
NUM_BISECTIONS = 40
NUM_DOUBLINGS = 10
_NO_NEED = Need(0, 0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Team:
    """The survivors of one replica. `is_whole`: it lost no rank, and keeps its configured stages."""

    replica: int
    num_stages: int
    is_whole: bool


class Kind(NamedTuple):
    """What decides how fast a team is."""

    num_stages: int
    is_whole: bool
    may_degrade: bool


@dataclass(frozen=True, slots=True)
class Whole:
    """How fast a complete replica is, and how many microbatches its memory allows."""

    pace: Pace
    most_microbatches: int


@dataclass(frozen=True, slots=True)
class Shares:
    """Microbatches by replica, what each needs to do them in time, and what that costs.

    `cost` is (degraded layers, recomputed layers), each times the microbatches that go through them.
    """

    num_microbatches: Mapping[int, int]
    needs: Mapping[int, Need]
    cost: tuple[int, int]


class Sharing:
    """Shares out a step's microbatches. Of them, at most `most_degraded` may go through degraded layers."""

    def __init__(self, partition: Partition, whole: Whole, num_microbatches: int, most_degraded: int) -> None:
        self._partition = partition
        self._whole = whole
        self._num_microbatches = num_microbatches
        self._most_degraded = most_degraded

    def capacity(self, kind: Kind, seconds: float) -> int:
        """The most microbatches, up to a whole step's, that a team can do within `seconds`."""
        if kind.is_whole:
            return min(self._whole.most_microbatches, self._most_within([self._whole.pace], seconds))
        # More microbatches than stages change nothing but the time.
        most = self._most_within(self._paces(kind, self._num_microbatches), seconds)
        if most >= min(kind.num_stages, self._num_microbatches) or self._partition.stages.memory_bytes is None:
            return most
        for number in range(min(kind.num_stages - 1, self._num_microbatches), 0, -1):
            if any(pace.seconds(number) <= seconds for pace in self._paces(kind, number)):
                return number
        return 0

    def is_enough(self, teams: Collection[Team], degrading: Collection[int], seconds: float) -> bool:
        """Whether the teams do a step within `seconds`, each of them at least one microbatch."""
        return self._are_enough(_kinds(teams, degrading), seconds)

    def _are_enough(self, num_teams: Mapping[Kind, int], seconds: float) -> bool:
        total = total_degraded = 0
        for kind, number in num_teams.items():
            capacity = self.capacity(kind, seconds)
            if not capacity:
                return False
            if kind.may_degrade:
                total_degraded += number * capacity
            else:
                total += number * capacity
        return total + min(total_degraded, self._most_degraded) >= self._num_microbatches

    def least_seconds(self, teams: Collection[Team], degrading: Collection[int]) -> float | None:
        """The least time in which the teams can do a step; None: memory does not let them, however long it takes."""
        paces = [self._whole.pace]
        for team in teams:
            if not team.is_whole:
                paces += self._paces(_kind(team, degrading), 1)
        num_teams = _kinds(teams, degrading)
        low, high = 0.0, self._num_microbatches * max(pace.sum_seconds for pace in paces)
        # In this time each team could do all, were it not that many microbatches may take more memory, hence more time.
        for _ in range(NUM_DOUBLINGS):
            if self._are_enough(num_teams, high):
                break
            high *= 2
        else:
            return None
        for _ in range(NUM_BISECTIONS):
            middle = (low + high) / 2
            if self._are_enough(num_teams, middle):
                high = middle
            else:
                low = middle
        return high

    def share(self, teams: Sequence[Team], degrading: Collection[int], seconds: float) -> Shares | None:
        """Shares that are done within `seconds`, with few degraded microbatches and layers; None if there are none.

        Teams in `degrading` may degrade, the others not. Where nobody need degrade, the slowest is as fast as can be.
        """
        if not self.is_enough(teams, degrading, seconds):
            return None
        exact = [self.capacity(_kind(team, ()), seconds) for team in teams]
        if all(exact) and sum(exact) >= self._num_microbatches:
            return self._share_exact(teams, seconds)
        shares = {
            team.replica: capacity for team, capacity in zip(teams, exact, strict=True) if team.replica not in degrading
        }
        members = [
            (team, max(1, capacity)) for team, capacity in zip(teams, exact, strict=True) if team.replica in degrading
        ]
        rest = max(self._num_microbatches - sum(shares.values()), len(members))
        self._trim(shares, sum(shares.values()) + rest - self._num_microbatches)
        shares |= self._share_degraded(members, rest, seconds)
        return self.priced(teams, shares, seconds)

    def _share_exact(self, teams: Sequence[Team], seconds: float) -> Shares | None:
        least_seconds = self.least_seconds(teams, ())
        assert least_seconds is not None, "they can do it within the given time"
        shares = {team.replica: self.capacity(_kind(team, ()), least_seconds) for team in teams}
        self._trim(shares, sum(shares.values()) - self._num_microbatches)
        return self.priced(teams, shares, seconds)

    def _share_degraded(self, members: Sequence[tuple[Team, int]], total: int, seconds: float) -> dict[int, int]:
        """`total` microbatches over those that may degrade; each comes with what it can do without."""
        if sum(low for _, low in members) > total:
            members = [(team, 1) for team, _ in members]
        bounds = [(low, max(low, self.capacity(_kind(team, (team.replica,)), seconds))) for team, low in members]

        def at(level: int) -> list[int]:
            return [low + (high - low) * level // self._num_microbatches for low, high in bounds]

        low, high = 0, self._num_microbatches
        while low < high:
            level = (low + high) // 2
            low, high = (low, level) if sum(at(level)) >= total else (level + 1, high)
        shares = at(low)
        for index in reversed(range(len(shares))):
            if sum(shares) > total and shares[index] > max(1, at(low - 1)[index]):
                shares[index] -= 1
        self._improve([team for team, _ in members], shares, [high for _, high in bounds], seconds)
        return {team.replica: share for (team, _), share in zip(members, shares, strict=True)}

    def _improve(self, teams: Sequence[Team], shares: list[int], most: Sequence[int], seconds: float) -> None:
        """Move single microbatches between teams as long as that saves degraded work."""

        def cost(index: int, share: int) -> int:
            return share * self._need(teams[index], share, seconds).num_degraded

        # Not seldom nothing can be improved; where much could, the first moves save most.
        for _ in range(2 * len(shares)):
            # Teams that are alike and do alike need not all be looked at.
            alike = {(teams[index].num_stages, share): index for index, share in enumerate(shares)}
            saved = [
                (cost(index, share) - cost(index, share - 1), index) for (_, share), index in alike.items() if share > 1
            ]
            if not saved:
                return
            most_saved, giver = max(saved)
            added = [
                (cost(index, share + 1) - cost(index, share), index)
                for (_, share), index in alike.items()
                if share < most[index] and index != giver
            ]
            least_added, taker = min(added, default=(most_saved, giver))
            if most_saved <= least_added:
                return
            shares[giver] -= 1
            shares[taker] += 1

    def priced(self, teams: Sequence[Team], shares: Mapping[int, int], seconds: float) -> Shares | None:
        """`shares` with what they need to be done within `seconds`; None if they cannot be."""
        needs: dict[int, Need] = {}
        for team in teams:
            need = self._find_need(team, shares[team.replica], seconds)
            if need is None:
                return None
            needs[team.replica] = need
        return Shares(
            shares,
            needs,
            (
                sum(shares[replica] * need.num_degraded for replica, need in needs.items()),
                sum(shares[replica] * need.num_recomputed for replica, need in needs.items()),
            ),
        )

    def _need(self, team: Team, num_microbatches: int, seconds: float) -> Need:
        need = self._find_need(team, num_microbatches, seconds)
        assert need is not None, "its capacity says that it can do so many"
        return need

    def _find_need(self, team: Team, num_microbatches: int, seconds: float) -> Need | None:
        if team.is_whole:
            return _NO_NEED if num_microbatches <= self.capacity(_kind(team, ()), seconds) else None
        return self._partition.need(team.num_stages, num_microbatches, seconds)

    def _trim(self, shares: dict[int, int], surplus: int) -> None:
        """Take `surplus` from the replicas with the most, later ones first, and leave each at least one."""
        for _ in range(surplus):
            replica = max(shares, key=lambda replica: (shares[replica], replica))
            shares[replica] -= 1

    def _paces(self, kind: Kind, num_microbatches: int) -> Sequence[Pace]:
        if kind.may_degrade:
            return self._partition.fastest(kind.num_stages, num_microbatches)
        pace = self._partition.exact(kind.num_stages, num_microbatches)
        return [] if pace is None else [pace]

    def _most_within(self, paces: Sequence[Pace], seconds: float) -> int:
        def most(pace: Pace) -> int:
            left_seconds = seconds * (1 + ROUNDING_RATIO) - pace.sum_seconds
            return 0 if left_seconds < 0 else 1 + floor(left_seconds / pace.slowest_seconds)

        return min(self._num_microbatches, max(map(most, paces), default=0))


def _kinds(teams: Collection[Team], degrading: Collection[int]) -> Mapping[Kind, int]:
    return Counter(_kind(team, degrading) for team in teams)


def _kind(team: Team, degrading: Collection[int]) -> Kind:
    return Kind(team.num_stages, team.is_whole, team.replica in degrading)
