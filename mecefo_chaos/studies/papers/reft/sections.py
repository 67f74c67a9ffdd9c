"""Every table of the check."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis.words import name_seconds
from mecefo_chaos.studies.papers.check import Section
from mecefo_chaos.studies.papers.reft.claims import NODE_MTBF_SECONDS, scale_seconds
from mecefo_chaos.studies.papers.reft.correlated import SHAPES, WINDOWS_SECONDS
from mecefo_chaos.studies.papers.reft.evidence import Evidence
from mecefo_chaos.studies.papers.reft.odds import LARGE, TIME_RATIOS, Odds
from mecefo_chaos.studies.papers.reft.real.draws import TIME_RATIO
from mecefo_chaos.studies.papers.reft.real.rungs import RungRun
from mecefo_chaos.studies.papers.reft.sampling import Sample
from mecefo_chaos.studies.papers.reft.saving import BUDGET_RATIO
from mecefo_chaos.studies.papers.reft.schemes import IN_NODE, MOST_LOST, NUM_NODES
from mecefo_chaos.studies.papers.rules import Measured
from mecefo_chaos.studies.papers.views import NOT_KNOWN, measured_text, spread_text


def sections(evidence: Evidence) -> tuple[Section, ...]:
    """Every table."""
    return (
        _schemes(evidence),
        _small(evidence),
        _large(evidence),
        _rungs(evidence),
        _nodes(evidence),
        *_weak(evidence),
        *_saving(evidence),
        _waste(evidence),
    )


def _schemes(evidence: Evidence) -> Section:
    return Section(
        "Survival of k nodes lost at once, closed form",
        "99% until: so long the state survives with 99%, though nothing is repaired; in hours for nodes that fail once "
        f"in {NODE_MTBF_SECONDS / 86400:.0f} days",
        ("nodes", "scheme", "extra memory", *(f"k={k}" for k in range(1, MOST_LOST + 1)), "99% until"),
        tuple(
            (
                f"{row.num_nodes}",
                row.scheme,
                NOT_KNOWN if row.scheme == IN_NODE.name else f"{row.parity_ratio:.0%}",
                *(_probability(value) for value in row.by_num_lost),
                f"{row.time_ratio:.2g} eta, {row.time_ratio * scale_seconds() / 3600:.2g} h",
            )
            for row in evidence.schemes
        ),
        left=(1,),
    )


def _small(evidence: Evidence) -> Section:
    return Section(
        f"Survival on {NUM_NODES} nodes",
        "groups of four; closed form, losses drawn through the product's code, and real processes that were killed",
        ("scheme", "lost", "closed form", "drawn", "95%", "lived", "95%", "n"),
        tuple(
            (
                one.scheme,
                _lost(one),
                _probability(one.closed),
                *_sampled(one.drawn),
                *_sampled(one.lived),
                f"{one.lived.num_draws}" if one.lived is not None else "0",
            )
            for one in evidence.odds
            if one.num_nodes == NUM_NODES
        ),
        left=(0, 1),
    )


def _large(evidence: Evidence) -> Section:
    wanted: list[tuple[int | None, float | None]] = [(k, None) for k in range(1, MOST_LOST + 1)]
    wanted += [(None, ratio) for ratio in TIME_RATIOS]
    mine = [one for one in evidence.odds if one.num_nodes == LARGE]
    by_scheme = {one.scheme: {(o.num_lost, o.time_ratio): o for o in mine if o.scheme == one.scheme} for one in mine}
    num_draws = next((one.drawn.num_draws for one in mine if one.drawn is not None), 0)
    return Section(
        f"Survival on {LARGE} nodes, drawn through the product's code",
        f"closed form | the 95% interval of {num_draws} draws; at the right by lifetimes, without repair",
        ("scheme", *(f"k={k}" for k in range(1, MOST_LOST + 1)), *(f"t={ratio:g} eta" for ratio in TIME_RATIOS)),
        tuple((scheme, *(_both(of[key]) for key in wanted)) for scheme, of in by_scheme.items()),
    )


def _both(odds: Odds) -> str:
    if odds.drawn is None:
        return _probability(odds.closed)
    low, high = odds.drawn.interval
    return f"{_probability(odds.closed)} | {low:.2f}-{high:.2f}"


def _saving(evidence: Evidence) -> Iterator[Section]:
    if evidence.saving is None:
        return
    yield Section(
        "Saving",
        f"{evidence.saving.state_bytes / 2**20:.0f} MiB of state on four replicas; median (least to greatest); the "
        f"interval is how often one can save if training may be stopped for {BUDGET_RATIO:.0%} of the time",
        ("way to save", "MiB a rank", "stopped, ms", "safe after, ms", "interval, s"),
        tuple(
            (
                name,
                f"{way.bytes_per_rank / 2**20:.0f}",
                measured_text(way.stopped, ".1f", 1000),
                measured_text(way.total, ".0f", 1000),
                measured_text(way.least_interval, ".2f"),
            )
            for name, way in evidence.saving.methods.items()
        ),
    )


def _rungs(evidence: Evidence) -> Section:
    return Section(
        "The ladder, in real runs",
        "median (least to greatest) of small jobs, with a snapshot after every step and a checkpoint after every 10",
        ("served by", "what is lost", "steps lost", "s to the next step", "s for state", "served", "runs"),
        tuple(
            (
                row.rung,
                row.words,
                _spread(row.steps_lost, "g"),
                _spread(row.recovery_seconds, ".2f"),
                _spread(row.state_seconds, ".3f"),
                f"{row.num_served}",
                f"{row.num_runs}",
            )
            for row in evidence.rungs
        ),
        left=(0, 1),
    )


def _nodes(evidence: Evidence) -> Section:
    return Section(
        "Real runs of eight nodes, some of them lost at once",
        "two replicas of four stages, no checkpoint: a stage's layers are on two nodes",
        ("protection", "nodes lost", "expected", "served by", "steps lost", "s to the next step"),
        tuple(_node_cells(run) for run in evidence.of_nodes),
        left=(0, 1, 2, 3),
    )


def _node_cells(run: RungRun) -> tuple[str, ...]:
    return (
        run.rung.rpartition(" ")[2],
        ", ".join(map(str, run.lost)),
        run.expected,
        run.served or "nobody",
        NOT_KNOWN if run.steps_lost is None else f"{run.steps_lost}",
        NOT_KNOWN if run.recovery_seconds is None else f"{run.recovery_seconds:.2f}",
    )


def _weak(evidence: Evidence) -> Iterator[Section]:
    sizes = tuple(dict.fromkeys(row.nodes_per_rack for row in evidence.racks))
    by_scheme: dict[str, dict[int, str]] = {}
    for row in evidence.racks:
        cell = f"{row.spread_ratio:.0%} | {row.adjacent_ratio:.0%}"
        by_scheme.setdefault(row.scheme, {})[row.nodes_per_rack] = cell
    yield Section(
        f"Weak point: a rack lost at once, of {LARGE} nodes",
        "racks that can be borne: groups spread over racks, as the product forms them | groups of adjacent nodes",
        ("scheme", *(f"racks of {size}" for size in sizes)),
        tuple((scheme, *(of[size] for size in sizes)) for scheme, of in by_scheme.items()),
    )
    of_stages: dict[str, list[str]] = {}
    for one in evidence.stages:
        of_stages.setdefault(one.scheme, []).append(f"{one.borne_ratio:.0%}")
    yield Section(
        f"Weak point: all nodes that hold a stage lost at once, of {LARGE}",
        "stages that can be borne: with fewer losses peers have the state; groups keep them apart where they can",
        ("scheme", *(f"{ranks} x {LARGE} ranks, D={replicas}" for ranks, replicas in SHAPES)),
        tuple((scheme, *cells) for scheme, cells in of_stages.items()),
    )
    yield Section(
        f"Weak point: the window between a loss and encoding again, of {LARGE} nodes",
        "probability, for each node lost, that the state in memory is lost before the window closes",
        (
            "scheme",
            *(f"{name_seconds(seconds)}, independent" for seconds in WINDOWS_SECONDS),
            "any node follows",
            "one of its rack follows",
        ),
        tuple(
            (
                row.scheme,
                *(_small_probability(value) for value in row.by_seconds),
                _small_probability(row.by_follower),
                _small_probability(row.by_rack_mate),
            )
            for row in evidence.windows
        ),
    )


def _waste(evidence: Evidence) -> Section:
    return Section(
        "Waste at the best interval (Young)",
        "for each failure stopped time, half the interval and the retrieval; of all time with the saves themselves. "
        "Saves as measured above; the time to the next step is that of the small jobs above, and 0 for what is claimed",
        ("way to save", "time of a save from", "failures", "a save, s", "interval, s", "a failure, s", "waste"),
        tuple(
            (
                row.way,
                row.basis,
                row.failures,
                f"{row.save_seconds:.3g}",
                f"{row.interval_seconds:.3g}",
                f"{row.per_failure_seconds:.3g}",
                f"{row.waste_ratio:.2%}",
            )
            for row in evidence.waste
        ),
        left=(0, 1, 2),
    )


def _lost(odds: Odds) -> str:
    return f"k={odds.num_lost}" if odds.num_lost is not None else f"after {TIME_RATIO:g} eta"


def _probability(value: float) -> str:
    if value in (0, 1):
        return f"{value:g}"
    # What is not certain does not look so.
    return "< 0.001" if value < 0.0005 else "> 0.999" if value >= 0.9995 else f"{value:.3f}"


def _small_probability(value: float) -> str:
    return "0" if value == 0 else "below 1e-9" if value < 1e-9 else f"{value:.1e}"


def _sampled(sample: Sample | None) -> tuple[str, str]:
    if sample is None or not sample.num_draws:
        return NOT_KNOWN, NOT_KNOWN
    low, high = sample.interval
    return f"{sample.ratio:.3f}", f"{low:.2f} to {high:.2f}"


def _spread(spread: tuple[float, float, float] | None, form: str) -> str:
    return NOT_KNOWN if spread is None else spread_text(Measured(*spread, 1), form)
