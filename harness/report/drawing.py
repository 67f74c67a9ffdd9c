"""The strokes that all pictures of a run are made of, as SVG. Colours are classes: `palette.css` and `figures.css`.

Every picture is drawn for a width, in pixels at full size: the page shows the wide one on a screen or on paper and the
narrow one on a phone, where letters of the wide one would be too small to read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from harness.analysis.words import one_line

WIDE, NARROW = 860, 344
_CHAR_WIDTH = 5.9
"""Pixels that a character of a label takes at most, in the mean over a word."""
_LEGEND_LINE = 17
Scale = Callable[[float], float]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Frame:
    """Where in a picture of `width` the curve is drawn; `top` and `bottom` are its edges."""

    width: int
    top: float
    bottom: float

    @property
    def left(self) -> float:
        """Its left edge: beside it stand the labels."""
        return 62.0 if self.width >= WIDE else 50.0

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.width - 10.0

    def across(self, low: float, high: float) -> Scale:
        """From values in [low, high] to places from the left to the right edge."""
        return scale(low, high, self.left, self.right)

    def upwards(self, low: float, high: float) -> Scale:
        """From values in [low, high] to places from the bottom to the top edge."""
        return scale(low, high, self.bottom, self.top)


@dataclass(frozen=True, slots=True)
class Clock:
    """The unit in which a stretch of time is told: labels are seconds divided by `seconds`."""

    seconds: float
    words: str

    @classmethod
    def of(cls, span_seconds: float) -> Clock:
        """The unit for a stretch of that length."""
        if span_seconds > 3 * 3600:
            return cls(3600.0, "hours")
        return cls(60.0, "minutes") if span_seconds > 300 else cls(1.0, "seconds")


def figure(name: str, width: int, height: float, title: str, description: str, body: Iterable[str]) -> Markup:
    """A whole picture. `title` and `description` say in words what it shows; `name` is unique on its page."""
    key = f"{name}-{width}"
    words = (
        f'<title id="{escape(key)}-t">{escape(one_line(title))}</title>'
        f'<desc id="{escape(key)}-d">{escape(one_line(description))}</desc>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img" '
        f'aria-labelledby="{escape(key)}-t {escape(key)}-d">'
    )
    return Markup(f"{head}{words}{''.join(body)}</svg>")


def scale(low: float, high: float, at_low: float, at_high: float) -> Scale:
    """The linear map that takes `low` to `at_low` and `high` to `at_high`."""
    span = high - low or 1.0
    return lambda value: at_low + (value - low) / span * (at_high - at_low)


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers within [low, high], about as many as asked for."""
    rough = (high - low) / about
    if rough <= 0 or not math.isfinite(rough):
        return [low]
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough * 0.999)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(number * step, digits) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def number_text(value: float) -> str:
    """A tick's label: `40,000`, `0.25`, `2e+07`."""
    return f"{value:,.10g}" if abs(value) < 1e7 else f"{value:.3g}"


def axis_up(frame: Frame, y: Scale, values: Sequence[float], suffix: str = "") -> Iterable[str]:
    """The lines across the frame at `values`, with their labels."""
    for value in values:
        at = y(value)
        yield f'<line x1="{frame.left:.0f}" x2="{frame.right:.0f}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>'
        yield text(frame.left - 6, at + 4, f"{number_text(value)}{suffix}", "end")


def axis_across(frame: Frame, x: Scale, low: float, high: float, words: str, unit: float = 1.0) -> Iterable[str]:
    """The labels under the frame from `low` to `high`, which are told as multiples of `unit`."""
    for value in ticks(low / unit, high / unit, 6 if frame.width >= WIDE else 4):
        at = x(value * unit)
        yield (
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{frame.bottom:.1f}" y2="{frame.bottom + 4:.1f}" class="axis"/>'
            f"{text(at, frame.bottom + 16, number_text(value), 'middle')}"
        )
    yield text((frame.left + frame.right) / 2, frame.bottom + 31, words, "middle")


def line(points: Sequence[Point], css: str) -> str:
    """A curve through `points`."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" class="curve-{css}"/>' if points else ""


def rect(x: float, y: float, width: float, height: float, css: str, title: str = "") -> str:
    """A box; `title` is shown to who points at it."""
    inner = f"<title>{escape(one_line(title))}</title>" if title else ""
    size = f'width="{max(0.0, width):.2f}" height="{max(0.0, height):.1f}"'
    tag = f'<rect x="{x:.2f}" y="{y:.1f}" {size} class="{css}"'
    return f"{tag}>{inner}</rect>" if inner else f"{tag}/>"


def rule(x: float, top: float, bottom: float, css: str) -> str:
    """An upright line."""
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" class="{css}"/>'


def text(x: float, y: float, words: str, anchor: str = "start", css: str = "") -> str:
    """A label; `anchor` is start, middle or end."""
    extra = f' class="{css}"' if css else ""
    where = f'x="{x:.1f}" y="{y:.1f}"'
    return f'<text {where} text-anchor="{anchor}"{extra}>{escape(one_line(words))}</text>'


def fits(words: str, width: float) -> bool:
    """Whether a label has room in so many pixels."""
    return _CHAR_WIDTH * len(words) + 6 <= width


def glyph(kind: str, x: float, y: float) -> str:
    """A small sign around (x, y): what happened there, told by its shape and not by its colour alone."""
    shapes = {
        "fault": f"M{x - 5:.1f},{y - 4:.1f}h10l-5,8z",
        "repair": f"M{x - 5:.1f},{y + 4:.1f}h10l-5,-8z",
        "back": f"M{x - 4.5:.1f},{y:.1f}a4.5,4.5 0 1 0 9,0a4.5,4.5 0 1 0 -9,0z",
    }
    return f'<path d="{shapes[kind]}" class="sign-{kind}"/>'


def legend(items: Sequence[tuple[str, str]], width: int, top: float) -> tuple[list[str], float]:
    """(body, height) of the signs and what they mean, as many in a line as fit.

    An item is (sign, words); the sign is `curve-NAME`, `sign-NAME` or the class of a box.
    """
    body: list[str] = []
    left = 62.0 if width >= WIDE else 6.0
    x, row = left, 0
    for sign, words in items:
        needed = 22 + _CHAR_WIDTH * len(words) + 20
        if x > left and x + needed > width:
            x, row = left, row + 1
        middle = top + row * _LEGEND_LINE + 8
        if sign.startswith("curve-"):
            body.append(line([(x, middle), (x + 16, middle)], sign.removeprefix("curve-")))
        elif sign.startswith("sign-"):
            body.append(glyph(sign.removeprefix("sign-"), x + 8, middle))
        else:
            if sign == "band-stopped":  # it lies upon the other one
                body.append(rect(x, middle - 5, 16, 10, "band-inforce"))
            body.append(rect(x, middle - 5, 16, 10, sign))
        body.append(text(x + 22, middle + 4, words))
        x += needed
    return body, (row + 1) * _LEGEND_LINE if items else 0.0
