"""Splits a replica's layers over its survivors: for speed, or with the fewest degraded layers within a time.

How fast depends on the number of survivors alone; who they are matters for what has to move. Every survivor gets at
least one layer, in pipeline order.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from itertools import accumulate
from math import ceil, inf
from typing import NamedTuple

from mecefo_runtime.planners._stages import ROUNDING_RATIO, Load, Place, Stages
from mecefo_runtime.prediction.step_time import pipeline_seconds, update_seconds

# Of two ways to split, the one with fewer degraded layers is better, then with fewer recomputed ones, then with fewer
# units to move: one whole number, so that they compare and add up fast.
_DEGRADED = 1 << 40
_RECOMPUTED = 1 << 20
# Seconds as a whole number, in parts of a layer's time.
_PARTS = 10**9
# More than any sum of these.
_NEVER = 1 << 62


class Pace(NamedTuple):
    """How fast a pipeline takes microbatches, what layers are degraded for it, and its slowest rank's update."""

    slowest_seconds: float
    sum_seconds: float
    num_degraded: int
    num_recomputed: int
    update_seconds: float

    def seconds(self, num_microbatches: int) -> float:
        """The time of a step's share."""
        return pipeline_seconds(self.slowest_seconds, self.sum_seconds, num_microbatches)


class Need(NamedTuple):
    """What keeps a pipeline within a time: so many degraded layers, and no stage slower than `slowest_seconds`.

    It can be met with the slowest rank's update taking `update_seconds`. `is_fastest`: there is nothing to spare, every
    stage takes its fastest load.
    """

    num_degraded: int
    num_recomputed: int
    slowest_seconds: float
    update_seconds: float
    is_fastest: bool = False


class Partition:
    """Splits a model's layers into pipelines of any number of stages."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self._num_layers = stages.num_layers
        self._exact: dict[tuple[Place, ...], Pace | None] = {}
        self._paces: dict[tuple[Place, ...], tuple[Pace, ...]] = {}
        self._fewest: dict[tuple[tuple[Place, ...], float], Pace | None] = {}
        self._needs: dict[tuple[int, int, float], Need | None] = {}

    def exact(self, num_stages: int, num_microbatches: int) -> Pace | None:
        """The fastest pipeline without degraded layers, None if none fits."""
        places = self.stages.places(num_stages, num_microbatches)
        if places not in self._exact:
            self._exact[places] = self._fill(places, [self.stages.exact(place) for place in places])
        return self._exact[places]

    def fastest(self, num_stages: int, num_microbatches: int) -> tuple[Pace, ...]:
        """The fastest pipelines, those with a slower slowest stage having a smaller sum; empty if none fits."""
        places = self.stages.places(num_stages, num_microbatches)
        if places not in self._paces:
            self._paces[places] = self._find_paces(places)
        return self._paces[places]

    def need(self, num_stages: int, num_microbatches: int, budget_seconds: float) -> Need | None:
        """The fewest degraded layers that keep `num_microbatches` within the budget; None if nothing does."""
        key = num_stages, num_microbatches, budget_seconds
        if key not in self._needs:
            self._needs[key] = self._find_need(*key)
        return self._needs[key]

    def split(
        self,
        num_microbatches: int,
        budget_seconds: float,
        need: Need,
        lacking: Sequence[Sequence[int]],
    ) -> list[Load]:
        """The load of every stage that meets `need`, such that as few units as possible move.

        `lacking[stage][layer]` is how many of the layers before `layer` the stage's rank does not hold yet.
        """
        places = self.stages.places(len(lacking), num_microbatches)
        if not need.is_fastest:
            loads = self._split_least_degraded(places, need.slowest_seconds, lacking)
            if loads is not None and self._degrade_to(places, loads, num_microbatches, budget_seconds):
                return loads
            pace = min(self.fastest(len(lacking), num_microbatches), key=lambda pace: pace.seconds(num_microbatches))
            need = _need_of(pace)
        loads = self._split_fastest(places, need.slowest_seconds, lacking)
        assert loads is not None, "what a pace was computed from can be split so"
        return loads

    def least_update_seconds(self, num_stages: int) -> float:
        """The slowest rank's update when layers are split for that alone."""
        costs, last = self.stages.costs, num_stages - 1
        layers = [number * costs.layer_end_seconds for number in range(1, self._num_layers + 1)]
        ladders = []
        for stage in range(num_stages):
            ends = update_seconds(0, stage == 0, stage == last, costs)
            ladders.append([ends + layer for layer in layers] if ends else layers)
        counts = level(self._num_layers, ladders)
        assert counts is not None, "there are at least as many layers as stages"
        return max(ladder[count - 1] for ladder, count in zip(ladders, counts, strict=True))

    # ---- how fast ----

    def _fill(self, places: Sequence[Place], ladders: Sequence[Sequence[tuple[Load, float]]]) -> Pace | None:
        """The pace with the fastest slowest stage, of the loads of 1, 2, ... layers of every place."""
        counts = level(self._num_layers, [[seconds for _, seconds in ladder] for ladder in ladders])
        if counts is None:
            return None
        return self._pace(places, [ladder[count - 1][0] for ladder, count in zip(ladders, counts, strict=True)])

    def _find_paces(self, places: tuple[Place, ...]) -> tuple[Pace, ...]:
        ladders = [self.stages.fastest(place) for place in places]
        first = self._fill(places, ladders)
        if first is None:
            return ()
        if self.stages.is_ordered and not first.num_recomputed:
            return (first,)  # all degraded: the sum cannot be smaller
        paces: list[Pace] = []
        # Somewhere a slower load than elsewhere: more layers at the faster places make the slowest stage slower and the
        # sum smaller.
        ideal = self._pace_within(places, inf)
        candidates = {seconds for ladder in ladders for _, seconds in ladder if seconds >= first.slowest_seconds}
        for slowest_seconds in sorted(candidates):
            pace = self._pace_within(places, slowest_seconds)
            if not paces or pace.sum_seconds < paces[-1].sum_seconds:
                paces.append(pace)
            if pace.sum_seconds <= ideal.sum_seconds * (1 + ROUNDING_RATIO):
                break
        return tuple(paces)

    def _pace_within(self, places: Sequence[Place], slowest_seconds: float) -> Pace:
        loads = self._split_fastest(places, slowest_seconds, None)
        assert loads is not None, "no stage need be slower than that"
        return self._pace(places, loads)

    def _pace(self, places: Sequence[Place], loads: Sequence[Load]) -> Pace:
        stages = list(zip(places, loads, strict=True))
        seconds = [self.stages.seconds(place, load) for place, load in stages]
        return Pace(
            max(seconds),
            sum(seconds),
            sum(load.num_degraded for load in loads),
            sum(load.num_recomputed for load in loads),
            max(
                update_seconds(load.num_layers, place.has_embedding, place.has_head, self.stages.costs)
                for place, load in stages
            ),
        )

    # ---- how few degraded layers ----

    def _find_need(self, num_stages: int, num_microbatches: int, budget_seconds: float) -> Need | None:
        budget_seconds *= 1 + 2 * ROUNDING_RATIO
        pace = self.exact(num_stages, num_microbatches)
        if pace is not None and pace.seconds(num_microbatches) <= budget_seconds:
            slowest_seconds = _slowest_within(budget_seconds, pace.sum_seconds, num_microbatches)
            return Need(0, 0, slowest_seconds, pace.update_seconds)
        paces = self.fastest(num_stages, num_microbatches)
        best = min(paces, key=lambda pace: pace.seconds(num_microbatches), default=None)
        if best is None or best.seconds(num_microbatches) > budget_seconds:
            return None
        found = None
        if self.stages.is_ordered:
            found = self._search_need(num_stages, num_microbatches, budget_seconds)
        return found or _need_of(best)

    def _search_need(self, num_stages: int, num_microbatches: int, budget_seconds: float) -> Need | None:
        """More degraded layers leave more time for the slowest stage, which then needs fewer of them: bisection."""
        places = self.stages.places(num_stages, num_microbatches)
        low = self._least_conceivable(places, num_microbatches, budget_seconds)
        found, high = self._try(places, num_microbatches, budget_seconds, low)
        if found is not None:
            return found
        while high - low > 1:
            middle = (low + high) // 2
            better, _ = self._try(places, num_microbatches, budget_seconds, middle)
            if better is None:
                low = middle
            else:
                found, high = better, middle
        return found or self._try(places, num_microbatches, budget_seconds, high)[0]

    def _try(
        self, places: tuple[Place, ...], num_microbatches: int, budget_seconds: float, num_degraded: int
    ) -> tuple[Need | None, int]:
        """(the need, if so many degraded layers are enough; a number that is enough, as far as that can be told)."""
        costs, num_recomputed = self.stages.costs, 0
        while True:
            sum_seconds = (
                self._exact_sum_seconds(places)
                - num_degraded * (costs.layer_seconds - costs.degraded_seconds)
                + num_recomputed * max(0.0, costs.recomputed_seconds - costs.degraded_seconds)
            )
            slowest_seconds = _slowest_within(budget_seconds, sum_seconds, num_microbatches)
            fewest = self._count_fewest(places, slowest_seconds)
            if fewest is None:
                return None, self._num_layers
            if fewest.num_degraded > num_degraded:
                return None, fewest.num_degraded
            if fewest.num_recomputed <= num_recomputed:
                return Need(num_degraded, fewest.num_recomputed, slowest_seconds, fewest.update_seconds), num_degraded
            num_recomputed = fewest.num_recomputed

    def _exact_sum_seconds(self, places: Sequence[Place]) -> float:
        costs = self.stages.costs
        return self._num_layers * costs.layer_seconds + costs.embedding_seconds + costs.head_seconds

    def _least_conceivable(self, places: Sequence[Place], num_microbatches: int, budget_seconds: float) -> int:
        """No fewer degraded layers will do, even if they could be split into any parts."""
        costs = self.stages.costs
        gain_seconds = costs.layer_seconds - costs.degraded_seconds
        sum_seconds = self._exact_sum_seconds(places)
        if num_microbatches == 1:
            return max(0, ceil((sum_seconds - budget_seconds) / gain_seconds - ROUNDING_RATIO))
        # All stages together are no longer than their number times the slowest.
        weight = len(places) / (num_microbatches - 1)
        excess_seconds = sum_seconds - weight * (budget_seconds - sum_seconds)
        least = ceil(excess_seconds / (gain_seconds * (1 + weight)) - ROUNDING_RATIO)
        return max(0, min(least, self._num_layers))

    def _count_fewest(self, places: tuple[Place, ...], slowest_seconds: float) -> Pace | None:
        """The pace with the fewest degraded layers with which no stage is slower than that; None: too slow."""
        slowest_seconds = self.stages.longest_within(slowest_seconds)
        key = places, slowest_seconds
        if key not in self._fewest:
            loads = self._split_least_degraded(places, slowest_seconds, None)
            self._fewest[key] = None if loads is None else self._pace(places, loads)
        return self._fewest[key]

    # ---- which layers ----

    def _split_least_degraded(
        self, places: Sequence[Place], slowest_seconds: float, lacking: Sequence[Sequence[int]] | None
    ) -> list[Load] | None:
        # Most places are alike: what holds for one is looked up, not computed, for the others.
        distinct = {place: self.stages.ladder(place, slowest_seconds) for place in set(places)}
        if not all(ladder.loads for ladder in distinct.values()):
            return None
        is_full = sum(max(1, distinct[place].num_exact) for place in places) <= self._num_layers
        ranges = {}
        for place, ladder in distinct.items():
            num_exact = max(1, ladder.num_exact)
            # Every stage is filled up before one is degraded: a layer less there would be one degraded less.
            ranges[place] = (num_exact, len(ladder.loads)) if is_full else (1, num_exact)
        if sum(ranges[place][1] for place in places) < self._num_layers:
            return None
        # Where nothing is known of what moves, the most even of equally good splits.
        evenness = lacking is None
        own_weights = {
            place: [
                load.num_degraded * _DEGRADED + load.num_recomputed * _RECOMPUTED + evenness * load.num_layers**2
                for load in distinct[place].loads[low - 1 : high]
            ]
            for place, (low, high) in ranges.items()
        }
        ladders = [distinct[place] for place in places]
        lows, weights = [ranges[place][0] for place in places], [own_weights[place] for place in places]
        counts = _lightest(self._num_layers, lows, weights, lacking)
        return [ladder.loads[count - 1] for ladder, count in zip(ladders, counts, strict=True)]

    def _split_fastest(
        self, places: Sequence[Place], slowest_seconds: float, lacking: Sequence[Sequence[int]] | None
    ) -> list[Load] | None:
        most_seconds, part = slowest_seconds * (1 + ROUNDING_RATIO), self.stages.costs.layer_seconds / _PARTS
        ladders, weights = [self.stages.fastest(place) for place in places], []
        for ladder in ladders:
            weights.append([round(seconds / part) * _RECOMPUTED for _, seconds in ladder if seconds <= most_seconds])
        if not all(weights) or sum(map(len, weights)) < self._num_layers:
            return None
        counts = _lightest(self._num_layers, [1] * len(places), weights, lacking)
        return [ladder[count - 1][0] for ladder, count in zip(ladders, counts, strict=True)]

    def _degrade_to(
        self, places: Sequence[Place], loads: list[Load], num_microbatches: int, budget_seconds: float
    ) -> bool:
        """Degrade more, the slowest stage first, until the pipeline is within the budget; False if it cannot be."""
        budget_seconds *= 1 + 4 * ROUNDING_RATIO
        while self._pace(places, loads).seconds(num_microbatches) > budget_seconds:
            options = []
            for stage, (place, load) in enumerate(zip(places, loads, strict=True)):
                if load.num_degraded < load.num_layers:
                    more = self.stages.with_degraded(place, load.num_layers, load.num_degraded + 1)
                    if more is not None:
                        options.append((-self.stages.seconds(place, load), stage, more))
            if not options or not self.stages.is_ordered:
                return False
            _, stage, more = min(options)
            loads[stage] = more
        return True


def _slowest_within(budget_seconds: float, sum_seconds: float, num_microbatches: int) -> float:
    """How slow the slowest stage may be."""
    if num_microbatches == 1:
        return inf if sum_seconds <= budget_seconds else 0.0
    return max(0.0, budget_seconds - sum_seconds) / (num_microbatches - 1)


def level(num_layers: int, ladders: Sequence[Sequence[float]]) -> list[int] | None:
    """How many layers each stage takes so that the largest `ladders[stage][count - 1]` is least; None: no room.

    Each layer goes to the stage whose time is then least, which is optimal because every ladder rises.
    """
    if not all(ladders) or sum(map(len, ladders)) < num_layers:
        return None
    counts = [1] * len(ladders)
    heap = [(ladder[1] if len(ladder) > 1 else inf, stage) for stage, ladder in enumerate(ladders)]
    heapify(heap)
    for _ in range(num_layers - len(ladders)):
        _, stage = heap[0]
        counts[stage] += 1
        ladder = ladders[stage]
        heapreplace(heap, (ladder[counts[stage]] if counts[stage] < len(ladder) else inf, stage))
    return counts


def _lightest(
    num_layers: int,
    lows: Sequence[int],
    weights: Sequence[Sequence[int]],
    lacking: Sequence[Sequence[int]] | None,
) -> list[int]:
    """How many layers each stage takes so that their weights and what they lack add up to least.

    A stage takes at least `lows[stage]`; `weights[stage][count - lows[stage]]` says what a count weighs. Dynamic
    programming over the stages and the layer at which each ends.
    """
    highs = [low + len(own) - 1 for low, own in zip(lows, weights, strict=True)]
    firsts, lasts = _borders(num_layers, lows, highs)
    rows = []
    row = [0]
    for stage, own in enumerate(weights):
        first, low = firsts[stage], lows[stage]
        missing = None if lacking is None else lacking[stage]
        if missing is not None:
            row = [value - lacked for value, lacked in zip(row, missing[first:], strict=False)]
        rows.append(row)
        next_first, next_last = firsts[stage + 1], lasts[stage + 1]
        row = _shifted(row, first + low - next_first, own, next_last - next_first + 1)
        if missing is not None:
            row = [value + lacked for value, lacked in zip(row, missing[next_first:], strict=False)]
    counts, end = [0] * len(lows), num_layers
    for stage in reversed(range(len(lows))):
        own, row, first, low = weights[stage], rows[stage], firsts[stage], lows[stage]
        begins = range(max(first, end - highs[stage]), min(lasts[stage], end - low) + 1)
        options = [row[begin - first] + own[end - begin - low] for begin in begins]
        begin = begins[options.index(min(options))]
        counts[stage], end = end - begin, begin
    return counts


def _borders(num_layers: int, lows: Sequence[int], highs: Sequence[int]) -> tuple[list[int], list[int]]:
    """The first and the last layer at which each stage can begin; at the end, at which the last one can end."""
    least, most = [0, *accumulate(lows)], [0, *accumulate(highs)]
    firsts = [max(low, num_layers - most[-1] + high) for low, high in zip(least, most, strict=True)]
    lasts = [min(high, num_layers - least[-1] + low) for low, high in zip(least, most, strict=True)]
    return firsts, lasts


def _shifted(row: Sequence[int], offset: int, weights: Sequence[int], length: int) -> list[int]:
    """For each of `length` places the least row[i] + weights[j] with offset + i + j = place."""
    best = [_NEVER] * length
    for begin, weight in enumerate(weights, start=offset):
        first, end = max(0, begin), min(length, begin + len(row))
        if first < end:
            best[first:end] = [
                value + weight if value + weight < known else known
                for known, value in zip(best[first:end], row[first - begin : end - begin], strict=True)
            ]
    return best


def _need_of(pace: Pace) -> Need:
    """What keeps a pipeline at its fastest."""
    return Need(pace.num_degraded, pace.num_recomputed, pace.slowest_seconds, pace.update_seconds, is_fastest=True)
