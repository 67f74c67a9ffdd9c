"""Planners: who is alive -> layout. One file each; a file in this folder is found by its name (`--strategy`).

An underscore in the file's name is a hyphen in the strategy's, and `_plus_` is a plus. A planner module has one
function, `plan(situation) -> Layout`, pure and deterministic, and a docstring whose first line says what it does. It
raises `NoLayout` when no replica can be made whole. What else belongs to a strategy is said by constants: see
`stops_on_loss`, `goes_back_to`, `places_shards`, `approximates` and `fixed_settings`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import ModuleType
from typing import Any, Literal, Protocol, cast

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Cluster, Layout
from mecefo_runtime.stacks.placement import Placement

TOLERANCE_RATIO = 0.01
"""A step may take this much longer than without failures before a layer is degraded for it, and a plan must be better
than the current layout by this much to replace it."""
Approximates = Literal["never", "always", "degrading", "degrading_or_projecting"]
"""`always`: all layers of every rank that takes over others; `degrading`: some, as far as the job's quality allows;
`degrading_or_projecting`: or they are projected, also by the quality."""


class NoLayout(RuntimeError):
    """No replica can be made whole: the job cannot continue. The text says what is short."""


class WipeOut(NoLayout):
    """The living replicas together do not hold all data: the job continues when all ranks are back."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a planner; planners that take over whole stages use `cluster` and `alive` only.

    `current` is what ran last. `holdings` are the units that each living rank holds now (one that is not named holds
    nothing); empty where it is not known. At most `degraded_share_limit` (0 to 1) of a step's samples may go through
    degraded layers, and at most `projected_share_limit` of the replicas may project a layer. `placement` says which
    shards of a step each replica holds, None: whatever it is given.
    """

    cluster: Cluster
    alive: frozenset[int]
    costs: Costs
    current: Layout | None = None
    holdings: Mapping[int, frozenset[str]] = field(default_factory=dict)
    degraded_share_limit: float = 1.0
    projected_share_limit: float = 0.0
    placement: Placement | None = None

    def __post_init__(self) -> None:
        for name in ("degraded_share_limit", "projected_share_limit"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, not {getattr(self, name)}")


class Planner(Protocol):
    """Decides the layout.

    After it returned, the layout satisfies `Layout.check`; the same situation gives the same layout; with every rank
    alive it is the configured one.
    """

    def __call__(self, situation: Situation) -> Layout:
        """The layout for the ranks that are alive."""
        ...


def names() -> tuple[str, ...]:
    """The planners that this folder holds, and those that were added to the package's path."""
    return _names_in(tuple(__path__))


@cache
def _names_in(folders: tuple[str, ...]) -> tuple[str, ...]:
    found = (module.name for module in pkgutil.iter_modules(folders))
    shown = (name.replace("_plus_", "+").replace("_", "-") for name in found if not name.startswith("_"))
    return tuple(sorted(shown))


def stops_on_loss(name: str | None) -> bool:
    """Whether a job of that strategy ends all its ranks after a loss and starts them again; False of unknown names.

    The planner's module says so by `STOPS_ON_LOSS`.
    """
    return name is not None and name in names() and getattr(_module(name), "STOPS_ON_LOSS", False) is True


def goes_back_to(name: str) -> Literal["checkpoint", "snapshots"] | None:
    """The job setting (checkpoint or snapshots) that a strategy requires; None: neither, or an unknown name.

    The planner's module says so by `GOES_BACK_TO`.
    """
    return getattr(_module(name), "GOES_BACK_TO", None) if name in names() else None


def places_shards(name: str) -> bool:
    """Whether a replica of a job of that strategy computes only shards of a step that it holds; False of unknown names.

    The planner's module says so by `PLACES_SHARDS`.
    """
    return name in names() and getattr(_module(name), "PLACES_SHARDS", False) is True


def approximates(name: str | None) -> Approximates:
    """Whether a strategy approximates layers after a loss, see `Approximates`; `never` for unknown names.

    The planner's module says so by `APPROXIMATES`.
    """
    return getattr(_module(name), "APPROXIMATES", "never") if name is not None and name in names() else "never"


def has_quality(name: str | None) -> bool:
    """Whether the job's quality says how much a strategy approximates."""
    return approximates(name) in ("degrading", "degrading_or_projecting")


def placement_of(job: JobConfig) -> Placement | None:
    """The placement of the shards of a step of `job`; None when its strategy does not place them."""
    if not places_shards(job.strategy):
        return None
    return Placement.of(job.data_parallel, job.redundancy, job.stack_offsets)


def fixed_settings(name: str) -> Mapping[str, Any]:
    """The job settings that a strategy fixes, by key; empty for unknown names.

    A key is a field of `JobConfig`; where that has fields of its own, the value is a mapping of those. The planner's
    module says so by `FIXED_SETTINGS`.
    """
    return getattr(_module(name), "FIXED_SETTINGS", {}) if name in names() else {}


def with_fixed_settings(job: JobConfig) -> JobConfig:
    """`job` with the settings that its strategy fixes."""
    fixed = {
        key: replace(getattr(job, key), **value) if isinstance(value, Mapping) else value
        for key, value in fixed_settings(job.strategy).items()
    }
    return replace(job, **fixed)


def find(name: str) -> Planner:
    """The planner called `name`.

    Raises:
        KeyError: there is none.
    """
    if name not in names():
        raise KeyError(name)
    return cast(Planner, _module(name).plan)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name.replace('+', '_plus_').replace('-', '_')}")
