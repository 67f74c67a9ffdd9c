"""Planners: who is alive -> layout. One file each; a file in this folder is found by its name (`--strategy`).

A planner module has one function, `plan(cluster, alive) -> Layout`, pure and deterministic, and a docstring whose
first line says what it does. It raises `NoLayout` when no replica can be made whole.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection
from typing import Protocol, cast

from mecefo_runtime.layout import Cluster, Layout


class NoLayout(RuntimeError):
    """No replica has a living rank: the job cannot go on."""


class Planner(Protocol):
    """Decides the layout.

    After it returned, the layout satisfies `Layout.check`; the same input gives the same layout; with every rank alive
    it is the configured one.
    """

    def __call__(self, cluster: Cluster, alive: Collection[int]) -> Layout:
        """The layout for the ranks in `alive`."""
        ...


def names() -> tuple[str, ...]:
    """The planners that this folder holds."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


def find(name: str) -> Planner:
    """The planner called `name`.

    Raises:
        KeyError: there is none.
    """
    if name not in names():
        raise KeyError(name)
    return cast(Planner, importlib.import_module(f"{__name__}.{name}").plan)
