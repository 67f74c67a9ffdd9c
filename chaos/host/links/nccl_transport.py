"""Which way NCCL takes between two ranks, read from what it says of itself (`NCCL_DEBUG=INFO`).

Rules on a network touch NCCL only where it goes through the kernel's sockets. Between GPUs of one machine it goes over
NVLink or PCIe (P2P) or shared memory (SHM), between machines with such cards over InfiniBand, RoCE or EFA: there a cut
link would be one in name only. https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chaos.errors import InjectionError
from chaos.host.links.check import Link, name_of
from mecefo_runtime.system.reason import Reason

# One file for each rank, in the run's folder of logs.
LOG_NAME = "nccl-{rank}.log"
# What makes NCCL go through sockets, by the way that it takes now.
_SOCKETS = "NET/Socket"
REMEDY = "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket"
_ENDS = ("source", "destination")
_MEANING = {"P2P": "NVLink or PCIe", "SHM": "shared memory", "NET": "a network card past the kernel"}

# host:pid:thread [device] NCCL INFO ...
_LINE = re.compile(r"^\S*?:?\d+:(?P<thread>\d+) \[\d+\] NCCL INFO (?P<said>.*)$")
# ncclCommInitRank comm 0x5629 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 8000 commId 0x9edd - Init START
_COMMUNICATOR = re.compile(
    r"comm 0x[0-9a-f]+ rank (?P<rank>\d+) n[rR]anks \d+ (?:.*nvmlDev (?P<device>\w+) )?"
    r".*commId (?P<id>0x[0-9a-f]+) - Init"
)
# Channel 00/0 : 0[0] -> 1[6] via P2P/CUMEM; before 2.12 without "/0", before 2.5 with "Ring" and without devices.
_ROUTE = re.compile(
    r"^(?:Channel|Ring) \d+(?:/\d+)? : (?P<source>\d+)(?:\[(?P<source_device>\w+)\])? -> "
    r"(?P<destination>\d+)(?:\[(?P<destination_device>\w+)\])?(?: \[(?:send|receive)\])? via (?P<way>.+?)\s*$"
)


@dataclass(frozen=True, slots=True, order=True)
class Route:
    """How NCCL gets from one rank of the job to another: `way` in its words, such as P2P/CUMEM or NET/Socket/0."""

    source: int
    destination: int
    way: str

    @property
    def is_through_sockets(self) -> bool:
        """Whether a network's rules apply to it."""
        return self.way == _SOCKETS or self.way.startswith(f"{_SOCKETS}/")

    @property
    def meaning(self) -> str:
        """What it is physically."""
        kind = "SHM" if self.way == "direct shared memory" else self.way.partition("/")[0]
        return _MEANING.get(kind, "a way of its own")


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank's number, and the device that it is on where that is told."""

    number: int
    device: str | None

    def may_be_on(self, other: _Rank) -> bool:
        """Whether nothing is known against both being on one device."""
        return self.device is None or other.device is None or self.device == other.device


@dataclass(frozen=True, slots=True)
class _Said:
    """A route as a rank told it, in the numbers of one of `communicators`; none: it has told of none."""

    communicators: tuple[str, ...]
    source: _Rank
    destination: _Rank
    way: str


def routes(logs: Mapping[int, str]) -> frozenset[Route]:
    """Every route that the ranks' logs tell of; `logs` are NCCL's own, by the rank of the job that wrote them.

    NCCL numbers the ranks of each communicator again. Whose number is whose is told when the communicator is made. Of
    which one a route is tells the thread that made it, or (what is connected at the first operation is connected by
    another one) the devices at its ends; where several fit, it counts for each. In a log without communicators the
    numbers are taken for the job's.
    """
    rank_of: dict[tuple[str, int], _Rank] = {}
    said: list[_Said] = []
    for rank, text in logs.items():
        made: list[str] = []
        made_by: dict[str, str] = {}
        for line in text.splitlines():
            if (found := _LINE.match(line)) is None:
                continue
            if one := _COMMUNICATOR.search(found["said"]):
                made.append(one["id"])
                made_by[found["thread"]] = one["id"]
                rank_of[one["id"], int(one["rank"])] = _Rank(rank, one["device"])
            elif route := _ROUTE.match(found["said"]):
                own = made_by.get(found["thread"])
                source, destination = (_Rank(int(route[end]), route[f"{end}_device"]) for end in _ENDS)
                said.append(_Said(tuple(made) if own is None else (own,), source, destination, route["way"]))
    return frozenset(route for one in said for route in _resolve(one, rank_of))


def _resolve(said: _Said, rank_of: Mapping[tuple[str, int], _Rank]) -> set[Route]:
    """In the job's ranks; of one who has said nothing of the communicator since it was started again: none."""
    if not said.communicators:
        return {Route(said.source.number, said.destination.number, said.way)}
    fitting: set[Route] = set()
    others: set[Route] = set()
    for communicator in said.communicators:
        source, destination = (rank_of.get((communicator, end.number)) for end in (said.source, said.destination))
        if source is not None and destination is not None:
            fits = source.may_be_on(said.source) and destination.may_be_on(said.destination)
            (fitting if fits else others).add(Route(source.number, destination.number, said.way))
    # Versions differ in what they call a device: where none fits, they are told from each other by nothing.
    return fitting or others


def read_routes(folder: Path) -> frozenset[Route]:
    """As `routes`, from the files that all ranks have in `folder`; none where NCCL has not been used.

    Raises:
        InjectionError: there are such files, and they cannot be read.
    """
    logs: dict[int, str] = {}
    for path in folder.glob(LOG_NAME.format(rank="*")):
        rank = path.stem.rpartition("-")[2]
        try:
            if rank.isdecimal():
                logs[int(rank)] = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise InjectionError(Reason("nccl_way_not_read", path=path, error=error.strerror)) from error
    return routes(logs)


def refuse_what_no_rule_touches(links: Iterable[Link], known: Iterable[Route]) -> None:
    """Refuse links that NCCL crosses without the kernel's network.

    Raises:
        InjectionError: there are such.
    """
    past: dict[tuple[int, int], Route] = {}
    for route in sorted(known):
        if not route.is_through_sockets:
            past.setdefault((min(route.source, route.destination), max(route.source, route.destination)), route)
    affected = sorted((min(link), max(link)) for link in _between_ranks(links))
    if missed := [link for link in affected if link in past]:
        first = past[missed[0]]
        more = f" (and {len(missed) - 1} more links like it)" if len(missed) > 1 else ""
        raise InjectionError(
            Reason(
                "nccl_past_network",
                link=name_of(missed[0]),
                way=first.way,
                meaning=first.meaning,
                more=more,
                remedy=REMEDY,
            )
        )


def _between_ranks(links: Iterable[Link]) -> list[tuple[int, int]]:
    return [(one, other) for one, other in links if isinstance(one, int) and isinstance(other, int)]
