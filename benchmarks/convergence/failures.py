"""The paper's failure processes, on a run's own clock: which ranks are alive in every step.

A run of any number of steps stands for the whole of the paper's 7B run, so that it sees as many failures as that run
would, each lasting the same share of it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

# arXiv 2510.16415, section 5: 7B, 60,000 steps of 1,024 sequences of 256 tokens, at 111.1k tokens/s without failures.
PAPER_RUN_HOURS = 60_000 * 1024 * 256 / 111_100 / 3600


@dataclass(frozen=True, slots=True)
class Process:
    """A rank somewhere in the cluster fails every `interval_hours` on average and is back after `repair_hours`.

    `paper_perplexity_ratios` are the paper's validation perplexities under this process over those without failures,
    by model.
    """

    interval_hours: float
    repair_hours: float
    paper_perplexity_ratios: Mapping[str, float]


def _ratios(perplexities: Mapping[str, float]) -> dict[str, float]:
    without_failures = {"350M": 18.74, "1B": 15.49, "7B": 14.92}
    return {model: perplexity / without_failures[model] for model, perplexity in perplexities.items()}


PROCESSES: Mapping[str, Process] = {
    "low": Process(2.0, 4.0, _ratios({"350M": 18.75, "1B": 15.51, "7B": 14.97})),
    "mid": Process(1.0, 3.0, _ratios({"350M": 18.88, "1B": 15.61, "7B": 15.04})),
    "high": Process(0.5, 2.0, _ratios({"350M": 19.04, "1B": 15.83, "7B": 15.16})),
}


def alive_by_step(process: Process | None, num_ranks: int, num_steps: int, seed: int) -> list[frozenset[int]]:
    """The living ranks of every step, from the first; all of them all the time where there is no process.

    Failures are a Poisson process from `seed`, each of a rank drawn from the living ones.
    """
    everyone = frozenset(range(num_ranks))
    if process is None:
        return [everyone] * num_steps
    generator = random.Random(f"failures/{seed}")
    hours_per_step = PAPER_RUN_HOURS / num_steps
    back_at: dict[int, float] = {}
    next_failure = generator.expovariate(1 / process.interval_hours)
    alive: list[frozenset[int]] = []
    for step in range(num_steps):
        now = step * hours_per_step
        while next_failure <= now:
            down = {rank for rank, back in back_at.items() if back > next_failure}
            if living := sorted(everyone - down):
                back_at[generator.choice(living)] = next_failure + process.repair_hours
            next_failure += generator.expovariate(1 / process.interval_hours)
        alive.append(everyone - {rank for rank, back in back_at.items() if back > now})
    return alive
