"""What can be said of links and groups of ranks before there is a network: who is at their ends, and on which hosts."""

from __future__ import annotations

from chaos.errors import UsageError, shown
from chaos.trigger import whole_number
from mecefo_runtime.layout import Cluster

# Two ranks, the lower one first, or one and another `chaos.faults.base.End`.
Link = tuple[int | str, int | str]


def name_of(link: Link) -> str:
    """A link as a user writes it."""
    return f"{link[0]}-{link[1]}"


def parse_groups(text: str) -> tuple[tuple[int, ...], ...]:
    """Read `0,1|2,3`.

    Raises:
        UsageError: it is no such thing, has one group only, or a rank twice.
    """
    groups: list[tuple[int, ...]] = []
    for part in text.split("|"):
        numbers = [whole_number(rank.strip()) for rank in part.split(",")]
        if None in numbers:
            raise UsageError(f"{shown(text)} are no groups: write ranks as in 0,1|2,3", key="groups")
        groups.append(tuple(sorted(number for number in numbers if number is not None)))
    ranks = [rank for group in groups for rank in group]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        raise UsageError(f"rank {twice[0]} is in {shown(text)} more than once", key="groups")
    if len(groups) < 2:
        raise UsageError(f"{shown(text)} is one group, which splits nothing: write 0,1|2,3", key="groups")
    return tuple(groups)


def check_link(link: tuple[int, int], cluster: Cluster) -> None:
    """Refuse a link that is none.

    Raises:
        UsageError: an end does not exist, or both are the same, or on one host.
    """
    for rank in link:
        if not 0 <= rank < cluster.num_ranks:
            raise UsageError(f"link={name_of(link)}: there is no rank {rank}, the job has 0 to {cluster.num_ranks - 1}")
    if link[0] == link[1]:
        raise UsageError(f"link={name_of(link)}: a link has two ends")
    node = cluster.node_of(link[0])
    if node == cluster.node_of(link[1]):
        raise UsageError(
            f"link={name_of(link)}: both ranks are on node {node}, and talk over its loopback, which is no link; "
            "choose ranks of two nodes"
        )


def check_groups(groups: tuple[tuple[int, ...], ...], cluster: Cluster) -> None:
    """Refuse groups that are no partition of the ranks, or that would have to split a host.

    Raises:
        UsageError: a rank is in none, or does not exist, or ranks of one node are in two of them.
    """
    group_of = {rank: index for index, group in enumerate(groups) for rank in group}
    unknown = sorted(rank for rank in group_of if rank >= cluster.num_ranks)
    if unknown:
        raise UsageError(f"there is no rank {unknown[0]}: the job has 0 to {cluster.num_ranks - 1}", key="groups")
    missing = [rank for rank in range(cluster.num_ranks) if rank not in group_of]
    if missing:
        raise UsageError(f"rank {', '.join(map(str, missing))} is in none of the groups", key="groups")
    for node in range(cluster.nodes):
        here = cluster.ranks_of(node)
        if len({group_of[rank] for rank in here}) > 1:
            raise UsageError(
                f"ranks {', '.join(map(str, here))} are on node {node}, and talk over its loopback, which is no link: "
                "put them into one group",
                key="groups",
            )
