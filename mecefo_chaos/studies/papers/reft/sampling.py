"""Losses drawn by chance, each put before the product's own code: its groups, its offers, its choice of a version.

Nothing of the closed form is used here, so that the two check each other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from mecefo_runtime.job.layout import Cluster, configured_layout
from mecefo_runtime.job.protection import Group, ParityHeld, SnapshotOffers
from mecefo_runtime.job.state_source import Offer, Share, SnapshotSource, Version, choose_version
from mecefo_runtime.recovery.kept_snapshots import offers_of

# Whoever restores needs every unit: who computes what afterwards changes nothing about that.
_LAYOUT = configured_layout(
    Cluster(nodes=1, gpus_per_node=1, data_parallel=1, pipeline=1, num_layers=1, num_microbatches=1)
)
_VERSION = Version(1, "drawn")
# Two-sided, 95%.
_NORMAL_QUANTILE = 1.959964


class Memory:
    """What nodes keep after one snapshot that is complete and protected in `groups`; each has an equal share."""

    def __init__(self, groups: Sequence[Group]) -> None:
        nodes = sorted(node for group in groups for node in group.nodes)
        shares = {
            node: dict.fromkeys(_LAYOUT.holders(), frozenset({Share(index, len(nodes))}))
            for index, node in enumerate(nodes)
        }
        self._kept: dict[int, SnapshotOffers] = {}
        for group in groups:
            parities: tuple[ParityHeld, ...] = ()
            if group.num_parities:
                parities = (ParityHeld(_VERSION, group, {node: shares[node] for node in group.nodes}),)
            for node in group.nodes:
                address = f"node {node}"
                offers = (Offer(_VERSION, SnapshotSource(node, address), shares[node]),)
                self._kept[node] = SnapshotOffers(address, _VERSION, offers, parities)

    def survives(self, lost: Collection[int]) -> bool:
        """Whether the coordinator would find a version to continue with, of what the nodes that are not `lost` have."""
        kept = {node: of_node for node, of_node in self._kept.items() if node not in lost}
        return choose_version(_LAYOUT, offers_of(kept)) is not None


@dataclass(frozen=True, slots=True)
class Sample:
    """Of `num_draws`, `num_survived`."""

    num_draws: int
    num_survived: int

    @property
    def ratio(self) -> float:
        """How many survived; of at least one draw."""
        return self.num_survived / self.num_draws

    @property
    def interval(self) -> tuple[float, float]:
        """95% confidence interval (E. B. Wilson, 1927)."""
        n, z2 = self.num_draws, _NORMAL_QUANTILE**2
        middle = (self.ratio + z2 / (2 * n)) / (1 + z2 / n)
        half = _NORMAL_QUANTILE * math.sqrt(self.ratio * (1 - self.ratio) / n + z2 / (4 * n * n)) / (1 + z2 / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def likelihood(self, probability: float) -> float:
        """Of numbers that are as unlikely as this one or more, were `probability` true (exact binomial test)."""
        return likelihood_of_sum([(self, probability)])


def likelihood_of_sum(pairs: Sequence[tuple[Sample, float]]) -> float:
    """The exact binomial test of several samples together, each with the probability that is held to be true."""
    weights = np.ones(1)
    for sample, probability in pairs:
        of_sample = [_binomial(sample.num_draws, number, probability) for number in range(sample.num_draws + 1)]
        weights = np.convolve(weights, of_sample)
    seen = float(weights[sum(sample.num_survived for sample, _ in pairs)])
    return min(1.0, float(weights[weights <= seen * (1 + 1e-9)].sum()))


def _binomial(n: int, number: int, probability: float) -> float:
    if probability in (0.0, 1.0):
        return 1.0 if number == n * probability else 0.0
    log = math.lgamma(n + 1) - math.lgamma(number + 1) - math.lgamma(n - number + 1)
    return math.exp(log + number * math.log(probability) + (n - number) * math.log1p(-probability))


def sample_losses(groups: Sequence[Group], num_lost: int, num_draws: int, generator: np.random.Generator) -> Sample:
    """So many times `num_lost` nodes are lost, any set of them equally likely."""
    memory = Memory(groups)
    num_nodes = sum(len(group.nodes) for group in groups)
    lost_sets = (draw_losses(num_nodes, num_lost, generator) for _ in range(num_draws))
    return Sample(num_draws, sum(memory.survives(lost) for lost in lost_sets))


def sample_lifetimes(
    groups: Sequence[Group], time_ratio: float, shape: float, num_draws: int, generator: np.random.Generator
) -> Sample:
    """So many times nodes have lifetimes by Weibull, and those are lost that do not live `time_ratio` times eta."""
    memory = Memory(groups)
    num_nodes = sum(len(group.nodes) for group in groups)
    lost_sets = (draw_short_lived(num_nodes, time_ratio, shape, generator) for _ in range(num_draws))
    return Sample(num_draws, sum(memory.survives(lost) for lost in lost_sets))


def draw_losses(num_nodes: int, num_lost: int, generator: np.random.Generator) -> tuple[int, ...]:
    """So many of the nodes, any set equally likely."""
    return tuple(sorted(int(node) for node in generator.choice(num_nodes, num_lost, replace=False)))


def draw_short_lived(
    num_nodes: int, time_ratio: float, shape: float, generator: np.random.Generator
) -> tuple[int, ...]:
    """The nodes whose lifetimes, drawn one by one, are shorter than `time_ratio` times eta."""
    return tuple(int(node) for node in np.flatnonzero(generator.weibull(shape, num_nodes) < time_ratio))


def enumerate_losses(groups: Sequence[Group]) -> Iterator[tuple[int, int]]:
    """By the number of nodes lost, from 0 to all: (sets that survive, all sets), every one of them tried."""
    memory = Memory(groups)
    num_nodes = sum(len(group.nodes) for group in groups)
    for num_lost in range(num_nodes + 1):
        found = [memory.survives(frozenset(lost)) for lost in combinations(range(num_nodes), num_lost)]
        yield sum(found), len(found)
