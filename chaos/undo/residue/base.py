"""What an auditor is, and where it searches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class AuditScope:
    """Of one run: its name in the environment of its processes, the folders that are its own, and its ledger.

    `engine` is the address of the Docker engine in which it has containers, if it has. `keeps_processes`: its processes
    go on, and are none of what it left behind.
    """

    run: str
    folders: tuple[Path, ...]
    ledger: Path
    engine: str | None = None
    keeps_processes: bool = False

    def is_ours(self, name: str) -> bool:
        """Whether something that is called so was made by this run: all that it makes outside of its folders says so.

        The project's own name tells nothing: folders of its users are called so, and other runs go on meanwhile.
        """
        # An empty name would be in every other.
        return bool(self.run) and self.run in name


class Auditor(ABC):
    """Looks for one sort of thing. It tells only of what can be ours: others use the machine meanwhile."""

    # What it looks for, in the singular.
    name: ClassVar[str]

    @abstractmethod
    def look(self, scope: AuditScope) -> frozenset[str]:
        """What of it is there now, each as a phrase that lets a person find it; what cannot be read is left out."""
