"""The whole check as one value: odds, ladder, waste, weak points, claims, gates, and what cannot be decided here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from harness.live.working import Progress, no_progress
from mecefo_chaos.studies.papers.reft.claims import (
    CORRELATED_RATIO,
    CORRELATED_SECONDS,
    NODE_MTBF_SECONDS,
    PAPER,
    SHAPE,
)
from mecefo_chaos.studies.papers.reft.correlated import RackRow, StageRow, WindowRow, rack_rows, stage_rows, window_rows
from mecefo_chaos.studies.papers.reft.findings import OPEN, findings
from mecefo_chaos.studies.papers.reft.gates import gates_of
from mecefo_chaos.studies.papers.reft.odds import (
    NUM_DRAWS,
    Odds,
    SchemeRow,
    enumeration_difference,
    large_odds,
    scheme_rows,
    small_odds,
)
from mecefo_chaos.studies.papers.reft.real.measured import Measured
from mecefo_chaos.studies.papers.reft.real.rungs import RUNGS, WORDS, RungRun
from mecefo_chaos.studies.papers.reft.saving import Saving
from mecefo_chaos.studies.papers.reft.waste import WasteRow, waste_rows
from mecefo_chaos.studies.papers.verdicts import Finding, Gate, exit_code_of


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
class Check:
    """Everything that is known of the paper's claims."""

    seed: int
    odds: tuple[Odds, ...]
    schemes: tuple[SchemeRow, ...]
    rungs: tuple[RungRow, ...]
    of_nodes: tuple[RungRun, ...]
    waste: tuple[WasteRow, ...]
    racks: tuple[RackRow, ...]
    stages: tuple[StageRow, ...]
    windows: tuple[WindowRow, ...]
    gates: tuple[Gate, ...]
    findings: tuple[Finding, ...]
    measured: Measured
    saving: Saving | None
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0, 1 or 5: see `exit_code_of`."""
        return exit_code_of(gate.passed for gate in self.gates)

    def to_dict(self) -> dict[str, Any]:
        """One JSON document; ratios are of 1."""
        return {
            "paper": PAPER,
            "exit_code": self.exit_code,
            "seed": self.seed,
            "gates": [asdict(gate) for gate in self.gates],
            "survival": [_odds_to_dict(one) for one in self.odds],
            "schemes": [asdict(row) for row in self.schemes],
            "rungs": [asdict(row) for row in self.rungs],
            "eight_nodes": [asdict(run) for run in self.of_nodes],
            "waste": [asdict(row) for row in self.waste],
            "racks": [asdict(row) for row in self.racks],
            "stages": [asdict(row) for row in self.stages],
            "windows": [asdict(row) for row in self.windows],
            "findings": [asdict(finding) for finding in self.findings],
            "saving": None if self.saving is None else asdict(self.saving),
            "measured": asdict(self.measured),
            "open": [asdict(one) for one in OPEN],
            "notes": list(self.notes),
        }


def _odds_to_dict(odds: Odds) -> dict[str, Any]:
    samples = {
        name: None if one is None or not one.num_draws else {**asdict(one), "interval": list(one.interval)}
        for name, one in (("drawn", odds.drawn), ("lived", odds.lived))
    }
    return {**asdict(odds), **samples}


def check(
    measured: Measured,
    saving: Saving | None,
    seed: int,
    num_draws: int = NUM_DRAWS,
    progress: Progress = no_progress,
) -> Check:
    """Hold what was measured, and what `seed` draws so often, against the closed form and what the paper claims."""
    progress("losses among eight nodes", 0, 4)
    of_eight = small_odds(measured.draws, seed, num_draws)
    progress("losses among 64 nodes", 1, 4)
    odds = (*of_eight, *large_odds(seed, num_draws))
    progress("closed forms", 2, 4)
    schemes = scheme_rows()
    progress("weak points and verdicts", 3, 4)
    rungs = tuple(_rung_row(rung, measured.runs) for rung in RUNGS)
    seconds = {row.rung: row.recovery_seconds[0] for row in rungs if row.recovery_seconds is not None}
    return Check(
        seed=seed,
        odds=odds,
        schemes=schemes,
        rungs=rungs,
        of_nodes=tuple(run for run in measured.runs if run.rung not in RUNGS),
        waste=waste_rows(saving, seconds),
        racks=rack_rows(),
        stages=stage_rows(),
        windows=window_rows(),
        gates=gates_of(enumeration_difference(), odds, measured.draws, measured.runs),
        findings=findings(schemes, measured.draws, measured.runs, saving),
        measured=measured,
        saving=saving,
        notes=tuple(_notes(measured, saving)),
    )


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


def _notes(measured: Measured, saving: Saving | None) -> Iterator[str]:
    yield (
        "Closed form: nodes are lost independently, and nothing is repaired or encoded again meanwhile. A node "
        f"survives t with exp(-(t/eta)^c); here c = {SHAPE:g}."
    )
    yield (
        "Drawn: losses by chance, each put before the product's own groups, offers and choice of a version. Lived: "
        "eight nodes of real snapshot processes with real memory and sockets, some of them killed, and a restore, "
        "compared bit for bit. Intervals are of 95% (Wilson): one in twenty misses."
    )
    protected = [draw.protect_seconds for draw in measured.draws if draw.scheme != "none"]
    restored = [draw.restore_seconds for draw in measured.draws if draw.restore_seconds is not None]
    if protected and restored:
        yield (
            f"Each draw has {measured.draws[0].state_bytes / 2**20:.1f} MiB of state. From the first byte copied until "
            f"it was protected everywhere took {_seconds(protected)}, also among survivors; a restore "
            f"{_seconds(restored)}."
        )
    windows = [run.unprotected_seconds for run in measured.runs if run.unprotected_seconds is not None]
    if windows:
        yield (
            f"The window in the real runs, from the loss of a node until the newest version was protected again: "
            f"{_seconds(windows)}."
        )
    for what, origin in (("Real draws", measured.of_draws), ("Real runs", measured.of_runs)):
        if origin is not None:
            yield f"{what}: {origin.command}, {origin.date}, {origin.machine}."
    if saving is not None:
        yield f"Saving: {saving.command}, {saving.date}, {saving.machine}."
    yield (
        f"The window's odds: a node fails once in {NODE_MTBF_SECONDS / 86400:.0f} days (Llama 3 405B: 419 unexpected "
        f"interruptions of 2,048 nodes in 54 days); {CORRELATED_RATIO:.0%} of failures follow another one within "
        f"{CORRELATED_SECONDS:g} s (Los Alamos: 2 to 4%)."
    )
    yield ("Groups of 6 do not divide 64 nodes: the product forms four of 7 and six of 6, each of which bears two.")
    yield "Silent corruption is encoded as faithfully as anything else: no code between nodes tells."


def _seconds(values: Sequence[float]) -> str:
    return f"{median(values):.3f} s in the median ({min(values):.3f} to {max(values):.3f}, n {len(values)})"
