"""What is computed and measured about the paper's claims: odds, ladder, waste and weak points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from harness.live.working import Progress, no_progress
from mecefo_chaos.studies.papers.reft.correlated import RackRow, StageRow, WindowRow, rack_rows, stage_rows, window_rows
from mecefo_chaos.studies.papers.reft.odds import NUM_DRAWS, Odds, SchemeRow, large_odds, scheme_rows, small_odds
from mecefo_chaos.studies.papers.reft.real.measured import Measured
from mecefo_chaos.studies.papers.reft.real.rungs import RUNGS, WORDS, RungRun
from mecefo_chaos.studies.papers.reft.saving import Saving
from mecefo_chaos.studies.papers.reft.waste import WasteRow, waste_rows


@dataclass(frozen=True, slots=True)
class RungRow:
    """One rung over its runs: (median, least, greatest) of each figure, None where it has none."""

    rung: str
    words: str
    num_runs: int
    num_served: int
    steps_lost: tuple[float, float, float] | None
    recovery_seconds: tuple[float, float, float] | None
    state_seconds: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the gates, claims and tables are computed from."""

    seed: int
    odds: tuple[Odds, ...]
    schemes: tuple[SchemeRow, ...]
    rungs: tuple[RungRow, ...]
    of_nodes: tuple[RungRun, ...]
    waste: tuple[WasteRow, ...]
    racks: tuple[RackRow, ...]
    stages: tuple[StageRow, ...]
    windows: tuple[WindowRow, ...]
    measured: Measured
    saving: Saving | None

    def figures(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return {
            "seed": self.seed,
            "survival": [_odds_values(one) for one in self.odds],
            "schemes": [asdict(row) for row in self.schemes],
            "rungs": [asdict(row) for row in self.rungs],
            "eight_nodes": [asdict(run) for run in self.of_nodes],
            "waste": [asdict(row) for row in self.waste],
            "racks": [asdict(row) for row in self.racks],
            "stages": [asdict(row) for row in self.stages],
            "windows": [asdict(row) for row in self.windows],
            "saving": None if self.saving is None else asdict(self.saving),
            "measured": asdict(self.measured),
        }


def evidence_of(
    measured: Measured,
    saving: Saving | None,
    seed: int,
    num_draws: int = NUM_DRAWS,
    progress: Progress = no_progress,
) -> Evidence:
    """What was measured, what the closed forms say, and what `seed` draws `num_draws` times."""
    progress("losses among eight nodes", 0, 4)
    of_eight = small_odds(measured.draws, seed, num_draws)
    progress("losses among 64 nodes", 1, 4)
    odds = (*of_eight, *large_odds(seed, num_draws))
    progress("closed forms", 2, 4)
    schemes = scheme_rows()
    progress("weak points and verdicts", 3, 4)
    rungs = tuple(_rung_row(rung, measured.runs) for rung in RUNGS)
    seconds = {row.rung: row.recovery_seconds[0] for row in rungs if row.recovery_seconds is not None}
    return Evidence(
        seed=seed,
        odds=odds,
        schemes=schemes,
        rungs=rungs,
        of_nodes=tuple(run for run in measured.runs if run.rung not in RUNGS),
        waste=waste_rows(saving, seconds),
        racks=rack_rows(),
        stages=stage_rows(),
        windows=window_rows(),
        measured=measured,
        saving=saving,
    )


def _odds_values(odds: Odds) -> dict[str, Any]:
    samples = {
        name: None if one is None or not one.num_draws else {**asdict(one), "interval": list(one.interval)}
        for name, one in (("drawn", odds.drawn), ("lived", odds.lived))
    }
    return {**asdict(odds), **samples}


def _rung_row(rung: str, runs: Sequence[RungRun]) -> RungRow:
    mine = [run for run in runs if run.rung == rung]
    return RungRow(
        rung,
        WORDS[rung],
        len(mine),
        sum(run.served == run.expected for run in mine),
        _spread([run.steps_lost for run in mine]),
        _spread([run.recovery_seconds for run in mine]),
        _spread([run.state_seconds for run in mine]),
    )


def _spread(values: Sequence[float | None]) -> tuple[float, float, float] | None:
    known = [value for value in values if value is not None]
    return (median(known), min(known), max(known)) if known else None
