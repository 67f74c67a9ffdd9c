"""Every table of the check, and the table of rows that a user names."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from harness.report.text_table import Table, laid_out
from mecefo_chaos.studies.papers.check import Section
from mecefo_chaos.studies.papers.rules import Measured
from mecefo_chaos.studies.papers.spare.claims import SIZES
from mecefo_chaos.studies.papers.spare.closed_forms import best_redundancy
from mecefo_chaos.studies.papers.spare.evidence import Evidence
from mecefo_chaos.studies.papers.spare.simulated import Row, row_words
from mecefo_chaos.studies.papers.spare.simulation import Outcome
from mecefo_chaos.studies.papers.spare.tables import Sensitivity
from mecefo_chaos.studies.papers.views import NOT_KNOWN, measured_text, spread_text


def sections(evidence: Evidence) -> tuple[Section, ...]:
    """Every table."""
    return (
        _table(evidence),
        _beyond(evidence),
        _fits(evidence),
        _sensitivity(evidence.sensitivities),
        _curve(evidence),
        _closed_forms(evidence),
    )


def rows_text(outcomes: dict[Row, tuple[Outcome, ...]], width: int = 80) -> str:
    """Rows that somebody asked for."""
    head = ("row", "time to train", "availability", "wipe-outs", "depth", "period, steps", "n")
    rows = [_outcome_cells(row, found) for row, found in outcomes.items()]
    return "\n".join(laid_out([Table(head, rows)], width))


def _outcome_cells(row: Row, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    num_over = sum(one.is_over for one in outcomes)
    never = f"{num_over} of {len(outcomes)} come to an end"
    return (
        row_words(row),
        spread_text(Measured.of(one.time_ratio for one in outcomes), ".3f") if num_over == len(outcomes) else never,
        spread_text(Measured.of(one.availability_ratio for one in outcomes), ".1%"),
        f"{sum(one.num_wipe_outs for one in outcomes) / len(outcomes):.0f}",
        f"{sum(one.mean_depth for one in outcomes) / len(outcomes):.2f}",
        f"{outcomes[0].period_steps}",
        f"{len(outcomes)}",
    )


def _table(evidence: Evidence) -> Section:
    return Section(
        "Time to train, of the time without failures",
        "median of the seeds (least to greatest); the authors' table, and the simulation under the default reading, "
        "which was chosen by its fit to these rows",
        ("scheme", "N", "r", "paper", "here", "apart", "availability", "here", "apart", "wipe-outs", "depth", "n"),
        tuple(
            (
                row.claim.scheme,
                f"{row.claim.num_groups}",
                f"{row.claim.redundancy}",
                f"{row.claim.time_ratio:.2f}",
                spread_text(row.time_ratio, ".2f"),
                _apart(row.time_error),
                NOT_KNOWN if row.claim.availability_ratio is None else f"{row.claim.availability_ratio:.1%}",
                spread_text(row.availability_ratio, ".1%"),
                _apart(row.availability_error),
                spread_text(row.num_wipe_outs, ".0f"),
                NOT_KNOWN if row.mean_depth is None else f"{row.mean_depth:.2f}",
                f"{row.num_seeds}",
            )
            for row in evidence.rows
        ),
        begins=(6, 9),
    )


def _sensitivity(sensitive: Sequence[Sensitivity]) -> Section:
    by_assumed: dict[str, list[str]] = {}
    for one in sensitive:
        by_assumed.setdefault(one.assumed, []).extend(
            (_median(one.spare_times), _median(one.replication_times), _gain(one.gain_ratio))
        )
    return Section(
        "What hangs on each assumption",
        "median time to train with the paper's best redundancies, and how much less SPARe takes; -: it comes to no end",
        ("assumed otherwise", *(word for size in SIZES for word in (f"SPARe, N={size}", "replication", "less"))),
        tuple((assumed or "nothing: the default", *cells) for assumed, cells in by_assumed.items()),
        begins=(1, 4, 7),
    )


def _curve(evidence: Evidence) -> Section:
    by_redundancy: dict[int, dict[tuple[str, int], str]] = {}
    for point in evidence.curve:
        cell = f"{point.time_ratio:.2f} | {point.availability_ratio:.1%}"
        by_redundancy.setdefault(point.redundancy, {})[point.scheme, point.num_groups] = cell
    columns = [(scheme, size) for scheme in ("spare", "replication") for size in SIZES]
    return Section(
        "By redundancy",
        "median time to train | availability, under the default reading",
        ("r", *(f"{scheme}, N={size}" for scheme, size in columns)),
        tuple(
            (f"{redundancy}", *(cells.get(column, NOT_KNOWN) for column in columns))
            for redundancy, cells in sorted(by_redundancy.items())
        ),
    )


def _closed_forms(evidence: Evidence) -> Section:
    return Section(
        "Closed forms against orders of failures drawn by chance",
        "absolute errors, the mean over all redundancies that fit, and the worst",
        ("N", "redundancies", "failures endured", "worst", "mean depth", "worst", "best redundancy"),
        tuple(
            (
                f"{one.num_groups}",
                f"2 to {one.num_cases + 1}",
                f"{one.endured_ratio:.2%}",
                f"{one.worst_endured.error_ratio:+.1%} at r={one.worst_endured.redundancy}",
                f"{one.depth_ratio:.2%}",
                f"{one.worst_depth.depth_error_ratio:+.1%} at r={one.worst_depth.redundancy}",
                f"{best_redundancy(one.num_groups)}",
            )
            for one in evidence.errors
        ),
    )


def _beyond(evidence: Evidence) -> Section:
    return Section(
        "Beyond the limit",
        "every cell that is farther away than its limit, in its median or in a seed; what is drawn is the mean over "
        "all orders, what is simulated a median (least to greatest, n)",
        ("figure", "cell", "apart", "limit"),
        tuple((one.claim, one.cell, _beyond_text(one.error), f"{one.limit:.2%}") for one in evidence.beyond),
        left=(0, 1),
    )


def _beyond_text(error: Measured) -> str:
    return f"{error.median:+.1%}" if error.n == 1 else measured_text(error, "+.1%")


def _fits(evidence: Evidence) -> Section:
    return Section(
        "How each reading fits the authors' rows",
        "the rows with an availability; absolute distance of our median from theirs",
        ("assumed otherwise", "times", "worst", "availabilities", "worst", "both"),
        tuple(
            (
                one.assumed or "nothing: the default",
                f"{one.mean_time_error:.2%}",
                f"{one.worst_time_error:+.1%}",
                f"{one.mean_availability_error:.2%}",
                f"{one.worst_availability_error:+.1%}",
                f"{one.mean_error:.2%}",
            )
            for one in evidence.fits
        ),
    )


def _apart(error: Measured | None) -> str:
    return NOT_KNOWN if error is None else f"{error.median:+.1%}"


def _median(values: Sequence[float]) -> str:
    return f"{median(values):.2f}" if values else NOT_KNOWN


def _gain(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.1%}"
