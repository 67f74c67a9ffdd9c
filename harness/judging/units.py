"""The units of figures, and how values are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Unit = Literal["ratio", "seconds", "number", "token_rate", "rate"]
"""What a value is measured in: `token_rate` is tokens per second, `rate` tokens, samples or steps per second."""

SCALES: Mapping[Unit, Mapping[str, float]] = {
    "ratio": {"": 1.0, "%": 100.0},
    "seconds": {"": 1.0, "s": 1.0, "ms": 1000.0, "min": 1 / 60},
    "number": {"": 1.0},
    "token_rate": {"": 1.0, "tokens/s": 1.0},
    "rate": {"": 1.0, "tokens/s": 1.0, "samples/s": 1.0, "steps/s": 1.0},
}
"""By what is measured: the units that may be written behind a number, and how many of them the base unit is."""


def written(value: float, unit: Unit) -> str:
    """A value in base units as readable text."""
    match unit:
        case "ratio":
            return f"{value:.2%}"
        case "seconds":
            return f"{value:.3f} s"
        case _:
            return f"{value:.6g}"
