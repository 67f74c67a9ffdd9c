"""Planners: who is alive -> layout. One file each; a file in this folder is found by its name (`--strategy`).

A planner module has one function, `plan(situation) -> Layout`, pure and deterministic, and a docstring whose first line
says what it does. It raises `NoLayout` when no replica can be made whole.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Cluster, Layout


class NoLayout(RuntimeError):
    """No replica can be made whole: the job cannot go on. The text says what is short."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What there is to plan with; `ndb` and `exact` look at `cluster` and `alive` alone.

    `current` is what ran last. `holdings` are the units that each living rank holds now (one that is not named holds
    nothing); empty where it is not known. At most `degraded_share_limit` (0 to 1) of a step's samples may go through
    degraded layers.
    """

    cluster: Cluster
    alive: frozenset[int]
    costs: Costs
    current: Layout | None = None
    holdings: Mapping[int, frozenset[str]] = field(default_factory=dict)
    degraded_share_limit: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.degraded_share_limit <= 1:
            raise ValueError(f"degraded_share_limit must be between 0 and 1, not {self.degraded_share_limit}")


class Planner(Protocol):
    """Decides the layout.

    After it returned, the layout satisfies `Layout.check`; the same situation gives the same layout; with every rank
    alive it is the configured one.
    """

    def __call__(self, situation: Situation) -> Layout:
        """The layout for the ranks that are alive."""
        ...


def names() -> tuple[str, ...]:
    """The planners that this folder holds."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")))


def stops_on_loss(name: str | None) -> bool:
    """Whether a job of that strategy ends all its ranks after a loss and starts them again; False of unknown names.

    The planner's module says so by `STOPS_ON_LOSS`.
    """
    return name in names() and getattr(importlib.import_module(f"{__name__}.{name}"), "STOPS_ON_LOSS", False) is True


def find(name: str) -> Planner:
    """The planner called `name`.

    Raises:
        KeyError: there is none.
    """
    if name not in names():
        raise KeyError(name)
    return cast(Planner, importlib.import_module(f"{__name__}.{name}").plan)
