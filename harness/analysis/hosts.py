"""The hosts of a run over several: what runs on each, how well its clock is known, and since when it is lost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mecefo_runtime.system.host import ForeignPid
from mecefo_runtime.system.job_records import ProcessStarted
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.run_records import ClockSampled, HostLost, HostReached, RunStarted

# A log may say anything.
_MAX_HOSTS, _MAX_RANKS = 4096, 1 << 16


@dataclass(frozen=True, slots=True)
class HostFigures:
    """One host; `node` is None for one that has none of the job, and for the tool's own until a rank runs there.

    `ranks` are those whose newest process was started there. `offset_seconds` is added to times of its clock, which are
    wrong by at most `uncertainty_seconds`; both None where it has the run's clock. `lost_times` counts how often its
    agent was lost; `is_lost`: it has not come back.
    """

    name: str
    node: int | None = None
    is_own: bool = False
    addresses: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    offset_seconds: float | None = None
    uncertainty_seconds: float | None = None
    lost_times: int = 0
    is_lost: bool = False


class Hosts:
    """The hosts as the records of the main job tell of them, in the order in which they come."""

    def __init__(self) -> None:
        self._own = ""
        self._found: dict[str, HostFigures] = {}
        # The host of the newest process of each rank.
        self._place: dict[int, str] = {}

    def feed(self, record: Record) -> None:
        """Process one record of the main job."""
        match record:
            case RunStarted(own_host=(str(name), *_)):
                self._own = name
            case HostReached(reached=(str(name), *_)):
                known = self._found.get(name, HostFigures(name))
                self._keep(replace(known, node=record.of_node, addresses=record.addresses, is_lost=False))
            case HostLost(lost=(str(name), *_)):
                known = self._found.get(name, HostFigures(name, record.of_node))
                self._keep(replace(known, lost_times=known.lost_times + 1, is_lost=True))
            case ClockSampled(other_host=(str(name), *_)):
                # Before the first word of its agent, or of a container.
                known = self._found.get(name, HostFigures(name))
                offset, uncertainty = record.offset_seconds, record.uncertainty_seconds
                self._keep(replace(known, offset_seconds=offset, uncertainty_seconds=uncertainty))
            case ProcessStarted(role="rank", started_rank=int(rank)) if len(self._place) < _MAX_RANKS:
                pid = record.started_pid
                self._place[rank] = pid.host.name if isinstance(pid, ForeignPid) else self._own
            case _:
                pass

    def _keep(self, host: HostFigures) -> None:
        if host.name in self._found or len(self._found) < _MAX_HOSTS:
            self._found[host.name] = host

    @property
    def figures(self) -> tuple[HostFigures, ...]:
        """The hosts, by node; none where the run has no agents."""
        found = dict(self._found)
        if not any(one.addresses or one.node is not None for one in found.values()):
            # Another clock is that of a container, or of a job that was started by hand.
            return ()
        if self._own in self._place.values() and self._own not in found:
            nodes = {one.node for one in found.values()}
            free = next((node for node in range(len(found) + 1) if node not in nodes), None)
            found[self._own] = HostFigures(self._own, free, is_own=True)
        told = (
            replace(one, ranks=tuple(sorted(rank for rank, host in self._place.items() if host == name)))
            for name, one in found.items()
        )
        return tuple(sorted(told, key=lambda one: (one.node is None, one.node or 0, one.name)))
