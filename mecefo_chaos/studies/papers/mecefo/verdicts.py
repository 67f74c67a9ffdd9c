"""Whether the paper's drop of tokens/s holds in one cell: a verdict computed from a figure that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from mecefo_chaos.studies.papers.mecefo.claims import THROUGHPUT, Throughput
from mecefo_chaos.studies.papers.mecefo.emulated import with_events
from mecefo_chaos.studies.papers.mecefo.forecasted import Forecasted
from mecefo_chaos.studies.papers.mecefo.results import Result, Results
from mecefo_chaos.studies.papers.mecefo.setting import DEFAULT, METHODS, SPEED, Cell
from mecefo_chaos.studies.papers.rules import BETTER, MIN_RUNS, UNDECIDED, Measured, at_most, within
from mecefo_chaos.studies.papers.verdicts import Verdict

# Drops that are no further apart are the same.
TOLERANCE = 0.01
# What the figure of a verdict comes from.
Basis = Literal["emulated", "forecast"]


@dataclass(frozen=True, slots=True)
class Emulated:
    """All usable runs of one cell. `predicted` is the forecast for the same ranks lost, `seeds` of which runs.

    `event_seconds` is what a loss or a rejoin costs: `regroup_real_seconds` of it is software on this machine.
    """

    settled: Measured
    predicted: Measured
    with_events: Measured
    event_seconds: float
    regroup_real_seconds: float
    mean_down: float
    seeds: tuple[int, ...]
    has_twin: bool
    worst_overrun_ratio: float
    time_scale: float
    is_shipped: bool
    machine: str
    dates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One cell with all that is known of it. The verdict is computed from `figure`, which is of that `basis`."""

    cell: Cell
    paper: Throughput | None
    forecast: Forecasted | None
    emulated: Emulated | None
    figure: Measured | None
    basis: Basis | None
    verdict: Verdict
    reason: str


def emulated_of(cell: Cell, results: Results) -> Emulated | None:
    """Summary of the usable runs of `cell`, against its failure-free twin where that was run; None without any."""
    used = [one for (of, seed), one in results.items() if of == cell and seed is not None and one.run.is_usable]
    if not used:
        return None
    used.sort(key=lambda one: one.run.seed or 0)
    settled = [one.run.settled_drop_ratio(one.twin_step_seconds) for one in used]
    interval_seconds = cell.of_process.interval_hours * 3600
    pairs = zip(settled, used, strict=True)
    return Emulated(
        settled=_measured(settled),
        predicted=_measured([one.run.predicted_drop_ratio for one in used]),
        with_events=_measured([with_events(drop, one.run.event_seconds, interval_seconds) for drop, one in pairs]),
        event_seconds=median(one.run.event_seconds for one in used),
        regroup_real_seconds=median(one.run.regroup_real_seconds or 0.0 for one in used),
        mean_down=median(one.run.mean_down for one in used),
        seeds=tuple(one.run.seed for one in used if one.run.seed is not None),
        has_twin=all(one.twin_step_seconds is not None for one in used),
        worst_overrun_ratio=max(one.run.overrun_ratio or 0.0 for one in used),
        time_scale=used[0].run.time_scale,
        is_shipped=any(one.is_shipped for one in used),
        machine=used[0].machine,
        dates=_dates(used),
    )


def _measured(values: Sequence[float]) -> Measured:
    figure = Measured.of(values)
    assert figure is not None, "at least one run"
    return figure


def _dates(used: Sequence[Result]) -> tuple[str, ...]:
    return tuple(sorted({one.date for one in used}))


def row_of(cell: Cell, forecast: Forecasted | None, results: Results) -> Row:
    """One cell judged: by emulated runs where there are enough for a range, otherwise by the forecast."""
    system = METHODS[cell.method].claimed_by
    # The paper gives drops under `high` alone.
    paper = THROUGHPUT[system, cell.size] if system is not None and cell.process == "high" else None
    emulated = emulated_of(cell, results)
    figure, basis = _deciding(forecast, emulated)
    if paper is None:
        return Row(cell, paper, forecast, emulated, figure, basis, "no claim", "the paper gives no such figure")
    rule = drop_verdict if system == "MeCeFO" else model_verdict
    verdict = rule(figure, paper.drop_ratio)
    return Row(cell, paper, forecast, emulated, figure, basis, verdict, _reason(cell, figure, paper, verdict))


def _deciding(forecast: Forecasted | None, emulated: Emulated | None) -> tuple[Measured | None, Basis | None]:
    if emulated is not None and (emulated.with_events.has_range or forecast is None):
        return emulated.with_events, "emulated"
    return (None, None) if forecast is None else (forecast.drop, "forecast")


def drop_verdict(figure: Measured | None, claimed: float) -> Verdict:
    """Whether a drop is MeCeFO's: with its whole range at most `TOLERANCE` above; better where it is as far below."""
    verdict = at_most(figure, claimed + TOLERANCE)
    is_better = figure is not None and figure.greatest < claimed - TOLERANCE
    return BETTER if verdict == "reproduced" and is_better else verdict


def model_verdict(figure: Measured | None, claimed: float) -> Verdict:
    """Whether our model of another system drops as much as the paper says of that system, within `TOLERANCE`."""
    return within(figure, claimed - TOLERANCE, claimed + TOLERANCE)


def _reason(cell: Cell, figure: Measured | None, paper: Throughput, verdict: Verdict) -> str:
    if figure is None:
        return "neither forecast nor emulated"
    if not figure.has_range:
        return f"{figure.n} of {MIN_RUNS} runs"
    if verdict == UNDECIDED:
        return "only a part of the range agrees with the paper"
    if METHODS[cell.method].claimed_by != "MeCeFO":
        return "our model of that system's idea under a synchronous step, not the system"
    if verdict == "reproduced":
        return "the whole range is at most one point above the paper's"
    return _why(cell, is_less=verdict == BETTER)


def _why(cell: Cell, *, is_less: bool) -> str:
    """The difference between the models of the paper and of this runtime that explains a drop."""
    if cell.method in (DEFAULT, SPEED):
        if is_less:
            how = "projected" if cell.method == DEFAULT else "degraded"
            return f"layers are split anew over a replica's survivors and just enough of them {how}"
        if not cell.is_exposed:
            return "no layer is degraded, and at most half of the replicas project one"
        return "reductions of ranks that hold more layers take longer, and nothing hides them"
    if is_less:
        return "a slow last stage, with the head, and bubbles of few microbatches hide the neighbour's extra work"
    return "equal microbatches, so all replicas wait for the rank that does both"
