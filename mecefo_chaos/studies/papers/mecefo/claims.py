"""The paper's claims, each figure with its source: the abstract, or a summary of the full text.

The techniques are in its section 3, convergence in section 4, as two readers' notes have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PAPER = "arXiv 2510.16415"
Source = Literal["abstract", "summary"]


@dataclass(frozen=True, slots=True)
class Process:
    """One failure every `interval_hours` somewhere in the cluster; each is repaired after `repair_hours`."""

    name: str
    interval_hours: float
    repair_hours: float

    @property
    def mean_down(self) -> float:
        """Devices that are down on average."""
        return self.repair_hours / self.interval_hours


PROCESSES: Mapping[str, Process] = {
    process.name: process for process in (Process("low", 2, 4), Process("mid", 1, 3), Process("high", 0.5, 2))
}


@dataclass(frozen=True, slots=True)
class Size:
    """A model as the paper trains it: `sequences` of 256 tokens a step, for `num_steps` steps."""

    name: str
    words: str
    sequences: int
    num_steps: int


SIZES: Mapping[str, Size] = {
    size.name: size
    for size in (
        Size("350m", "350M", 8192, 6_000),
        Size("1b", "1B", 4096, 20_000),
        Size("7b", "7B", 1024, 60_000),
    )
}
SEQUENCE_LENGTH = 256
NUM_RANKS, NODES = 32, 4


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens per second without failures and under `high`, and the drop from one to the other."""

    free_tokens_per_second: float
    high_tokens_per_second: float
    drop_ratio: float
    source: Source = "summary"


# By system and size.
THROUGHPUT: Mapping[tuple[str, str], Throughput] = {
    ("MeCeFO", "350m"): Throughput(1_199_000, 1_186_000, 0.0107),
    ("MeCeFO", "1b"): Throughput(471_000, 457_000, 0.0298),
    ("MeCeFO", "7b"): Throughput(111_100, 106_500, 0.0418, "abstract"),
    ("Bamboo", "350m"): Throughput(438_000, 407_000, 0.0704),
    ("Bamboo", "1b"): Throughput(154_000, 141_000, 0.0821),
    ("Bamboo", "7b"): Throughput(12_400, 9_800, 0.2084),
    ("Oobleck", "350m"): Throughput(704_000, 632_000, 0.1014),
    ("Oobleck", "1b"): Throughput(291_000, 251_000, 0.1387),
    ("Oobleck", "7b"): Throughput(67_000, 48_100, 0.2809),
}
# Less drop than Bamboo's and Oobleck's, so many times.
RESILIENCE = (5.0, 6.7)

# Validation perplexity without failures, and under low, mid and high.
PERPLEXITY: Mapping[str, Mapping[str, float]] = {
    "350m": {"none": 18.74, "low": 18.75, "mid": 18.88, "high": 19.04},
    "1b": {"none": 15.49, "low": 15.51, "mid": 15.61, "high": 15.83},
    "7b": {"none": 14.92, "low": 14.97, "mid": 15.04, "high": 15.16},
}
# Of the relative error of the approximate gradient, in the 1B run.
GRADIENT_ERROR = 0.6


def perplexity_increase(process: str) -> tuple[float, float]:
    """(Least, greatest) increase of the perplexity by the failures of `process`, over the three sizes."""
    increases = [of_size[process] / of_size["none"] - 1 for of_size in PERPLEXITY.values()]
    return min(increases), max(increases)
