"""How long SPARe's controller takes after a loss: `python -m benchmarks.rectlr [--json] [--quick]`.

Groups are lost one after another, in random orders, until some shard type has no holder left. By what the controller
had to do each time: nothing but to see that all types are still covered (phase 0), or to find the smallest depth and
the order with the fewest moves (phases 1 and 2). SPARe's paper (arXiv 2603.00357) has under 100 ms at about a thousand
groups. CPU time: wall time would be that of whatever else runs here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import numpy as np

from benchmarks._machine import Machine, describe_machine
from benchmarks._runs import finish
from benchmarks._spread import Spread, spread, table
from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.stacks.rectlr import original_stacks, reorder

# (N groups, redundancy): near what the paper found best, and the one that the aim is for.
SIZES = ((200, 9), (600, 8), (1000, 9), (1000, 10))
AIM = (1000, 10)
AIM_SECONDS, PAPER_SECONDS = 0.005, 0.1
NUM_ORDERS, QUICK_NUM_ORDERS = 5, 1
COVERED, REORDERED = "covered already", "reordered"

Timings = Mapping[str, Sequence[float]]


def time_losses(num_groups: int, redundancy: int, num_orders: int) -> tuple[Timings, list[int]]:
    """CPU seconds of each call by what it had to do, and after how many losses each order ended in a wipe-out."""
    found: dict[str, list[float]] = {COVERED: [], REORDERED: []}
    endured = []
    for seed in range(num_orders):
        stacks, alive = original_stacks(Placement.of(num_groups, redundancy)), np.ones(num_groups, dtype=bool)
        for group in np.random.default_rng(seed).permutation(num_groups):
            alive[group] = False
            began = time.thread_time()
            after = reorder(stacks, alive)
            seconds = time.thread_time() - began
            if after is None:
                break
            is_same = after.orders is stacks.orders and after.depth == stacks.depth
            found[COVERED if is_same else REORDERED].append(seconds)
            stacks = after
        endured.append(int((~alive).sum()) - 1)
    return found, endured


def _name(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _all(timings: Timings) -> Spread:
    return spread(seconds for of_kind in timings.values() for seconds in of_kind)


def report(found: Mapping[tuple[int, int], tuple[Timings, Sequence[int]]], machine: Machine) -> str:
    """The result as text."""
    rows = []
    for (num_groups, redundancy), (timings, endured) in found.items():
        size = f"N={num_groups}, r={redundancy}"
        for kind, seconds in timings.items():
            rows.append((size, kind, *spread(seconds).to_text(_name)))
        rows.append((size, "all", *_all(timings).to_text(_name)))
        rows.append((size, "losses endured", *spread(endured).to_text(lambda number: f"{number:.0f}")))
    every = _all(found[AIM][0])
    words = f"aim at N={AIM[0]}, r={AIM[1]}: at most {1000 * AIM_SECONDS:g} ms"
    return "\n".join(
        [
            f"machine: {machine}",
            "",
            table(("groups and redundancy", "the controller", "median", "min", "max", "n"), rows),
            "",
            f"{words}: median {'met' if every.median <= AIM_SECONDS else 'NOT MET'}, "
            f"{sum(value <= AIM_SECONDS for value in every.values)} of {len(every.values)} calls; "
            "the paper: under 100 ms at about 1,000 groups",
        ]
    )


def to_document(found: Mapping[tuple[int, int], tuple[Timings, Sequence[int]]], machine: Machine) -> dict[str, Any]:
    """The result as plain JSON values."""
    return {
        "benchmark": "rectlr",
        "machine": machine.to_dict(),
        "aim_seconds": AIM_SECONDS,
        "paper_seconds": PAPER_SECONDS,
        "sizes": [
            {
                "num_groups": num_groups,
                "redundancy": redundancy,
                "losses_endured": list(endured),
                "cpu_seconds": {kind: spread(seconds).to_dict() for kind, seconds in timings.items() if seconds},
                "all_cpu_seconds": _all(timings).to_dict(),
            }
            for (num_groups, redundancy), (timings, endured) in found.items()
        ],
    }


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
@click.option("--quick", is_flag=True, help="One order of losses for each size.")
def main(as_json: bool, quick: bool) -> None:
    """Entry point."""
    found = {size: time_losses(*size, QUICK_NUM_ORDERS if quick else NUM_ORDERS) for size in SIZES}
    machine = describe_machine()
    finish(to_document(found, machine), report(found, machine), as_json=as_json, has_failures=False)


if __name__ == "__main__":
    main()
