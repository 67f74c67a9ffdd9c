"""Links that are drawn: always the same ones from a seed, as many as asked for, and quickly."""

from random import Random

import pytest

from chaos.errors import UsageError
from chaos.language import link_draw
from chaos.language.link_draw import draw_links
from mecefo_runtime.job.layout import Cluster

pytestmark = pytest.mark.unit


def drawn_in_plain_python(num_links, cluster, rng, unavailable):
    """The definition: new lots for each link, the first pair in their order that is one and is new."""
    candidates = [rank for rank in range(cluster.num_places) if rank not in unavailable]
    drawn = []
    for _ in range(num_links):
        lots = [rng.random() for _ in range(cluster.num_ranks)]
        order = sorted(candidates, key=lots.__getitem__)
        pairs = ((min(a, b), max(a, b)) for a in order for b in order if cluster.node_of(a) != cluster.node_of(b))
        drawn.append(next(pair for pair in pairs if pair not in drawn))
    return drawn


@pytest.mark.parametrize("unavailable", [(), (0, 3)])
@pytest.mark.parametrize(
    ("cluster", "num_links"),
    [
        (Cluster(4, 2, 4, 2, 4, 512), 1),
        (Cluster(4, 2, 4, 2, 4, 512), 8),
        (Cluster(2, 4, 4, 2, 4, 512), 4),
        (Cluster(3, 2, 2, 2, 4, 512, 1), 1),
        (Cluster(16, 8, 64, 2, 4, 512), 128),
    ],
)
def test_links_are_those_of_the_definition(cluster, num_links, unavailable, monkeypatch):
    for max_lots in (1, 100, 1 << 20):
        monkeypatch.setattr(link_draw, "_MAX_LOTS", max_lots)
        for seed in range(20):
            expected = drawn_in_plain_python(num_links, cluster, Random(seed), unavailable)
            assert draw_links(num_links, cluster, Random(seed), unavailable) == expected


def test_there_are_not_so_many():
    with pytest.raises(UsageError, match="there are only 4"):
        draw_links(5, Cluster(3, 2, 3, 2, 4, 512), Random(0), unavailable=(0, 1))


def test_of_many_ranks_no_order_is_sorted(monkeypatch):
    """Of thousands of links, nearly all are found without sorting all ranks: that took a second for each thousand."""
    sorted_for, next_link = [], link_draw._next_link
    monkeypatch.setattr(link_draw, "_next_link", lambda *those: sorted_for.append(1) or next_link(*those))
    links = draw_links(1000, Cluster(128, 8, 512, 2, 4, 512), Random(0), ())
    assert len(set(links)) == 1000
    assert len(sorted_for) < 10
