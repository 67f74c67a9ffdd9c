"""What the paper claims, each figure with its source: the abstract, or summaries of the text, which was not at hand.

`later` are summaries of its later versions (2024), which protect snapshots within a node and not among nodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PAPER = "arXiv 2310.12670"
Source = Literal["abstract", "summary", "later"]
SOURCE_WORDS: Mapping[Source, str] = {
    "abstract": "abstract",
    "summary": "a summary; the text was not at hand",
    "later": "a summary of later versions; the text was not at hand",
}
# Saving parameters, against the state of the art in asynchronous checkpointing.
SAVING_SPEEDUP = 14.0
# Loading, against NFS.
LOADING_SPEEDUP = 12.36
# Of a step's time, for copies within the node.
REDUNDANCY_OVERHEAD_RATIO = 0.01


@dataclass(frozen=True, slots=True)
class Failures:
    """How often a job fails, and who says so."""

    name: str
    mtbf_seconds: float
    source: str


FAILURES = (
    Failures("a failure every 3 h", 3 * 3600.0, "Llama 3 405B on 16,384 GPUs"),
    Failures("every 30 min", 1800.0, "MeCeFO's high frequency, on 32 GPUs"),
    Failures("every 5 min", 300.0, "SPARe's simulation of 600,000 GPUs"),
)
# Llama 3 405B: 419 unexpected interruptions in 54 days of 2,048 nodes with 8 GPUs each.
NODE_MTBF_SECONDS = 54 * 86400 * 2048 / 419
# Of failures at Los Alamos, this share follows another one within a minute (2 to 4%).
CORRELATED_RATIO, CORRELATED_SECONDS = 0.03, 60.0
# Weibull shape of SPARe's failures; below 1, a node that has lived for long is less likely to fail.
SHAPE = 0.78
# A checkpoint of 10 trillion parameters in SPARe's simulation.
CHECKPOINT_SECONDS = 60.0


def scale_seconds() -> float:
    """The scale of the lifetime of a node that fails once in `NODE_MTBF_SECONDS` on average, with `SHAPE`."""
    return NODE_MTBF_SECONDS / math.gamma(1 + 1 / SHAPE)
