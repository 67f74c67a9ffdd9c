"""What is made of a log costs no more than n log n of its length, in each respect in which it may be long."""

import io
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from typing import Any

import pytest
from rich.console import Console

from harness.analysis.command.replica_state import compare_replicas
from harness.analysis.integrity import first_non_finite
from harness.analysis.state import EventLog, RunState
from harness.exporter.families import RunCollector
from harness.exporter.figures import Figures
from harness.judging.summarize import summarize
from harness.judging.summary import Summary
from harness.live.lines import PlainView
from harness.live.live import LiveView
from harness.report import html, junit, terminal
from tests.harness.counting import growth, operations, peak_bytes
from tests.harness.long_logs import DIMENSIONS

pytestmark = pytest.mark.unit

SIZES = (12, 24, 48)
LONGER = (100, 200, 400)
MOST_GROWTH = 2.5
"""Of n log n the second doubling costs 2.4 times the first at these sizes, of n squared 4 times."""
MOST_BYTES_PER_EVENT = 6_000
MOST_BYTES = 4_000_000


def _judged(log: EventLog, summary: Summary) -> None:
    summarize(log)


def _page(log: EventLog, summary: Summary) -> None:
    html.render(summary, log)


def _text(log: EventLog, summary: Summary) -> None:
    terminal.render(summary, log, Console(file=io.StringIO(), width=100))
    junit.render(summary)


def _lines(log: EventLog, summary: Summary) -> None:
    with PlainView(io.StringIO()) as view:
        for event in log:
            view.feed(event)


def _screen(log: EventLog, summary: Summary) -> None:
    view = LiveView(Console(file=io.StringIO(), width=100))
    for event in log:
        view.feed(event)
    view.render()


def _metrics(log: EventLog, summary: Summary) -> None:
    figures = Figures()
    for event in log:
        figures.feed(event)
    figures.judge(summary)
    list(RunCollector(figures, lambda: figures.state.newest_seconds).collect())


MADE: dict[str, Callable[[EventLog, Summary], None]] = {
    "judged": _judged,
    "page": _page,
    "text": _text,
    "lines": _lines,
    "screen": _screen,
    "metrics": _metrics,
}


IN_THEIR_ORDER = ("lines", "screen")
"""What is only shown of a run while it runs: its events do not come backwards."""


def logs(dimension: str, sizes: Sequence[int]) -> list[EventLog]:
    return [EventLog(DIMENSIONS[dimension](size)) for size in sizes]


@cache
def make_all_once() -> None:
    """What a process does once, such as to compile the template of the page, is not counted."""
    (log,) = logs("steps", (1,))
    summary = summarize(list(log))
    for make in MADE.values():
        make(log, summary)


QUICK = ("judged", "page", "lines", "metrics")
"""What is counted for every change; the rest at night, and all of it for longer logs."""


def grown(dimension: str, sizes: tuple[int, int, int], wanted: Collection[str] = tuple(MADE)) -> dict[str, float]:
    """By how much more the second doubling of the log cost than the first, of what is made of it."""
    make_all_once()
    found: dict[str, float] = {}
    for what, make in MADE.items():
        is_backwards = dimension == "steps_out_of_order" and what in IN_THEIR_ORDER
        if is_backwards or what not in wanted:
            continue
        # Pages draw much for each incident.
        own = [size // 2 if what == "page" else size for size in sizes]
        made = [(log, summarize(list(log))) for log in logs(dimension, own)]
        counts = [operations(partial(make, log, summary)) for log, summary in made]
        # Little work that is done once in a while is no growth.
        if counts[2] - counts[1] > 40 * own[2]:
            found[what] = growth((counts[0], counts[1], counts[2]))
    return found


def assert_bounded(found: dict[str, float]) -> None:
    assert {what: round(value, 2) for what, value in found.items() if value > MOST_GROWTH} == {}


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_twice_as_long_a_log_costs_little_more_than_twice_as_much(dimension: str):
    assert_bounded(grown(dimension, SIZES, QUICK))


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_the_memory_of_an_analysis_goes_with_the_length_of_the_log(dimension: str):
    (log,) = logs(dimension, SIZES[-1:])
    assert peak_bytes(lambda: summarize(log)) < MOST_BYTES + MOST_BYTES_PER_EVENT * log.state.size


def test_the_count_sees_what_grows_with_a_square():
    def square(size: int) -> int:
        found: list[int | None] = []

        def work() -> None:
            state = RunState()
            for event in DIMENSIONS["steps"](size):
                state.feed(event)
                # Figures of all that there is, for each event.
                found.extend(first_non_finite(state.timeline.steps.first) for _ in range(16))

        return operations(work)

    counts = [square(size) for size in (25, 50, 100)]
    assert growth((counts[0], counts[1], counts[2])) > MOST_GROWTH


def test_the_bound_of_memory_sees_groups_that_multiply(monkeypatch: pytest.MonkeyPatch):
    def multiplied(looks: Sequence[Any]) -> dict[str, list[tuple[int, ...]]]:
        groups: list[frozenset[int]] = [frozenset(looks[0].held)]
        for look in looks[:9]:
            groups = [group & {rank} for group in groups for rank in look.held]
        return {"weight": [tuple(group) for group in groups if len(group) > 1]}

    monkeypatch.setattr("harness.analysis.command.replica_state._held_in_common", multiplied)
    log = EventLog(DIMENSIONS["looks"](24))
    records = log.state.timeline.state_checksums
    assert peak_bytes(lambda: compare_replicas(records, log.state.timeline.first_injected or 0.0, (1,))) > MOST_BYTES
