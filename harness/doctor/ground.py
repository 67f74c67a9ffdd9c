"""What a run needs of the kernel before anything of it is started: file descriptors, processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chaos.experiment.command_job import CommandConfig
from chaos.host import inherited
from chaos.plan.incident import Incident
from mecefo_runtime.job.config import JobConfig

# File descriptors: whatever has the most of them, `chaos` or a rank, has less than this (measured with 2 to 32 ranks on
# 2 to 8 nodes, lost and back again, with snapshots, links, and a baseline beside them: 19 to 95). `chaos` has two
# connections of each rank and one of each node; a rank has about 2.5 to every other one.
_FILES = 24
_FILES_PER_RANK = 3
_FILES_PER_NODE = 2
# Pipes of the tool that changes the firewall at an end, and the network itself.
_FILES_PER_NETWORK = 3
# Of a process that delays packets at one end of a link.
_FILES_PER_LINK_END = 2
# Processes with their threads: 14 to 17 of a rank that the runtime runs (measured as above), one of whatever else.
_TASKS = 12
_TASKS_PER_RANK = 18
_TASKS_PER_NODE = 3


@dataclass(frozen=True, slots=True)
class Needs:
    """How many file descriptors a process of a run needs at most, and how many processes and threads all of it."""

    open_files: int
    processes: int


def needs_of(
    job: JobConfig | CommandConfig, incidents: Sequence[Incident] = (), *, has_baseline: bool, has_networks: bool
) -> Needs:
    """What a run of `job` takes on this machine; of a command, what we do about it."""
    cluster, traits = job.cluster(), job.traits
    files = _FILES + _FILES_PER_RANK * cluster.num_ranks + _FILES_PER_NODE * cluster.nodes
    if has_networks:
        # The coordinator has one, too.
        files += _FILES_PER_NETWORK * (cluster.num_ranks + cluster.nodes + 1)
        files += sum(2 * _FILES_PER_LINK_END * len(incident.target.links) for incident in incidents)
    tasks = _TASKS
    if not traits.is_user_script:
        tasks += _TASKS_PER_RANK * cluster.num_ranks + _TASKS_PER_NODE * cluster.nodes
    if has_baseline and traits.has_baseline_beside:
        # It may run beside the job.
        files += 2 * cluster.num_ranks + cluster.nodes
        tasks += _TASKS_PER_RANK * cluster.num_ranks
    return Needs(files, tasks)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A limit of the machine that is too low for a run: of file descriptors in a process, or of a user's processes.

    `free` is how many of them there still may be.
    """

    what: Literal["open files", "processes"]
    limit: int
    free: int


def make_room(needs: Needs) -> Shortage | None:
    """Raise the limits of this process as far as a run needs it and the user allows; returns what stays too low."""
    if (hard := inherited.allow_open_files(needs.open_files)) is not None:
        return Shortage("open files", hard, hard)
    if (room := inherited.processes_refused(needs.processes)) is not None:
        free, limit = room
        return Shortage("processes", limit, free)
    return None
