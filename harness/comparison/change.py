"""Better, worse, or within the noise: two samples of a figure, and the noise band between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, ClassVar, Literal

from harness.comparison.figures import NOISE
from harness.comparison.sample import Sample
from harness.judging.metrics import METRICS, Metric
from mecefo_runtime.system.json_values import NOT_WRITTEN, called

Word = Literal["better", "worse", "within noise", "cannot tell", "no data"]
DEFAULT_TOLERANCE_RATIO = 0.05

# Fewer say next to nothing: a single run beside two.
_LEAST_DEGREES = 2
# Student's t, 99th percentile, for 2 to 30 degrees of freedom: of samples that are the same, a figure is taken for
# worse in one comparison of a hundred.
_T_99 = (
    *(6.965, 4.541, 3.747, 3.365, 3.143, 2.998, 2.896, 2.821, 2.764),
    *(2.718, 2.681, 2.650, 2.624, 2.602, 2.583, 2.567, 2.552, 2.539, 2.528),
    *(2.518, 2.508, 2.500, 2.492, 2.485, 2.479, 2.473, 2.467, 2.462, 2.457),
)
# A median of normal values varies by up to this much more than their mean: the square root of pi / 2, for many.
_MEDIAN_OF_MEAN = math.sqrt(math.pi / 2)


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of a sample (`now`, its median) beside that of its reference.

    `band` is what the medians of samples like these differ by without anything having changed, in the figure's unit;
    None where nothing tells. `is_deciding`: it counts for the exit code. `why` explains a word that is no judgement.
    """

    ALSO_WRITTEN: ClassVar[Mapping[str, str]] = {
        "figure": "name",
        "difference": "difference",
        "better": "better",
        "reference": "base",
        "reference_n": "num_base",
    }

    figure: Metric = field(metadata=NOT_WRITTEN)
    now: float | None
    base: float | None = field(metadata=called("baseline"))
    num_now: int = field(metadata=called("n"))
    num_base: int = field(metadata=called("baseline_n"))
    band: float | None
    word: Word
    is_deciding: bool = field(metadata=called("decides"))
    why: str = ""

    @property
    def name(self) -> str:
        """The name of the figure."""
        return self.figure.name

    @property
    def better(self) -> str | None:
        """Which direction is better, `higher` or `lower`; None: neither."""
        return self.figure.better

    @property
    def difference(self) -> float | None:
        """Now less the reference."""
        return None if self.now is None or self.base is None else self.now - self.base

    @property
    def may_be_worse(self) -> bool:
        """Whether it went the wrong way, and nothing tells that this is not chance."""
        went_up = (self.difference or 0.0) > 0
        return self.word == "cannot tell" and went_up == (self.figure.better == "lower")


def compare(
    now: Sample, base: Sample, deciding: Sequence[str], tolerance_ratio: float = DEFAULT_TOLERANCE_RATIO
) -> list[Change]:
    """Every figure of `now` beside that of `base`, the deciding ones first, in their order."""
    names = [*dict.fromkeys(deciding), *(name for name in METRICS if name not in deciding)]
    return [_change(METRICS[name], now, base, name in deciding, tolerance_ratio) for name in names]


def noise_band(figure: Metric, now: Sequence[float], base: Sequence[float], noise: float | None) -> float | None:
    """What the medians of two samples without any difference may differ by; None if nothing tells.

    From the spread within both samples (Student's t, widened for medians). `noise` is that of the speed within single
    runs, which is all there is when there are fewer than four runs in all.
    """
    if figure.is_count:
        return 0.0
    degrees = len(now) + len(base) - 2
    if degrees < _LEAST_DEGREES:
        if figure.noise_of_speed is None or noise is None:
            return None
        return noise if figure.noise_of_speed == "points" else noise * abs(fmean(base))
    squares = sum((value - fmean(sample)) ** 2 for sample in (now, base) for value in sample)
    error = math.sqrt(squares / degrees * (1 / len(now) + 1 / len(base)))
    quantile = _T_99[min(degrees - _LEAST_DEGREES, len(_T_99) - 1)]
    return quantile * error * _MEDIAN_OF_MEAN


def least_change(figure: Metric, base: float, tolerance_ratio: float) -> float:
    """The difference that is none for the user: points of a ratio, a share of anything else, nothing of a count."""
    if figure.is_count:
        return 0.0
    return tolerance_ratio if figure.unit == "ratio" else tolerance_ratio * abs(base)


def exit_code(changes: Sequence[Change]) -> int:
    """1 if a deciding figure got worse, 5 if one may have, is gone, or none is there, else 0."""
    deciding = [change for change in changes if change.is_deciding]
    if any(change.word == "worse" for change in deciding):
        return 1
    is_gone = any(change.word == "no data" and change.base is not None for change in deciding)
    is_told = any(change.word in ("better", "within noise") for change in deciding)
    return 5 if is_gone or not is_told or any(change.may_be_worse for change in deciding) else 0


def is_of_single_runs(changes: Sequence[Change]) -> bool:
    """Whether there is one run on each side, so that only counts and the speed can be told from chance."""
    return all(max(number, default=0) == 1 for number in zip(*((c.num_now, c.num_base) for c in changes), strict=True))


def _change(figure: Metric, now: Sample, base: Sample, is_deciding: bool, tolerance_ratio: float) -> Change:
    ours, theirs = now.values(figure.name), base.values(figure.name)
    known: Mapping[str, Any] = {
        "figure": figure,
        "now": median(ours) if ours else None,
        "base": median(theirs) if theirs else None,
        "num_now": len(ours),
        "num_base": len(theirs),
        "is_deciding": is_deciding and figure.better is not None,
    }
    if not ours or not theirs:
        where = "either" if not ours and not theirs else "this one" if not ours else "the reference"
        return Change(**known, band=None, word="no data", why=f"no value in {where}")
    if missing := now.num_missing(figure.name):
        return Change(**known, band=None, word="no data", why=f"no value in {missing} of {len(now.runs)} runs")
    band = noise_band(figure, ours, theirs, _noise_within(now, base))
    difference = float(known["now"]) - float(known["base"])
    is_none = abs(difference) <= max(band or 0.0, least_change(figure, float(known["base"]), tolerance_ratio))
    if band is None and not is_none:
        return Change(**known, band=None, word="cannot tell", why="too few runs: its variation is not known")
    if is_none or figure.better is None:
        return Change(**known, band=band, word="within noise" if is_none else "cannot tell", why=_neither(is_none))
    is_better = (difference < 0) == (figure.better == "lower")
    return Change(**known, band=band, word="better" if is_better else "worse")


def _neither(is_none: bool) -> str:
    return "" if is_none else "it changed, and neither direction is better"


def _noise_within(now: Sample, base: Sample) -> float | None:
    """How far apart the speeds of two undisturbed single runs may be: the sum of what each varies by in itself."""
    ours, theirs = now.values(NOISE), base.values(NOISE)
    return median(ours) + median(theirs) if ours and theirs else None
