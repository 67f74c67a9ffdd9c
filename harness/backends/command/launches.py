"""Which start of the job a process belongs to that says at its start that it has RANK (`chaos.external.launch`).

`Launches` decides without I/O: what it needs of the machine is in each `Launch`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from chaos.external.identity import identify
from harness.node.process_table import ProcessTable
from mecefo_runtime.system.process import ProcessId

# torchft reads them. A script may name its replica group itself, so that RANK alone does not tell who it is.
_OF_REPLICA_GROUPS = ("REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS", "TORCHFT_LIGHTHOUSE")
# What tells one start of a launcher's from another one.
_OF_A_START = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


# torch 2.11-2.13, `torch/distributed/elastic/agent/server/local_elastic_agent.py`, which Accelerate uses, too.
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
_NUMBER = re.compile(r"\d{1,9}")


def restarts_of(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """How often the launcher of a rank has restarted the ranks, and how often it may; None: it does not say."""
    num, most = (environment.get(variable, "") for variable in _RESTARTS)
    return (int(num) if _NUMBER.fullmatch(num) else None, int(most) if _NUMBER.fullmatch(most) else None)


@dataclass(slots=True)
class Launch:
    """A process that was started with RANK. `attempt` is the job's start that it belongs to, None until that is known.

    `start_count` is the launcher's own count of its starts, from 1; `start_key` what the processes of one start have
    in common. `earlier` is the process of the same rank that the same parent started before. `is_placed`: it has a
    LOCAL_RANK, so it is no launcher that only inherited RANK. `ancestors` are the processes above it, its parent first.
    `is_observed`: an agent speaks for it. `is_launcher`: a rank is among the processes that it started. `is_gone`: it
    was seen not to run any more. `exit_code` is None while it runs, and where it cannot be known. `local_rank` is its
    place among the processes of its parent; None: not known.
    """

    process: ProcessId
    parent: ProcessId | None
    rank: int
    node: int
    world_size: int
    start_count: int
    start_key: tuple[str, ...]
    is_placed: bool
    began_seconds: float
    ancestors: tuple[ProcessId, ...] = ()
    attempt: int | None = None
    earlier: Launch | None = None
    is_observed: bool = False
    is_launcher: bool = False
    is_gone: bool = False
    has_ended: bool = False
    exit_code: int | None = None
    local_rank: int | None = None

    @classmethod
    def of(
        cls, process: ProcessId, environment: Mapping[str, str], table: ProcessTable, began_seconds: float
    ) -> Launch | None:
        """By the environment that it was started with; None: RANK alone does not tell who it is."""
        if not environment.get("RANK", "").isdecimal() or any(name in environment for name in _OF_REPLICA_GROUPS):
            return None
        identity = identify(environment)
        return cls(
            process=process,
            parent=table.parent(process),
            rank=identity.rank,
            node=identity.node,
            world_size=identity.world_size,
            start_count=identity.attempt,
            start_key=tuple(environment.get(name, "") for name in _OF_A_START),
            is_placed=bool(environment.get("LOCAL_RANK")),
            began_seconds=began_seconds,
            ancestors=table.ancestors(process),
            local_rank=identity.local_rank if environment.get("LOCAL_RANK", "").isdecimal() else None,
        )


@dataclass(slots=True)
class _Start:
    """The processes that one parent started together."""

    attempt: int
    world_size: int
    ranks: set[int] = field(default_factory=set)


class Launches:
    """The processes that were started with RANK, and the attempts that they make."""

    def __init__(self) -> None:
        self._known: dict[ProcessId, Launch] = {}
        self._newest: dict[int, Launch] = {}
        self._starts: dict[tuple[ProcessId | None, int], _Start] = {}
        # Of each rank: the newest attempt that it was in, by whatever it was told.
        self._attempt_of: dict[int, int] = {}
        # The newest process in each place of a launcher; and how many ranks each attempt has.
        self._in_place: dict[tuple[ProcessId | None, int], Launch] = {}
        self._world_sizes: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def processes(self) -> list[ProcessId]:
        """All that greeted."""
        return list(self._known)

    def of(self, process: ProcessId) -> Launch | None:
        """What is known of that process."""
        return self._known.get(process)

    def newest(self, rank: int) -> Launch | None:
        """The process of `rank` that greeted last."""
        return self._newest.get(rank)

    def before(self, launch: Launch) -> Launch | None:
        """The process of the same rank that the same parent started before it, or that it was before (`os.execv`)."""
        earlier = self._newest.get(launch.rank)
        if earlier is None or (earlier.process != launch.process and earlier.parent != launch.parent):
            return None
        return earlier if earlier.start_count == launch.start_count else None

    def is_beside_another(self, launch: Launch) -> bool:
        """Whether it is a process that a wrapper started before or beside the script of the same rank and attempt."""
        newest = self._newest[launch.rank]
        return newest is not launch and newest.attempt == launch.attempt and not launch.is_observed

    def add(self, launch: Launch) -> None:
        """It greets. Its attempt is known at once, unless it may be a launcher that inherited RANK."""
        for ancestor in launch.ancestors:
            self._is_launcher(ancestor)
        launch.earlier = self.before(launch)
        if launch.is_placed:
            self.place(launch)
        self._known[launch.process] = self._newest[launch.rank] = launch

    def place(self, launch: Launch) -> int:
        """It is a rank: the attempt that it belongs to."""
        if launch.attempt is not None:
            return launch.attempt
        key = launch.parent, launch.start_count
        start, before = self._starts.get(key), self._place_before(launch)
        if start is not None and self._is_of(start, launch, before):
            attempt = start.attempt
        else:
            attempt = max(launch.start_count, self._attempt_of.get(launch.rank, 0) + 1)
            if before is not None and not _is_same_start(before, launch):
                attempt = max(attempt, (before.attempt or 0) + 1)
            while self._is_over(attempt, launch) or self._has_another_size(attempt, launch):
                attempt += 1
            start = self._starts[key] = _Start(attempt, launch.world_size)
        start.ranks.add(launch.rank)
        launch.attempt = attempt
        self._world_sizes.setdefault(attempt, launch.world_size)
        if launch.local_rank is not None:
            self._in_place[launch.parent, launch.local_rank] = launch
        self._attempt_of[launch.rank] = max(attempt, self._attempt_of.get(launch.rank, 0))
        return attempt

    def _place_before(self, launch: Launch) -> Launch | None:
        """The process that the same launcher started before in the same place, with whatever rank."""
        return None if launch.local_rank is None else self._in_place.get((launch.parent, launch.local_rank))

    def _is_of(self, start: _Start, launch: Launch, before: Launch | None) -> bool:
        """Whether a process belongs to a start of its parent's that has the same count.

        torchrun counts no restart when an agent joins or leaves: the world then has another size, or a process has the
        place, perhaps not the rank, of one that ended.
        """
        if start.world_size != launch.world_size:
            return False
        if before is not None and before.attempt == start.attempt and not _is_same_start(before, launch):
            return False
        return launch.rank not in start.ranks or _is_same_start(launch.earlier, launch)

    def _has_another_size(self, attempt: int, launch: Launch) -> bool:
        return self._world_sizes.get(attempt, launch.world_size) != launch.world_size

    def observe(self, process: ProcessId, rank: int, told_attempt: int, ancestors: Iterable[ProcessId] = ()) -> int:
        """An agent speaks for a process, as `rank`: which attempt of its rank that is.

        The launcher's count is believed as long as it counts at all. A process that did not greet takes the place of
        the one that did and started it, once.
        """
        launch = self._known.get(process)
        if launch is None or launch.is_observed:
            launch = self._starter_of(ancestors)
        if launch is None:
            attempt = max(told_attempt, self._attempt_of.get(rank, 0) + 1)
        else:
            attempt = self.place(launch)
            launch.is_observed = True
        self._attempt_of[rank] = max(attempt, self._attempt_of.get(rank, 0))
        return attempt

    def _starter_of(self, ancestors: Iterable[ProcessId]) -> Launch | None:
        found: Launch | None = None
        for ancestor in ancestors:
            launch = self._known.get(ancestor)
            if launch is not None and not launch.is_observed and launch.is_placed and not launch.is_launcher:
                found = found or launch
            self._is_launcher(ancestor)
        return found

    def _is_launcher(self, process: ProcessId) -> None:
        launch = self._known.get(process)
        if launch is not None and not launch.is_observed and launch.attempt is None:
            launch.is_launcher = True

    def _is_over(self, attempt: int, launch: Launch) -> bool:
        """Whether all that is known of the job's newest attempt, which this would be, has ended, and began otherwise.

        The first process of a new start may be of a rank that came to none in the start before.
        """
        own = [one for one in self._known.values() if one.attempt == attempt]
        if not own or any(one.attempt is not None and one.attempt > attempt for one in self._known.values()):
            return False
        return all(one.start_key != launch.start_key and (one.has_ended or one.is_gone) for one in own)


def _is_same_start(earlier: Launch | None, launch: Launch) -> bool:
    """Whether a second process of one rank and parent is no restart.

    A wrapper of a rank may start something else before the script (which ends well), or beside it; or the process
    becomes the script (`os.execv`).
    """
    if earlier is None or earlier.is_observed:
        return False
    return earlier.process == launch.process or not earlier.has_ended or earlier.exit_code == 0
