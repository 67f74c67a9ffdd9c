"""Time as bars: the wall clock by cause, a recovery by its phases, the ranks by what they held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from harness.analysis.words import count, name_ranks, name_seconds
from harness.report import drawing
from harness.report.curves import Curves, Holding
from harness.report.drawing import Clock, Frame, Scale
from harness.report.history import ActiveFault, History, Way

_BAR = 28
_MANY_RANKS = 24
_POINTABLE = 4.0
"""Pixels below which nobody can point at a box, so that it needs no words of its own."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a stacked bar: `css` names its colour in the style sheet."""

    words: str
    seconds: float
    css: str


def stacked_bar(name: str, parts: Sequence[Part], title: str, width: int, *, with_legend: bool = False) -> Markup:
    """Parts side by side, as long as they took; empty when there is nothing to show. The page has a table beside it."""
    total = sum(max(0.0, part.seconds) for part in parts)
    if total <= 0:
        return Markup("")
    body: list[str] = []
    at = 0.0
    for part in parts:
        length = width * max(0.0, part.seconds) / total
        body.append(drawing.rect(at, 0, length, _BAR, part.css, f"{part.words}: {name_seconds(part.seconds)}"))
        if drawing.fits(part.words, length):
            body.append(drawing.text(at + length / 2, 18, part.words, "middle", "on-part"))
        at += length
    told = "; ".join(f"{part.words} {name_seconds(part.seconds)} ({part.seconds / total:.1%})" for part in parts)
    items = [(part.css, f"{part.words} {name_seconds(part.seconds)}") for part in parts] if with_legend else []
    legend, height = drawing.legend(items, width, _BAR + 8.0)
    height += _BAR + (8.0 if legend else 0.0)
    return drawing.figure(name, width, height, title, f"{told}. Together {name_seconds(total)}.", [*body, *legend])


def recovery(name: str, way: Way, width: int, *, with_legend: bool = False) -> Markup:
    """A recovery from the fault to the next committed step on an axis of seconds; empty when it has no parts."""
    total = sum(seconds for _, _, seconds in way.parts)
    if total <= 0 or len(way.parts) < 2:
        return Markup("")
    frame = Frame(width, 8.0, 8.0 + _BAR)
    left, right = 8.0, width - 14.0
    x = drawing.scale(0.0, total, left, right)
    body: list[str] = []
    at = 0.0
    for key, words, seconds in way.parts:
        since, until = x(at), x(at + seconds)
        title = f"{words}: {name_seconds(seconds)}"
        body.append(drawing.rect(since, frame.top, until - since, _BAR, f"cause cause-{key}", title))
        labels = (title, words, name_seconds(seconds))
        label = next((label for label in labels if drawing.fits(label, until - since)), None)
        if label:
            body.append(drawing.text((since + until) / 2, frame.top + 18, label, "middle", "on-part"))
        at += seconds
    unit, unit_words = (1e-3, "milliseconds") if total < 1.0 else (1.0, "seconds")
    body += drawing.axis_across(frame, x, 0.0, total, f"{unit_words} after the fault", unit)
    items = [(f"cause cause-{key}", words) for key, words, _ in way.parts] if with_legend else []
    legend, height = drawing.legend(items, width, frame.bottom + 38)
    told = "; ".join(f"{words} {name_seconds(seconds)}" for _, words, seconds in way.parts)
    description = f"{told}. Together {name_seconds(total)}."
    return drawing.figure(name, width, frame.bottom + 38 + height, "The recovery", description, [*body, *legend])


def ranks_over_time(curves: Curves, history: History, width: int) -> Markup:
    """What each rank held when, a lane for each; empty when that is not known."""
    if not curves.lanes:
        return Markup("")
    lane_height = 20 if len(curves.lanes) <= _MANY_RANKS else 11
    end = max(history.end_seconds, max(piece.until_seconds for lane in curves.lanes.values() for piece in lane))
    frame = Frame(width, 14.0, 14.0 + lane_height * len(curves.lanes))
    x = frame.across(0.0, end)
    hatch = f"hatch-{width}"
    body = [
        f'<defs><pattern id="{hatch}" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" class="hatch-ground"/>'
        '<line x1="0" y1="0" x2="0" y2="6" class="hatch"/></pattern></defs>'
    ]
    every = 1 if lane_height > 11 else 2
    affected: dict[int, list[ActiveFault]] = {}
    for one in history.affected:
        for rank in dict.fromkeys(one.ranks):
            affected.setdefault(rank, []).append(one)
    for row, (rank, lane) in enumerate(curves.lanes.items()):
        top = frame.top + row * lane_height
        if row % every == 0:
            body.append(drawing.text(frame.left - 6, top + lane_height / 2 + 4, f"rank {rank}", "end"))
        for piece in _merged(lane, x):
            body.extend(_holding(rank, piece, x, top, lane_height, hatch))
        body.extend(_affected(affected.get(rank, ()), x, top, lane_height, end))
    clock = Clock.of(end)
    body += drawing.axis_across(frame, x, 0.0, end, f"{clock.words} since the job started", clock.seconds)
    legend, height = drawing.legend(_legend_items(curves, history), width, frame.bottom + 38)
    has_attempts = any(piece.attempt is not None for lane in curves.lanes.values() for piece in lane)
    title = "When each rank was up" if has_attempts else "Which layers each rank held, over time"
    return drawing.figure(
        "ranks", width, frame.bottom + 38 + height + 4, title, _lanes_text(curves, history), [*body, *legend]
    )


def _merged(lane: Sequence[Holding], x: Scale) -> list[Holding]:
    """`lane` with pieces joined that say the same and have no gap between them that could be seen."""
    merged: list[Holding] = []
    for piece in lane:
        last = merged[-1] if merged else None
        if last is not None and x(piece.since_seconds) - x(last.until_seconds) < 0.5:
            joined = replace(last, until_seconds=piece.until_seconds)
            if joined == replace(piece, since_seconds=last.since_seconds):
                merged[-1] = joined
                continue
        merged.append(piece)
    return merged


def _holding(rank: int, piece: Holding, x: Scale, top: float, height: float, hatch: str) -> Iterable[str]:
    left, length = x(piece.since_seconds), x(piece.until_seconds) - x(piece.since_seconds)
    times = f"from {name_seconds(piece.since_seconds)} to {name_seconds(piece.until_seconds)}"
    words, css, title = _told(rank, piece, times)
    if length < _POINTABLE:
        title = ""
    yield drawing.rect(left, top + 1, length, height - 2, css, title)
    if piece.degraded and piece.layers:
        part = (height - 2) * len(piece.degraded) / len(piece.layers)
        box = drawing.rect(left, top + height - 1 - part, length, part, "part-degraded", title)
        yield box.replace('class="part-degraded"', f'class="part-degraded" fill="url(#{hatch})"')
    words = next((label for label in (words, words.partition(" ")[2]) if label and drawing.fits(label, length)), "")
    if height > 11 and words:
        css = "" if piece.layers is None and piece.attempt is None else "on-part"
        yield drawing.text(left + length / 2, top + height / 2 + 4, words, "middle", css)


def _told(rank: int, piece: Holding, times: str) -> tuple[str, str, str]:
    """(label, colour, what is shown to who points at it)."""
    if piece.attempt is not None:
        return f"attempt {piece.attempt}", "part-holds", f"rank {rank} was up in attempt {piece.attempt}, {times}"
    if piece.layers is None:
        return "absent", "part-gone", f"rank {rank} was not in the job, {times}"
    if not piece.layers:
        return "idle", "part-idle", f"rank {rank} held nothing, {times}"
    first, last = piece.layers[0], piece.layers[-1]
    words = f"layers {first}-{last}" if first != last else f"layer {first}"
    title = f"rank {rank} held {words} of replica {piece.replica}, {times}"
    if not piece.degraded:
        return words, "part-holds", title
    return f"{words} ~", "part-holds", f"{title}; approximated: {', '.join(map(str, sorted(piece.degraded)))}"


def _affected(affected: Sequence[ActiveFault], x: Scale, top: float, height: float, end: float) -> Iterable[str]:
    for one in affected:
        at = min(max(0.0, one.since_seconds), end)
        until = min(one.until_seconds, end)
        title = f"incident {one.incident}, {one.fault}, from {name_seconds(at)} to {name_seconds(until)}"
        yield drawing.rect(x(at), top + 1.5, max(2.0, x(until) - x(at)), height - 3, "part-struck", title)


def _legend_items(curves: Curves, history: History) -> list[tuple[str, str]]:
    pieces = [piece for lane in curves.lanes.values() for piece in lane]
    if any(piece.attempt is not None for piece in pieces):
        items = [("part-holds", "up")]
    else:
        items = [("part-holds", "holds these layers")]
    if any(piece.degraded for piece in pieces):
        items.append(("key-degraded", "~ approximated: the hatched share"))
    if any(piece.layers is not None and not piece.layers for piece in pieces):
        items.append(("part-idle", "idle"))
    if any(piece.layers is None and piece.attempt is None for piece in pieces):
        items.append(("part-gone", "not in the job"))
    if any(one.ranks for one in history.affected):
        items.append(("part-struck", "affected, until the fault ended or the rank rejoined"))
    return items


def _lanes_text(curves: Curves, history: History) -> str:
    said = [f"{count(len(curves.lanes), 'rank')}."]
    for one in history.affected[:8]:
        if one.ranks:
            said.append(
                f"{name_ranks(one.ranks).capitalize()}: affected by incident {one.incident} ({one.fault}) from "
                f"{name_seconds(one.since_seconds)} to {name_seconds(one.until_seconds)}."
            )
    degraded = [rank for rank, lane in curves.lanes.items() if any(piece.degraded for piece in lane)]
    if degraded:
        said.append(f"{name_ranks(degraded).capitalize()} approximated some of their layers temporarily.")
    return " ".join(said)
