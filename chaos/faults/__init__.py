"""All faults: files in this folder are found automatically, plug-ins by the entry point `chaos.faults`.

A fault knows hosts, agents and links by the interfaces that it declares; no harness, no experiment.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from chaos.faults.base import Fault
from chaos.plugins import FAULTS, classes_in, plugins


@functools.cache
def registry() -> Mapping[str, type[Fault[Any]]]:
    """Kind -> class, sorted by kind. Plug-ins that cannot be used are left out; see `broken_plugins`."""
    return _load()[0]


@functools.cache
def broken_plugins() -> Mapping[str, str]:
    """Why the plug-ins that cannot be used cannot: entry point -> reason."""
    return _load()[1]


@functools.cache
def _load() -> tuple[Mapping[str, type[Fault[Any]]], Mapping[str, str]]:
    found: dict[str, type[Fault[Any]]] = {}
    for module_info in pkgutil.walk_packages(__path__, f"{__name__}."):
        if not module_info.ispkg and not module_info.name.rpartition(".")[2].startswith("_"):
            classes = classes_in(importlib.import_module(module_info.name), Fault)  # type: ignore[type-abstract]
            found |= {kind.kind: kind for kind in classes if _is_kind(kind)}
    broken: dict[str, str] = {}
    for where, offered in plugins(FAULTS, Fault):  # type: ignore[type-abstract]
        if isinstance(offered, str):
            broken[where] = offered
            continue
        kinds = [kind for kind in offered if _is_kind(kind)]
        if not kinds:
            broken[where] = "is neither a Fault with a kind nor a module with one"
        for kind in kinds:
            if kind.kind in found:
                broken[where] = f"has the kind {kind.kind!r}, which {found[kind.kind].__module__} has already"
            else:
                found[kind.kind] = kind
    return MappingProxyType(dict(sorted(found.items()))), MappingProxyType(broken)


def _is_kind(value: type[Fault[Any]]) -> bool:
    # Of several kinds with a common base only those that name themselves are kinds.
    return "kind" in vars(value)
