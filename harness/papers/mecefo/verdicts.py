"""Whether a claim holds here, as a verdict and one sentence; and the gates, which decide the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.papers.mecefo.claims import THROUGHPUT, Throughput
from harness.papers.mecefo.emulated import with_events
from harness.papers.mecefo.forecasted import Forecasted
from harness.papers.mecefo.results import Result, Results
from harness.papers.mecefo.running import twin_of
from harness.papers.mecefo.setting import METHODS, MICROBATCHES, Cell
from harness.papers.verdicts import Verdict

# Drops that are no further apart are the same.
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a figure over the seeds."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Emulated:
    """All usable runs of one cell. `predicted` is the forecast for the same ranks lost, `seeds` of which runs.

    `event_seconds` is what a loss or a rejoin costs: `regroup_real_seconds` of it is software on this machine.
    """

    settled: Spread
    predicted: Spread
    with_events: Spread
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
    """One cell with all that is known of it."""

    cell: Cell
    paper: Throughput | None
    forecast: Forecasted | None
    emulated: Emulated | None
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Gate:
    """A figure that must not be above `limit`; `value` None: nothing was emulated that tells it."""

    name: str
    cells: tuple[Cell, ...]
    limit: float
    value: float | None
    num_seeds: int
    least_seeds: int
    reason: str

    @property
    def passed(self) -> bool | None:
        """None: it cannot be told yet."""
        if self.value is None or self.num_seeds < self.least_seeds:
            return None
        return self.value <= self.limit


def emulated_of(cell: Cell, results: Results) -> Emulated | None:
    """What the usable runs of `cell` come to, against its failure-free twin where that was run; None without any."""
    used = [one for (of, seed), one in results.items() if of == cell and seed is not None and one.run.is_usable]
    if not used:
        return None
    used.sort(key=lambda one: one.run.seed or 0)
    twin = results.get((twin_of(cell), None))
    free = twin.run.free_step_seconds if twin is not None and twin.run.is_usable else None
    settled = [one.run.settled_drop_ratio(free) for one in used]
    interval_seconds = cell.of_process.interval_hours * 3600
    pairs = zip(settled, used, strict=True)
    return Emulated(
        settled=Spread.of(settled),
        predicted=Spread.of([one.run.predicted_drop_ratio for one in used]),
        with_events=Spread.of([with_events(drop, one.run.event_seconds, interval_seconds) for drop, one in pairs]),
        event_seconds=median(one.run.event_seconds for one in used),
        regroup_real_seconds=median(one.run.regroup_real_seconds or 0.0 for one in used),
        mean_down=median(one.run.mean_down for one in used),
        seeds=tuple(one.run.seed for one in used if one.run.seed is not None),
        has_twin=free is not None,
        worst_overrun_ratio=max(one.run.overrun_ratio or 0.0 for one in used),
        time_scale=used[0].run.time_scale,
        is_shipped=any(one.is_shipped for one in used),
        machine=used[0].machine,
        dates=_dates(used),
    )


def _dates(used: Sequence[Result]) -> tuple[str, ...]:
    return tuple(sorted({one.date for one in used}))


def row_of(cell: Cell, forecast: Forecasted | None, results: Results) -> Row:
    """One cell judged: by what was emulated, and where nothing was, by the forecast."""
    system = METHODS[cell.method].claimed_by
    # The paper gives drops under `high` alone.
    paper = THROUGHPUT[system, cell.size] if system is not None and cell.process == "high" else None
    emulated = emulated_of(cell, results)
    verdict, reason = _judge(cell, paper, forecast, emulated)
    return Row(cell, paper, forecast, emulated, verdict, reason)


def _judge(
    cell: Cell, paper: Throughput | None, forecast: Forecasted | None, emulated: Emulated | None
) -> tuple[Verdict, str]:
    if paper is None:
        return "no claim", "the paper gives no such figure"
    if emulated is not None:
        value, by = emulated.with_events.median, f"emulated, {len(emulated.seeds)} seeds"
    elif forecast is not None:
        value, by = forecast.with_events[0], "forecast"
    else:
        return "cannot be decided here", "neither forecast nor emulated"
    apart = value - paper.drop_ratio
    if abs(apart) <= TOLERANCE:
        return "reproduced", f"{value:.1%} ({by}) against {paper.drop_ratio:.2%}"
    verdict: Verdict = "better than the paper" if apart < 0 else "not reproduced"
    return verdict, f"{value:.1%} ({by}) against {paper.drop_ratio:.2%}: {_why(cell, apart)}"


def _why(cell: Cell, apart: float) -> str:
    if cell.method in ("mecefo-speed", "mecefo"):
        if apart < 0:
            how = "degraded" if cell.method == "mecefo-speed" else "projected"
            return f"layers are split anew over a replica's survivors and just enough of them {how}"
        if not cell.is_exposed:
            return "nothing is degraded: this quality is the one that is soonest at the failure-free loss"
        return "reductions of ranks that hold more layers take longer, and nothing hides them"
    if cell.method == "mecefo-paper":
        if apart < 0:
            return "a slow last stage, with the head, and bubbles of few microbatches hide what a neighbour does more"
        return "equal microbatches, so all replicas wait for the rank that does both"
    return "our model of that system's idea, not the system" + ("" if apart < 0 else ", under a synchronous step")


_COMMUNICATION = {False: "communication hidden", True: "communication exposed"}
# (size, shape, limit before transfer and regroup, limit with them, seeds that it takes)
_TARGETS = (
    ("7b", "4x8", 0.005, 0.01, 5),
    ("7b", "8x4", 0.016, 0.025, 5),
    ("350m", "4x8", None, THROUGHPUT["MeCeFO", "350m"].drop_ratio, 1),
    ("1b", "4x8", None, THROUGHPUT["MeCeFO", "1b"].drop_ratio, 1),
)


def gates_of(rows: Sequence[Row]) -> tuple[Gate, ...]:
    """The targets for `mecefo` with `quality: speed` under `high`, by emulated runs alone.

    Of several numbers of microbatches the worst counts. They are set with communication hidden, as the planners' model
    of a step is; what exposed communication makes of the same figures stands in its own rows.
    """
    found = []
    for size, shape, settled_limit, limit, least_seeds in _TARGETS:
        cells = [Cell(size, "high", shape, number, "mecefo-speed") for number in MICROBATCHES]
        mine = [row for row in rows if row.cell in cells]
        emulated = [row.emulated for row in mine if row.emulated is not None]
        num_seeds = max((len(one.seeds) for one in emulated), default=0)
        name = f"{cells[0].of_size.words}, {shape}"
        for what, at_most, values in (
            ("before transfer and regroup", settled_limit, [one.settled.median for one in emulated]),
            ("with transfer and regroup", limit, [one.with_events.median for one in emulated]),
        ):
            if at_most is None:
                continue
            value = max(values, default=None)
            reason = _gate_reason(mine, what, at_most, num_seeds, least_seeds)
            found.append(Gate(f"{name}, {what}", tuple(cells), at_most, value, num_seeds, least_seeds, reason))
    return tuple(found)


def _gate_reason(rows: Sequence[Row], what: str, limit: float, num_seeds: int, least_seeds: int) -> str:
    parts = []
    numbers = [str(row.cell.num_microbatches) for row in rows if row.emulated is not None]
    if numbers:
        parts.append(f"emulated with {' and '.join(numbers)} microbatches a replica")
    if num_seeds < least_seeds:
        parts.append(f"{num_seeds} of {least_seeds} seeds were emulated: chaos paper mecefo --emulate runs the others")
    settled = [row.emulated.settled.median if row.emulated else row.forecast.settled[0] for row in rows if row.forecast]
    if "with" in what and settled:
        parts.append(f"holds up to {bearable_event_seconds(max(settled), limit, rows[0].cell):.1f} s for each event")
    forecasts = [row.forecast.settled[0] for row in rows if row.forecast is not None]
    if forecasts:
        parts.append(f"forecast before transfer and regroup: at most {max(forecasts):.2%}")
    return "; ".join(parts)


def bearable_event_seconds(settled_drop_ratio: float, limit: float, cell: Cell) -> float:
    """How long a loss, and a rejoin, may take for the drop to stay within `limit`."""
    interval_seconds = cell.of_process.interval_hours * 3600
    return max(0.0, (1 - (1 - limit) / (1 - settled_drop_ratio)) * interval_seconds / 2)
