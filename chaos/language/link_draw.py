"""Draws links between ranks of different nodes, thousands of them at once too."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from chaos.errors import UsageError
from mecefo_runtime.job.layout import Cluster

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Lots that are drawn at once: 512 KiB.
_MAX_LOTS = 1 << 16

Link = tuple[int, int]


def draw_links(num_links: int, cluster: Cluster, rng: random.Random, unavailable: Collection[int]) -> list[Link]:
    """So many different links, the lower rank first; from the state of `rng`, which stays as it is.

    Each link is drawn by new lots, one for each rank there is, so that ranks that cannot be drawn change nothing for
    the others: the first rank, and the next one of another node that it is not yet linked to.

    Raises:
        UsageError: there are not so many.
    """
    if num_links > cluster.num_ranks:
        raise UsageError(f"random:{num_links} links are more than the {cluster.num_ranks} that are drawn at once")
    candidates = [rank for rank in range(cluster.num_places) if rank not in unavailable]
    if len({cluster.node_of(rank) for rank in candidates}) < 2:
        raise UsageError(f"random:{num_links} asks for links between nodes, but there are no two nodes to draw from")
    # Not at the top: `chaos --help` need not load it.
    import numpy as np

    neighbours = np.array([cluster.ranks_of(cluster.node_of(rank)) for rank in range(cluster.num_ranks)])
    drawn: dict[Link, None] = {}
    for lots in _lots(num_links, cluster.num_ranks, candidates, rng):
        first = lots.argmin(1)
        rows = np.arange(len(lots))[:, None]
        of_its_node = lots[rows, neighbours[first]]
        lots[rows, neighbours[first]] = np.inf
        second = lots.argmin(1)
        lots[rows, neighbours[first]] = of_its_node
        for row, one, other in zip(lots, first.tolist(), second.tolist(), strict=True):
            link: Link | None = _link(one, other)
            if link in drawn:
                link = _next_link(row, len(candidates), cluster, drawn)
            if link is None:
                raise UsageError(f"random:{num_links} asks for links between nodes, but there are only {len(drawn)}")
            drawn[link] = None
    return list(drawn)


def _lots(num_rows: int, num_ranks: int, candidates: list[int], rng: random.Random) -> Iterator[NDArray[np.float64]]:
    """A row of lots for each link, in blocks; infinite for who is no candidate."""
    import numpy as np

    # `rng.random()` so many times, and some fifty times as quick: numpy's is the same generator.
    _, state, _ = rng.getstate()
    generator = np.random.RandomState()
    generator.set_state(("MT19937", np.array(state[:-1], dtype=np.uint32), state[-1], 0, 0.0))
    is_out = np.ones(num_ranks, dtype=bool)
    is_out[candidates] = False
    num_at_once = max(1, _MAX_LOTS // num_ranks)
    for begin in range(0, num_rows, num_at_once):
        lots = generator.random_sample((min(num_at_once, num_rows - begin), num_ranks))
        lots[:, is_out] = np.inf
        yield lots


def _next_link(
    lots: NDArray[np.float64], num_candidates: int, cluster: Cluster, drawn: Collection[Link]
) -> Link | None:
    """The first pair in the order of their lots that is a link and not drawn yet."""
    order = lots.argsort(kind="stable")[:num_candidates].tolist()
    pairs = (_link(one, other) for one in order for other in order if cluster.node_of(one) != cluster.node_of(other))
    return next((pair for pair in pairs if pair not in drawn), None)


def _link(one: int, other: int) -> Link:
    return min(one, other), max(one, other)
