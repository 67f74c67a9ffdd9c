"""Files that undo records name: what was not there before the fault must not be there after its undo."""

from __future__ import annotations

import os
from typing import ClassVar

from chaos.undo.ledger import read_ledger
from chaos.undo.residue.base import Auditor, AuditScope


class NamedFiles(Auditor):
    """The files, folders and links that faults made, as far as their records name them by absolute path."""

    name: ClassVar[str] = "file"

    def look(self, scope: AuditScope) -> frozenset[str]:
        """Every entry of the ledger counts, closed or not."""
        entries = read_ledger(scope.ledger).entries
        return frozenset(path for entry in entries for path in entry.absent if os.path.lexists(path))
