"""Plug-ins: classes that packages offer by entry points of a group."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import TypeVar

FAULTS, BACKENDS = "chaos.faults", "chaos.backends"
"""The groups."""
DEFAULT_BACKEND = "local"
"""The backend that is used where none is named."""

_OWN_DISTRIBUTION = "mecefo-chaos"

ClassT = TypeVar("ClassT")


def plugins(group: str, base: type[ClassT], submodule: str = "") -> Iterator[tuple[str, Sequence[type[ClassT]] | str]]:
    """(Entry point, the classes derived from `base` that it offers, or why it cannot be used), our own first.

    An entry point names a class, a module with such classes, or, with `submodule`, a package: then each folder in it
    that has a module of that name offers the classes of that module.
    """
    for plugin in sorted(entry_points(group=group), key=_order):
        where = f"{plugin.name} ({plugin.value})"
        try:
            loaded = _load(plugin)
        except Exception as error:  # a plug-in of another package must not end the command
            yield where, _why_not(error)
            continue
        if submodule and isinstance(loaded, ModuleType) and hasattr(loaded, "__path__"):
            yield from _in_package(loaded, base, submodule)
        else:
            yield where, _offered(plugin, loaded, base)


def classes_in(module: ModuleType, base: type[ClassT]) -> Iterator[type[ClassT]]:
    """The classes derived from `base` that are defined in `module` and can be used."""
    for value in vars(module).values():
        if _is_usable(value, base) and value.__module__ == module.__name__:
            yield value


def _order(plugin: EntryPoint) -> tuple[bool, str]:
    """Ours come first, so that no other package takes their names."""
    return not _is_own(plugin), plugin.name


def _is_own(plugin: EntryPoint) -> bool:
    return plugin.dist is not None and plugin.dist.name == _OWN_DISTRIBUTION


def _load(plugin: EntryPoint) -> object:
    # In a test session our modules have private names (`chaos.host.private_names`), and so has what derives from them.
    loaded: object = importlib.import_module(f"{__name__.removesuffix('chaos.plugins')}{plugin.module}")
    for name in plugin.attr.split(".") if plugin.attr else ():
        loaded = getattr(loaded, name)
    return loaded


def _offered(plugin: EntryPoint, loaded: object, base: type[ClassT]) -> Sequence[type[ClassT]]:
    if isinstance(loaded, ModuleType):
        return list(classes_in(loaded, base))
    return [loaded] if isinstance(loaded, type) and _is_usable(loaded, base) else []


def _in_package(
    package: ModuleType, base: type[ClassT], submodule: str
) -> Iterator[tuple[str, Sequence[type[ClassT]] | str]]:
    for folder in sorted(pkgutil.iter_modules(package.__path__, f"{package.__name__}."), key=lambda found: found.name):
        name = f"{folder.name}.{submodule}"
        try:
            if folder.ispkg and importlib.util.find_spec(name) is not None:
                yield name, list(classes_in(importlib.import_module(name), base))
        except Exception as error:  # one that is broken leaves the others alone
            yield name, _why_not(error)


def _why_not(error: Exception) -> str:
    return f"cannot be imported: {type(error).__name__}: {error}"


def _is_usable(value: object, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base) and value is not base and not inspect.isabstract(value)
