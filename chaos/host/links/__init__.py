"""Rules on network links, as undo records describe them: how each sort of rule is removed from its record alone.

A backend whose nodes have links of their own plans the rules (see `chaos.faults.base.LinkHost`); the sort of rule is
the record's `how`. A sort is found by being there: a class with `how` and `remove` in a file of this folder; those
without, `check` and `nccl_transport`, look at links.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, cast

from chaos.errors import HealError
from mecefo_runtime.system.reason import Reason


class RuleKind(Protocol):
    """One sort of rule, such as a qdisc or a firewall's. A class with these, never instantiated."""

    how: ClassVar[str]

    @classmethod
    def remove(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the rule that `record` describes, and look that it is gone; returns the evidence.

        As often as one likes, and whether or not the rule was ever added; whatever else is on the link is left alone.

        Raises:
            chaos.errors.HealError: it is still there.
        """
        ...


@functools.cache
def rule_kinds() -> Mapping[str, type[RuleKind]]:
    """How -> class, sorted."""
    found: dict[str, type[RuleKind]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and value.__module__ == module.__name__
                and {"how", "remove"} <= vars(value).keys()
            ):
                kind = cast(type[RuleKind], value)
                found[kind.how] = kind
    return MappingProxyType(dict(sorted(found.items())))


def remove_rules(records: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Remove all rules, the last one first; returns the evidence of each.

    Raises:
        chaos.errors.HealError: some are still there; the others were removed all the same.
    """
    evidence: list[dict[str, Any]] = []
    left: list[Reason] = []
    for record in reversed(records):
        kind = rule_kinds().get(str(record.get("how")))
        try:
            if kind is None:
                raise HealError(Reason("rule_kind_unknown", how=str(record.get("how")), record=str(dict(record))))
            evidence.append(kind.remove(record))
        except HealError as error:
            left.append(error.why)
    if left:
        raise HealError(Reason("links_not_restored", rules=len(records), left=left))
    return evidence
