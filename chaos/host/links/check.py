"""What can be said of links and groups of ranks before there is a network: who is at their ends, and on which hosts."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.errors import UsageError, shown
from chaos.language.trigger import whole_number
from mecefo_runtime.job.layout import Cluster

# Two ranks, the lower one first, or one and another `chaos.faults.base.End`.
Link = tuple[int | str, int | str]
COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Group:
    """One side of a split network: its ranks, ascending, and whether the coordinator is with them."""

    ranks: tuple[int, ...]
    has_coordinator: bool = False


def name_of(link: Link) -> str:
    """A link as a user writes it."""
    return f"{link[0]}-{link[1]}"


def parse_groups(text: str) -> tuple[Group, ...]:
    """Read `0,1|2,3`, or with a word on the coordinator `0,1,coordinator|2,3`.

    Raises:
        UsageError: it is no such thing, has one group only, or a member twice.
    """
    groups: list[Group] = []
    members: list[int | str] = []
    for part in text.split("|"):
        words = [word.strip() for word in part.split(",")]
        here = [COORDINATOR if word == COORDINATOR else whole_number(word) for word in words]
        if None in here:
            raise UsageError(
                f"{shown(text)} are no groups: write ranks as in 0,1|2,3, or 0,1,coordinator|2,3", key="groups"
            )
        members += [one for one in here if one is not None]
        groups.append(Group(tuple(sorted(one for one in here if isinstance(one, int))), COORDINATOR in here))
    twice = sorted({one for one in members if members.count(one) > 1}, key=str)
    if twice:
        who = twice[0] if twice[0] == COORDINATOR else f"rank {twice[0]}"
        raise UsageError(f"{who} is in {shown(text)} more than once", key="groups")
    if len(groups) < 2:
        raise UsageError(f"{shown(text)} is one group, which splits nothing: write 0,1|2,3", key="groups")
    return tuple(groups)


def check_link(link: tuple[int, int], cluster: Cluster, *, ranks_are_hosts: bool = False) -> None:
    """Refuse a link that is none. `ranks_are_hosts`: those of one node do not share it.

    Raises:
        UsageError: an end does not exist, or both are the same, or on one host.
    """
    for rank in link:
        if not 0 <= rank < cluster.num_ranks:
            raise UsageError(f"link={name_of(link)}: there is no rank {rank}, the job has 0 to {cluster.num_ranks - 1}")
    if link[0] == link[1]:
        raise UsageError(f"link={name_of(link)}: a link has two ends")
    node = cluster.node_of(link[0])
    if node == cluster.node_of(link[1]) and not ranks_are_hosts:
        raise UsageError(
            f"link={name_of(link)}: both ranks are on node {node}, and talk over its loopback, which is no link; "
            "choose ranks of two nodes"
        )


def check_groups(groups: tuple[Group, ...], cluster: Cluster, *, ranks_are_hosts: bool = False) -> None:
    """Refuse groups that are no partition of the ranks, or that would have to split a host.

    Raises:
        UsageError: a rank is in none, or does not exist, or ranks of one node are in two of them.
    """
    group_of = {rank: index for index, group in enumerate(groups) for rank in group.ranks}
    unknown = sorted(rank for rank in group_of if rank >= cluster.num_ranks)
    if unknown:
        raise UsageError(f"there is no rank {unknown[0]}: the job has 0 to {cluster.num_ranks - 1}", key="groups")
    missing = [rank for rank in range(cluster.num_ranks) if rank not in group_of]
    if missing:
        ranks = ", ".join(map(str, missing))
        whom = f"ranks {ranks} are" if len(missing) > 1 else f"rank {ranks} is"
        raise UsageError(f"{whom} in none of the groups", key="groups")
    for node in range(cluster.nodes):
        here = cluster.ranks_of(node)
        if len({group_of[rank] for rank in here}) > 1 and not ranks_are_hosts:
            raise UsageError(
                f"ranks {', '.join(map(str, here))} are on node {node}, and talk over its loopback, which is no link: "
                "put them into one group",
                key="groups",
            )
