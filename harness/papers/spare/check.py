"""The whole check as one value: closed forms, the authors' table, sensitivities, claims, gates, and what is open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from harness.live.working import Progress, no_progress
from harness.papers.spare.assumptions import Assumptions
from harness.papers.spare.claims import PAPER
from harness.papers.spare.endurance import NUM_CONTROLLED, NUM_DRAWS, Endurance, Errors, endurances, errors
from harness.papers.spare.findings import OPEN, findings
from harness.papers.spare.gates import gates_of
from harness.papers.spare.simulated import Simulated
from harness.papers.spare.tables import ClaimRow, CurvePoint, Sensitivity, claim_rows, curve, sensitivities
from harness.papers.verdicts import Finding, Gate, exit_code_of


@dataclass(frozen=True, slots=True)
class Check:
    """Everything that is known of the paper's claims."""

    seed: int
    cases: tuple[Endurance, ...]
    errors: tuple[Errors, ...]
    rows: tuple[ClaimRow, ...]
    curve: tuple[CurvePoint, ...]
    sensitivities: tuple[Sensitivity, ...]
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
            "table": [{**asdict(row), "error_ratios": list(row.error_ratios())} for row in self.rows],
            "by_redundancy": [asdict(point) for point in self.curve],
            "sensitivity": [{**asdict(one), "gain_ratio": one.gain_ratio} for one in self.sensitivities],
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
    off = errors(cases)
    rows, points, sensitive = claim_rows(simulated), curve(simulated), sensitivities(simulated)
    gates = gates_of(off, rows)
    return Check(
        seed=seed,
        cases=cases,
        errors=off,
        rows=rows,
        curve=points,
        sensitivities=sensitive,
        gates=gates,
        findings=findings(gates, rows, points, sensitive),
        simulated=simulated,
        notes=tuple(_notes(simulated, num_draws, num_controlled)),
    )


def _notes(simulated: Simulated, num_draws: int, num_controlled: int) -> Iterator[str]:
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
        "No constant is fitted to a row. Which of the readings of the paper is the default was chosen by what fits its "
        "rows best over all: how the clocks run on, and what is one draw of jitter."
    )
    if simulated.origin is not None:
        yield f"Simulated: {simulated.origin.command}, {simulated.origin.date}, {simulated.origin.machine}."
