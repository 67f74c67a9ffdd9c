"""The whole check as one value: closed forms, the authors' table, sensitivities, claims, gates, and what is open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.live.working import Progress, no_progress
from mecefo_chaos.studies.papers.spare.assumptions import Assumptions
from mecefo_chaos.studies.papers.spare.claims import PAPER
from mecefo_chaos.studies.papers.spare.endurance import NUM_CONTROLLED, NUM_DRAWS, Endurance, Errors, endurances, errors
from mecefo_chaos.studies.papers.spare.findings import OPEN, Beyond, beyond, controller_seconds, findings
from mecefo_chaos.studies.papers.spare.gates import gates_of
from mecefo_chaos.studies.papers.spare.simulated import DEFAULT_READING, Simulated
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
from mecefo_chaos.studies.papers.verdicts import Finding, Gate, exit_code_of


@dataclass(frozen=True, slots=True)
class Check:
    """Everything that is known of the paper's claims."""

    seed: int
    cases: tuple[Endurance, ...]
    errors: tuple[Errors, ...]
    rows: tuple[ClaimRow, ...]
    curve: tuple[CurvePoint, ...]
    sensitivities: tuple[Sensitivity, ...]
    fits: tuple[Fit, ...]
    beyond: tuple[Beyond, ...]
    gates: tuple[Gate, ...]
    findings: tuple[Finding, ...]
    simulated: Simulated
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0, 1 or 5: see `exit_code_of`."""
        return exit_code_of(gate.passed for gate in self.gates)

    def to_dict(self) -> dict[str, Any]:
        """One JSON document; ratios are of 1."""
        origin = self.simulated.origin
        return {
            "paper": PAPER,
            "exit_code": self.exit_code,
            "seed": self.seed,
            "assumptions": asdict(Assumptions()),
            "gates": [asdict(gate) for gate in self.gates],
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
            "findings": [asdict(finding) for finding in self.findings],
            "simulated": None if origin is None else asdict(origin),
            "open": [asdict(one) for one in OPEN],
            "notes": list(self.notes),
        }


def check(
    simulated: Simulated,
    seed: int,
    num_draws: int = NUM_DRAWS,
    num_controlled: int = NUM_CONTROLLED,
    progress: Progress = no_progress,
) -> Check:
    """Hold what was simulated, and what `seed` draws so often, against the closed forms and what the paper claims."""
    cases = endurances(seed, num_draws, num_controlled, progress)
    progress("verdicts")
    rows, points, sensitive = claim_rows(simulated), curve(simulated), sensitivities(simulated)
    fitted = fits(simulated)
    return Check(
        seed=seed,
        cases=cases,
        errors=errors(cases),
        rows=rows,
        curve=points,
        sensitivities=sensitive,
        fits=fitted,
        beyond=beyond(cases, rows, points),
        gates=gates_of(cases, rows),
        findings=findings(cases, rows, points, sensitive, controller_seconds()),
        simulated=simulated,
        notes=tuple(_notes(simulated, fitted, num_draws, num_controlled)),
    )


def _fit_words(fitted: Sequence[Fit]) -> Iterator[str]:
    default = next((one for one in fitted if one.assumed == DEFAULT_READING), None)
    if default is None or len(fitted) < 2:
        return
    nearest = min((one for one in fitted if one is not default), key=lambda one: one.mean_error)
    by_time = min(fitted, key=lambda one: one.mean_time_error)
    yield (
        f"Over the {default.num_rows} rows with an availability, times and availabilities of the default reading are "
        f"{default.mean_error:.2%} from the authors' in the mean; the nearest other reading is {nearest.assumed} with "
        f"{nearest.mean_error:.2%}. By times alone the nearest is {by_time.assumed or 'the default'} "
        f"({by_time.mean_time_error:.2%}; the default {default.mean_time_error:.2%})."
    )


def _notes(simulated: Simulated, fitted: Sequence[Fit], num_draws: int, num_controlled: int) -> Iterator[str]:
    used = Assumptions()
    yield (
        f"Assumed: a Weibull clock of shape {used.weibull_shape:g} for each group, fresh at the start, of mean "
        f"{used.system_mtbf_seconds:g} s times N, that runs on whether the group is dead, restarts or trains; "
        f"{used.layer_seconds:g} s of compute a layer with {used.jitter_ratio:.0%} jitter; an all-reduce of N/100 s; "
        f"{used.save_seconds:g} s a save, by the leader; {used.restart_seconds:,g} s a restart. Only recovery counts "
        "as down. The time without failures has neither jitter nor saves."
    )
    yield (
        "Jitter: SPARe's layers are drawn one by one, replication's r layers as one computation, and all wait for the "
        "slowest before the all-reduce. `jitter=layer` and `barrier=layer` are the other readings."
    )
    yield (
        f"Closed forms: {num_draws} orders of failures for each pair of N and r, every order equally likely; in "
        f"{num_controlled} of them the runtime's controller says the depth. In the simulation it is asked where no "
        "shard that others compute, too, can make room for the missing one."
    )
    yield (
        "The reading was chosen by its fit: how clocks run on, what one draw of jitter is, and what a failure during a "
        "restart does were decided after the authors' ten rows were seen. No constant is fitted to a row."
    )
    yield from _fit_words(fitted)
    if simulated.origin is not None:
        yield f"Simulated: {simulated.origin.command}, {simulated.origin.date}, {simulated.origin.machine}."
