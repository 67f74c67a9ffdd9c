"""Targets: ranks, nodes, racks, stages, replicas, a link, a role, or what the seed draws."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from chaos.errors import UsageError, nearest, setting, shown
from chaos.language.link_draw import draw_links
from chaos.language.trigger import split_pairs, whole_number
from mecefo_runtime.job.layout import Cluster

Scope = Literal["node", "rank", "all-ranks", "link", "checkpoint", "job"]
# These take no target from the user: a checkpoint is the newest, and a fault of the job defines its own target.
WITHOUT_TARGET: tuple[Scope, ...] = ("all-ranks", "checkpoint", "job")

ROLES = ("coordinator", "store", "launcher")
_PLACES = ("rank", "node", "rack", "stage", "replica")
_WORDS = (*_PLACES, "role", "link", "random")

Places = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """The resolved target: `ranks`, ascending; `nodes` are those that are affected as a whole.

    A role is neither a rank nor a node. `links` are pairs of ranks, the lower one first; `ranks` then are
    those at their ends. An empty target is that of a fault of checkpoints.
    """

    ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    role: str | None = None
    links: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        if self.role is not None:
            return f"role={self.role}"
        if self.links:
            return ",".join(f"link={one}-{other}" for one, other in self.links)
        if self.nodes:
            return f"node={_joined(self.nodes)}"
        return f"rank={_joined(self.ranks)}" if self.ranks else "the job"


@dataclass(frozen=True, slots=True)
class Target:
    """A target as the user names it: the ranks of which all that is given holds, or `random` of those, by number.

    A place is one number or several of them. A link, which is between two ranks, and a role stand alone.
    """

    rank: Places | None = None
    node: Places | None = None
    rack: Places | None = None
    stage: Places | None = None
    replica: Places | None = None
    role: str | None = None
    random: int | None = None
    link: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        if not given:
            raise UsageError(f"a target is one of {_examples()}")
        if self.role is not None and self.role not in ROLES:
            raise UsageError(
                f"there is no role {shown(self.role)} that can be a target: there is {', '.join(ROLES)}",
                suggestion=nearest(self.role, ROLES),
            )
        for alone in ("role", "link"):
            if alone in given and len(given) > 1:
                others = ", ".join(name for name in given if name != alone)
                what = "process" if alone == "role" else "link"
                said = f"role={self.role}" if alone == "role" else f"link={_link_text(self.link)}"
                raise UsageError(f"{said} is one {what} already: leave out {others}")
        if self.link is not None and self.link[0] == self.link[1]:
            raise UsageError(f"link={_link_text(self.link)}: a link is between two ranks")
        if self.random is not None and self.random < 1:
            raise UsageError(f"random:{self.random} draws no target: write at least random:1")

    def __str__(self) -> str:
        named = [f"{place}={_joined(numbers)}" for place in _PLACES if (numbers := self.numbers(place))]
        role = [f"role={self.role}"] if self.role is not None else []
        link = [f"link={_link_text(self.link)}"] if self.link is not None else []
        drawn = [] if self.random is None else ["random" if self.random == 1 else f"random:{self.random}"]
        return ",".join([*named, *role, *link, *drawn])

    def numbers(self, place: str) -> tuple[int, ...]:
        """The numbers that are given of `place` (rank, node, rack, stage, replica); none if nothing is said of it."""
        value: Places | None = getattr(self, place)
        return () if value is None else (value,) if isinstance(value, int) else value

    @classmethod
    def parse(cls, value: object) -> Target:
        """Read `rank=3`, `node=1+2`, `rack=0`, `stage=2`, `replica=0`, `role=coordinator`, `link=2-5` or `random:2`.

        Places, and `random` with them, may be combined with commas.

        Raises:
            UsageError: it is none of these.
        """
        if isinstance(value, Target):
            return value
        if not isinstance(value, str):
            raise UsageError(f"{shown(value)} is no target: write one of {_examples()}")
        places: dict[str, Places] = {}
        role: str | None = None
        link: tuple[int, int] | None = None
        draws: int | None = None
        for key, text in split_pairs(value):
            if key == "random" or key.startswith("random:"):
                if draws is not None:
                    raise UsageError(f"{shown(value)} draws twice: write random:2 for two")
                draws = _draws(value, key, text)
            elif key == "role" and text is not None:
                role = text
            elif key == "link" and text is not None:
                link = _link(text)
            elif key in _PLACES and text is not None:
                places[key] = _places(key, text)
            elif key in _WORDS:
                raise UsageError(f"{key} of what? write {key}={ {'role': ROLES[0], 'link': '2-5'}.get(key, '0') }")
            else:
                raise _no_target(key, text, places)
        return cls(role=role, link=link, random=draws, **places)


DEFAULT_TARGET = Target(random=1)


def resolve(
    target: Target | None,
    cluster: Cluster,
    fault_scope: Scope,
    rng: random.Random,
    *,
    unavailable: Collection[int] = (),
    nodes_per_rack: int | None = None,
) -> ResolvedTarget:
    """Whom `target` (None: what is usual) means in `cluster`, for a fault of nodes, ranks, links or checkpoints.

    A fault of nodes on a rank affects that rank's node; a fault of ranks on a node affects all of its ranks, and the
    node lives on. A link is drawn among ranks on different nodes. Spare nodes are never drawn. Nothing is drawn from
    the ranks in `unavailable`, nor from nodes that have no other ones.

    Raises:
        UsageError: `cluster` has no such target, or not as many as are to be drawn, or the fault is not of that kind.
    """
    if fault_scope in WITHOUT_TARGET:
        if target is not None:
            raise UsageError(f"this kind of fault takes no target: leave {target} out")
        return ResolvedTarget(ranks=tuple(range(cluster.num_ranks)) if fault_scope == "all-ranks" else ())
    target = target or DEFAULT_TARGET
    if fault_scope == "link":
        return _resolve_link(target, cluster, rng, unavailable)
    if target.link is not None:
        examples = ", ".join(examples_in(cluster))
        raise UsageError(f"{target}, but the fault acts on {fault_scope}s: write one of {examples}, random")
    if target.role is not None:
        return ResolvedTarget(role=target.role)
    _check_ranges(target, cluster, nodes_per_rack)
    ranks = _matching(target, cluster, nodes_per_rack)
    if not ranks:
        raise UsageError(f"{target} matches no rank: {_where(target, cluster)}")
    if target.random is not None:
        ranks = [rank for rank in ranks if rank not in unavailable]
    if fault_scope == "rank":
        return ResolvedTarget(ranks=tuple(_draw(target, ranks, cluster.num_ranks, "ranks", rng)))
    hosts = sorted({cluster.node_of(rank) for rank in ranks})
    nodes = _draw(target, hosts, cluster.nodes, "nodes", rng)
    return ResolvedTarget(ranks=tuple(rank for node in nodes for rank in cluster.ranks_of(node)), nodes=tuple(nodes))


def examples_in(cluster: Cluster) -> tuple[str, str]:
    """A rank and a node that `cluster` has, as targets."""
    return f"rank={min(3, cluster.num_ranks - 1)}", f"node={min(1, cluster.nodes - 1)}"


def _resolve_link(target: Target, cluster: Cluster, rng: random.Random, unavailable: Collection[int]) -> ResolvedTarget:
    if target.link is not None:
        _check_range("rank", max(target.link), cluster.num_ranks)
        links = [(min(target.link), max(target.link))]
    elif target.random is not None and not any(map(target.numbers, _PLACES)):
        links = draw_links(target.random, cluster, rng, unavailable)
    else:
        usual = (min(2, cluster.num_ranks - 2), min(5, cluster.num_ranks - 1))
        is_between_nodes = cluster.nodes == 1 or cluster.node_of(usual[0]) != cluster.node_of(usual[1])
        example = usual if is_between_nodes else (0, cluster.num_ranks - 1)
        raise UsageError(f"{target}, but the fault acts on links: write link={example[0]}-{example[1]}, or random")
    return ResolvedTarget(ranks=tuple(sorted({rank for link in links for rank in link})), links=tuple(sorted(links)))


def _draw(target: Target, candidates: Sequence[int], total: int, noun: str, rng: random.Random) -> Sequence[int]:
    if target.random is None:
        return candidates
    if target.random > len(candidates):
        raise UsageError(f"{target} asks for {target.random}, but only {len(candidates)} {noun} can be drawn")
    # One lot for each there is, so that those which cannot be drawn change nothing for the others; and by random()
    # alone, of all methods the one that gives the same numbers in every version of Python.
    lots = [rng.random() for _ in range(total)]
    return sorted(sorted(candidates, key=lambda candidate: lots[candidate])[: target.random])


def _check_ranges(target: Target, cluster: Cluster, nodes_per_rack: int | None) -> None:
    if target.rack is not None and nodes_per_rack is None:
        raise UsageError(f"{target}, but the job has no racks: give it {setting('job.nodes_per_rack', 2)}")
    sizes = {
        "rank": cluster.num_ranks,
        "node": cluster.nodes,
        "rack": -(-cluster.nodes // (nodes_per_rack or 1)),
        "stage": cluster.pipeline,
        "replica": cluster.data_parallel,
    }
    for place, size in sizes.items():
        for number in target.numbers(place):
            _check_range(place, number, size)


def _check_range(place: str, number: int, size: int) -> None:
    if number >= size:
        there_is = f"only {place} 0" if size == 1 else f"{place}s 0 to {size - 1}"
        raise UsageError(f"{place}={number} does not exist: the job has {there_is}")


def _matching(target: Target, cluster: Cluster, nodes_per_rack: int | None) -> list[int]:
    """The ranks of which all holds that is said of places."""
    wanted = {place: numbers for place in _PLACES if (numbers := target.numbers(place))}
    if not wanted:
        # Spare nodes are never drawn, since they do not train: they have to be named.
        return list(range(cluster.num_places))
    matching = []
    for rank in range(cluster.num_ranks):
        is_spare = rank >= cluster.num_places
        replica, stage = (None, None) if is_spare else cluster.cell_of(rank)
        node = cluster.node_of(rank)
        place = {"rank": rank, "node": node, "rack": node // (nodes_per_rack or 1), "stage": stage, "replica": replica}
        if all(place[name] in numbers for name, numbers in wanted.items()):
            matching.append(rank)
    return matching


def _where(target: Target, cluster: Cluster) -> str:
    """Where the ranks are that the contradicting target names."""
    hosted = [rank for node in target.numbers("node") for rank in cluster.ranks_of(node)]
    ranks: Sequence[int] = target.numbers("rank") or hosted or range(cluster.num_ranks)
    where = []
    for rank in ranks[:8]:
        is_spare = rank >= cluster.num_places
        what = "a spare one" if is_spare else "replica {}, stage {}".format(*cluster.cell_of(rank))
        where.append(f"rank {rank} is on node {cluster.node_of(rank)}, {what}")
    return "; ".join(where)


def _no_target(key: str, text: str | None, places: Mapping[str, Places]) -> UsageError:
    """What is no target, and what was probably meant."""
    if key.isdigit() and text is None:
        if not places:
            return UsageError(f"{key} of what? write rank={key} or node={key}")
        place, numbers = list(places.items())[-1]
        said = [numbers] if isinstance(numbers, int) else numbers
        return UsageError(f"write several with +: {place}={_joined([*said, int(key)])}")
    if match := re.fullmatch(rf"({'|'.join((*_PLACES, 'gpu'))})[ :_-]?([0-9]+)", key + (text or "")):
        place = match[1].replace("gpu", "rank")
        return UsageError(f"there is no target {shown(key)}: write {place}={match[2]}")
    return UsageError(f"there is no target {shown(key)}: write one of {_examples()}", suggestion=nearest(key, _WORDS))


def _places(key: str, text: str) -> Places:
    numbers = []
    for part in text.split("+"):
        number = whole_number(part.strip())
        if number is None:
            raise UsageError(f"{key} must be a whole number from 0, not {shown(part.strip())}")
        numbers.append(number)
    several = tuple(sorted(set(numbers)))
    if len(several) < len(numbers):
        raise UsageError(f"{key}={shown(text)} names one of them twice")
    return several if len(several) > 1 else several[0]


def _link(text: str) -> tuple[int, int]:
    ends = [whole_number(part.strip()) for part in text.split("-")]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        raise UsageError(f"link must be two ranks, such as link=2-5, not {shown(text)}")
    return min(ends[0], ends[1]), max(ends[0], ends[1])


def _draws(value: str, key: str, text: str | None) -> int:
    number = 1 if key == "random" else whole_number(key.removeprefix("random:"))
    if number is None or text is not None:
        raise UsageError(f"{shown(value)} is no target: write random, or random:2 for two")
    return number


def _joined(numbers: Sequence[int]) -> str:
    return "+".join(map(str, numbers))


def _link_text(link: tuple[int, int] | None) -> str:
    return "-".join(map(str, link or ()))


def _examples() -> str:
    return "rank=3, node=1+2, rack=0, stage=1, replica=0, role=coordinator, link=2-5, random, random:2"
