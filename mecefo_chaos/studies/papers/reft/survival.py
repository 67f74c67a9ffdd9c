"""The closed form: how likely it is that the state in memory survives, from the sizes of groups and what each bears.

A node survives t with p = exp(-(t / eta)^c) (Weibull: eta its scale, c its shape), independently of the others; nothing
is repaired or encoded again meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from mecefo_runtime.job.protection import Group


def borne(groups: Sequence[Group]) -> list[int]:
    """By the number of nodes lost at once, how many sets of so many nodes all groups together can bear."""
    counts = [1]
    for group in groups:
        size = len(group.nodes)
        of_group = [math.comb(size, lost) for lost in range(group.num_parities + 1)]
        product = [0] * (len(counts) + len(of_group) - 1)
        for some, ways in enumerate(counts):
            for lost, more in enumerate(of_group):
                product[some + lost] += ways * more
        counts = product
    return counts


def given_losses(groups: Sequence[Group], num_lost: int) -> Fraction:
    """The probability that the state survives the loss of so many nodes at once, any set of them equally likely."""
    counts = borne(groups)
    num_nodes = sum(len(group.nodes) for group in groups)
    ways = counts[num_lost] if num_lost < len(counts) else 0
    return Fraction(ways, math.comb(num_nodes, num_lost))


def node_survival(time_ratio: float, shape: float) -> float:
    """How likely a node lives `time_ratio` times eta."""
    return math.exp(-(time_ratio**shape))


def after(groups: Sequence[Group], p: float) -> float:
    """The probability that the state survives until each node has survived with probability `p`."""
    return math.prod(
        sum(
            math.comb(len(group.nodes), lost) * p ** (len(group.nodes) - lost) * (1 - p) ** lost
            for lost in range(group.num_parities + 1)
        )
        for group in groups
    )


def time_ratio_of(groups: Sequence[Group], shape: float, probability: float) -> float:
    """After how many times eta the state has survived with `probability`, between 0 and 1; by bisection."""
    low, high = 0.0, 1.0
    while after(groups, node_survival(high, shape)) > probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if after(groups, node_survival(middle, shape)) > probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2
