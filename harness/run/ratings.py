"""Ratings of an earlier run for the next one, so that the two differ by the method alone.

What a machine was rated at once is kept beside the runs, `OUT/ratings.json`: measured again a minute later it comes out
otherwise by several percent, and every figure with it. Without the file it is measured again.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from chaos.errors import EnvironmentFailure
from chaos.user_files import read_regular
from harness.backends.base import AnyConfig
from harness.store.files import write_whole
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.prediction.device_model import rescaled
from mecefo_runtime.system.json_values import from_json

KEPT_FILE = "ratings.json"
_MAX_KEPT = 50


def kept_ratings(out: Path, job: AnyConfig, backend: str) -> Mapping[str, Any] | None:
    """What is kept in `out` for such a job on this machine; None where there is nothing."""
    if not isinstance(job, JobConfig) or not job.is_rated or job.emulation is not None:
        return None
    fitting = _fitting(_read(out), _where(backend), job.rated_as)
    return next((one for one in fitting if one.get("ranks") == job.rated_ranks), next(iter(fitting), None))


def keep_ratings(out: Path, ratings: Mapping[str, Any] | None, backend: str) -> None:
    """Keep in `out` the `ratings` of a run's summary, unless such are there already: it was to measure for itself."""
    if ratings is None or "time_scale" in ratings:
        return
    where, others = _where(backend), _read(out)
    if any(one.get("ranks") == ratings.get("ranks") for one in _fitting(others, where, ratings.get("rated_as"))):
        return
    kept = [{"where": where, "ratings": dict(ratings)}, *others]
    # Where it cannot be kept, the next run measures for itself.
    with suppress(EnvironmentFailure):
        write_whole(out / KEPT_FILE, json.dumps(kept[:_MAX_KEPT], indent=1) + "\n")


def _read(out: Path) -> list[dict[str, Any]]:
    try:
        kept = json.loads(read_regular(out / KEPT_FILE))
    except (OSError, ValueError, RecursionError):
        return []
    return [one for one in kept if isinstance(one, dict)] if isinstance(kept, list) else []


def _fitting(kept: Sequence[Mapping[str, Any]], where: Mapping[str, Any], rated_as: object) -> list[dict[str, Any]]:
    ratings = [one.get("ratings") for one in kept if one.get("where") == where]
    return [one for one in ratings if isinstance(one, dict) and one.get("rated_as") == rated_as]


def _where(backend: str) -> dict[str, Any]:
    """What the speed of ranks depends on, beside the job."""
    cpu = platform.machine()
    with suppress(OSError):
        names = (
            line
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        )
        cpu = next(names, cpu).rpartition(":")[2].strip()
    cores = len(os.sched_getaffinity(0))
    return {"machine": platform.node(), "cpu": cpu, "cores": cores, "torch": _torch_version(), "backend": backend}


def _torch_version() -> str:
    """Of this environment; "": it has none, and the ranks are where there is another."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def with_ratings(job: AnyConfig, ratings: Mapping[str, Any] | None) -> AnyConfig:
    """`job` with the `ratings` of another run's summary, where they fit it; else as it is, and its ranks measure.

    An emulated device has its own, and the time scale of the other run, unless another one was asked for.
    """
    if not isinstance(job, JobConfig) or not job.is_rated or ratings is None:
        return job
    if ratings.get("rated_as") != job.rated_as:
        return job
    if job.emulation is not None:
        scale = ratings.get("time_scale")
        if not job.emulation.is_scale_chosen or not isinstance(scale, int | float) or not scale > 0:
            return job
        return rescaled(job, scale / job.emulation.time_scale)
    if job.ratings is not None:
        return job
    try:
        costs = from_json(Costs, ratings["costs"])
    except (KeyError, TypeError, ValueError):
        # Of another version, or edited by hand.
        return job
    if ratings.get("ranks") != job.rated_ranks:
        # What ranks do together depends on how many they are.
        costs = replace(costs, commit_seconds=None, layer_reduction_seconds=None, message_seconds=None)
    return replace(job, ratings=replace(costs, memory_bytes=job.rank_memory_bytes))
