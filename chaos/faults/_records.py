"""Undo records that faults of several families share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from chaos.faults.base import OwnedProcess
from chaos.host.undo_record import UndoRecord
from mecefo_runtime.system.host import Host, this_host
from mecefo_runtime.system.json_values import LEFT_OUT
from mecefo_runtime.system.process import ProcessId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord(UndoRecord):
    """One process as `OwnedProcess.to_dict` writes it; without `host` it runs on the host of the ledger."""

    role: str = ""
    rank: int | None = None
    node: int | None = None
    pid: int
    start_ticks: int
    host: tuple[str, str] | None = field(default=None, metadata=LEFT_OUT)

    @property
    def process(self) -> ProcessId:
        """The process, by pid and start time. A ledger of another host is not undone here (`chaos.undo.belief`)."""
        return ProcessId(self.pid, self.start_ticks, this_host() if self.host is None else Host(*self.host))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesRecord(UndoRecord):
    """The processes that a fault has touched."""

    processes: tuple[ProcessRecord, ...] = ()

    @classmethod
    def of(cls, processes: Iterable[OwnedProcess], **more: Any) -> Self:
        """The record of these processes, `more` being what the fault adds to it."""
        return cls(processes=tuple(ProcessRecord(**owned.to_dict()) for owned in processes), **more)

    def changed_paths(self) -> tuple[str, ...] | None:
        """Processes are no files."""
        return ()

    @property
    def ids(self) -> tuple[ProcessId, ...]:
        """The processes, by pid and start time."""
        return tuple(one.process for one in self.processes)
