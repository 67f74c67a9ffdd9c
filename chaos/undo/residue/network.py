"""Network namespaces, interfaces and rules under the name of a run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

from chaos.undo.residue.base import Auditor, AuditScope

_NAMESPACES = Path("/run/netns")
_INTERFACES = Path("/sys/class/net")
# Each prints all rules that there are, one a line.
_LISTINGS = (("iptables-save",), ("ip6tables-save",), ("nft", "list", "ruleset"))
_LISTING_TIMEOUT_SECONDS = 5.0


class NamespacesAndInterfaces(Auditor):
    """Named network namespaces, and interfaces."""

    name: ClassVar[str] = "network"

    def look(self, scope: AuditScope) -> frozenset[str]:
        """By name alone."""
        found = set()
        for what, folder in (("network namespace", _NAMESPACES), ("interface", _INTERFACES)):
            if folder.is_dir():
                found |= {f"{what} {path.name}" for path in folder.iterdir() if scope.is_ours(path.name)}
        return frozenset(found)


class FirewallRules(Auditor):
    """Rules of the packet filter whose comment names the run; only root can list and make them."""

    name: ClassVar[str] = "rule"

    def look(self, scope: AuditScope) -> frozenset[str]:
        """What the machine's own tools list."""
        if os.geteuid() != 0:
            return frozenset()
        return frozenset(
            f"{command[0]}: {line.strip()}"
            for command in _LISTINGS
            if shutil.which(command[0])
            for line in _output(command).splitlines()
            if scope.is_ours(line)
        )


def _output(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_LISTING_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
