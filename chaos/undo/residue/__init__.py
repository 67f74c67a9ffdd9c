"""What a run may leave behind, and the search for it. An auditor is found by being in this folder, one file each.

Looks, and changes nothing: `chaos.undo.heal` removes what is found.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from chaos.undo.residue.base import Auditor, AuditScope

Findings = Mapping[str, frozenset[str]]


@functools.cache
def auditors() -> tuple[Auditor, ...]:
    """All auditors, by the name of what they look for."""
    found: dict[str, Auditor] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Auditor) and "name" in vars(value):
                found[value.name] = value()
    return tuple(auditor for _, auditor in sorted(found.items()))


def look(scope: AuditScope) -> Findings:
    """What there is now: the sort of thing -> sentences."""
    return {auditor.name: auditor.look(scope) for auditor in auditors()}


def left_behind(before: Findings, after: Findings) -> list[dict[str, str]]:
    """What is there `after` and was not `before`: `{kind, what}` of each, in order."""
    return [
        {"kind": kind, "what": what}
        for kind, found in sorted(after.items())
        for what in sorted(found - before.get(kind, frozenset()))
    ]
