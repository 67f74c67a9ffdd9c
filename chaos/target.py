"""On whom: a rank, a node, a stage, a replica, a role, or one that the seed draws."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from chaos.errors import UsageError, nearest, shown
from chaos.trigger import split_pairs, whole_number
from mecefo_runtime.layout import Cluster

Scope = Literal["node", "rank", "link", "checkpoint"]

ROLES = ("coordinator",)
_PLACES = ("rank", "node", "stage", "replica")
_WORDS = (*_PLACES, "role", "random")


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """Whom exactly: `ranks`, ascending; `nodes` are those that are struck as a whole; a role is no rank and no node."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    role: str | None = None

    def __str__(self) -> str:
        if self.role is not None:
            return f"role={self.role}"
        if self.nodes:
            return ",".join(f"node={node}" for node in self.nodes)
        return ",".join(f"rank={rank}" for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Target:
    """A target as the user names it: the ranks of which all that is given holds, or `random` so many of those."""

    rank: int | None = None
    node: int | None = None
    stage: int | None = None
    replica: int | None = None
    role: str | None = None
    random: int | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if not given:
            raise UsageError(f"a target is one of {_examples()}")
        if self.role is not None and self.role not in ROLES:
            raise UsageError(
                f"there is no role {shown(self.role)} that can be a target: there is {', '.join(ROLES)}",
                suggestion=nearest(self.role, ROLES),
            )
        if self.role is not None and len(given) > 1:
            others = ", ".join(name for name in given if name != "role")
            raise UsageError(f"role={self.role} is one process already: leave out {others}")
        if self.random is not None and self.random < 1:
            raise UsageError(f"random:{self.random} draws nobody: write at least random:1")

    def __str__(self) -> str:
        named = [f"{place}={getattr(self, place)}" for place in _PLACES if getattr(self, place) is not None]
        role = [f"role={self.role}"] if self.role is not None else []
        drawn = [] if self.random is None else ["random" if self.random == 1 else f"random:{self.random}"]
        return ",".join([*named, *role, *drawn])

    @classmethod
    def parse(cls, value: object) -> Target:
        """Read `rank=3`, `node=1`, `stage=2`, `replica=0`, `role=coordinator`, `random:2`, or some of them with commas.

        Raises:
            UsageError: it is none of these.
        """
        if isinstance(value, Target):
            return value
        if not isinstance(value, str):
            raise UsageError(f"{shown(value)} is no target: write one of {_examples()}")
        numbers: dict[str, int] = {}
        role: str | None = None
        for key, text in split_pairs(value):
            if key == "random" or key.startswith("random:"):
                if "random" in numbers:
                    raise UsageError(f"{shown(value)} draws twice: write random:2 for two")
                numbers["random"] = _draws(value, key, text)
            elif key == "role" and text is not None:
                role = text
            elif key in _PLACES and text is not None:
                number = whole_number(text)
                if number is None:
                    raise UsageError(f"{key} must be a whole number from 0, not {shown(text)}")
                numbers[key] = number
            elif key in _WORDS:
                raise UsageError(f"{key} of what? write {key}={ROLES[0] if key == 'role' else 0}")
            else:
                raise UsageError(
                    f"there is no target {shown(key)}: write one of {_examples()}", suggestion=nearest(key, _WORDS)
                )
        return cls(role=role, **numbers)


DEFAULT_TARGET = Target(random=1)


def resolve(
    target: Target,
    cluster: Cluster,
    fault_scope: Scope,
    rng: random.Random,
    *,
    unavailable: Collection[int] = (),
) -> ResolvedTarget:
    """Whom `target` means in `cluster`, for a fault that strikes whole nodes or single ranks.

    A fault of nodes on a rank strikes that rank's node; a fault of ranks on a node strikes all of its ranks, and the
    node lives on. Nothing is drawn from the ranks in `unavailable`, nor from nodes that have no other ones.

    Raises:
        UsageError: `cluster` has no such target, or not as many as are to be drawn.
    """
    if target.role is not None:
        return ResolvedTarget(role=target.role)
    _check_ranges(target, cluster)
    ranks = [rank for rank in range(cluster.num_ranks) if _matches(target, cluster, rank)]
    if not ranks:
        raise UsageError(f"{target} matches no rank: {_where(target, cluster)}")
    if target.random is not None:
        ranks = [rank for rank in ranks if rank not in unavailable]
    if fault_scope == "rank":
        return ResolvedTarget(ranks=tuple(_draw(target, ranks, cluster.num_ranks, "ranks", rng)))
    hosts = sorted({cluster.node_of(rank) for rank in ranks})
    nodes = _draw(target, hosts, cluster.nodes, "nodes", rng)
    return ResolvedTarget(ranks=tuple(rank for node in nodes for rank in cluster.ranks_of(node)), nodes=tuple(nodes))


def _draw(target: Target, candidates: Sequence[int], total: int, noun: str, rng: random.Random) -> Sequence[int]:
    if target.random is None:
        return candidates
    if target.random > len(candidates):
        raise UsageError(f"{target} asks for {target.random}, but only {len(candidates)} {noun} can be drawn")
    # One lot for each there is, so that those which cannot be drawn change nothing for the others; and by random()
    # alone, of all methods the one that gives the same numbers in every version of Python.
    lots = [rng.random() for _ in range(total)]
    return sorted(sorted(candidates, key=lambda candidate: lots[candidate])[: target.random])


def _check_ranges(target: Target, cluster: Cluster) -> None:
    sizes = {
        "rank": cluster.num_ranks,
        "node": cluster.nodes,
        "stage": cluster.pipeline,
        "replica": cluster.data_parallel,
    }
    for place, size in sizes.items():
        number = getattr(target, place)
        if number is not None and number >= size:
            there_is = f"only {place} 0" if size == 1 else f"{place}s 0 to {size - 1}"
            raise UsageError(f"{place}={number} does not exist: the job has {there_is}")


def _matches(target: Target, cluster: Cluster, rank: int) -> bool:
    replica, stage = cluster.cell_of(rank)
    place = {"rank": rank, "node": cluster.node_of(rank), "stage": stage, "replica": replica}
    return all(getattr(target, name) in (None, number) for name, number in place.items())


def _where(target: Target, cluster: Cluster) -> str:
    """Where the ranks are that the contradicting target names."""
    ranks: Sequence[int] = cluster.ranks_of(target.node) if target.node is not None else range(cluster.num_ranks)
    if target.rank is not None:
        ranks = [target.rank]
    places = ((rank, cluster.node_of(rank), *cluster.cell_of(rank)) for rank in ranks[:8])
    return "; ".join("rank {} is on node {}, replica {}, stage {}".format(*place) for place in places)


def _draws(value: str, key: str, text: str | None) -> int:
    number = 1 if key == "random" else whole_number(key.removeprefix("random:"))
    if number is None or text is not None:
        raise UsageError(f"{shown(value)} is no target: write random, or random:2 for two")
    return number


def _examples() -> str:
    return "rank=3, node=1, stage=1, replica=0, role=coordinator, random, random:2"
