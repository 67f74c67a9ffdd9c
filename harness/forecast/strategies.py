"""The strategies that a forecast can be asked about, as a cluster file names them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from chaos.errors import UsageError, nearest, shown
from harness.forecast.model import BAMBOO, Policy
from mecefo_runtime import planners
from mecefo_runtime.job.config import QUALITIES, quality_of
from mecefo_runtime.planners import goes_back_to


def number(value: object) -> float:
    """A number, finite.

    Raises:
        UsageError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise UsageError(f"must be a number, not {shown(value)}")
    return float(value)


def share(value: object) -> float:
    """A number from 0 to 1.

    Raises:
        UsageError: it is none.
    """
    found = number(value)
    if not 0 <= found <= 1:
        raise UsageError(f"must be between 0 and 1, not {found:g}")
    return found


def strategy(value: object) -> Policy:
    """`mecefo`, or a mapping that also says the share of the samples that it may degrade at most."""
    raw = {"name": value} if isinstance(value, str) else value
    if not isinstance(raw, Mapping):
        raise UsageError(f"{shown(value)} is no strategy: write mecefo, or {{name: mecefo, quality: 0.25}}")
    keys = ("name", "quality")
    for key in raw:
        if key not in keys:
            raise UsageError(
                f"unknown key {shown(key)}: here are {', '.join(keys)}", suggestion=nearest(str(key), keys)
            )
    name, known = raw.get("name"), strategy_names()
    if not isinstance(name, str) or name not in known:
        guess = nearest(str(name), known)
        raise UsageError(f"there is no strategy {shown(name)}: there are {', '.join(known)}", suggestion=guess)
    said_quality = raw.get("quality", "auto")
    if isinstance(said_quality, bool) or not isinstance(said_quality, str | int | float):
        raise UsageError(f"{shown(said_quality)} is no quality: write {', '.join(QUALITIES)} or a share from 0 to 1")
    try:
        return policy(name, said_quality if isinstance(said_quality, str) else share(said_quality))
    except ValueError as error:
        raise UsageError(str(error), suggestion=nearest(str(said_quality), QUALITIES)) from error


def policy(name: str, quality: str | float = "auto") -> Policy:
    """A strategy in the quality of that name, or with such a limit for degraded samples."""
    return Policy(name, *quality_of(quality))


def strategy_names() -> tuple[str, ...]:
    """Everything that can be forecast: the planners there are, and what is a model alone."""
    return (*planners.names(), BAMBOO)


def all_policies(*, has_snapshots: bool) -> list[Policy]:
    """What is compared where no strategies are named."""
    mecefo = [policy("mecefo", quality) for quality in QUALITIES]
    others = (name for name in strategy_names() if has_snapshots or goes_back_to(name) != "snapshots")
    return [*mecefo, *(policy(name) for name in others if name != "mecefo")]
