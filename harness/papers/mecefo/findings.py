"""Claims other than drops of tokens/s: memory, perplexity, resilience, failure-free speed; and open questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.papers.mecefo.claims import GRADIENT_ERROR, PROCESSES, RESILIENCE
from harness.papers.mecefo.forecasts import Forecasts
from harness.papers.mecefo.memory import Memory
from harness.papers.mecefo.perplexity import Convergence
from harness.papers.mecefo.setting import MICROBATCHES, SHAPES, Cell
from harness.papers.mecefo.verdicts import Row
from harness.papers.verdicts import Finding, Open


def findings(
    rows: Sequence[Row], memory: Sequence[Memory], convergence: Convergence, forecasts: Forecasts
) -> tuple[Finding, ...]:
    """All of them."""
    return (
        *_of_memory(memory),
        *_of_perplexity(convergence),
        *_of_resilience(rows),
        *_of_the_letter(forecasts),
        Finding(
            "no overhead while nothing has failed",
            "none",
            "none",
            "reproduced",
            "with all ranks alive every strategy has the configured layout, with no layer degraded",
        ),
    )


def _of_memory(memory: Sequence[Memory]) -> Iterator[Finding]:
    possible = [one for one in memory if one.is_possible]
    beyond = [one for one in possible if not one.fits("exact")]
    some = ", ".join(
        f"{shape}: from {min(one.sequences_per_microbatch for one in mine)} sequences a microbatch"
        for shape in SHAPES
        if (mine := [one for one in beyond if one.shape == shape])
    )
    yield Finding(
        "plain neighbour-do-both runs out of memory at 7B",
        "out of memory",
        some or "fits at every microbatch",
        "reproduced" if beyond else "not reproduced",
        "state and activations on 80 GB; the paper's microbatch is not in our notes, with smaller ones it fits",
    )
    for method, words in (
        ("mecefo-paper", "all three techniques fit at 7B"),
        ("mecefo", "mecefo, quality: speed, fits at 7B"),
    ):
        misses = [one for one in possible if not one.fits(method)]
        most = max((one.needed_bytes[method] or 0 for one in possible), default=0) / 1e9
        yield Finding(
            words,
            "fits" if method == "mecefo-paper" else "-",
            f"at most {most:.0f} GB" if not misses else f"{len(misses)} of {len(possible)} microbatches do not fit",
            "not reproduced" if misses else "reproduced" if method == "mecefo-paper" else "no claim",
            "after the worst single loss, at every microbatch at which the job runs at all",
        )


def _of_perplexity(convergence: Convergence) -> Iterator[Finding]:
    for policy, words in (("mecefo", "mecefo, quality: speed"), ("ndb", "ndb")):
        for process in PROCESSES:
            row = convergence.of(policy, process)
            if row is None:
                continue
            least, greatest = row.paper
            yield Finding(
                f"perplexity under {process}, {words}",
                f"{least:+.2%} to {greatest:+.2%}",
                f"{row.median_ratio:+.1%} ({row.least_ratio:+.1%} to {row.greatest_ratio:+.1%}, n {row.num_seeds})",
                "cannot be decided here",
                f"{convergence.model}: far below the critical batch size, where every sample counts",
            )
    yield Finding(
        "relative error of the gradient",
        f"below {GRADIENT_ERROR} in the 1B run",
        "docs/explanation/convergence.md",
        "cannot be decided here",
        "of llama-tiny, medians are below it and single steps above",
    )


def _of_resilience(rows: Sequence[Row]) -> Iterator[Finding]:
    by_cell = {row.cell: row for row in rows}
    found = []
    for shape in SHAPES:
        for number in MICROBATCHES:
            drops = {}
            for method in ("mecefo-speed", "bamboo-like", "oobleck-like"):
                row = by_cell.get(Cell("7b", "high", shape, number, method))
                if row is not None and row.forecast is not None:
                    drops[method] = row.forecast.with_events[0]
            if len(drops) == 3 and drops["mecefo-speed"] > 0:
                others = (drops["bamboo-like"], drops["oobleck-like"])
                found += [other / drops["mecefo-speed"] for other in others]
    if found:
        low, high = RESILIENCE
        yield Finding(
            "less drop than Bamboo and Oobleck at 7B, high",
            f"{low:g}x to {high:g}x",
            f"{min(found):.1f}x to {max(found):.1f}x (forecast, mecefo against our models of them)",
            "better than the paper" if min(found) > high else "reproduced" if max(found) >= low else "not reproduced",
            "their ideas in our runtime's synchronous step, not the systems",
        )


def _of_the_letter(forecasts: Forecasts) -> Iterator[Finding]:
    told = []
    for shape in SHAPES:
        for number in MICROBATCHES:
            cell = Cell("7b", "high", shape, number, "mecefo-paper")
            forecast, averaged = forecasts.of(cell), forecasts.averaged_of(cell)
            if forecast is not None and averaged is not None:
                told.append(f"{shape} m{number}: {averaged:.1%} instead of {forecast.settled[0]:.1%}")
    if told:
        yield Finding(
            "the paper to the letter, if replicas did not wait for each other",
            "4.18%",
            "; ".join(told),
            "cannot be decided here",
            "each replica at its own rate, and the rates averaged, as no synchronous training runs: it takes that, or "
            "much idle time, to come to the paper's figure, which is below what its operations allow",
        )


OPEN: tuple[Open, ...] = (
    Open(
        "the execution model of the paper's 4.18%: microbatches, overlap, and whether replicas wait for each other",
        "its full text, or its code; both numbers of microbatches, and hidden and exposed communication, are told here",
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
        "perplexity at the paper's scale: ours is a model of 0.2 million parameters",
        "the 350M run: 6,000 steps of 8,192 sequences, with and without failures",
    ),
    Open(
        "the drops of Bamboo and Oobleck: what is forecast is their idea under our step, on ideal links",
        "the systems themselves on the same cluster",
    ),
    Open("the convergence rate O(1/sqrt(nT))", "its proof; runs can only fail to contradict it"),
)
