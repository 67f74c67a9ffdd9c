"""A node of real processes that do nothing: what faults of processes are tried on."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.faults.base import FaultContext, OwnedProcess
from chaos.faults.watch import Watch
from chaos.language.target import ResolvedTarget
from mecefo_runtime.system.process import ProcessId

NUM_PROCESSES = 4


class OneNode:
    """A host of one node: a supervisor, rank 0 and rank 1; and a coordinator."""

    def __init__(self, supervisor, ranks, coordinator):
        self.supervisor = OwnedProcess("supervisor", supervisor, node=0)
        self.ranks = tuple(OwnedProcess("rank", process, rank=rank, node=0) for rank, process in enumerate(ranks))
        self.coordinator = OwnedProcess("coordinator", coordinator)

    def rank_processes(self, ranks):
        return tuple(self.ranks[rank] for rank in ranks)

    def node_processes(self, nodes):
        return (self.supervisor, *self.ranks) if 0 in nodes else ()

    def role_processes(self, role):
        return (self.coordinator,) if role == "coordinator" else ()

    def all(self):
        return (self.supervisor, *self.ranks, self.coordinator)

    def recycled(self):
        """The same pids, of processes that started earlier."""
        return OneNode(
            older(self.supervisor.process),
            [older(owned.process) for owned in self.ranks],
            older(self.coordinator.process),
        )


def older(process):
    return ProcessId(process.pid, process.start_ticks - 1)


@contextmanager
def sleepers(command=("sleep", "300")) -> Iterator[list[subprocess.Popen]]:
    """The processes of one node, in the order supervisor, ranks, coordinator."""
    started = [subprocess.Popen(command) for _ in range(NUM_PROCESSES)]
    try:
        yield started
    finally:
        for child in started:
            child.kill()
            child.wait()


def create_context(children, folder=None, inside=None):
    supervisor, *ranks, coordinator = (ProcessId.of(child.pid) for child in children)
    processes = OneNode(supervisor, ranks, coordinator)
    return FaultContext(processes=processes, inside=inside, watch=Watch(), run_folder=folder)


def targets(fault):
    """Every sort of target that a fault of processes can be given."""
    affected = ResolvedTarget(ranks=(0, 1), nodes=(0,)) if fault.scope == "node" else ResolvedTarget(ranks=(0,))
    return (affected, ResolvedTarget(role="coordinator"))


async def do_nothing(self, act, context):
    """An `apply` that does nothing: the negative control."""
