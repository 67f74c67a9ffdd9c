"""One run as a small picture: what each rank did over time, and below it the speed, or the loss, of the training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import median
from typing import Literal

from harness.analysis.steps import WORK_UNITS
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.json_values import from_json

State = Literal["trains", "approximates", "idle", "regroups", "stalled", "gone"]
Curve = Literal["speed", "loss"]
_Scale = Callable[[float], float]

_WIDTH, _LEFT, _RIGHT = 760, 64, 10
_LANE, _CURVE, _LEVEL = 17, 72, 13
_MAX_LEVELS = 5
_STALLED_STEPS = 4
"""A step that takes longer than so many usual ones had to wait."""
_WORDS: Mapping[str, str] = {
    "trains": "trains",
    "approximates": "trains, some layers approximated",
    "idle": "in the job, without layers",
    "regroups": "rebuilds process groups",
    "stalled": "stalled",
    "gone": "not in the job",
    "fault": "fault active",
}
_STYLE = """\
svg.run{font:11px system-ui,sans-serif;max-width:760px}
.run text{fill:var(--run-text,#444)}
.run .trains{fill:var(--run-trains,#9cc3e0)}.run .approximates{fill:var(--run-approximates,#e8b860)}
.run .idle{fill:var(--run-idle,#d8dde2)}.run .regroups{fill:var(--run-regroups,#8a63b8)}
.run .stalled{fill:var(--run-stalled,#e6a08f)}
.run .gone{fill:none;stroke:var(--run-soft,#aaa);stroke-dasharray:3 3}
.run .fault{fill:var(--run-fault,#c0392b)}.run .mark{stroke:var(--run-fault,#c0392b);fill:none}
.run .event{stroke:var(--run-soft,#999);stroke-dasharray:2 3;fill:none}.run .axis{stroke:var(--run-soft,#aaa)}
.run .curve{fill:none;stroke:var(--run-curve,#20639b);stroke-width:1.4}
@media(prefers-color-scheme:dark){.run text{fill:var(--run-text,#d5d8e0)}
.run .trains{fill:var(--run-trains,#3f6e96)}.run .approximates{fill:var(--run-approximates,#b98527)}
.run .stalled{fill:var(--run-stalled,#8f4536)}
.run .curve{stroke:var(--run-curve,#8ab4f8)}.run .mark{stroke:var(--run-fault,#ff7b6b)}}"""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a rank did from `begin_seconds` to `end_seconds` after the start of the job."""

    begin_seconds: float
    end_seconds: float
    state: State


@dataclass(frozen=True, slots=True)
class TensorInjection:
    """A fault and its ranks; `end_seconds` is when it was undone, or its begin when it was over then."""

    begin_seconds: float
    end_seconds: float
    ranks: tuple[int, ...]


def draw(events: Iterable[Event], title: str, caption: str, *, curve: Curve) -> str:
    """A run of our runtime as an SVG document.

    Raises:
        ValueError: the log has no committed step of the main job.
    """
    main = sorted((e for e in events if e.job == MAIN_JOB), key=lambda e: e.monotonic_seconds)
    # A new leader may say again what the old one said.
    steps = [event for event in main if event.kind == "step_committed" and not event.fields.get("repeated")]
    if not steps:
        raise ValueError("no step was committed: there is nothing to draw")
    origin = next(e.monotonic_seconds for e in main if e.kind == "job_started")
    end = max(e.monotonic_seconds for e in main if e.kind in ("step_committed", "job_ended")) - origin
    stalls = stalls_of(main, origin, end)
    lanes = {rank: with_stalls(lane, stalls) for rank, lane in lanes_of(main, origin, end).items()}
    affects = injections_of(main, origin, end)
    # Lanes begin at 0, what is said of the marks stands above them.
    bottom = _LANE * len(lanes)
    base = bottom + 16 + _CURVE
    width = _WIDTH - _LEFT - _RIGHT

    def x(seconds: float) -> float:
        return _LEFT + width * seconds / end

    body = [f"<style>{_STYLE}</style>"]
    for row, (rank, stretches) in enumerate(lanes.items()):
        top = _LANE * row
        body.append(_text(_LEFT - 6, top + 12, f"rank {rank}", "end"))
        body += [_bar(x(s.begin_seconds), x(s.end_seconds), top + 1, _LANE - 3, s.state) for s in stretches]
        body += [
            _bar(x(s.begin_seconds), max(x(s.end_seconds), x(s.begin_seconds) + 2), top + _LANE - 6, 4, "fault")
            for s in affects
            if rank in s.ranks
        ]
    marks, head = _marks(main, origin, x, base)
    body += marks
    body += _curve(steps, origin, x, bottom + 16, curve)
    body += [_text(x(tick), base + 14, f"{tick:g} s", "middle") for tick in _ticks(end)]
    used = {s.state for lane in lanes.values() for s in lane} | {"fault"}
    legend, foot = _legend([state for state in _WORDS if state in used], base + 30)
    body += legend
    view = f"0 {-head} {_WIDTH} {head + foot}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="run" viewBox="{view}" role="img">'
        f"<title>{escape(title)}</title><desc>{escape(caption)}</desc>{''.join(body)}</svg>\n"
    )


def lanes_of(events: Sequence[Event], origin: float, end: float) -> dict[int, tuple[Stretch, ...]]:
    """Rank -> what it did, without gaps from when it was first in the job to `end` (seconds after `origin`)."""
    changes: dict[int, list[tuple[float, State]]] = {}
    planned: Mapping[int, State] = {}
    losses: dict[int | None, list[int]] = {}
    for event in events:
        seconds = event.monotonic_seconds - origin
        if event.kind == "layout" and event.fields.get("layout"):
            planned = _states(from_json(Layout, event.fields["layout"]), event.fields["members"])
            for rank in planned:
                lane = changes.setdefault(rank, [])
                if lane and lane[-1][1] != "gone":
                    lane.append((seconds, "regroups"))
        elif event.kind == "regrouped":
            for rank in changes:
                changes[rank].append((seconds, planned.get(rank, "gone")))
        elif event.kind == "process_exited" and event.fields.get("exited_rank") in changes:
            if event.fields.get("exit") != 0 or not _is_over(events, event):
                changes[int(event.fields["exited_rank"])].append((seconds, "gone"))
        elif event.kind == "injected" and event.fields.get("is_loss"):
            losses[event.fields["incident"]] = [int(rank) for rank in event.fields.get("ranks", ())]
        elif event.kind in ("verified", "detected"):
            # Of a node that died nobody reports its ranks' ends: they are gone when that was seen or noticed.
            for rank in losses.get(event.fields.get("incident"), event.fields.get("lost", ())):
                changes.setdefault(int(rank), []).append((seconds, "gone"))
    return {rank: _stretches(changes[rank], end) for rank in sorted(changes)}


def stalls_of(events: Sequence[Event], origin: float, end: float) -> tuple[tuple[float, float], ...]:
    """(from, until) of each time in which no step was committed for longer than several usual steps take.

    The usual time of the step before and of the one after it is not part of it: in that time the ranks did train.
    """
    steps = [e for e in events if e.kind == "step_committed" and not e.fields.get("repeated")]
    commits = sorted(float(e.fields.get("committed_monotonic", e.monotonic_seconds)) - origin for e in steps)
    if len(commits) < 2:
        return ()
    usual = median(later - earlier for earlier, later in pairwise(commits))
    stalls = [
        (earlier + usual, later - usual)
        for earlier, later in pairwise(commits)
        if later - earlier > _STALLED_STEPS * usual
    ]
    is_completed = any(e.kind == "job_ended" and e.fields.get("outcome") == "completed" for e in events)
    if not is_completed and end - commits[-1] > _STALLED_STEPS * usual:
        stalls.append((commits[-1] + usual, end))
    return tuple(stalls)


def with_stalls(lane: Sequence[Stretch], stalls: Sequence[tuple[float, float]]) -> tuple[Stretch, ...]:
    """`lane`, where a rank that would train is `stalled` as long as the job was."""
    pieces: list[Stretch] = []
    for stretch in lane:
        at = stretch.begin_seconds
        for since, until in stalls if stretch.state in ("trains", "approximates") else ():
            begin, end = max(since, at), min(until, stretch.end_seconds)
            if begin < end:
                if begin > at:
                    pieces.append(Stretch(at, begin, stretch.state))
                pieces.append(Stretch(begin, end, "stalled"))
                at = end
        if at < stretch.end_seconds:
            pieces.append(Stretch(at, stretch.end_seconds, stretch.state))
    return tuple(pieces)


def injections_of(events: Sequence[Event], origin: float, end: float) -> tuple[TensorInjection, ...]:
    """Every fault that was injected; one that goes on ends when it was undone, or at `end`."""
    undone = {e.fields["incident"]: e.monotonic_seconds - origin for e in events if e.kind == "undone"}
    affects = []
    for event in events:
        if event.kind == "injected":
            begin = event.monotonic_seconds - origin
            until = undone.get(event.fields["incident"], end) if event.fields.get("goes_on") else begin
            ranks = {*event.fields.get("ranks", ()), *(r for link in event.fields.get("links", ()) for r in link)}
            affects.append(
                TensorInjection(begin, min(until, end), tuple(sorted(r for r in ranks if isinstance(r, int))))
            )
    return tuple(affects)


def _states(layout: Layout, members: Iterable[int]) -> dict[int, State]:
    states: dict[int, State] = {}
    for rank in members:
        place = layout.find(rank)
        span = None if place is None else place[0].spans[place[1]]
        states[rank] = "idle" if span is None else "approximates" if span.degraded else "trains"
    return states


def _is_over(events: Sequence[Event], event: Event) -> bool:
    rank, seconds = event.fields.get("exited_rank"), event.monotonic_seconds
    return any(e.kind == "rank_finished" and e.rank == rank and e.monotonic_seconds <= seconds for e in events)


def _stretches(changes: Sequence[tuple[float, State]], end: float) -> tuple[Stretch, ...]:
    stretches: list[Stretch] = []
    for (begin, state), (until, _) in zip(changes, [*changes[1:], (end, "gone")], strict=True):
        if stretches and stretches[-1].state == state:
            stretches[-1] = Stretch(stretches[-1].begin_seconds, min(until, end), state)
        elif until > begin:
            stretches.append(Stretch(begin, min(until, end), state))
    return tuple(stretches)


def _marks(events: Iterable[Event], origin: float, x: _Scale, bottom: float) -> tuple[list[str], int]:
    """(lines with a word each, the height of the words): on as many levels as it takes, up to a number of them."""
    body, free_from = [], [0.0] * _MAX_LEVELS
    going_on = set()
    for event in events:
        if event.kind == "injected" and event.fields.get("goes_on"):
            going_on.add(event.fields["incident"])
        words = _mark_words(event)
        if words is None or (event.kind == "undone" and event.fields["incident"] not in going_on):
            continue
        at = x(event.monotonic_seconds - origin)
        css = "mark" if event.kind == "injected" else "event"
        body.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="-4" y2="{bottom}" class="{css}"/>')
        begin = at - 6 * len(words) if at + 6 * len(words) > _WIDTH else at
        level = next((level for level in range(_MAX_LEVELS) if free_from[level] <= begin), None)
        if level is not None:
            body.append(_text(begin, -8 - _LEVEL * level, words))
            free_from[level] = begin + 6 * len(words) + 8
    return body, 10 + _LEVEL * sum(until > 0 for until in free_from)


def _mark_words(event: Event) -> str | None:
    fields = event.fields
    match event.kind:
        case "injected":
            return str(fields["fault"])
        case "undone":
            return "fault ended"
        case "repair_started":
            return "repair started"
        case "rejoined":
            return "rejoined"
        case "step_unfit":
            return {"repeat": "step repeated", "skip": "step skipped"}.get(fields.get("verdict", ""), "state repaired")
        case "checkpoint_restored" | "snapshot_restored":
            return f"back to step {event.step}"
    return None


def _curve(steps: Sequence[Event], origin: float, x: _Scale, top: float, curve: Curve) -> list[str]:
    times = [float(e.fields.get("committed_monotonic", e.monotonic_seconds)) - origin for e in steps]
    if curve == "loss":
        points = [(at, float(e.fields["loss"])) for at, e in zip(times, steps, strict=True) if _is_figure(e)]
        words = "loss"
    else:
        began = [float(steps[0].fields.get("began_monotonic", origin)) - origin, *times]
        points = []
        unit = next((unit for unit in WORK_UNITS[:2] if all(unit in step.fields for step in steps)), WORK_UNITS[2])
        for first, last, event in zip(began, times, steps, strict=False):
            rate = float(event.fields.get(unit) or (unit == WORK_UNITS[2])) / max(last - first, 1e-9)
            points += [(first, rate), (last, rate)]
        words = f"{unit}/s"
    low, high = (0.0 if curve == "speed" else min(v for _, v in points)), max(v for _, v in points)
    scale = _CURVE / ((high - low) or 1.0)
    line = " ".join(f"{x(at):.1f},{top + _CURVE - (value - low) * scale:.1f}" for at, value in points)
    foot = top + _CURVE
    return [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{foot}" y2="{foot}" class="axis"/>',
        _text(_LEFT - 6, top + 9, f"{high:,.3g}" if curve == "loss" else f"{high:,.0f}", "end"),
        _text(_LEFT - 6, foot, f"{low:,.3g}", "end"),
        _text(_LEFT - 6, top + _CURVE / 2 + 4, words, "end"),
        f'<polyline points="{line}" class="curve"/>',
    ]


def _is_figure(event: Event) -> bool:
    loss = event.fields.get("loss")
    return isinstance(loss, int | float) and abs(loss) < float("inf")


def _legend(states: Sequence[str], top: int) -> tuple[list[str], int]:
    body, at = [], float(_LEFT)
    for state in states:
        if at + 16 + 5.6 * len(_WORDS[state]) > _WIDTH:
            at, top = float(_LEFT), top + 15
        body.append(_bar(at, at + 12, top - 3, 9 if state != "fault" else 4, state))
        body.append(_text(at + 16, top + 5, _WORDS[state]))
        at += 16 + 5.6 * len(_WORDS[state]) + 14
    return body, top + 12


def _ticks(end: float) -> list[float]:
    step = next(size for size in (0.5, 1, 2, 5, 10, 20, 50, 100, 1000) if end / size <= 10)
    return [step * number for number in range(int(end / step) + 1)]


def _bar(begin: float, end: float, top: float, height: float, css: str) -> str:
    size = f'width="{max(0.4, end - begin):.1f}" height="{height}"'
    return f'<rect x="{begin:.1f}" y="{top}" {size} class="{css}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'
