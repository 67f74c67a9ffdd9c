"""The speed chart of a run: its incidents, enlarged, above the whole run and its time by cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup, escape

from harness.analysis.regroups import overlaps
from harness.analysis.words import name_seconds, one_line, speed_text
from harness.report import drawing
from harness.report.charts import ACTIVE, TOP, Sizes, marks_text, sign_items, signs
from harness.report.curves import Curves, Mark, StepPoint, mean_rates
from harness.report.drawing import Clock, Frame, Point, Scale
from harness.report.history import History, shares
from harness.report.wording import cause_words, percent

_RIBBON = 34
_OVERVIEW = 62
_MARGIN_STEPS = 12
"""Before the first fault and after the last one, the enlarged part shows at least so many usual steps."""
_MARGIN_SHARE = 0.3
_MAX_ZOOMED_SHARE = 0.7
"""Incidents that fill more of the run than this are not enlarged: the whole run shows as much."""
_MAX_WINDOWS = {False: 2, True: 3}
"""By whether the picture is wide: so many incidents far apart are enlarged side by side."""
_LEAST_PART = 0.22
"""The least part of the width that one of several enlarged parts has."""
_MAX_STEPS_DRAWN = 150
"""So many steps are drawn one by one; of more the mean over equal stretches of time."""


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of the run, in seconds since the job started."""

    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since

    def holds(self, seconds: float) -> bool:
        return self.since <= seconds <= self.until


def speed_over_time(curves: Curves, history: History, width: int, baseline: float | None = None) -> Markup:
    """Work per second while the job trained; empty when no step was committed.

    Where the incidents are a small part of the run, the upper panel shows them enlarged, those far apart side by side,
    with the range within which the speed varies without a fault; the lower one shows the whole run. Beneath is where
    the time went. `baseline` is the speed of a fault-free baseline that ran at the same pace, with the machine to
    itself: others do not compare.
    """
    if not mean_rates(curves.main, 1):
        return Markup("")
    sizes = Sizes.of(width)
    whole = _trained(curves, history)
    begin, end = whole.since, whole.until
    clock = Clock.of(end)
    zoomed = _zoomed(curves, history, whole, _MAX_WINDOWS[width >= drawing.WIDE])
    marks = _marks(curves, history)
    top_frame = frame = Frame(width, TOP, TOP + sizes.height)
    body = [drawing.text(6.0, 12.0, f"{curves.unit} per second", css="strong")]
    if zoomed:
        highest = max(_highest(curves, history, window, sizes, baseline, is_zoomed=True) for window in zoomed)
        for window, part in zip(zoomed, _side_by_side(zoomed, top_frame), strict=True):
            body += _panel(curves, history, part, window, marks, sizes, baseline, highest, is_zoomed=True)
            x = part.across(window.since, window.until)
            body += drawing.axis_across(part, x, window.since, window.until, "", clock.seconds)
        frame = Frame(width, top_frame.bottom + 46, top_frame.bottom + 46 + _OVERVIEW)
        body.append(drawing.text(6.0, frame.top - 10, "the whole run", css="strong"))
    highest = _highest(curves, history, whole, sizes, baseline, is_zoomed=False)
    shown = () if zoomed else marks
    body += _panel(curves, history, frame, whole, shown, sizes, baseline, highest, is_zoomed=False)
    for window in zoomed:
        x = frame.across(begin, end)
        body.append(drawing.rect(x(window.since), frame.top, x(window.until) - x(window.since), _OVERVIEW, "zoom"))
    x = frame.across(begin, end)
    ribbon, ribbon_legend = _ribbon(history, frame, x, whole)
    below = Frame(width, frame.bottom, frame.bottom + (_RIBBON + 8 if ribbon else 0))
    body += ribbon
    startup = f"start-up of {name_seconds(begin)}" if width >= drawing.WIDE else "start-up"
    left_out = f" ({startup} not drawn)" if begin > 0.01 * end else ""
    body += drawing.axis_across(below, x, begin, end, f"{clock.words} since the job started{left_out}", clock.seconds)
    items = [("curve-main", "speed")]
    if history.before:
        items.append(("curve-before", "median before the first fault" if history.affected else "median"))
    if baseline:
        items.append(("curve-twin", "fault-free baseline (median)"))
    if zoomed:
        if history.noise_ratio is not None:
            items.append(("band-noise", f"baseline noise, \N{PLUS-MINUS SIGN}{percent(history.noise_ratio)}"))
        items.append(("zoom", "enlarged above"))
    items += _band_items(history)
    legend, height = drawing.legend([*items, *sign_items(marks), *ribbon_legend], width, below.bottom + 38)
    return drawing.figure(
        "speed-over-time",
        width,
        below.bottom + 38 + height + 4,
        f"Training speed over time, in {curves.unit} per second",
        _description(curves, history, end),
        [*body, *legend],
    )


def _description(curves: Curves, history: History, end: float) -> str:
    lowest = min(mean_rates(curves.main, min(400, 2 * len(curves.main))), key=lambda rate: rate[1])
    before = f"Before any fault: {speed_text(history.before)} in the median. " if history.before else ""
    return (
        f"{curves.unit.capitalize()} per second over {name_seconds(end)}. {before}"
        f"Lowest: {speed_text(lowest[1])}, {name_seconds(lowest[0])} after the start. {marks_text(curves.marks)}"
    )


def _trained(curves: Curves, history: History) -> _Window:
    """From the first step to the last one, a job that stalled until its end to that; all marks are within.

    Start-up and shutdown of an external job may take longer than its steps, and there is no speed to be seen.
    """
    first, last = curves.main[0].since_seconds, curves.main[-1].committed_seconds
    marks = [mark.seconds for mark in curves.marks if 0 <= mark.seconds <= history.end_seconds]
    marks += [since for since, _ in history.active]
    stalled = [at for at, _ in _standstill(curves, history)[1:]]
    return _Window(max(0.0, min([first, *marks])), max([last, *marks, *stalled]))


def _zoomed(curves: Curves, history: History, whole: _Window, most: int) -> list[_Window]:
    """The incidents with what came just before and after them, in at most so many windows.

    Empty where that is most of the run.
    """
    usual = median(point.committed_seconds - point.since_seconds for point in curves.main)
    recovered = _recoveries(history)
    windows: list[_Window] = []
    for affected in sorted(history.affected, key=lambda affected: affected.since_seconds):
        since = affected.since_seconds
        until = max(affected.until_seconds, recovered.get(affected.incident, since))
        margin = max(_MARGIN_SHARE * (until - since), _MARGIN_STEPS * usual)
        # Nothing is to be seen before the first step.
        window = _Window(max(curves.main[0].since_seconds, since - margin, 0.0), min(whole.until, until + margin))
        if windows and window.since - windows[-1].until < min(window.seconds, windows[-1].seconds):
            windows[-1] = _Window(windows[-1].since, max(windows[-1].until, window.until))
        else:
            windows.append(window)
    if len(windows) > most:
        windows = [_Window(windows[0].since, max(window.until for window in windows))]
    return windows if 0 < sum(window.seconds for window in windows) <= _MAX_ZOOMED_SHARE * whole.seconds else []


def _side_by_side(windows: Sequence[_Window], frame: Frame) -> list[Frame]:
    """A frame for each window, as wide as it is long, but none of them too narrow."""
    total = sum(window.seconds for window in windows)
    parts = [max(_LEAST_PART, window.seconds / total) for window in windows]
    gap = 18.0 / (frame.right - frame.left)
    ratio = (1.0 - gap * (len(parts) - 1)) / sum(parts)
    frames, begin = [], 0.0
    for part in parts:
        frames.append(Frame(frame.width, frame.top, frame.bottom, begin, min(1.0, begin + part * ratio)))
        begin += part * ratio + gap
    return frames


def _recoveries(history: History) -> dict[int, float]:
    """By incident, when the first step was committed that began after its fault, in seconds since the job started."""
    return {
        affected.incident: affected.since_seconds + milestone.seconds
        for affected in history.affected
        if affected.incident in history.ways
        for milestone in history.ways[affected.incident].milestones
        if milestone.kind == "committed"
    }


def _marks(curves: Curves, history: History) -> list[Mark]:
    recovered = [Mark("committed", at, curves.step_at(at), number) for number, at in _recoveries(history).items()]
    return sorted([*curves.marks, *recovered], key=lambda mark: mark.seconds)


def _highest(
    curves: Curves, history: History, window: _Window, sizes: Sizes, baseline: float | None, *, is_zoomed: bool
) -> float:
    """The upper end of a scale for the speed in `window`."""
    rates = [rate for _, rate in _drawn(curves, history, window, sizes)]
    usual = (history.before or 0.0) * (1 + ((history.noise_ratio if is_zoomed else None) or 0.0))
    return max(*rates, usual, baseline or 0.0) * 1.08 or 1.0


def _drawn(curves: Curves, history: History, window: _Window, sizes: Sizes) -> list[Point]:
    rates = (*_rates(curves.main, window, sizes), *_standstill(curves, history))
    return [rate for rate in rates if window.holds(rate[0])]


def _panel(
    curves: Curves,
    history: History,
    frame: Frame,
    window: _Window,
    marks: Sequence[Mark],
    sizes: Sizes,
    baseline: float | None,
    top: float,
    *,
    is_zoomed: bool,
) -> Iterable[str]:
    """The speed in `window` on a scale from 0 to `top`, with bands and signs; the overview shows less."""
    x = frame.across(window.since, window.until)
    rates = _drawn(curves, history, window, sizes)
    noise = history.noise_ratio if is_zoomed and history.before else None
    before = history.before or 0.0
    y = frame.upwards(0.0, top)
    yield from _bands(history, frame, x, window)
    if noise is not None:
        high, low = y(min(top, before * (1 + noise))), y(max(0.0, before * (1 - noise)))
        yield drawing.rect(frame.left, high, frame.right - frame.left, max(2.0, low - high), "band-noise")
    yield from drawing.axis_up(frame, y, drawing.ticks(0.0, top, 6 if frame.bottom - frame.top > 100 else 2))
    if before:
        yield drawing.line([(frame.left, y(before)), (frame.right, y(before))], "before")
    if baseline:
        yield drawing.line([(frame.left, y(baseline)), (frame.right, y(baseline))], "twin")
    yield drawing.line([(x(seconds), y(rate)) for seconds, rate in rates], "main")
    yield from signs([(x(mark.seconds), mark) for mark in marks if window.holds(mark.seconds)], frame)


def _rates(points: Sequence[StepPoint], window: _Window, sizes: Sizes) -> list[Point]:
    """(seconds, work per second): level over each step or, of many, the mean over equal stretches of time."""
    seen = [p for p in points if p.committed_seconds >= window.since and p.since_seconds <= window.until]
    if len(seen) > _MAX_STEPS_DRAWN:
        return list(mean_rates(seen, sizes.points))
    level = []
    for point in seen:
        seconds = point.committed_seconds - point.since_seconds
        if seconds > 0:
            since, until = max(point.since_seconds, window.since), min(point.committed_seconds, window.until)
            level += [(since, point.work / seconds), (until, point.work / seconds)]
    return level


def _standstill(curves: Curves, history: History) -> list[Point]:
    """No speed from the last commit to the end, of a job that stood still until then."""
    last = curves.main[-1].committed_seconds
    if not history.stopped or history.stopped[-1][1] < history.end_seconds:
        return []
    return [(last, 0.0), (history.end_seconds, 0.0)] if history.end_seconds > last else []


def _ribbon(history: History, frame: Frame, x: Scale, window: _Window) -> tuple[list[str], list[tuple[str, str]]]:
    """What the time went to, stretch by stretch: the height of a colour is its share. With the legend's items."""
    num_bins = int(min(240, frame.right - frame.left) // 1)
    begin, length = window.since, window.until - window.since
    parts = shares(
        [(since - begin, until - begin, cause) for since, until, cause in history.segments], length, num_bins
    )
    if not parts:
        return [], []
    top = frame.bottom + 6
    base = [0.0] * num_bins
    edges = [x(begin + length * index / num_bins) for index in range(num_bins + 1)]
    body = []
    for cause, values in parts.items():
        raised = [low + share for low, share in zip(base, values, strict=True)]
        body.append(_steps_path(edges, base, raised, top, f"share cause-{cause}", cause_words(cause)))
        base = raised
    # What is too little to be seen is in the page's table.
    seen = [cause for cause, values in parts.items() if sum(values) > 0.5]
    return body, [(f"cause cause-{cause}", cause_words(cause)) for cause in seen]


def _steps_path(
    edges: Sequence[float], low: Sequence[float], high: Sequence[float], top: float, css: str, title: str
) -> str:
    """The area between two step functions, of shares that stack up from the bottom of the ribbon."""
    bottom = top + _RIBBON
    pieces: list[tuple[float, float, float, float]] = []
    for index in range(len(low)):
        if high[index] - low[index] <= 1e-9:
            continue
        left, right = edges[index], edges[index + 1]
        up, down = bottom - high[index] * _RIBBON, bottom - low[index] * _RIBBON
        if pieces and pieces[-1][1:] == (left, up, down):
            pieces[-1] = (pieces[-1][0], right, up, down)
        else:
            pieces.append((left, right, up, down))
    path = "".join(f"M{left:.1f},{up:.1f}H{right:.1f}V{down:.1f}H{left:.1f}z" for left, right, up, down in pieces)
    return f'<path d="{path}" class="{css}"><title>{escape(one_line(title))}</title></path>' if path else ""


def _bands(history: History, frame: Frame, x: Scale, window: _Window) -> Iterable[str]:
    height = frame.bottom - frame.top
    for stretches, css in ((history.active, "band-active"), (_stalled(history), "band-stalled")):
        for since, until in stretches:
            left, right = x(max(since, window.since)), x(min(until, window.until))
            if since < window.until and until > window.since:
                yield drawing.rect(left, frame.top, max(1.0, right - left), height, css)


def _stalled(history: History) -> list[tuple[float, float]]:
    """(from, until) of each stretch in which no step made progress while a fault was active."""
    return list(overlaps(history.stopped, history.active))


def _band_items(history: History) -> list[tuple[str, str]]:
    """The bands that can be seen: where the job stalled as long as a fault was active, one hides the other."""
    active, stalled = (sum(until - since for since, until in part) for part in (history.active, _stalled(history)))
    items = [ACTIVE] if active > 1.01 * stalled else []
    return [*items, ("band-stalled", "stalled")] if stalled else items
