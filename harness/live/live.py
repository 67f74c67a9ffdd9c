"""The views of a run: `LiveView` on a terminal, `PlainView` for logs.

Both show only what the events say. The machine is busy training: processing an event costs some microseconds, and a
terminal is redrawn four times a second from text that is laid out by hand.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from chaos.host.streams import forgiving
from chaos.plain_text import plain
from harness.analysis.contained import could_not
from harness.analysis.incident import MeasuredIncident
from harness.analysis.narrator import Narrator
from harness.analysis.state import RunState
from harness.analysis.steps import step_under_way
from harness.analysis.violations import is_judged_later
from harness.analysis.words import count, name_seconds, one_line, speed_text, target_text
from harness.live.lines import Failures, PlainView, recovery_sentence, rounded
from harness.live.progress import JobProgress, RunProgress
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.run_records import PlannedIncident

_REFRESHES_PER_SECOND = 4
_SHOWN_MESSAGES = 6
_MAX_NODE_ROWS = 12
_MAX_INCIDENT_ROWS = 8
_NARROWEST_TERMINAL = 40
_STYLES = {"gone": "red", "restarting": "yellow", "waiting": "yellow", "starting": "dim", "degraded": "yellow"}


class RunView(Protocol):
    """Shows a run. Entering it starts the display, leaving it ends it; its errors never fail the run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def feed(self, event: Event) -> None:
        """Process one event, in the order of arrival."""
        ...

    def message(self, text: str) -> None:
        """Show a sentence that is no event's."""
        ...


def open_view(stream: TextIO, *, plain: bool = False, state: RunState | None = None) -> RunView:
    """The view that fits `stream`: lines unless it is a terminal that can be redrawn.

    `state` is the run's, which others feed before they show an event; without one the view has its own. A stream that
    can be written no longer (a closed terminal) shows nothing more, and the run continues.
    """
    stream = forgiving(stream)
    console = Console(file=stream, stderr=False)
    if plain or not console.is_terminal or console.is_dumb_terminal or console.width < _NARROWEST_TERMINAL:
        return PlainView(stream, state)
    return LiveView(console, state)


class LiveView:
    """One screen, redrawn in place: progress, speed, who holds which layers, the faults, the last messages."""

    def __init__(
        self, console: Console, state: RunState | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._clock = clock
        self._progress = RunProgress(state)
        self._narrator = Narrator()
        self._failures = Failures()
        # (when it happened, words), by time.
        self._messages: list[tuple[float, str]] = []
        self._newest_seconds = 0.0
        # Re-entrant, because a signal handler on the feeding thread may have something to say in the middle of a feed.
        self._lock = threading.RLock()
        self._live = Live(
            get_renderable=self.render,
            console=console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            # Standard output belongs to --json, whatever this console is.
            redirect_stdout=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def feed(self, event: Event) -> None:
        """Process one event; the next redraw shows it."""
        with self._lock:
            try:
                told = [recovery_sentence(incident) for incident in self._progress.feed(event)]
                told.append(self._narrator.tell(event) or "")
            except Exception as error:
                # A view never fails a run.
                told = self._failures.tell(error)
            since = self._progress.since_start_seconds(event)
            under_way = step_under_way(event)
            step = "" if under_way is None else f"step {under_way}  "
            for sentence in filter(None, told):
                self._show(event.monotonic_seconds, f"{since:7.1f}s  {step}{sentence}")

    def message(self, text: str) -> None:
        """Show the sentence among the last messages."""
        with self._lock:
            self._show(self._newest_seconds, one_line(text))

    def render(self) -> Text:
        """The screen as it stands."""
        with self._lock, self._progress.state.lock:
            width, height = self._console.size
            ascii_only = not self._console.encoding.startswith("utf")
            messages = [text for _, text in self._messages]
            try:
                return Screen(self._progress, width, height, ascii_only).draw(self._clock(), messages)
            except Exception as error:
                return Text(could_not("view of the run", error))

    def _show(self, happened: float, text: str) -> None:
        self._newest_seconds = max(self._newest_seconds, happened)
        insort(self._messages, (happened, text), key=lambda message: message[0])
        del self._messages[:-_SHOWN_MESSAGES]


class Screen:
    """Lays out one screen by hand; rich's tables would cost several times as much on every redraw."""

    def __init__(self, progress: RunProgress, width: int, height: int, ascii_only: bool = False) -> None:
        self._progress = progress
        self._width = width
        self._height = height
        self._bar = ("#", ".") if ascii_only else ("━", "─")
        self._text = Text(no_wrap=True, overflow="ellipsis")

    def draw(self, now_monotonic_seconds: float, messages: Sequence[str]) -> Text:
        """All of it; `now_monotonic_seconds` only moves the clock."""
        progress = self._progress
        begin = progress.began_monotonic_seconds
        elapsed = name_seconds(max(0.0, now_monotonic_seconds - begin)) if begin is not None else "waiting for the job"
        self._line((one_line(progress.name) or "run", "bold"), (f"   seed {progress.seed}   {elapsed}", ""))
        self._job("training", progress.main)
        if progress.baseline is not None:
            self._job("baseline", progress.baseline)
        self._speed()
        self._nodes()
        incidents = progress.incidents
        if incidents:
            self._line(("faults", "bold"))
            for incident, plan in incidents[:_MAX_INCIDENT_ROWS]:
                stage, style = stage_words(incident)
                self._line(
                    (f"  {one_line(incident.fault)} on {target_text(incident.target)}{_trigger(incident, plan)}: ", ""),
                    (stage, style),
                )
            if len(incidents) > _MAX_INCIDENT_ROWS:
                self._line((f"  and {len(incidents) - _MAX_INCIDENT_ROWS} more", "dim"))
        for message in messages:
            self._line((message, "dim"))
        self._text.rstrip()
        return self._text

    def _line(self, *parts: tuple[str, str]) -> None:
        for text, style in parts:
            self._text.append(plain(text, kept=""), style)
        self._text.append("\n")

    def _job(self, label: str, job: JobProgress) -> None:
        tail = f" {job.step}/{job.steps} steps" if job.steps else f" {job.step} steps" if job.step else " starting"
        if job.remaining_seconds is not None and not job.outcome:
            tail += f", about {rounded(job.remaining_seconds)} left"
        if job.outcome:
            tail += f", {job.outcome}"
        cells = max(5, min(50, self._width - len(tail) - 12))
        done = round(job.done_ratio * cells)
        self._line(
            (f"{label:<10}", ""), (self._bar[0] * done, "green"), (self._bar[1] * (cells - done), "dim"), (tail, "")
        )

    def _speed(self) -> None:
        main, before = self._progress.main, self._progress.work_per_second_before
        now = main.work_per_second
        speed = f"{speed_text(now) if now else '-'} {main.unit}/s"
        if before and now:
            speed += f" ({now / before - 1:+.0%} against {speed_text(before)} before the fault)"
        loss = f"   loss {main.loss:.3f}" if main.loss is not None else ""
        era = "attempt" if self._progress.traits.restarts_by_launcher else "epoch"
        self._line((f"{speed}{loss}   {era} {main.epoch}", ""))

    def _nodes(self) -> None:
        progress = self._progress
        rows: dict[int, list[int]] = {}
        states, spans = progress.state.ranks.states, progress.state.ranks.spans
        for rank in sorted(states):
            rows.setdefault(progress.node_of(rank), []).append(rank)
        cells = {rank: self._cell(rank) for rank in states}
        cell_width = max((len(text) for text, _ in cells.values()), default=0) + 2
        troubled = [node for node, ranks in rows.items() if any(cells[rank][1] for rank in ranks)]
        room = max(2, min(_MAX_NODE_ROWS, self._height - len(progress.incidents) - _SHOWN_MESSAGES - 7))
        shown = sorted(rows) if len(rows) <= room else sorted(troubled or rows)[:room]
        for node in shown:
            self._line(
                (f"node {node:<4} ", "bold"), *((f"{cells[r][0]:<{cell_width}}", cells[r][1]) for r in rows[node])
            )
        if len(shown) < len(rows):
            self._line((f"and {count(len(rows) - len(shown), 'node')} more", "dim"))
        if any(span.degraded for span in spans.values()):
            self._line(("~ these layers are computed approximately, to make room for a lost rank's", "dim"))

    def _cell(self, rank: int) -> tuple[str, str]:
        """What one rank holds or what became of it, and a style that is empty when all is as it should be."""
        state = self._progress.state.ranks.states[rank]
        if state != "up":
            return f"rank {rank}: {state.upper() if state == 'gone' else state}", _STYLES.get(state, "")
        spans = self._progress.state.ranks.spans
        span = spans.get(rank)
        if span is None and not self._progress.traits.has_layout:
            return f"rank {rank}: up", ""
        if span is None:
            what = "spare" if self._progress.has_spares else "idle"
            return f"rank {rank}: {what}", "yellow" if spans and what == "idle" else ""
        layers = f"layer {span.first}" if span.end - span.first == 1 else f"layers {span.first}-{span.end - 1}"
        if not span.degraded:
            return f"rank {rank}: {layers}", ""
        return f"rank {rank}: {layers} ~{','.join(map(str, sorted(span.degraded)))}", _STYLES["degraded"]


def stage_words(incident: MeasuredIncident) -> tuple[str, str]:
    """The stage of an incident in words, and their style."""
    if incident.is_unverified:
        return "effect NOT verified", "red"
    stage = _stage(incident)
    if incident.recovery_seconds is not None:
        if incident.goes_on and incident.is_in_force:
            return f"active, training continued after {name_seconds(incident.recovery_seconds)}", "yellow"
        if is_judged_later(incident):
            # Whether its numbers are as they must be is known at the end of the run.
            return f"training continued after {name_seconds(incident.recovery_seconds)}", "yellow"
        recovered = f"recovered in {name_seconds(incident.recovery_seconds)}"
        ending = {"over": ", fault ended", "repairing": ", repair in progress", "rejoined": ", rejoined"}.get(stage, "")
        return recovered + ending, "green"
    return _STAGE_WORDS[stage]


_STAGE_WORDS = {
    "armed": ("armed", "dim"),
    "held": ("target held", "yellow"),
    "injected": ("applied, not yet verified", "yellow"),
    "verified": ("verified", "red"),
    "detected": ("failure detected", "red"),
    "regrouped": ("process groups rebuilt, next step in progress", "yellow"),
    "over": ("fault ended, next step in progress", "yellow"),
    "repairing": ("repair in progress", "yellow"),
    "rejoined": ("rejoined", "green"),
}


def _stage(incident: MeasuredIncident) -> str:
    """The last of the stages that it has come to, in whatever order it was told of them."""
    is_repaired = incident.repair_started is not None
    reached = {
        "armed": True,
        "held": incident.held is not None,
        "injected": incident.injected is not None,
        "verified": incident.verified is not None,
        "detected": incident.detected is not None,
        "regrouped": incident.regrouped is not None,
        "over": incident.goes_on and incident.undone is not None,
        "repairing": is_repaired,
        "rejoined": is_repaired and incident.rejoined is not None,
    }
    return [stage for stage in _STAGE_WORDS if reached[stage]][-1]


def _trigger(incident: MeasuredIncident, plan: PlannedIncident | None) -> str:
    if incident.step is not None:
        return f" at step {incident.step}"
    if incident.injected is not None:
        return " before the first step"
    return f" after {plan.at_seconds:g} s" if plan is not None and plan.at_seconds is not None else ""
