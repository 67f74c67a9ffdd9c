"""The check of MeCeFO (arXiv 2510.16415): forecasts, and runs of the real runtime on an emulated device."""

from __future__ import annotations

from mecefo_chaos.studies.papers.check import Check, Paper
from mecefo_chaos.studies.papers.mecefo.claims import NUM_RANKS, PAPER, PROCESSES
from mecefo_chaos.studies.papers.mecefo.emulation import INTERVAL_STEPS
from mecefo_chaos.studies.papers.mecefo.evidence import Evidence, evidence_of
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
from mecefo_chaos.studies.papers.mecefo.gates import RULE
from mecefo_chaos.studies.papers.mecefo.perplexity import Convergence
from mecefo_chaos.studies.papers.mecefo.plots import plots
from mecefo_chaos.studies.papers.mecefo.results import Results
from mecefo_chaos.studies.papers.mecefo.sections import sections
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, cells, device_of
from mecefo_chaos.studies.papers.mecefo.undilated import Undilated
from mecefo_chaos.studies.papers.rules import MIN_RUNS

MECEFO = Paper(
    "MeCeFO",
    PAPER,
    "drop of tokens/s, perplexity and memory, as claimed and as found here",
    "Drop of tokens/s under high",
    OPEN,
)


def check(
    results: Results, forecasts: Forecasts, convergence: Convergence, undilated: Undilated, fault_free: FaultFree
) -> Check[Evidence]:
    """Compare our results with the paper's claims."""
    evidence = evidence_of(results, forecasts, convergence, undilated, fault_free)
    return Check(
        MECEFO,
        evidence,
        gates=tuple(one.gate for one in evidence.gates),
        findings=findings(evidence.memory, convergence, forecasts, fault_free),
        sections=sections(evidence),
        plots=lambda: plots(evidence.rows),
        figures=evidence.figures(),
        notes=_notes(evidence),
    )


def _notes(evidence: Evidence) -> tuple[str, ...]:
    processes = ", ".join(
        f"{one.name}: one failure every {one.interval_hours:g} h, repaired after {one.repair_hours:g} h"
        for one in PROCESSES.values()
    )
    device = device_of(next(iter(cells())))
    measured = (evidence.convergence, evidence.fault_free)
    sources = "; ".join(f"{one.command}, {one.date or 'date not given'}" for one in measured)
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
        f"A gate passes if {RULE}.",
        f"Perplexity, gradients and speed without failures: {sources}; perplexity and gradients of "
        f"{evidence.convergence.model}.",
        "A drop below zero: layouts that re-partition are better balanced than the configured one, whose last stage "
        "has the head.",
        *(
            f"{method.name} is not emulated: {method.why_not_run}."
            for method in METHODS.values()
            if method.strategy is None
        ),
    )
