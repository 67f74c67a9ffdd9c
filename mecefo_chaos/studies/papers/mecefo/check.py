"""The whole check as one value: rows, gates, findings, memory, and what cannot be decided here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mecefo_chaos.studies.papers.mecefo.claims import NUM_RANKS, PAPER, PERPLEXITY, PROCESSES
from mecefo_chaos.studies.papers.mecefo.emulation import INTERVAL_STEPS
from mecefo_chaos.studies.papers.mecefo.fault_free import FaultFree
from mecefo_chaos.studies.papers.mecefo.findings import OPEN, findings
from mecefo_chaos.studies.papers.mecefo.forecasted import (
    HOURS,
    NUM_SEEDS,
    REGROUP_SECONDS,
    RESTART_SECONDS,
    RESTORE_SECONDS,
    SAVE_SECONDS,
)
from mecefo_chaos.studies.papers.mecefo.forecasts import Forecasts
from mecefo_chaos.studies.papers.mecefo.gates import Gate, gates_of
from mecefo_chaos.studies.papers.mecefo.memory import Memory, memory_of
from mecefo_chaos.studies.papers.mecefo.perplexity import Convergence
from mecefo_chaos.studies.papers.mecefo.results import Results
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, cells, device_of
from mecefo_chaos.studies.papers.mecefo.undilated import Undilated
from mecefo_chaos.studies.papers.mecefo.verdicts import Row, row_of
from mecefo_chaos.studies.papers.rules import MIN_RUNS
from mecefo_chaos.studies.papers.verdicts import Finding, exit_code_of


@dataclass(frozen=True, slots=True)
class Check:
    """Everything that is known of the paper's claims."""

    rows: tuple[Row, ...]
    gates: tuple[Gate, ...]
    findings: tuple[Finding, ...]
    memory: tuple[Memory, ...]
    convergence: Convergence
    fault_free: FaultFree
    undilated: Undilated
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0, 1 or 5: see `exit_code_of`."""
        return exit_code_of(gate.passed for gate in self.gates)

    def to_dict(self) -> dict[str, Any]:
        """One JSON document; ratios are of 1, seconds are the device's unless they are called real."""
        return {
            "paper": PAPER,
            "exit_code": self.exit_code,
            "methods": [
                {"name": m.name, "label": m.label, "strategy": m.strategy, "quality": m.quality, "words": m.words}
                for m in METHODS.values()
            ],
            "gates": [gate.to_dict() for gate in self.gates],
            "throughput": [_row_to_dict(row) for row in self.rows],
            "findings": [asdict(finding) for finding in self.findings],
            "memory": [{**asdict(one), "fits": {m: one.fits(m) for m in one.needed_bytes}} for one in self.memory],
            "perplexity": {"paper": {size: dict(of) for size, of in PERPLEXITY.items()}, **asdict(self.convergence)},
            "fault_free": asdict(self.fault_free),
            "undilated": asdict(self.undilated),
            "open": [asdict(one) for one in OPEN],
            "notes": list(self.notes),
        }


def _row_to_dict(row: Row) -> dict[str, Any]:
    method = METHODS[row.cell.method]
    return {"key": row.cell.key, "strategy": method.strategy, "quality": method.quality, **asdict(row)}


def check(
    results: Results, forecasts: Forecasts, convergence: Convergence, undilated: Undilated, fault_free: FaultFree
) -> Check:
    """Compare our results with the paper's claims."""
    rows = tuple(row_of(cell, forecasts.of(cell), results) for cell in cells())
    memory = memory_of("7b")
    return Check(
        rows=rows,
        gates=gates_of(rows),
        findings=findings(memory, convergence, forecasts, fault_free),
        memory=memory,
        convergence=convergence,
        fault_free=fault_free,
        undilated=undilated,
        notes=_notes(),
    )


def _notes() -> tuple[str, ...]:
    processes = ", ".join(
        f"{one.name}: one failure every {one.interval_hours:g} h, repaired after {one.repair_hours:g} h"
        for one in PROCESSES.values()
    )
    device = device_of(next(iter(cells())))
    return (
        f"{NUM_RANKS} ranks on 4 nodes; {processes}.",
        f"Device: {device.device}, {device.provenance} ({device.basis}). No figure here was measured on a GPU.",
        "Hidden: communication takes no time of its own. Exposed: stages wait for activations, and gradients (fp32) "
        "are reduced over 25 GB/s when the backward pass is over, which this runtime does.",
        f"Forecasts: the paper's own process for {HOURS:g} h, {NUM_SEEDS} seeds, {REGROUP_SECONDS:g} s assumed for a "
        f"regroup; state moves at 25 GB/s. Restart of all: {RESTART_SECONDS:g} s, a spare at once, {SAVE_SECONDS:g} s "
        f"for a checkpoint at the best interval, {RESTORE_SECONDS:g} s to read it.",
        "Emulated: real processes, deaths, regroups and commits of this runtime on 32 ranks, with the device's times. "
        f"The process is compressed to a failure in {INTERVAL_STEPS} steps, so settled steps come from the same "
        "layouts; what a loss or a rejoin costs is measured apart, and charged twice for each interval of the paper's.",
        f"A verdict on a drop is by emulated runs where there are at least {MIN_RUNS}, otherwise by the forecast, and "
        "says by which. Reproduced: the whole range is at most one point above the paper's drop; better: all of it is "
        "more than one point below; not reproduced: all of it is more than one point above. Our models of Bamboo and "
        "Oobleck are held against their drops in both directions, within one point.",
        "A drop below zero: layouts that re-partition are better balanced than the configured one, whose last stage "
        "has the head.",
        *(
            f"{method.name} is not emulated: {method.why_not_run}."
            for method in METHODS.values()
            if method.strategy is None
        ),
    )
