"""The layout with the fewest degraded layers whose steps take a given time, or as little more as can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from math import floor, inf
from typing import NamedTuple

from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Cluster, Layout, Replica, Span, configured_layout, layer_unit
from mecefo_runtime.planners import TOLERANCE_RATIO, NoLayout, Situation
from mecefo_runtime.planners._configured import failure_free_seconds, memory_limit, survivors, whole
from mecefo_runtime.planners._partition import Partition
from mecefo_runtime.planners._shares import NUM_BISECTIONS, NUM_DOUBLINGS, Shares, Sharing, Team
from mecefo_runtime.planners._stages import ROUNDING_RATIO, Load, Stages
from mecefo_runtime.prediction.step_time import update_seconds


def plan_shares(situation: Situation, shares: Mapping[int, int]) -> Layout:
    """The replicas of `shares`, each with just so many microbatches: as fast as the whole ones of them, if that can be.

    No layer is projected.

    Raises:
        NoLayout: memory, or the limit for degraded samples, does not let them.
    """
    configured = configured_layout(situation.cluster)
    target_seconds = failure_free_seconds(configured, situation.costs) * (1 + TOLERANCE_RATIO)
    return Search(situation, configured, target_seconds).with_shares(shares)


class _Choice(NamedTuple):
    """Who takes part, who may degrade, and how long pipelines and the slowest rank's update may take."""

    teams: tuple[Team, ...]
    degrading: frozenset[int]
    update_seconds: float


class _Found(NamedTuple):
    """A choice with its shares, for which pipelines take at most `seconds`."""

    choice: _Choice
    shares: Shares
    seconds: float


class Search:
    """For a layout whose steps take `target_seconds`, or as little more as can be."""

    def __init__(self, situation: Situation, configured: Layout, target_seconds: float) -> None:
        self._situation = situation
        self._cluster = situation.cluster
        self._costs = situation.costs
        self._configured = configured
        self._memory_bytes = memory_limit(configured, situation.costs)
        self._survivors = survivors(situation, configured)
        num_microbatches = self._cluster.num_microbatches
        self._most_degraded = floor(situation.degraded_share_limit * num_microbatches * (1 + ROUNDING_RATIO))
        self._target_seconds = target_seconds
        self._whole = whole(configured, situation.costs, num_microbatches, self._memory_bytes)
        self._sharings: dict[float, Sharing] = {}
        self._partitions: dict[float, Partition] = {}

    def run(self) -> Layout:
        if not self._survivors:
            raise NoLayout("no replica has a living rank left")
        choices = self._choices()
        budget_seconds = self._target_seconds
        best = self._best(choices, budget_seconds)
        if best is None:
            least_seconds = self._least_seconds(choices)
            if least_seconds is None:
                raise NoLayout(
                    "the replicas whose survivors' memory holds the model cannot take all of a step's microbatches "
                    f"with at most {self._situation.degraded_share_limit:.0%} of them through degraded layers"
                )
            budget_seconds = least_seconds * (1 + 2 * ROUNDING_RATIO)
            best = self._best(choices, budget_seconds)
            assert best is not None, "there are shares that take no longer"
        return self._build(*self._widened(best, budget_seconds))

    def with_shares(self, given: Mapping[int, int]) -> Layout:
        teams = tuple(
            Team(number, len(ranks), len(ranks) == self._cluster.pipeline)
            for number, ranks in self._survivors.items()
            if number in given
        )
        sharing = self._sharing(inf)

        def within(seconds: float) -> Shares | None:
            found = sharing.priced(teams, given, seconds)
            if found is None:
                return None
            degraded = sum(given[replica] for replica, need in found.needs.items() if need.num_degraded)
            return found if degraded <= self._most_degraded else None

        low = high = self._target_seconds - self._whole.pace.update_seconds
        for _ in range(NUM_DOUBLINGS):
            if within(high) is not None:
                break
            low, high = high, 2 * high
        else:
            raise NoLayout("the survivors' memory does not let them take their own replicas' microbatches")
        for _ in range(NUM_BISECTIONS if high > low else 0):
            middle = (low + high) / 2
            low, high = (low, middle) if within(middle) is not None else (middle, high)
        shares = within(high)
        assert shares is not None, "in so much time they can"
        return self._build(_Choice(teams, frozenset(), inf), shares, high)

    # ---- who may take part, and how ----

    def _choices(self) -> list[tuple[tuple[Team, ...], frozenset[int]]]:
        """(teams, replicas of them that may degrade), alternatives."""
        cluster = self._cluster
        partition = self._partition(inf)
        whole: list[Team] = []
        able: list[Team] = []
        forced: list[Team] = []
        for number, ranks in self._survivors.items():
            team = Team(number, len(ranks), len(ranks) == cluster.pipeline)
            if team.is_whole:
                whole.append(team)
            elif partition.exact(team.num_stages, 1) is not None:
                able.append(team)
            elif partition.fastest(team.num_stages, 1):
                forced.append(team)
        if not (whole or able or forced):
            raise NoLayout("no replica is left whose survivors' memory holds the model, however much they degrade")
        if self._most_degraded >= cluster.num_microbatches:
            teams = tuple(sorted((*whole, *able, *forced), key=lambda team: team.replica))
            return [(teams, frozenset(team.replica for team in (*able, *forced)))]
        # Of those that memory forces to degrade, the limit may leave out some: the ones with the most survivors stay.
        forced = sorted(forced, key=lambda team: (-team.num_stages, team.replica))[: self._most_degraded]
        if not (whole or able or forced):
            raise NoLayout(
                "no replica is left whose survivors' memory holds the model without degraded layers, of which the "
                f"limit allows {self._situation.degraded_share_limit:.0%} of the samples"
            )
        teams = tuple(sorted((*whole, *able, *forced), key=lambda team: team.replica))
        # A limited number of degraded microbatches gains most where most ranks are lost.
        by_gain = [*forced, *sorted(able, key=lambda team: (team.num_stages, team.replica))]
        most = min(len(by_gain), self._most_degraded)
        return [
            (teams, frozenset(team.replica for team in by_gain[:number])) for number in range(len(forced), most + 1)
        ]

    # ---- what is best within a time ----

    def _best(self, choices: Sequence[tuple[tuple[Team, ...], frozenset[int]]], budget_seconds: float) -> _Found | None:
        """The choice and the shares with the least degraded work, and the pipelines' part of the budget."""
        best: _Found | None = None
        for teams, degrading in choices:
            for limit_seconds in self._update_limits(teams):
                # A limit on the update leaves pipelines the rest of the time. What they could do in it if they did not
                # have to keep to the limit says whether it is worth while to look at this one and the larger ones.
                seconds = budget_seconds - limit_seconds
                bound = self._sharing(inf).share(teams, degrading, seconds) if seconds > 0 else None
                if bound is None or (best is not None and bound.cost >= best[1].cost):
                    break
                shares: Shares | None = bound
                if max(need.update_seconds for need in bound.needs.values()) > limit_seconds * (1 + ROUNDING_RATIO):
                    shares = self._sharing(limit_seconds).share(teams, degrading, seconds)
                if shares is not None and (best is None or shares.cost < best[1].cost):
                    best = _Found(_Choice(teams, degrading, limit_seconds), shares, seconds)
                    if shares.cost <= bound.cost:
                        break
        return best

    def _widened(self, found: _Found, budget_seconds: float) -> _Found:
        """`found` without a limit on updates, if the same shares cost no more then: more freedom not to move layers."""
        stages, longest_seconds = self._partition(inf).stages, 0.0
        for team in found.choice.teams:
            if not team.is_whole:
                need = found.shares.needs[team.replica]
                for place in set(stages.places(team.num_stages, found.shares.num_microbatches[team.replica])):
                    most = stages.most_within(place, need.slowest_seconds)
                    own = update_seconds(most, place.has_embedding, place.has_head, self._costs)
                    longest_seconds = max(longest_seconds, own)
        if longest_seconds <= found.choice.update_seconds:
            return found
        seconds = budget_seconds - longest_seconds
        wider = self._sharing(inf).priced(found.choice.teams, found.shares.num_microbatches, seconds)
        if wider is None or wider.cost > found.shares.cost:
            return found
        if any(need.num_degraded and replica not in found.choice.degrading for replica, need in wider.needs.items()):
            # Its pipelines have a little less time: somebody who must not degrade would have to.
            return found
        return _Found(found.choice._replace(update_seconds=inf), wider, seconds)

    def _least_seconds(self, choices: Sequence[tuple[tuple[Team, ...], frozenset[int]]]) -> float | None:
        """The least time of a step over all choices."""
        least_seconds = inf
        for teams, degrading in choices:
            bound = self._sharing(inf).least_seconds(teams, degrading)
            for limit_seconds in self._update_limits(teams):
                if bound is None or limit_seconds + bound >= least_seconds:
                    break
                seconds = self._sharing(limit_seconds).least_seconds(teams, degrading)
                if seconds is not None:
                    least_seconds = min(least_seconds, limit_seconds + seconds)
        return None if least_seconds == inf else least_seconds

    def _update_limits(self, teams: Sequence[Team]) -> Iterator[float]:
        """What the slowest rank's update can take, ascending."""
        least_seconds = 0.0
        if any(team.is_whole for team in teams):
            least_seconds = self._whole.pace.update_seconds
        for num_stages in {team.num_stages for team in teams if not team.is_whole}:
            least_seconds = max(least_seconds, self._partition(inf).least_update_seconds(num_stages))
        limits = {
            update_seconds(number, has_embedding, has_head, self._costs)
            for number in range(1, self._cluster.num_layers + 1)
            for has_embedding in (False, True)
            for has_head in (False, True)
        }
        yield from sorted(limit for limit in limits if limit >= least_seconds * (1 - ROUNDING_RATIO))

    def _partition(self, limit_seconds: float) -> Partition:
        if limit_seconds not in self._partitions:
            self._partitions[limit_seconds] = _partition(
                self._costs, self._cluster.num_layers, self._memory_bytes, limit_seconds
            )
        return self._partitions[limit_seconds]

    def _sharing(self, limit_seconds: float) -> Sharing:
        if limit_seconds not in self._sharings:
            self._sharings[limit_seconds] = Sharing(
                self._partition(limit_seconds), self._whole, self._cluster.num_microbatches, self._most_degraded
            )
        return self._sharings[limit_seconds]

    # ---- the layout ----

    def _build(self, choice: _Choice, shares: Shares, seconds: float) -> Layout:
        partition = self._partition(choice.update_seconds)
        degradable = _Degradable(self._situation)
        replicas = []
        for team in choice.teams:
            share = shares.num_microbatches[team.replica]
            if team.is_whole:
                replicas.append(replace(self._configured.replicas[team.replica], num_microbatches=share))
                continue
            ranks = self._survivors[team.replica]
            lacking = [_lacking(self._cluster.num_layers, self._held(rank)) for rank in ranks]
            loads = partition.split(share, seconds, shares.needs[team.replica], lacking)
            ends = accumulate(load.num_layers for load in loads)
            spans = tuple(
                degradable.span(rank, end - load.num_layers, load)
                for rank, end, load in zip(ranks, ends, loads, strict=True)
            )
            replicas.append(Replica(team.replica, spans, share))
        return Layout(self._cluster.num_layers, tuple(replicas))

    def _held(self, rank: int) -> frozenset[str]:
        if self._situation.holdings:
            return frozenset(self._situation.holdings.get(rank, ()))
        return _configured_units(self._cluster, self._cluster.cell_of(rank)[1])


class _Degradable:
    """Picks which layers of a span are degraded, if not all of them.

    First those that fewest replicas degrade already, because a layer's attention learns only where it is exact; then
    those that are degraded now.
    """

    def __init__(self, situation: Situation) -> None:
        self._times = [0] * situation.cluster.num_layers
        current = situation.current
        spans = [] if current is None else [span for replica in current.replicas for span in replica.spans]
        self._before = {span.rank: span.degraded for span in spans}

    def span(self, rank: int, first: int, load: Load) -> Span:
        layers, before = range(first, first + load.num_layers), self._before.get(rank, frozenset())
        degraded = sorted(layers, key=lambda layer: (self._times[layer], layer not in before, layer))
        degraded = sorted(degraded[: load.num_degraded])
        for layer in degraded:
            self._times[layer] += 1
        return Span(rank, layers.start, layers.stop, frozenset(degraded), frozenset(degraded[: load.num_recomputed]))


@lru_cache(maxsize=512)
def _partition(costs: Costs, num_layers: int, memory_bytes: int | None, limit_seconds: float) -> Partition:
    """Shared by all searches with the same costs: it caches its results, which do not depend on the surviving ranks."""
    return Partition(Stages(costs, num_layers, memory_bytes, limit_seconds))


@lru_cache(maxsize=4096)
def _lacking(num_layers: int, held: frozenset[str]) -> list[int]:
    """For every layer, and the end, how many of those before it are not in `held`."""
    return [0, *accumulate(layer_unit(layer) not in held for layer in range(num_layers))]


@lru_cache(maxsize=1024)
def _configured_units(cluster: Cluster, stage: int) -> frozenset[str]:
    return frozenset(map(layer_unit, cluster.stage_layers(stage)))
