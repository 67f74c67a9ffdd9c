"""All that a command has started on this host: which of its processes are ranks, launchers, or children of these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from chaos.faults.base import OwnedProcess, Role
from chaos.faults.process.data_worker import WORKER_NAME
from chaos.host.process_table import ancestors_of, parent_of
from mecefo_runtime.system.process import ProcessId


def with_roles(
    processes: Iterable[ProcessId], known: Mapping[ProcessId, OwnedProcess], launchers: Collection[ProcessId]
) -> tuple[OwnedProcess, ...]:
    """`processes` with their roles: `known` are ranks and the command's own processes, `launchers` start ranks.

    What a rank has started belongs to it.
    """
    return tuple(_with_role(process, known, launchers) for process in processes if process.is_here)


def first_of(processes: Collection[OwnedProcess]) -> tuple[OwnedProcess, ...]:
    """Those that no other of `processes` has started."""
    all_processes = {owned.process for owned in processes}
    return tuple(owned for owned in processes if parent_of(owned.process) not in all_processes)


def _with_role(
    process: ProcessId, known: Mapping[ProcessId, OwnedProcess], launchers: Collection[ProcessId]
) -> OwnedProcess:
    if (owned := known.get(process)) is not None:
        return owned
    if process in launchers:
        return OwnedProcess("launcher", process)
    above = (known[one] for one in ancestors_of(process) if one in known)
    rank = next((owned for owned in above if owned.role == "rank"), None)
    if rank is None:
        return OwnedProcess("child", process)
    name = ""
    with suppress(OSError):
        name = Path(f"/proc/{process.local_pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    role: Role = "data-worker" if name == WORKER_NAME else "child"
    return OwnedProcess(role, process, rank=rank.rank, node=rank.node)
