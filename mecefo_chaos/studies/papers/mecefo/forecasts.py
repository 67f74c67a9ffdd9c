"""All forecasts of the table: those that came with this version, or computed again, which takes minutes of planning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from multiprocessing import get_context

from harness.live.working import Progress, no_progress
from mecefo_chaos.studies.forecast.forecast import rates_of
from mecefo_chaos.studies.papers.mecefo.forecasted import Forecasted, averaged_drops, forecast_cell
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, Cell, cells, job_of
from mecefo_chaos.studies.papers.rules import Measured
from mecefo_runtime.system.json_values import from_json, to_json

SHIPPED_FILE = "forecasts.json"


@dataclass(frozen=True, slots=True)
class Forecasts:
    """Of every cell; and for the paper to the letter under `high` the drop if replicas did not wait for each other."""

    cells: tuple[Forecasted, ...]
    averaged: tuple[tuple[Cell, tuple[float, ...]], ...]

    def of(self, cell: Cell) -> Forecasted | None:
        """That of one cell."""
        return next((one for one in self.cells if one.cell == cell), None)

    def averaged_of(self, cell: Cell) -> Measured | None:
        """See `averaged_drops`."""
        return next((Measured.of(drops) for of, drops in self.averaged if of == cell), None)

    def to_text(self) -> str:
        """As it is kept in a file, a cell a line."""
        rows = ",\n".join(json.dumps(to_json(one)) for one in self.cells)
        averaged = ",\n".join(json.dumps(to_json(one)) for one in self.averaged)
        return f'{{"cells": [\n{rows}\n], "averaged": [\n{averaged}\n]}}\n'


def shipped_forecasts() -> Forecasts:
    """Those that came with this version: a test computes some of them again."""
    return from_json(Forecasts, json.loads(files(__package__).joinpath(SHIPPED_FILE).read_text(encoding="utf-8")))


def compute_forecasts(num_processes: int, progress: Progress = no_progress) -> Forecasts:
    """All of them, planned again."""
    groups = [list(group) for _, group in groupby(sorted(cells(), key=_planned_alike), key=_planned_alike)]
    found: dict[Cell, Forecasted] = {}
    averaged: dict[Cell, tuple[float, ...]] = {}
    # Planning keeps one core busy for each process; forks of a process with threads would be unsafe.
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        for number, (forecasts, drops) in enumerate(pool.map(_forecast_group, groups), start=1):
            found |= {one.cell: one for one in forecasts}
            averaged |= dict(drops)
            progress("forecasts", number, len(groups))
    return Forecasts(tuple(found[cell] for cell in cells()), tuple(averaged.items()))


def _planned_alike(cell: Cell) -> tuple[str, str, int, bool, str]:
    return cell.size, cell.shape, cell.num_microbatches, cell.is_exposed, cell.method


def _forecast_group(group: Sequence[Cell]) -> tuple[list[Forecasted], list[tuple[Cell, tuple[float, ...]]]]:
    rates = rates_of(job_of(group[0]), METHODS[group[0].method].policy)
    forecasts = [forecast_cell(cell, rates=rates) for cell in group]
    letter = [cell for cell in group if (cell.method, cell.process) == ("mecefo-paper", "high")]
    return forecasts, [(cell, averaged_drops(cell)) for cell in letter]
