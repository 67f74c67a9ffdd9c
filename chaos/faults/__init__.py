"""All faults: a file in this folder is found by being there."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from chaos.faults.base import Fault


@functools.cache
def registry() -> Mapping[str, type[Fault[Any]]]:
    """Kind -> class, sorted by kind."""
    found: dict[str, type[Fault[Any]]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        if module_info.name.startswith("_") or module_info.name == "base":
            continue
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, Fault)
                and value.__module__ == module.__name__
                and "kind" in vars(value)
            ):
                found[value.kind] = value
    return MappingProxyType(dict(sorted(found.items())))
