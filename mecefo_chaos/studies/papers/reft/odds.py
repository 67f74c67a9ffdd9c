"""Survival of the state in memory: closed form, random draws through the product's code, and real processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from mecefo_chaos.studies.papers.reft.claims import SHAPE
from mecefo_chaos.studies.papers.reft.real.draws import TIME_RATIO, Draw, num_lost_at_once, sample_of
from mecefo_chaos.studies.papers.reft.sampling import (
    Sample,
    enumerate_losses,
    likelihood_of_sum,
    sample_lifetimes,
    sample_losses,
)
from mecefo_chaos.studies.papers.reft.schemes import MOST_LOST, NUM_NODES, SCHEMES, SMALL, TABLE, Scheme
from mecefo_chaos.studies.papers.reft.survival import after, borne, given_losses, node_survival, time_ratio_of
from mecefo_chaos.studies.papers.rules import Measured

# Of the scale of a Weibull lifetime.
TIME_RATIOS = (0.001, 0.01, 0.05)
LARGE = 64
# Of each case; a draw on 64 nodes takes about a millisecond.
NUM_DRAWS = 200
# The state is to survive with this probability.
_LIKELY = 0.99


@dataclass(frozen=True, slots=True)
class Odds:
    """How likely the state of `num_nodes` survives the loss of `num_lost` at once, or `time_ratio` times eta.

    `closed` is the closed form, `drawn` by the product's code for losses drawn by chance, `lived` by real processes;
    None: not done.
    """

    num_nodes: int
    scheme: str
    num_lost: int | None
    time_ratio: float | None
    closed: float
    drawn: Sample | None = None
    lived: Sample | None = None


@dataclass(frozen=True, slots=True)
class SchemeRow:
    """What a scheme takes and gives: the closed form for 1 to `MOST_LOST` nodes lost at once.

    `time_ratio` is after how many times eta the state has survived with 99%, without any repair; `parity_ratio` how
    much parity the product's groups hold at most, of what they protect, and `parity` the same over the groups.
    """

    num_nodes: int
    scheme: str
    parity_ratio: float
    by_num_lost: tuple[float, ...]
    time_ratio: float
    parity: Measured | None = None


def small_odds(draws: Sequence[Draw], seed: int, num_draws: int = NUM_DRAWS) -> tuple[Odds, ...]:
    """On eight nodes, all three."""
    return tuple(replace(one, lived=sample_of(draws, one.scheme, one.num_lost)) for one in _small_odds(seed, num_draws))


# What a seed draws is drawn once.
@cache
def _small_odds(seed: int, num_draws: int) -> tuple[Odds, ...]:
    generator = np.random.default_rng([seed, NUM_NODES])
    found = []
    for scheme in SMALL:
        groups = scheme.groups(NUM_NODES)
        for num_lost in num_lost_at_once(scheme):
            drawn = sample_losses(groups, num_lost, num_draws, generator)
            closed = float(given_losses(groups, num_lost))
            found.append(Odds(NUM_NODES, scheme.name, num_lost, None, closed, drawn))
        drawn = sample_lifetimes(groups, TIME_RATIO, SHAPE, num_draws, generator)
        closed = after(groups, node_survival(TIME_RATIO, SHAPE))
        found.append(Odds(NUM_NODES, scheme.name, None, TIME_RATIO, closed, drawn))
    return tuple(found)


@cache
def large_odds(seed: int, num_draws: int = NUM_DRAWS) -> tuple[Odds, ...]:
    """On 64 nodes, what cannot be run here: closed form and drawn."""
    generator = np.random.default_rng([seed, LARGE])
    found = []
    for scheme in SCHEMES:
        groups = scheme.groups(LARGE)
        for num_lost in range(1, MOST_LOST + 1):
            drawn = sample_losses(groups, num_lost, num_draws, generator)
            found.append(Odds(LARGE, scheme.name, num_lost, None, float(given_losses(groups, num_lost)), drawn))
        for time_ratio in TIME_RATIOS:
            drawn = sample_lifetimes(groups, time_ratio, SHAPE, num_draws, generator)
            closed = after(groups, node_survival(time_ratio, SHAPE))
            found.append(Odds(LARGE, scheme.name, None, time_ratio, closed, drawn))
    return tuple(found)


def scheme_rows() -> tuple[SchemeRow, ...]:
    """The closed form's table."""
    return tuple(_scheme_row(num_nodes, scheme) for num_nodes, schemes in TABLE for scheme in schemes)


def _scheme_row(num_nodes: int, scheme: Scheme) -> SchemeRow:
    groups = scheme.groups(num_nodes)
    # Every member holds as many stripes of parity, and as many of its own.
    parity = [len(group.rows_of_parity(group.nodes[0])) / group.num_data for group in groups]
    return SchemeRow(
        num_nodes,
        scheme.name,
        max(parity),
        tuple(float(given_losses(groups, num_lost)) for num_lost in range(1, MOST_LOST + 1)),
        time_ratio_of(groups, SHAPE, _LIKELY),
        Measured.of(parity),
    )


def enumeration_difference() -> tuple[int, int]:
    """(sets of lost nodes on which the closed form and the product's code disagree in number, sets tried)."""
    wrong, tried = 0, 0
    for scheme in SMALL:
        groups = scheme.groups(NUM_NODES)
        counts = borne(groups)
        for num_lost, (num_survived, num_sets) in enumerate(enumerate_losses(groups)):
            wrong += abs((counts[num_lost] if num_lost < len(counts) else 0) - num_survived)
            tried += num_sets
    return wrong, tried


@dataclass(frozen=True, slots=True)
class Pooled:
    """All real draws of one protection: how many survived, and how many the closed form expects."""

    scheme: str
    num_draws: int
    num_survived: int
    expected: float
    likelihood: float


def pooled_draws(odds: Sequence[Odds]) -> tuple[Pooled, ...]:
    """For each protection, over all of its cells: a single cell has too few draws to show a difference."""
    found = []
    for scheme in dict.fromkeys(one.scheme for one in odds):
        pairs = [
            (one.lived, one.closed)
            for one in odds
            if one.scheme == scheme and one.lived is not None and one.lived.num_draws
        ]
        if pairs:
            num_survived = sum(sample.num_survived for sample, _ in pairs)
            found.append(
                Pooled(
                    scheme,
                    sum(sample.num_draws for sample, _ in pairs),
                    num_survived,
                    sum(sample.num_draws * closed for sample, closed in pairs),
                    likelihood_of_sum(pairs),
                )
            )
    return tuple(found)


def least_likely(odds: Sequence[Odds]) -> tuple[Odds, float] | None:
    """The cell whose drawn sample is the least likely if the closed form is true, and that for as many tests."""
    tested = [(one, one.drawn.likelihood(one.closed)) for one in odds if one.drawn is not None and one.drawn.num_draws]
    if not tested:
        return None
    cell, value = min(tested, key=lambda pair: pair[1])
    return cell, min(1.0, value * len(tested))
