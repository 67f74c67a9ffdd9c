"""The elements of all pictures of a run, as SVG. Colours are classes: `palette.css` and `figures.css`.

Every picture is drawn for a width, in pixels at full size: the page shows the wide one on a screen or on paper and the
narrow one on a phone, where letters of the wide one would be too small to read.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup, escape

from harness.analysis.words import one_line

WIDE, NARROW = 860, 344
_CHAR_WIDTH = 5.9
"""Pixels that a character of a label takes at most, in the mean over a word."""
_STRONG_CHAR_WIDTH = 6.6
_LEGEND_LINE = 17
_FAR_OFF = 20.0
"""So many times the spread of the usual values away, a value is left out of the range that an axis shows."""
Scale = Callable[[float], float]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Frame:
    """Where in a picture of `width` the curve is drawn; `top` and `bottom` are its edges.

    Frames side by side take a part each of the width, `begin` to `end`, as ratios of it.
    """

    width: int
    top: float
    bottom: float
    begin: float = 0.0
    end: float = 1.0

    @property
    def left(self) -> float:
        """Its left edge: beside the leftmost frame are the labels."""
        return self._place(self.begin)

    @property
    def right(self) -> float:
        """Its right edge."""
        return self._place(self.end)

    def _place(self, ratio: float) -> float:
        left = 62.0 if self.width >= WIDE else 50.0
        return left + ratio * (self.width - 10.0 - left)

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


@dataclass(frozen=True, slots=True)
class Rows:
    """Named rows of bars, one below the other from `top`, with values to the right of `label` pixels.

    In a narrow picture the name of a row stands above its bars, which then have the whole width.
    """

    width: int
    top: float
    num: int
    label: float
    height: float
    right: float

    @property
    def is_wide(self) -> bool:
        """Whether the names stand beside the bars."""
        return self.width >= WIDE

    @property
    def left(self) -> float:
        """Where the bars may begin."""
        return self.label if self.is_wide else 8.0

    @property
    def bottom(self) -> float:
        """Below the last row."""
        return self._top_of(self.num)

    def across(self, low: float, high: float) -> Scale:
        """From values in [low, high] to places from the left to the right edge."""
        return scale(low, high, self.left, self.width - self.right)

    def ticks(self, low: float, high: float) -> list[float]:
        """As many as there is room for."""
        return ticks(low, high, 6 if self.is_wide else 4)

    def middle(self, number: int) -> float:
        """The middle of the bars of a row."""
        return self._top_of(number + 1) - self.height / 2

    def name(self, number: int, words: str, css: str = "") -> str:
        """The name of a row."""
        if self.is_wide:
            return text(self.label - 8, self.middle(number) + 4, words, "end", css)
        return text(8, self._top_of(number) + 11, words, css=css)

    def _top_of(self, number: int) -> float:
        return self.top + number * (self.height if self.is_wide else self.height + 14)


def both_widths(draw: Callable[[int], Markup]) -> Markup:
    """A picture for a screen or paper, and one for a phone, of which a page shows the one that fits."""
    drawn = [(css, draw(width)) for css, width in (("wide", WIDE), ("narrow", NARROW))]
    shown = (Markup('<div class="{}">{}</div>').format(css, picture) for css, picture in drawn if picture)
    return Markup("").join(shown)


def heading(words: str, width: int) -> tuple[list[str], float]:
    """(body, height) of the words above a picture, on as many lines as they take."""
    lines = textwrap.wrap(one_line(words), max(10, int((width - 16) / _STRONG_CHAR_WIDTH)))
    return [text(8, 16 + 15 * number, part, css="strong") for number, part in enumerate(lines)], 15.0 * len(lines)


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
        if frame.begin == 0.0:
            words = f"{number_text(value)}{suffix}"
            # A longer one would be cut off at the edge of the picture.
            is_short = fits(words, frame.left)
            yield text(frame.left - 6, at + 4, words, "end") if is_short else text(0, at + 4, words)


def axis_across(frame: Frame, x: Scale, low: float, high: float, words: str, unit: float = 1.0) -> Iterable[str]:
    """The labels under the frame from `low` to `high`, which are told as multiples of `unit`."""
    most = (6 if frame.width >= WIDE else 4) * (frame.end - frame.begin)
    for value in ticks(low / unit, high / unit, max(2, round(most))):
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
    """A box; `title` is its tooltip."""
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


def below(x: float, y: float, words: str, width: int) -> str:
    """A label whose middle is at `x`, or as near to it as the edges of the picture allow."""
    half = (_CHAR_WIDTH * len(words) + 6) / 2
    return text(min(max(x, half), width - half), y, words, "middle")


def fits(words: str, width: float) -> bool:
    """Whether a label has room in so many pixels."""
    return _CHAR_WIDTH * len(words) + 6 <= width


def glyph(kind: str, x: float, y: float) -> str:
    """A small sign around (x, y): what happened there, told by its shape and not by its colour alone."""
    shapes = {
        "fault": f"M{x - 5:.1f},{y - 4:.1f}h10l-5,8z",
        "repair": f"M{x - 5:.1f},{y + 4:.1f}h10l-5,-8z",
        "recovered": f"M{x:.1f},{y - 5:.1f}l5,5l-5,5l-5,-5z",
        "back": f"M{x - 4.5:.1f},{y:.1f}a4.5,4.5 0 1 0 9,0a4.5,4.5 0 1 0 -9,0z",
        "above": f"M{x:.1f},{y - 5:.1f}l4.5,5h-3v5h-3v-5h-3z",
        "below": f"M{x:.1f},{y + 5:.1f}l4.5,-5h-3v-5h-3v5h-3z",
    }
    return f'<path d="{shapes[kind]}" class="sign-{kind}"/>'


def visible_range(values: Sequence[float]) -> tuple[float, float]:
    """What an axis shows of `values`: all of them, unless a few are so far off that the others would be one flat line.

    Whoever draws only a part says where the rest is: see `out_of_range`.
    """
    if not values:
        return 0.0, 1.0
    ordered = sorted(values)
    tenth = len(ordered) // 10
    usual_low, usual_high = ordered[tenth], ordered[-1 - tenth]
    reach = _FAR_OFF * (usual_high - usual_low) or ordered[-1] - ordered[0]
    low = next(value for value in ordered if value >= usual_low - reach)
    high = next(value for value in reversed(ordered) if value <= usual_high + reach)
    margin = (high - low or abs(high) or 1.0) * 0.06
    # Where something is left out, its arrow and its value need room beside the curve.
    below, above = (5 * margin if low > ordered[0] else margin), (5 * margin if high < ordered[-1] else margin)
    return low - below, high + above


def out_of_range(
    curves: Iterable[Sequence[Point]], x: Scale, frame: Frame, low: float, high: float, suffix: str = ""
) -> tuple[list[str], list[tuple[str, str]]]:
    """Arrows where the `curves` leave [low, high], the farthest ones with the value; and the items of the legend."""
    farthest = [piece for points in curves for piece in _excursions(points, low, high)]
    body: list[str] = []
    taken: list[tuple[float, float, str]] = []
    for at, value, sign in sorted(farthest, key=lambda found: max(found[1] - high, low - found[1]), reverse=True):
        place = x(at)
        middle = frame.top + 7 if sign == "above" else frame.bottom - 7
        body.append(glyph(sign, place, middle))
        words = f"{value:,.3g}{suffix}"
        length = _CHAR_WIDTH * len(words) + 8
        begin = place + 7 if place + 7 + length <= frame.right else place - 7 - length
        if all(begin >= until or begin + length <= since for since, until, other in taken if other == sign):
            anchor, edge = ("start", begin) if begin > place else ("end", begin + length)
            body.append(text(edge, middle + 4, words, anchor, "strong"))
            taken.append((begin, begin + length, sign))
    items = []
    for sign, farthest_of, way in (("above", max, "up"), ("below", min, "down")):
        values = [value for _, value, other in farthest if other == sign]
        if values:
            items.append((f"sign-{sign}", f"{sign} the scale, {way} to {farthest_of(values):,.3g}{suffix}"))
    return body, items


def _excursions(points: Sequence[Point], low: float, high: float) -> Iterable[tuple[float, float, str]]:
    """(place, value, `above` or `below`) of what lies beyond [low, high]: each stretch's farthest point and its ends.

    The ends say how much of the line along the edge of the frame is no measured value.
    """

    def side(point: Point) -> str:
        return "above" if point[1] > high else "below" if point[1] < low else ""

    for sign, stretch in groupby(points, side):
        if sign:
            beyond = list(stretch)
            farthest = (max if sign == "above" else min)(beyond, key=lambda point: point[1])
            for point in dict.fromkeys((farthest, beyond[0], beyond[-1])):
                yield *point, sign


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
            if sign == "band-stalled":  # it lies upon the other one
                body.append(rect(x, middle - 5, 16, 10, "band-active"))
            body.append(rect(x, middle - 5, 16, 10, sign))
        body.append(text(x + 22, middle + 4, words))
        x += needed
    return body, (row + 1) * _LEGEND_LINE if items else 0.0
