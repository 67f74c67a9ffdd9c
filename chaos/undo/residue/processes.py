"""Processes of the run that still run."""

from __future__ import annotations

from typing import ClassVar

from chaos.host.run_processes import processes_of
from chaos.undo.residue.base import Auditor, AuditScope


class Processes(Auditor):
    """The processes of the run, in whatever state."""

    name: ClassVar[str] = "process"

    def look(self, scope: AuditScope) -> frozenset[str]:
        """By their environment, in this namespace of processes."""
        if scope.keeps_processes:
            return frozenset()
        return frozenset(str(one) for one in processes_of(scope.run))
