"""The strategies that a forecast can be asked about, as a cluster file names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from chaos.errors import UsageError, nearest, shown
from mecefo_chaos.studies.forecast.model import BAMBOO, REPLICATION, SPARE, Policy
from mecefo_runtime import planners
from mecefo_runtime.job.config import QUALITIES, quality_of
from mecefo_runtime.planners import goes_back_to

WITH_REDUNDANCY = (SPARE, REPLICATION)
# Those that take a data-parallel group as a whole; `exact` shares its microbatches over the others.
OF_GROUPS = ("exact", SPARE, REPLICATION, "checkpoint", "reft")


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
    """`mecefo`, or a mapping that also says the share of the samples that it may degrade at most.

    Of `spare` and `replication` it says how many groups hold each shard: the `redundancy`.
    """
    raw = {"name": value} if isinstance(value, str) else value
    if not isinstance(raw, Mapping):
        raise UsageError(f"{shown(value)} is no strategy: write mecefo, or {{name: mecefo, quality: 0.25}}")
    keys = ("name", "quality", "redundancy")
    for key in raw:
        if key not in keys:
            raise UsageError(
                f"unknown key {shown(key)}: here are {', '.join(keys)}", suggestion=nearest(str(key), keys)
            )
    name, known = raw.get("name"), strategy_names()
    if not isinstance(name, str) or name not in known:
        guess = nearest(str(name), known)
        raise UsageError(f"there is no strategy {shown(name)}: there are {', '.join(known)}", suggestion=guess)
    redundancy = raw.get("redundancy")
    if redundancy is not None:
        if name not in WITH_REDUNDANCY:
            raise UsageError(f"{name} has no redundancy: {' and '.join(WITH_REDUNDANCY)} have")
        if isinstance(redundancy, bool) or not isinstance(redundancy, int) or redundancy < 1:
            raise UsageError(f"{shown(redundancy)} is no redundancy: write a whole number of at least 1")
    said_quality = raw.get("quality", "auto")
    if isinstance(said_quality, bool) or not isinstance(said_quality, str | int | float):
        raise UsageError(f"{shown(said_quality)} is no quality: write {', '.join(QUALITIES)} or a share from 0 to 1")
    try:
        found = policy(name, said_quality if isinstance(said_quality, str) else share(said_quality))
    except ValueError as error:
        raise UsageError(str(error), suggestion=nearest(str(said_quality), QUALITIES)) from error
    return replace(found, redundancy=redundancy)


def policy(name: str, quality: str | float = "auto") -> Policy:
    """A strategy in the quality of that name, or with such a limit for degraded samples."""
    return Policy(name, *quality_of(quality))


def strategy_names() -> tuple[str, ...]:
    """Everything that can be forecast: planners for which it does not matter who is who, and what is a model alone."""
    alike = (name for name in planners.names() if not planners.places_shards(name))
    return (*alike, SPARE, BAMBOO, REPLICATION)


def all_policies(*, has_snapshots: bool, of_groups: bool = False) -> list[Policy]:
    """What is compared where no strategies are named; `of_groups`: of groups that are units."""
    mecefo = [] if of_groups else [policy("mecefo", quality) for quality in QUALITIES]
    names = OF_GROUPS if of_groups else strategy_names()
    others = (name for name in names if has_snapshots or goes_back_to(name) != "snapshots")
    return [*mecefo, *(policy(name) for name in others if name != "mecefo")]
