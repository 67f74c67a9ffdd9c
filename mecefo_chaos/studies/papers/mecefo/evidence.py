"""What is forecast, emulated and measured about the paper's claims."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mecefo_chaos.studies.papers.mecefo.claims import PERPLEXITY
from mecefo_chaos.studies.papers.mecefo.fault_free import FaultFree
from mecefo_chaos.studies.papers.mecefo.forecasts import Forecasts
from mecefo_chaos.studies.papers.mecefo.gates import DropGate, gates_of
from mecefo_chaos.studies.papers.mecefo.memory import Memory, memory_of
from mecefo_chaos.studies.papers.mecefo.perplexity import Convergence
from mecefo_chaos.studies.papers.mecefo.results import Results
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, cells
from mecefo_chaos.studies.papers.mecefo.undilated import Undilated
from mecefo_chaos.studies.papers.mecefo.verdicts import Row, row_of


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the claims and tables are computed from, and the gates with their figures."""

    rows: tuple[Row, ...]
    gates: tuple[DropGate, ...]
    memory: tuple[Memory, ...]
    convergence: Convergence
    fault_free: FaultFree
    undilated: Undilated

    def figures(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return {
            "methods": [
                {"name": m.name, "label": m.label, "strategy": m.strategy, "quality": m.quality, "words": m.words}
                for m in METHODS.values()
            ],
            "throughput": [_row_values(row) for row in self.rows],
            "memory": [{**asdict(one), "fits": {m: one.fits(m) for m in one.needed_bytes}} for one in self.memory],
            "perplexity": {"paper": {size: dict(of) for size, of in PERPLEXITY.items()}, **asdict(self.convergence)},
            "fault_free": asdict(self.fault_free),
            "undilated": asdict(self.undilated),
        }


def _row_values(row: Row) -> dict[str, Any]:
    method = METHODS[row.cell.method]
    return {"key": row.cell.key, "strategy": method.strategy, "quality": method.quality, **asdict(row)}


def evidence_of(
    results: Results, forecasts: Forecasts, convergence: Convergence, undilated: Undilated, fault_free: FaultFree
) -> Evidence:
    """Put everything that is known of each cell beside the paper's figure."""
    rows = tuple(row_of(cell, forecasts.of(cell), results) for cell in cells())
    return Evidence(rows, gates_of(rows), memory_of("7b"), convergence, fault_free, undilated)
