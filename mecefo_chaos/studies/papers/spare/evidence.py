"""What is computed and simulated about the paper's claims: closed forms, the authors' table, sensitivities."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from harness.live.working import Progress, no_progress
from mecefo_chaos.studies.papers.spare.assumptions import Assumptions
from mecefo_chaos.studies.papers.spare.endurance import NUM_CONTROLLED, NUM_DRAWS, Endurance, Errors, endurances, errors
from mecefo_chaos.studies.papers.spare.findings import Beyond, beyond
from mecefo_chaos.studies.papers.spare.simulated import Simulated
from mecefo_chaos.studies.papers.spare.tables import (
    ClaimRow,
    CurvePoint,
    Fit,
    Sensitivity,
    claim_rows,
    curve,
    fits,
    sensitivities,
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the gates, claims and tables are computed from."""

    seed: int
    cases: tuple[Endurance, ...]
    errors: tuple[Errors, ...]
    rows: tuple[ClaimRow, ...]
    curve: tuple[CurvePoint, ...]
    sensitivities: tuple[Sensitivity, ...]
    fits: tuple[Fit, ...]
    beyond: tuple[Beyond, ...]
    simulated: Simulated

    def figures(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        origin = self.simulated.origin
        return {
            "seed": self.seed,
            "assumptions": asdict(Assumptions()),
            "closed_forms": [
                {**asdict(case), "error_ratio": case.error_ratio, "depth_error_ratio": case.depth_error_ratio}
                for case in self.cases
            ],
            "table": [asdict(row) for row in self.rows],
            "beyond_limit": [asdict(one) for one in self.beyond],
            "fit": [{**asdict(one), "mean_error": one.mean_error} for one in self.fits],
            "by_redundancy": [
                {**asdict(point), "time_ratio": point.time_ratio, "availability_ratio": point.availability_ratio}
                for point in self.curve
            ],
            "sensitivity": [
                {**asdict(one), "gain": None if one.gain is None else asdict(one.gain)} for one in self.sensitivities
            ],
            "simulated": None if origin is None else asdict(origin),
        }


def evidence_of(
    simulated: Simulated,
    seed: int,
    num_draws: int = NUM_DRAWS,
    num_controlled: int = NUM_CONTROLLED,
    progress: Progress = no_progress,
) -> Evidence:
    """What was simulated, and what `seed` draws `num_draws` times."""
    cases = endurances(seed, num_draws, num_controlled, progress)
    progress("verdicts")
    rows, points = claim_rows(simulated), curve(simulated)
    return Evidence(
        seed=seed,
        cases=cases,
        errors=errors(cases),
        rows=rows,
        curve=points,
        sensitivities=sensitivities(simulated),
        fits=fits(simulated),
        beyond=beyond(cases, rows, points),
        simulated=simulated,
    )
