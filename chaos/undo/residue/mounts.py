"""File systems mounted on a run's folders, or anywhere under its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from chaos.undo.residue.base import Auditor, AuditScope

_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mounts(Auditor):
    """The mounts of this mount namespace."""

    name: ClassVar[str] = "mount"

    def look(self, scope: AuditScope) -> frozenset[str]:
        """See proc_pid_mountinfo(5): the mount point is the fifth word, type and source follow a lone hyphen."""
        found = set()
        folders = [folder.resolve() for folder in scope.folders]
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            left, _, right = line.partition(" - ")
            point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), left.split()[4])
            kind, source = right.split()[:2]
            if scope.is_ours(f"{point} {source}") or any(Path(point).is_relative_to(folder) for folder in folders):
                found.add(f"{kind} on {point}")
        return frozenset(found)
