"""When ranks are lost and come back: a process drawn from a seed, or a trace read from a file."""

from __future__ import annotations

import csv
import heapq
from collections.abc import Iterator
from dataclasses import replace
from math import gamma, inf, isfinite
from pathlib import Path

import numpy as np

from chaos.errors import UsageError, shown
from chaos.user_files import read_input
from mecefo_chaos.studies.forecast.model import Failures, Loss
from mecefo_runtime.job.layout import Cluster

_TRACE_COLUMNS = ("time", "node", "repair")
_DRAWN_AT_ONCE = 1024


def losses(failures: Failures, cluster: Cluster, horizon_seconds: float, seed: int) -> list[Loss]:
    """All losses before `horizon_seconds`, in order; the same for the same seed.

    A failure of a process takes a unit that lives then; if none does, there is none.
    """
    if failures.trace is not None:
        return sorted(
            (loss for loss in failures.trace if loss.at_seconds < horizon_seconds), key=lambda loss: loss.at_seconds
        )
    if failures.interval_seconds == inf:
        return []
    units = _units(failures, cluster)
    generator = np.random.default_rng([seed, len(units)])
    draw = _losses_of_units if failures.per_unit else _losses_of_cluster
    found = draw(failures, units, horizon_seconds, generator)
    if failures.unit == "rank":
        # A process: what is in the memory of its node outlives it.
        return list(found)
    return [replace(loss, nodes=(cluster.node_of(loss.ranks[0]),)) for loss in found]


def _units(failures: Failures, cluster: Cluster) -> list[tuple[int, ...]]:
    if failures.unit == "rank":
        return [(rank,) for rank in range(cluster.num_ranks)]
    return [tuple(cluster.ranks_of(node)) for node in range(cluster.nodes)]


def _scale(failures: Failures) -> float:
    """The Weibull distribution's scale for its mean."""
    return failures.interval_seconds / gamma(1 + 1 / failures.shape)


def _losses_of_cluster(
    failures: Failures, units: list[tuple[int, ...]], horizon_seconds: float, generator: np.random.Generator
) -> Iterator[Loss]:
    dead: list[tuple[float, int]] = []
    living = _Living(len(units))
    for at_seconds in _times(failures, horizon_seconds, generator):
        while dead and dead[0][0] <= at_seconds:
            living.add(heapq.heappop(dead)[1])
        if not living.num:
            continue
        unit = living.take(int(generator.integers(living.num)))
        heapq.heappush(dead, (at_seconds + failures.repair_seconds, unit))
        yield Loss(at_seconds, units[unit], failures.repair_seconds)


class _Living:
    """Units that live, of which any can be taken in constant time."""

    def __init__(self, num: int) -> None:
        self._units = list(range(num))

    @property
    def num(self) -> int:
        return len(self._units)

    def take(self, place: int) -> int:
        self._units[place], self._units[-1] = self._units[-1], self._units[place]
        return self._units.pop()

    def add(self, unit: int) -> None:
        self._units.append(unit)


def _times(failures: Failures, horizon_seconds: float, generator: np.random.Generator) -> Iterator[float]:
    """The failures of a whole cluster, ascending, with those that follow another one closely."""
    # A failure that others follow stands for several: the mean time between all of them is what was asked for.
    factor = _scale(failures) / (1 - failures.burst_ratio)
    now, followers = 0.0, list[float]()
    while True:
        for gap in generator.weibull(failures.shape, _DRAWN_AT_ONCE) * factor:
            begin = now
            now += float(gap)
            while followers and followers[0] <= now:
                at_seconds = heapq.heappop(followers)
                if at_seconds >= horizon_seconds:
                    return
                yield at_seconds
                _follow(failures, at_seconds, followers, generator)
            assert now >= begin
            if now >= horizon_seconds:
                yield from _rest(failures, followers, horizon_seconds, generator)
                return
            yield now
            _follow(failures, now, followers, generator)


def _follow(failures: Failures, at_seconds: float, followers: list[float], generator: np.random.Generator) -> None:
    if failures.burst_ratio and generator.random() < failures.burst_ratio:
        heapq.heappush(followers, at_seconds + float(generator.random()) * failures.burst_seconds)


def _rest(
    failures: Failures, followers: list[float], horizon_seconds: float, generator: np.random.Generator
) -> Iterator[float]:
    while followers:
        at_seconds = heapq.heappop(followers)
        if at_seconds < horizon_seconds:
            yield at_seconds
            _follow(failures, at_seconds, followers, generator)


def _losses_of_units(
    failures: Failures, units: list[tuple[int, ...]], horizon_seconds: float, generator: np.random.Generator
) -> Iterator[Loss]:
    """Each unit by itself: it lives for a Weibull time, is repaired, and begins again.

    A failure with a follower is followed by that of a unit drawn from those that live.
    """
    scale = _scale(failures) / (1 - failures.burst_ratio)
    due = [(float(life), unit, 0) for unit, life in enumerate(generator.weibull(failures.shape, len(units)) * scale)]
    heapq.heapify(due)
    lives = [0] * len(units)
    back = [0.0] * len(units)
    followers: list[float] = []
    while due or followers:
        if followers and (not due or followers[0] <= due[0][0]):
            at_seconds = heapq.heappop(followers)
            unit = int(generator.integers(len(units)))
            if back[unit] > at_seconds:
                continue
        else:
            at_seconds, unit, life = heapq.heappop(due)
            if life != lives[unit]:
                continue
        if at_seconds >= horizon_seconds:
            if not followers:
                return
            continue
        yield Loss(at_seconds, units[unit], failures.repair_seconds)
        lives[unit] += 1
        back[unit] = at_seconds + failures.repair_seconds
        heapq.heappush(due, (back[unit] + float(generator.weibull(failures.shape)) * scale, unit, lives[unit]))
        _follow(failures, at_seconds, followers, generator)


def read_trace(path: Path, cluster: Cluster, repair_seconds: float) -> tuple[Loss, ...]:
    """The losses in a CSV file with the columns time (seconds), node, and repair (seconds; empty: `repair_seconds`).

    Raises:
        UsageError: it cannot be read, or a line makes no sense.
    """
    try:
        text = read_input(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UsageError(f"cannot read the trace: {reason}", path=str(path)) from error
    rows = csv.reader(text.splitlines())
    header = tuple(name.strip() for name in next(rows, []))
    if header[:2] != _TRACE_COLUMNS[:2] or header not in (_TRACE_COLUMNS, _TRACE_COLUMNS[:2]):
        raise UsageError("the first line must be time,node,repair (or time,node)", path=str(path), line=1)
    found = []
    for row in rows:
        if not row:
            continue
        line = rows.line_num
        if len(row) not in (len(header), 2):
            raise UsageError(f"{len(row)} columns where there are {len(header)}", path=str(path), line=line)
        at_seconds = _number(row[0], "time", path, line)
        node = _number(row[1], "node", path, line)
        if node != int(node) or node >= cluster.nodes:
            raise UsageError(f"node {row[1].strip()} is not one of 0 to {cluster.nodes - 1}", path=str(path), line=line)
        has_repair = len(row) > 2 and row[2].strip()
        repair = _number(row[2], "repair", path, line) if has_repair else repair_seconds
        found.append(Loss(at_seconds, tuple(cluster.ranks_of(int(node))), repair, (int(node),)))
    return tuple(sorted(found, key=lambda loss: loss.at_seconds))


def _number(text: str, name: str, path: Path, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and value >= 0):
        raise UsageError(f"{name} must be a number of at least 0, not {shown(text.strip())}", path=str(path), line=line)
    return value
