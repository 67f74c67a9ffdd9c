"""The starts of an external job and the processes in each, decided from what is observed: without I/O and clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from chaos.faults.base import OwnedProcess
from harness.analysis.command.unseen import Unseen
from harness.backends.command.launches import Launch, Launches
from mecefo_runtime.system.process import ProcessId


@dataclass(frozen=True, slots=True)
class Hello:
    """An agent speaks for the process of a rank.

    `start_count` is the launcher's own count of its starts, from 1. `ancestors` are those of the process, its parent
    first. `blamed_as`: the node on which its launcher runs, and the pid by which that one knows it. `replica` is the
    replica group of the rank, where each group of a job is started separately (torchft). `is_marked`: it carries the
    mark of this run.
    """

    owned: OwnedProcess
    rank: int
    start_count: int
    world_size: int
    ancestors: tuple[ProcessId, ...]
    blamed_as: tuple[int, int]
    replica: int | None = None
    is_marked: bool = True


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    """The ranks of the job are started for the `number`-th time; `process` is the first of them that is known."""

    number: int
    world_size: int
    process: ProcessId
    began_seconds: float | None


@dataclass(frozen=True, slots=True)
class RankStarted:
    """A process is one of a rank, in that attempt."""

    owned: OwnedProcess
    rank: int
    attempt: int
    began_seconds: float | None


@dataclass(frozen=True, slots=True)
class RankEnded:
    """A process of a rank has ended; `exit` is None where its exit code is not known."""

    process: ProcessId
    rank: int
    attempt: int
    exit: int | None


@dataclass(frozen=True, slots=True)
class GroupRejoined:
    """The replica group with these ranks trains again, as the others do."""

    attempt: int
    ranks: tuple[int, ...]


Decision = AttemptBegan | RankStarted | RankEnded | GroupRejoined


class Attempts:
    """The attempts of one job. An observation is fed when it is made, and returns what follows from it, in order."""

    def __init__(self) -> None:
        # The newest attempt, 0 before the first.
        self.number = 0
        self.num_steps = 0
        # The newest process of each rank that an agent speaks for: it can be held.
        self.ranks: dict[int, OwnedProcess] = {}
        self._launches = Launches()
        # Of jobs of replica groups, and pid -> rank of those that are back and have not taken a step yet.
        self._replica_of: dict[int, int] = {}
        self._coming_back: dict[int, int] = {}
        # Of each process: the rank and the attempt that it was started with.
        self._started: dict[ProcessId, tuple[int, int]] = {}
        self._ended: set[ProcessId] = set()
        # Of each rank's newest process: its exit code, where it did not report its own end.
        self._lost: dict[int, int] = {}
        self._finished: set[int] = set()
        # How many ranks the newest attempt has.
        self._world_size = 0
        # Of all starts: a launcher blames by pid when the rank may have been started again.
        self._rank_blamed: dict[tuple[int, int], int | None] = {}
        # A process made an optimizer and no step.
        self._has_idle = self._has_compiled = False

    # ---- observations ----

    def see_gone(self, processes: Iterable[ProcessId]) -> None:
        """These no longer run, whether their ends are known already or not."""
        for process in processes:
            if (launch := self._launches.of(process)) is not None:
                launch.is_gone = True
            self._ended.add(process)

    def greet(self, launch: Launch) -> list[Decision]:
        """A process that was started with RANK greets, before its script begins."""
        self._launches.add(launch)
        return [] if launch.attempt is None else self._start_launch(launch, launch.attempt)

    def report(self, hello: Hello) -> tuple[int, list[Decision]]:
        """A rank's agent reports for the first time; returns which of its rank's starts this is, from 1.

        The launcher's count is used as long as it counts at all: a shell loop around a script does not.
        """
        rank, process = hello.rank, hello.owned.process
        attempt = self._launches.observe(process, rank, hello.start_count, hello.ancestors)
        if not hello.is_marked:
            return attempt, []
        self._back(rank, process)
        if hello.replica is not None:
            self._replica_of[rank] = hello.replica
        if self._others_train_on(rank):
            self._coming_back[process.event_pid] = rank
            of_job = self.number
        elif hello.replica is not None:
            # The first start of each group is counted, too.
            of_job = self.number + (self.number == 0 or attempt > 1)
        else:
            of_job = attempt
        decisions = self._begin(of_job, hello.world_size, process)
        self.ranks[rank] = hello.owned
        # On two hosts two ranks can have one pid: nobody knows then whom a launcher's log means.
        is_known = self._rank_blamed.setdefault(hello.blamed_as, rank) == rank
        self._rank_blamed[hello.blamed_as] = rank if is_known else None
        return attempt, [*decisions, *self._start(hello.owned, rank, of_job)]

    def end(self, process: ProcessId, exit_code: int | None) -> list[Decision]:
        """A process that greeted or reported has ended."""
        launch = self._launches.of(process)
        decisions: list[Decision] = []
        if launch is not None and not launch.has_ended:
            launch.has_ended, launch.exit_code = True, exit_code
            if launch.attempt is None and not launch.is_launcher:
                # No agent spoke for it, and it started no rank: it was one itself, which took no step.
                decisions += self._start_launch(launch, self._launches.place(launch))
        started = self._started.pop(process, None)
        self._ended.add(process)
        if started is None or (launch is not None and self._launches.is_beside_another(launch)):
            return decisions
        rank, attempt = started
        if exit_code and self._is_newest(process, rank):
            self._lost[rank] = exit_code
        return [*decisions, RankEnded(process, rank, attempt, exit_code)]

    def commit(self, pid: int) -> list[Decision]:
        """The process with that pid has committed a step."""
        self.num_steps += 1
        if (back := self._coming_back.pop(pid, None)) is None:
            return []
        group = (rank for rank, replica in self._replica_of.items() if replica == self._replica_of[back])
        return [GroupRejoined(self.number, tuple(sorted(group)))]

    def end_without_step(self, *, is_compiled: bool) -> None:
        """A process has made an optimizer, and ends without a step."""
        self._has_idle = True
        self._has_compiled = self._has_compiled or is_compiled

    def finish(self, rank: int) -> None:
        """The script of `rank` has come to its end."""
        self._finished.add(rank)

    # ---- questions ----

    def running(self) -> list[ProcessId]:
        """The processes whose ends are not known."""
        known = [*self._launches.processes(), *(owned.process for owned in self.ranks.values())]
        return [process for process in dict.fromkeys(known) if process not in self._ended]

    def process_before(self, launch: Launch) -> ProcessId | None:
        """The process of the same rank that the same parent started before `launch`."""
        earlier = self._launches.before(launch)
        return None if earlier is None else earlier.process

    def rank_of(self, process: ProcessId) -> int | None:
        """The rank that a process was started as and has not ended as, if it is one."""
        return self._started[process][0] if process in self._started else None

    def blamed(self, node: int, pid: int) -> int | None:
        """The rank that a launcher on `node` knows by `pid`; None: no rank that has reported, or one of several."""
        return self._rank_blamed.get((node, pid))

    def last_lost(self) -> tuple[int, int] | None:
        """A rank and its exit code, where no rank came to its end though some ended with a failure."""
        lost = {rank: code for rank, code in self._lost.items() if rank not in self._finished}
        return next(iter(lost.items())) if lost and not lost.keys() < self.ranks.keys() else None

    def has_completed(self) -> bool:
        """Whether the scripts of all ranks of the newest attempt have come to their end."""
        return 0 < self._world_size <= len(self._finished) and self._finished >= set(range(self._world_size))

    def why_unseen(self) -> Unseen:
        """Why no step was seen."""
        if self._has_idle and not self.ranks:
            return "compiled" if self._has_compiled else "nothing_to_do"
        return "no_step" if self.ranks or self._launches else "no_agent"

    # ---- what follows ----

    def _start_launch(self, launch: Launch, attempt: int) -> list[Decision]:
        self._back(launch.rank, launch.process)
        owned = OwnedProcess("rank", launch.process, rank=launch.rank, node=launch.node)
        return [
            *self._begin(attempt, launch.world_size, launch.process, launch.began_seconds),
            *self._start(owned, launch.rank, attempt, launch.began_seconds),
        ]

    def _back(self, rank: int, process: ProcessId) -> None:
        self._lost.pop(rank, None)
        self._finished.discard(rank)
        self._ended.discard(process)

    def _begin(
        self, attempt: int, world_size: int, process: ProcessId, began_seconds: float | None = None
    ) -> list[Decision]:
        if attempt <= self.number:
            return []
        self.number, self._world_size = attempt, world_size
        return [AttemptBegan(attempt, world_size, process, began_seconds)]

    def _start(
        self, owned: OwnedProcess, rank: int, attempt: int, began_seconds: float | None = None
    ) -> list[Decision]:
        """Once for each process in an attempt: of one that replaces itself (`os.execv`) again."""
        if self._started.get(owned.process) == (rank, attempt):
            return []
        self._started[owned.process] = rank, attempt
        return [RankStarted(owned, rank, attempt, began_seconds)]

    def _others_train_on(self, rank: int) -> bool:
        """Whether ranks of other replica groups run while those of this one's group are started again."""
        replica = self._replica_of.get(rank)
        return (
            replica is not None
            and rank in self.ranks
            and any(
                self._replica_of.get(other, replica) != replica and owned.process not in self._ended
                for other, owned in self.ranks.items()
            )
        )

    def _is_newest(self, process: ProcessId, rank: int) -> bool:
        """Whether no later process is known of the rank."""
        observed, launch = self.ranks.get(rank), self._launches.newest(rank)
        is_observed = observed is not None and observed.process == process
        if launch is None or launch.attempt is None or launch.is_launcher:
            return is_observed
        return launch.process == process or (is_observed and launch.is_observed)


def deciding_end(codes: Mapping[int, int]) -> tuple[int, int]:
    """(node, exit code) of the end that decides how the job ended; `codes` are by node, in the order of the ends.

    The first that failed with an exit code. Where one was only killed and all others end well, that one was not needed.
    """
    ends = codes.items()
    failed = [(node, code) for node, code in ends if code > 0]
    well = [(node, code) for node, code in ends if code == 0]
    return (*failed, *well, *ends)[0]


StopAct = Literal["ask", "wait", "kill", "over"]


class Stopping:
    """How a command is stopped: its launchers are asked to end their ranks, then everything is killed.

    Each takes at most `timeout_seconds`.
    """

    def __init__(self, timeout_seconds: float, *, has_launchers: bool) -> None:
        self._timeout_seconds = timeout_seconds
        self._is_asking = has_launchers
        self._deadline_seconds: float | None = None

    def act(self, now_seconds: float, *, has_processes: bool) -> StopAct:
        """What to do now, when processes of the command are left or not."""
        if self._is_asking:
            if self._deadline_seconds is None:
                self._deadline_seconds = now_seconds + self._timeout_seconds
                return "ask"
            if has_processes and now_seconds < self._deadline_seconds:
                return "wait"
            self._is_asking, self._deadline_seconds = False, None
        if self._deadline_seconds is None:
            self._deadline_seconds = now_seconds + self._timeout_seconds
        return "kill" if has_processes and now_seconds < self._deadline_seconds else "over"
