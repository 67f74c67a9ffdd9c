"""All faults: files in this folder are found automatically, plug-ins by the entry point `chaos.faults`.

A fault knows hosts, agents and links by the interfaces that it declares; no harness, no experiment.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType, ModuleType
from typing import Any

from chaos.faults.base import Fault

ENTRY_POINT_GROUP = "chaos.faults"


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
            found |= {kind.kind: kind for kind in _kinds_in(importlib.import_module(module_info.name))}
    broken: dict[str, str] = {}
    for plugin in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda plugin: plugin.name):
        where = f"{plugin.name} ({plugin.value})"
        try:
            kinds = list(_kinds_of(plugin))
        except Exception as error:  # somebody else's code: it must not take the command with it
            broken[where] = f"cannot be imported: {type(error).__name__}: {error}"
            continue
        if not kinds:
            broken[where] = "is neither a Fault with a kind nor a module with one"
        for kind in kinds:
            if kind.kind in found:
                broken[where] = f"has the kind {kind.kind!r}, which {found[kind.kind].__module__} has already"
            else:
                found[kind.kind] = kind
    return MappingProxyType(dict(sorted(found.items()))), MappingProxyType(broken)


def _kinds_of(plugin: EntryPoint) -> Iterable[type[Fault[Any]]]:
    loaded = plugin.load()
    if isinstance(loaded, ModuleType):
        return _kinds_in(loaded)
    return (loaded,) if _is_kind(loaded) else ()


def _kinds_in(module: ModuleType) -> Iterable[type[Fault[Any]]]:
    for value in vars(module).values():
        if _is_kind(value) and value.__module__ == module.__name__:
            yield value


def _is_kind(value: object) -> bool:
    return (
        isinstance(value, type) and issubclass(value, Fault) and "kind" in vars(value) and not inspect.isabstract(value)
    )
