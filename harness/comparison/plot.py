"""The plot of a set: for each figure every run as a dot, its strategy's range as a line and the median as a bar.

The picture stands alone: its colours are in it, for light and dark.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from markupsafe import escape

from harness.analysis.words import one_line
from harness.comparison.figures import HEADLINE
from harness.comparison.sample import RunSet, Sample
from harness.judging.metrics import METRICS, Metric
from harness.report.drawing import WIDE, Rows, Scale

_LABEL = 120
_VALUE = 120
_ROW = 24
_HEAD = 30
_GAP = 26
_NUM_TICKS, _NUM_NARROW_TICKS = 5, 3
_CHAR_WIDTH = 7.2
# Of figures that are nothing at all, an axis still needs a length.
_LEAST_SPAN = 1e-9
_STYLE = """
.plot-page ~ text { font: 12px system-ui, sans-serif; }
.plot-page { fill: #ffffff; } .plot-ink { fill: #1c2024; } .plot-soft { fill: #5b6570; }
.plot-grid { stroke: #d8dde2; } .plot-range { stroke: #a9c8ef; stroke-width: 8; stroke-linecap: round; }
.plot-median { stroke: #1d5fbf; stroke-width: 3; } .plot-run { fill: #1d5fbf; fill-opacity: .75; }
@media (prefers-color-scheme: dark) {
  .plot-page { fill: #14171a; } .plot-ink { fill: #e6e9ec; } .plot-soft { fill: #9aa4ae; }
  .plot-grid { stroke: #363d44; } .plot-range { stroke: #2d5a92; }
  .plot-median { stroke: #7db4ff; } .plot-run { fill: #7db4ff; }
}
"""


def plot(found: RunSet, width: int = WIDE) -> str:
    """The SVG document; figures that no run has are left out."""
    body: list[str] = []
    top = 8.0
    for name, words in HEADLINE.items():
        if any(sample.values(name) for sample in found.samples):
            panel, height = _panel(METRICS[name], words, found.samples, top, width)
            body += panel
            top += height + _GAP
    height = max(top, 20.0)
    title = f"{one_line(found.name)}: {len(found.samples)} samples, {found.num_rounds} runs each"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}"><style>{_STYLE}</style>'
        f'<rect width="{width}" height="{height:.0f}" class="plot-page"/>{"".join(body)}</svg>\n'
    )


def _panel(figure: Metric, words: str, samples: Sequence[Sample], top: float, width: int) -> tuple[list[str], float]:
    better = {"lower": " (lower is better)", "higher": " (higher is better)", None: ""}[figure.better]
    title = textwrap.wrap(f"{words}{better}", int((width - 16) / _CHAR_WIDTH))
    body = [_text(8, top + 14 + 15 * line, part, "start", "plot-ink") for line, part in enumerate(title)]
    rows = Rows(width, top + _HEAD + 15 * (len(title) - 1), len(samples), _label_width(samples), _ROW, _VALUE)
    values = [value for sample in samples for value in sample.values(figure.name)]
    low, high = min(0.0, *values), max(0.0, *values)
    high = high if high - low > _LEAST_SPAN else low + 1.0
    x, bottom = rows.across(low, high), rows.bottom
    for tick in _ticks(low, high, _NUM_TICKS if rows.is_wide else _NUM_NARROW_TICKS):
        body.append(_line(x(tick), rows.top - 6, x(tick), bottom, "plot-grid"))
        body.append(_text(x(tick), bottom + 13, _tick(figure, tick), "middle", "plot-soft"))
    for number, sample in enumerate(samples):
        body += _row(figure, sample, x, rows, number)
    return body, bottom - top + 14


def _label_width(samples: Sequence[Sample]) -> float:
    """As much as the longest name takes, up to a third of the picture."""
    longest = max((len(sample.label) for sample in samples), default=0)
    return max(_LABEL, min(WIDE / 3, _CHAR_WIDTH * longest + 16))


def _row(figure: Metric, sample: Sample, x: Scale, rows: Rows, number: int) -> Iterator[str]:
    y = rows.middle(number)
    values = sample.spread(figure.name)
    yield rows.name(number, sample.label, "plot-ink")
    if not values["n"]:
        yield _text(rows.left + 4, y + 4, "no value", "start", "plot-soft")
        return
    yield _line(x(values["min"]), y, x(values["max"]), y, "plot-range")
    for value in values["values"]:
        title = f"<title>{escape(one_line(f'{sample.label}: {figure.to_text(value)}'))}</title>"
        yield f'<circle cx="{x(value):.1f}" cy="{y:.1f}" r="4" class="plot-run">{title}</circle>'
    yield _line(x(values["median"]), y - 8, x(values["median"]), y + 8, "plot-median")
    words = f"{figure.to_text(values['median'])}, n {values['n']}"
    yield _text(rows.width - _VALUE + 14, y + 4, words, "start", "plot-ink")


def _ticks(low: float, high: float, about: int) -> list[float]:
    rough = (high - low) / about
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough * 0.999)
    return [round(index * step, 12) for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _tick(figure: Metric, value: float) -> str:
    if figure.unit == "ratio":
        return f"{value * 100:g}%"
    return f"{value:g} s" if figure.unit == "seconds" else f"{value:,g}"


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def _text(x: float, y: float, words: str, anchor: str, css: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(one_line(words))}</text>'
