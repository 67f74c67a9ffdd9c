"""What one pipeline stage can hold: how many layers within a time, and how many of them degraded for it.

All layers are alike, so a stage is described by numbers: its load says how many layers, not which.
"""

from __future__ import annotations

from math import ceil, floor, inf
from typing import NamedTuple

from mecefo_runtime.job.costs import Costs
from mecefo_runtime.prediction.step_time import ends_seconds, held_bytes, num_in_flight, update_seconds

# Sums of the same figures in another order differ by less; times that differ by less are the same.
ROUNDING_RATIO = 1e-9


class Place(NamedTuple):
    """A position in a pipeline; `num_in_flight` is 0 where memory has no limit and it does not matter."""

    has_embedding: bool
    has_head: bool
    num_in_flight: int


class Load(NamedTuple):
    """The layers of a stage: of `num_layers`, `num_degraded` are degraded, `num_recomputed` of these recompute."""

    num_layers: int
    num_degraded: int
    num_recomputed: int


class Ladder(NamedTuple):
    """What a place holds within a time: `loads[k - 1]` is that of k layers; up to `num_exact` nothing is degraded."""

    num_exact: int
    loads: tuple[Load, ...]


class Stages:
    """What stages hold when a rank has `memory_bytes` and may take `max_update_seconds` for its optimizer."""

    def __init__(
        self, costs: Costs, num_layers: int, memory_bytes: int | None, max_update_seconds: float = inf
    ) -> None:
        self.costs = costs
        self.num_layers = num_layers
        self.memory_bytes = memory_bytes
        self._max_update_seconds = max_update_seconds
        self._normal, self._degraded = costs.layer_seconds, costs.degraded_seconds
        # Recomputing does all that a degraded layer does, and more; a measurement that says otherwise is noise.
        self._recomputed = max(costs.recomputed_seconds, self._degraded)
        # Then more degraded layers never slow a stage down, also when they must recompute. Measured figures of very
        # small layers need not be in this order.
        self.is_ordered = (
            self._degraded < self._normal
            and costs.recomputed_activation_bytes <= costs.degraded_activation_bytes <= costs.layer_activation_bytes
        )
        self._places: dict[tuple[int, int], tuple[Place, ...]] = {}
        self._ladders: dict[tuple[Place, float], Ladder] = {}
        self._exact: dict[Place, tuple[tuple[Load, float], ...]] = {}
        self._fastest: dict[Place, tuple[tuple[Load, float], ...]] = {}

    def places(self, num_stages: int, num_microbatches: int) -> tuple[Place, ...]:
        """The places of a pipeline of `num_stages` with `num_microbatches`."""
        # With more microbatches than stages no more are in flight.
        key = num_stages, 0 if self.memory_bytes is None else min(num_microbatches, num_stages)
        if key not in self._places:
            last = num_stages - 1
            self._places[key] = tuple(
                Place(stage == 0, stage == last, num_in_flight(key[1], last - stage)) for stage in range(num_stages)
            )
        return self._places[key]

    def seconds(self, place: Place, load: Load) -> float:
        """One microbatch, forward and backward."""
        return (
            (load.num_layers - load.num_degraded) * self._normal
            + (load.num_degraded - load.num_recomputed) * self._degraded
            + load.num_recomputed * self._recomputed
            + ends_seconds(place.has_embedding, place.has_head, self.costs)
        )

    def most_layers(self, place: Place) -> int:
        """Layers that the optimizer's time allows."""
        if self._max_update_seconds == inf:
            return self.num_layers
        ends = update_seconds(0, place.has_embedding, place.has_head, self.costs)
        room = (self._max_update_seconds - ends) / self.costs.layer_end_seconds
        return max(0, min(self.num_layers, floor(room * (1 + ROUNDING_RATIO))))

    def most_exact(self, place: Place, seconds: float) -> int:
        """Layers that fit, none of them degraded, when a microbatch may take `seconds`."""
        most = self.most_layers(place)
        if seconds < inf:
            room = seconds * (1 + ROUNDING_RATIO) - ends_seconds(place.has_embedding, place.has_head, self.costs)
            most = min(most, floor(room / self._normal))
        if self.memory_bytes is not None:
            ends = held_bytes(0, place.has_embedding, place.has_head, self.costs)
            layer = held_bytes(1, False, False, self.costs) + place.num_in_flight * self.costs.layer_activation_bytes
            most = min(most, (self.memory_bytes - ends) // layer)
        return max(0, most)

    def ladder(self, place: Place, seconds: float) -> Ladder:
        """All loads that fit when a microbatch may take `seconds`, each with as few degraded layers as that takes."""
        key = place, seconds
        if key not in self._ladders:
            num_exact = self.most_exact(place, seconds)
            loads = [Load(number, 0, 0) for number in range(1, num_exact + 1)]
            for number in range(num_exact + 1, self.most_layers(place) + 1):
                load = self._least_degraded(place, number, seconds)
                if load is None:
                    break
                loads.append(load)
            self._ladders[key] = Ladder(num_exact, tuple(loads))
        return self._ladders[key]

    def most_within(self, place: Place, seconds: float) -> int:
        """Layers that fit, degraded as may be, when a microbatch may take `seconds`."""
        return len(self.ladder(place, self.longest_within(seconds)).loads)

    def exact(self, place: Place) -> tuple[tuple[Load, float], ...]:
        """For 1, 2, ... layers, none degraded, (load, seconds), as far as memory and the optimizer's time go."""
        if place not in self._exact:
            loads = [Load(number, 0, 0) for number in range(1, self.most_exact(place, inf) + 1)]
            self._exact[place] = tuple((load, self.seconds(place, load)) for load in loads)
        return self._exact[place]

    def fastest(self, place: Place) -> tuple[tuple[Load, float], ...]:
        """For 1, 2, ... layers the (load, seconds) that takes least time, as far as memory and the optimizer go."""
        if place not in self._fastest:
            loads: list[tuple[Load, float]] = []
            for number in range(1, self.most_layers(place) + 1):
                load = self._fastest_of(place, number)
                if load is None:
                    break
                loads.append((load, self.seconds(place, load)))
            self._fastest[place] = tuple(loads)
        return self._fastest[place]

    def longest_within(self, seconds: float) -> float:
        """The longest time that a load can take within `seconds`: whatever fits in that fits in this.

        A few times stand for all, so that what is computed for them is computed once.
        """
        if seconds == inf or self.memory_bytes is not None:
            return seconds
        longest = 0.0
        for has_embedding in (False, True):
            for has_head in (False, True):
                ends = ends_seconds(has_embedding, has_head, self.costs)
                room = seconds * (1 + ROUNDING_RATIO) - ends
                for number in range(floor(room / self._normal) + 1):
                    normal = number * self._normal
                    longest = max(longest, ends + normal + (room - normal) // self._degraded * self._degraded)
        return longest

    def with_degraded(self, place: Place, num_layers: int, num_degraded: int) -> Load | None:
        """The load with so many degraded layers, recomputing as few as memory asks for; None if it does not fit."""
        if self.memory_bytes is None:
            return Load(num_layers, num_degraded, 0)
        costs, in_flight = self.costs, place.num_in_flight
        excess_bytes = (
            held_bytes(num_layers, place.has_embedding, place.has_head, costs)
            + in_flight * (num_layers - num_degraded) * costs.layer_activation_bytes
            + in_flight * num_degraded * costs.degraded_activation_bytes
            - self.memory_bytes
        )
        if excess_bytes <= 0:
            return Load(num_layers, num_degraded, 0)
        saved_bytes = in_flight * (costs.degraded_activation_bytes - costs.recomputed_activation_bytes)
        if saved_bytes * num_degraded < excess_bytes:
            return None
        return Load(num_layers, num_degraded, -(-excess_bytes // saved_bytes))

    def _least_degraded(self, place: Place, num_layers: int, seconds: float) -> Load | None:
        most_seconds = seconds * (1 + ROUNDING_RATIO)
        least = 0
        if self.is_ordered and most_seconds < inf:
            excess_seconds = self.seconds(place, Load(num_layers, 0, 0)) - most_seconds
            least = max(0, ceil(excess_seconds / (self._normal - self._degraded)))
        for num_degraded in range(least, num_layers + 1):
            load = self.with_degraded(place, num_layers, num_degraded)
            if load is not None and self.seconds(place, load) <= most_seconds:
                return load
        return None

    def _fastest_of(self, place: Place, num_layers: int) -> Load | None:
        numbers = (num_layers,) if self.is_ordered else range(num_layers + 1)
        loads = [load for number in numbers if (load := self.with_degraded(place, num_layers, number)) is not None]
        return min(loads, key=lambda load: self.seconds(place, load), default=None)
