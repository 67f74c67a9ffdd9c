"""The processes of a run on the host of an agent, as faults ask for them."""

from __future__ import annotations

from collections.abc import Callable

from chaos.faults.base import OwnedProcess
from chaos.host.run_processes import processes_of
from chaos.injection.serving import KnownProcesses
from harness.node.process_tree import first_of, with_roles
from harness.node.processes_by_env import processes_of_run, store_of


class HostProcesses:
    """`known` are those that events report; all others of the run bear its mark. `node` is what the host is."""

    def __init__(self, known: KnownProcesses, run: str, node: Callable[[], int | None]) -> None:
        self._known = known
        self._run = run
        self._node = node

    def rank_processes(self, ranks: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """See `chaos.faults.base.ProcessHost`."""
        return self._known.rank_processes(ranks)

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """All processes of the job on this host: ranks, their launchers, and whatever these have started."""
        node = self._node()
        if node is None or node not in nodes:
            return ()
        # Which node a rank is of, events of a launcher's ranks do not say: the host does.
        known = {owned.process: owned for owned in self._known.all()}
        marked = (one.process for one in processes_of(self._run))
        return tuple(known.get(process, OwnedProcess("launcher", process, node=node)) for process in marked)

    def command_processes(self) -> tuple[OwnedProcess, ...]:
        """See `chaos.faults.base.CommandHost`."""
        known = {owned.process: owned for owned in self._known.all()}
        return with_roles((one.process for one in processes_of(self._run)), known, ())

    def first_processes(self) -> tuple[OwnedProcess, ...]:
        """See `chaos.faults.base.CommandHost`: what Slurm or ssh has started here."""
        return first_of(self.command_processes())

    def role_processes(self, role: str) -> tuple[OwnedProcess, ...]:
        """See `chaos.faults.base.ProcessHost`."""
        if role != "store":
            return self._known.role_processes(role)
        process = store_of(processes_of_run(self._run))
        if process is None:
            return ()
        is_known = (owned for owned in self._known.all() if owned.process == process)
        return (next(is_known, OwnedProcess("launcher", process, node=self._node())),)
