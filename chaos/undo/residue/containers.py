"""Containers and networks of the run in a Docker engine."""

from __future__ import annotations

from typing import ClassVar

from chaos.errors import EnvironmentFailure
from chaos.host.containers import describe, engine
from chaos.undo.residue.base import Auditor, AuditScope


class Containers(Auditor):
    """What carries the run's label, in whatever state."""

    name: ClassVar[str] = "Docker"

    def look(self, scope: AuditScope) -> frozenset[str]:
        """By the label; an engine that does not answer may have anything."""
        if scope.engine is None:
            return frozenset()
        try:
            with engine(scope.engine) as client:
                return frozenset(describe(client, scope.run))
        except EnvironmentFailure as error:
            return frozenset([f"engine: perhaps some of the run: {error}"])
