"""Control groups under the name of a run, of either version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from chaos.undo.residue.base import Auditor, AuditScope

_ROOT = Path("/sys/fs/cgroup")


class ControlGroups(Auditor):
    """The control groups that this process can see."""

    name: ClassVar[str] = "cgroup"

    def look(self, scope: AuditScope) -> frozenset[str]:
        """A control group is a folder; ours is one whose own name says so."""
        return frozenset(
            str(Path(folder) / name)
            for folder, names, _ in os.walk(_ROOT)
            for name in names
            if scope.is_ours(name) and not (Path(folder) / name).is_symlink()
        )
