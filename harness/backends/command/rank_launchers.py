"""Who started the ranks of a command, from the process table: the launcher of each, and which nodes it serves.

A launcher (torchrun, mpirun, a script of the user's own) tells each rank its place in the environment. So the nearest
ancestor of a rank that was not told that place itself has started it. Shells, loops that start a launcher again, and
whatever else is around one tell nobody a place: they are wrappers, and belong to no node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chaos.host.process_table import ancestors_of, parent_of
from harness.node.processes_by_env import environment_of
from mecefo_runtime.system.process import ProcessId

# What launchers of PyTorch, MPI and Slurm tell a rank.
_PLACE = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
# A shell that sets them for what it starts starts nothing again.
_SHELLS = frozenset({"sh", "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "tcsh", "zsh"})
# In the command lines of what Python's multiprocessing starts, by `spawn` and by its fork server.
_MULTIPROCESSING = b"multiprocessing."


@dataclass(frozen=True, slots=True)
class _Started:
    """A rank's newest process, and who started it."""

    process: ProcessId
    launcher: ProcessId | None


class RankLaunchers:
    """The launchers of a job's ranks; `is_ours` says whether a process, by its pid, belongs to the run.

    The launcher of a rank is looked up when it reports: of a rank that has ended nobody knows who started it.
    """

    def __init__(self, is_ours: Callable[[int], bool]) -> None:
        self._is_ours = is_ours
        self._ranks: dict[int, _Started] = {}

    def note(self, rank: int, process: ProcessId) -> None:
        """`rank` runs as this process. Of one on another host, the agent of that host finds the launcher."""
        launcher = launcher_of(process, self._is_ours) if process.is_here else None
        self._ranks[rank] = _Started(process, launcher)

    def of(self, rank: int) -> ProcessId | None:
        """Who started `rank`; None where it was nobody's launcher, or nobody of this run."""
        started = self._ranks.get(rank)
        return None if started is None else started.launcher

    def on(self, nodes: Iterable[int], node_of: Callable[[int], int]) -> dict[ProcessId, tuple[int, ...]]:
        """The launchers that have ranks on `nodes`, each with all nodes that it serves, ascending.

        `node_of` says on which node a rank counts.
        """
        served: dict[ProcessId, set[int]] = {}
        for launcher, ranks in self._by_launcher().items():
            served[launcher] = {node_of(rank) for rank in ranks}
        wanted = set(nodes)
        return {launcher: tuple(sorted(where)) for launcher, where in served.items() if where & wanted}

    def _by_launcher(self) -> dict[ProcessId, list[int]]:
        """The ranks of each launcher that still runs: those that run, or all where none of them does.

        A launcher that goes on in a smaller world leaves the record of ranks that it has no longer.
        """
        every: dict[ProcessId, list[int]] = {}
        for rank, started in sorted(self._ranks.items()):
            if started.launcher is not None and started.launcher.is_running():
                every.setdefault(started.launcher, []).append(rank)
        return {
            launcher: [rank for rank in ranks if self._ranks[rank].process.is_running()] or ranks
            for launcher, ranks in every.items()
        }


def launcher_of(rank: ProcessId, is_ours: Callable[[int], bool]) -> ProcessId | None:
    """The process that started `rank`: None where that is a shell, no launcher, or no process of this run."""
    told = {(name, value) for name, value in environment_of(rank.local_pid).items() if name in _PLACE}
    if not told and not _is_of_multiprocessing(rank):
        # Nobody told it anything: whoever started it would have started any other program in the same way.
        return None
    for process in ancestors_of(rank):
        if process.local_pid == os.getpid() or not is_ours(process.local_pid):
            return None
        is_told = bool(told) and told <= environment_of(process.local_pid).items()
        is_between = not told and _MULTIPROCESSING in _command_of(process.local_pid)
        if not is_told and not is_between:
            return None if is_shell(process.local_pid) else process
    return None


def _is_of_multiprocessing(process: ProcessId) -> bool:
    """Whether Python's multiprocessing started it: by a command line of its own, or as a fork of its parent."""
    command, parent = _command_of(process.local_pid), parent_of(process)
    is_fork = parent is not None and bool(command) and command == _command_of(parent.local_pid)
    return _MULTIPROCESSING in command or is_fork


def _command_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def is_shell(pid: int) -> bool:
    """Whether the process runs a shell, by the name of its program after all links."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name in _SHELLS
    return False
