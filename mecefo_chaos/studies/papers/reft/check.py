"""The check of REFT (arXiv 2310.12670): closed forms, draws by chance and real losses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from harness.live.working import Progress, no_progress
from mecefo_chaos.studies.papers.check import Check, Paper
from mecefo_chaos.studies.papers.reft.claims import (
    CORRELATED_RATIO,
    CORRELATED_SECONDS,
    NODE_MTBF_SECONDS,
    PAPER,
    SHAPE,
)
from mecefo_chaos.studies.papers.reft.evidence import Evidence, evidence_of
from mecefo_chaos.studies.papers.reft.findings import OPEN, findings
from mecefo_chaos.studies.papers.reft.gates import gates_of
from mecefo_chaos.studies.papers.reft.odds import NUM_DRAWS, enumeration_difference
from mecefo_chaos.studies.papers.reft.plots import plots
from mecefo_chaos.studies.papers.reft.real.measured import Measured
from mecefo_chaos.studies.papers.reft.saving import Saving
from mecefo_chaos.studies.papers.reft.sections import sections

REFT = Paper(
    "REFT", PAPER, "how often the state in the nodes' memory survives, and what a loss costs", "Survival", OPEN
)


def check(
    measured: Measured,
    saving: Saving | None,
    seed: int,
    num_draws: int = NUM_DRAWS,
    progress: Progress = no_progress,
) -> Check[Evidence]:
    """Compare what was measured, and `num_draws` draws of `seed`, with the closed form and the paper's claims."""
    evidence = evidence_of(measured, saving, seed, num_draws, progress)
    return Check(
        REFT,
        evidence,
        gates=gates_of(enumeration_difference(), evidence.odds, measured.draws, measured.runs),
        findings=findings(evidence.schemes, measured.draws, measured.runs, saving),
        sections=sections(evidence),
        plots=lambda: plots(evidence.odds),
        figures=evidence.figures(),
        notes=tuple(_notes(measured, saving)),
    )


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
