"""Claims other than drops of tokens/s, each with the figures and the rule of its verdict; and open questions.

Where the paper's setting is not known, a claim is judged in every setting that was tried: what it says of any setting
must hold in all of them (`every`); what it says of the paper's own is decided only where all agree (`in_one_setting`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mecefo_chaos.studies.papers.mecefo.claims import (
    GRADIENT_ERROR,
    PROCESSES,
    RESILIENCE,
    THROUGHPUT,
    perplexity_increase,
)
from mecefo_chaos.studies.papers.mecefo.fault_free import COMMAND as FAULT_FREE_COMMAND
from mecefo_chaos.studies.papers.mecefo.fault_free import FaultFree
from mecefo_chaos.studies.papers.mecefo.forecasts import Forecasts
from mecefo_chaos.studies.papers.mecefo.memory import Memory
from mecefo_chaos.studies.papers.mecefo.perplexity import POLICIES, Convergence
from mecefo_chaos.studies.papers.mecefo.setting import DEFAULT, METHODS, MICROBATCHES, SHAPES, SPEED, Cell
from mecefo_chaos.studies.papers.mecefo.verdicts import TOLERANCE
from mecefo_chaos.studies.papers.rules import (
    MIN_RUNS,
    NOT_CHECKED,
    Measured,
    always,
    at_least,
    at_most,
    every,
    figures_of,
    in_one_setting,
)
from mecefo_chaos.studies.papers.verdicts import Finding, Open, Verdict
from mecefo_chaos.studies.papers.views import measured_text

# The speed without failures, over plain training's, that counts as no overhead: the aim of the benchmark.
MIN_SPEED_RATIO = 0.98
# A smaller drop counts as this one: it cannot be distinguished from none, and ratios to it would have no meaning.
LEAST_DROP = 0.0005
_OTHERS: Mapping[str, tuple[str, float]] = {
    "bamboo-like": ("Bamboo", RESILIENCE[0]),
    "oobleck-like": ("Oobleck", RESILIENCE[1]),
}


def findings(
    memory: Sequence[Memory], convergence: Convergence, forecasts: Forecasts, fault_free: FaultFree
) -> tuple[Finding, ...]:
    """All of them; what is the default's comes first."""
    return (
        _of_overhead(fault_free),
        *(_of_resilience(method, other, forecasts) for method in (DEFAULT, SPEED) for other in _OTHERS),
        *_of_memory(memory),
        *(_of_perplexity(method, process, convergence) for method in POLICIES for process in PROCESSES),
        *(_of_gradients(method, convergence) for method in (DEFAULT, SPEED)),
        _of_the_letter(forecasts),
    )


def method_words(method: str) -> str:
    """The strategy with its quality, and whether it is the default."""
    quality = METHODS[method].quality if method in METHODS else None
    if quality is None:
        return method
    return f"{METHODS[method].strategy} with quality {quality}{', the default' if method == DEFAULT else ''}"


def _of_overhead(fault_free: FaultFree) -> Finding:
    cells = {row.shape: row.measured for row in fault_free.rows}
    verdict = every(at_least(one, MIN_SPEED_RATIO) for one in cells.values())
    reasons = {
        "reproduced": "it holds in every round",
        "not reproduced": "every round of one of these jobs was slower",
        NOT_CHECKED: f"`{FAULT_FREE_COMMAND} > FILE` measures it, and `--fault-free FILE` reads it",
    }
    why = (
        f"some rounds are below {MIN_SPEED_RATIO:g}, some above: the speed varies by more than the rule allows"
        if all(one.has_range for one in cells.values())
        else f"some jobs have fewer than {MIN_RUNS} rounds"
    )
    undecided = f"{why}; `{FAULT_FREE_COMMAND} > FILE` on a quiet machine, and `--fault-free FILE`, would decide it"
    return Finding(
        f"no overhead while nothing has failed: {method_words(DEFAULT)}",
        "none",
        "speed over plain PyTorch's, same samples and layout, without fault tolerance: "
        + ("; ".join(f"{name}: {measured_text(one, '.3f')}" for name, one in cells.items()) or "not measured"),
        verdict,
        f"{reasons.get(verdict, undecided)}; on CPUs, {fault_free.machine}, {fault_free.date or 'date not given'}",
        f"the speed is at least {MIN_SPEED_RATIO:g} of plain training's in every round of every job",
        figures_of(cells),
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    """One method's drop against another's in one setting."""

    cell: Cell
    ratio: Measured


def _compared(method: str, other: str, forecasts: Forecasts) -> list[_Compared]:
    found = []
    for shape in SHAPES:
        for number in MICROBATCHES:
            for is_exposed in (False, True):
                cell = Cell("7b", "high", shape, number, method, is_exposed)
                mine = forecasts.of(cell)
                theirs = forecasts.of(Cell("7b", "high", shape, number, other, is_exposed))
                if mine is not None and theirs is not None:
                    found.append(_Compared(cell, _ratio(theirs.drop, mine.drop)))
    return found


def _ratio(theirs: Measured, mine: Measured) -> Measured:
    """How many times greater, from the least of one over the greatest of the other to the opposite."""

    def over(one: float, other: float) -> float:
        return one / max(other, LEAST_DROP)

    return Measured(
        over(theirs.median, mine.median),
        over(theirs.least, mine.greatest),
        over(theirs.greatest, mine.least),
        min(theirs.n, mine.n),
    )


def _of_resilience(method: str, other: str, forecasts: Forecasts) -> Finding:
    system, factor = _OTHERS[other]
    compared = _compared(method, other, forecasts)
    verdicts = [at_least(one.ratio, factor) for one in compared]
    held = verdicts.count("reproduced")
    parts = []
    for words, is_exposed in (("hidden", False), ("exposed", True)):
        some = sorted((one for one in compared if one.cell.is_exposed == is_exposed), key=lambda one: one.ratio.median)
        if some:
            ends = dict.fromkeys((some[0], some[-1]))
            figures = " to ".join(f"{measured_text(one.ratio, '.1f')} at {_where(one.cell)}" for one in ends)
            parts.append(f"communication {words}: {figures}")
    return Finding(
        f"less drop than {system} at 7B under high: {method_words(method)}",
        f"{factor:.1f} times less",
        "times less, by forecasts: " + "; ".join(parts) if parts else "not forecast",
        every(verdicts),
        f"at least {factor:g} in {held} of {len(compared)} settings; {system} is our model of its idea in this "
        "runtime's synchronous step, not the system",
        f"{other} drops {factor:g} times as much in every setting, with the least of its forecasts over the greatest "
        f"of {METHODS[method].label}; a drop below {LEAST_DROP:.2%} counts as that",
        figures_of({one.cell.setting: one.ratio for one in compared}),
    )


def _where(cell: Cell) -> str:
    return f"{cell.shape} with {cell.num_microbatches} microbatches"


def _of_memory(memory: Sequence[Memory]) -> Iterator[Finding]:
    possible = [one for one in memory if one.is_possible]
    beyond = [one for one in possible if not one.fits("exact")]
    verdicts: list[Verdict] = ["not reproduced" if one.fits("exact") else "reproduced" for one in possible]
    yield Finding(
        "plain neighbour-do-both runs out of memory at 7B: exact",
        "out of memory",
        f"in {len(beyond)} of {len(possible)} settings: {_gigabytes('exact', possible)}"
        + "".join(
            f"; {shape} from {min(one.sequences_per_microbatch for one in mine)} sequences a microbatch"
            for shape in SHAPES
            if (mine := [one for one in beyond if one.shape == shape])
        ),
        in_one_setting(verdicts),
        "our notes do not give the paper's microbatch; computed from layouts and counted bytes, nothing was measured",
        "it needs more than the device has with every microbatch, after the worst single loss; not reproduced if with "
        "none",
        figures_of({"GB, exact": _memory_figure("exact", possible)}),
    )
    for method in (DEFAULT, "mecefo-paper", SPEED):
        num_fit = sum(one.fits(method) for one in possible)
        yield Finding(
            f"the job fits at 7B after a loss: {method_words(method)}",
            "fits with all three techniques",
            f"in {num_fit} of {len(possible)} settings: {_gigabytes(method, possible)}",
            always(num_fit, len(possible)),
            "computed from layouts and counted bytes, nothing was measured",
            "it fits with every microbatch with which the job runs at all, after the worst single loss",
            figures_of({f"GB, {METHODS[method].label}": _memory_figure(method, possible)}),
        )


def _memory_figure(method: str, possible: Sequence[Memory]) -> Measured | None:
    needed = (one.needed_bytes[method] for one in possible)
    return Measured.of(one / 1e9 for one in needed if one is not None)


def _gigabytes(method: str, possible: Sequence[Memory]) -> str:
    figure = _memory_figure(method, possible)
    capacity = "/".join(f"{one / 1e9:.0f}" for one in sorted({one.capacity_bytes for one in possible}))
    without = sum(one.needed_bytes[method] is None for one in possible)
    tail = f", no layout in {without}" if without else ""
    return f"{measured_text(figure, '.0f')} GB of {capacity}{tail}"


def _of_perplexity(method: str, process: str, convergence: Convergence) -> Finding:
    least, greatest = perplexity_increase(process)
    row = convergence.of(POLICIES[method], process)
    figure = None if row is None else row.measured
    return Finding(
        f"perplexity under {process} rises no more than in the paper, in a tiny model: {method_words(method)}",
        f"{least:+.2%} to {greatest:+.2%} (350M, 1B, 7B)",
        "not measured" if figure is None else measured_text(figure, "+z.1%"),
        at_most(figure, greatest),
        "`python -m benchmarks.convergence` measures it, and `--convergence FILE` reads it"
        if figure is None
        else f"{convergence.model}: 0.2 million parameters, below the critical batch size; not checked at the paper's "
        "scale",
        f"the rise is at most {greatest:.2%} with every seed",
        figures_of({POLICIES[method]: figure}),
    )


def _of_gradients(method: str, convergence: Convergence) -> Finding:
    rows = [row for process in PROCESSES if (row := convergence.of(POLICIES[method], process)) is not None]
    worst = {row.process: row.greatest_error_ratio for row in rows if row.greatest_error_ratio is not None}
    num_held = sum(error < GRADIENT_ERROR for error in worst.values())
    steps = [
        f"{row.process} {row.greatest_error_ratio:.2f} (median {row.median_error_ratio:.2f}, n {row.num_errors} steps)"
        for row in rows
        if row.greatest_error_ratio is not None and row.median_error_ratio is not None
    ]
    return Finding(
        f"the relative error of the gradient stays bounded, in a tiny model: {method_words(method)}",
        f"below {GRADIENT_ERROR} in the 1B run",
        f"greatest of any step: {', '.join(steps)}" if steps else "not measured",
        always(num_held, len(worst)),
        f"{convergence.model}, errors of every 50th step; 0.2 million parameters, not checked at the paper's scale"
        if steps
        else "`python -m benchmarks.convergence` measures it, and `--convergence FILE` reads it",
        f"no step's error reaches {GRADIENT_ERROR:g} under any of the processes",
        figures_of({"greatest error by process": Measured.of(worst.values())}),
    )


def _of_the_letter(forecasts: Forecasts) -> Finding:
    claimed = THROUGHPUT["MeCeFO", "7b"].drop_ratio
    figures: dict[Cell, Measured | None] = {}
    waiting: dict[Cell, float] = {}
    for shape in SHAPES:
        for number in MICROBATCHES:
            cell = Cell("7b", "high", shape, number, "mecefo-paper")
            if (averaged := forecasts.averaged_of(cell)) is not None:
                figures[cell] = averaged
                forecast = forecasts.of(cell)
                if forecast is not None:
                    waiting[cell] = forecast.settled_drop.median
    parts = [
        f"{measured_text(figure, '.1%')} at {_where(cell)}"
        + (f" (where they wait {waiting[cell]:.1%})" if cell in waiting else "")
        for cell, figure in figures.items()
    ]
    verdicts = [at_most(figure, claimed + TOLERANCE) for figure in figures.values()]
    return Finding(
        "the paper's drop follows from its letter if replicas do not wait for each other: mecefo-paper",
        f"{claimed:.2%}",
        "; ".join(parts) or "not forecast",
        in_one_setting(verdicts),
        f"no more than one point above in {verdicts.count('reproduced')} of {len(verdicts)} settings; our notes do not "
        "give the paper's number of microbatches; the rates of replicas are averaged, as no synchronous training runs",
        f"the drop is at most {claimed + TOLERANCE:.2%} with every number of microbatches; not reproduced if with none",
        figures_of({cell.setting: figure for cell, figure in figures.items()}),
    )


OPEN: tuple[Open, ...] = (
    Open(
        "the execution model of the paper's 4.18%: microbatches, overlap, and whether replicas wait for each other",
        "its full text, or its code; here both numbers of microbatches and hidden and exposed communication are shown",
    ),
    Open(
        "how fast an A100 computes exact and degraded layers: the tables are predicted from counted operations",
        "`chaos calibrate --out FILE` on one, and `chaos forecast` with that table as the cluster's device",
    ),
    Open(
        "what a regroup of 32 GPUs costs: here it is processes on two cores with gloo, on GPUs it forms NCCL groups",
        "one loss and one rejoin on 32 GPUs; the gates say up to how many seconds they hold",
    ),
    Open(
        "the speed of 8 ranks without dilation: on two cores they take turns, so a lost rank makes the others faster",
        "`chaos run kill-process --dilation off` on a machine with a core, or a GPU, for every rank",
    ),
    Open(
        "perplexity and the error of the gradient at the paper's scale: ours is a model of 0.2 million parameters",
        "the 350M run: 6,000 steps of 8,192 sequences, with and without failures",
    ),
    Open(
        "the drops of Bamboo and Oobleck: what is forecast is their idea under our step, on ideal links",
        "the systems themselves on the same cluster",
    ),
    Open("the convergence rate O(1/sqrt(nT))", "its proof; runs can only fail to contradict it"),
)
