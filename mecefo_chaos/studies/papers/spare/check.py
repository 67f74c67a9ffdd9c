"""The check of SPARe (arXiv 2603.00357): closed forms and simulated jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.live.working import Progress, no_progress
from mecefo_chaos.studies.papers.check import Check, Paper
from mecefo_chaos.studies.papers.spare.assumptions import Assumptions
from mecefo_chaos.studies.papers.spare.claims import PAPER
from mecefo_chaos.studies.papers.spare.endurance import NUM_CONTROLLED, NUM_DRAWS
from mecefo_chaos.studies.papers.spare.evidence import Evidence, evidence_of
from mecefo_chaos.studies.papers.spare.findings import OPEN, controller_seconds, findings
from mecefo_chaos.studies.papers.spare.gates import gates_of
from mecefo_chaos.studies.papers.spare.plots import plots
from mecefo_chaos.studies.papers.spare.sections import sections
from mecefo_chaos.studies.papers.spare.simulated import DEFAULT_READING, Simulated
from mecefo_chaos.studies.papers.spare.tables import Fit

SPARE = Paper(
    "SPARe", PAPER, "stacked shards against replication, by closed forms and by simulation", "Time to train", OPEN
)


def check(
    simulated: Simulated,
    seed: int,
    num_draws: int = NUM_DRAWS,
    num_controlled: int = NUM_CONTROLLED,
    progress: Progress = no_progress,
) -> Check[Evidence]:
    """Compare what was simulated, and `num_draws` draws of `seed`, with the closed forms and the paper's claims."""
    evidence = evidence_of(simulated, seed, num_draws, num_controlled, progress)
    return Check(
        SPARE,
        evidence,
        gates=gates_of(evidence.cases, evidence.rows),
        findings=findings(evidence.cases, evidence.rows, evidence.curve, evidence.sensitivities, controller_seconds()),
        sections=sections(evidence),
        plots=lambda: plots(evidence.curve, evidence.sensitivities),
        figures=evidence.figures(),
        notes=tuple(_notes(simulated, evidence.fits, num_draws, num_controlled)),
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
