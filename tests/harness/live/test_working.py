"""Progress of long commands on standard error: nothing at first, one line on a terminal, few lines in a log."""

import io
import re

import pytest

from harness.live.working import Working

pytestmark = pytest.mark.unit


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def seen(text):
    """What stands on the last line of a terminal that got `text`."""
    return text.rpartition("\n")[2].rpartition("\r\x1b[K")[2]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(autouse=True)
def in_eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_short_work_says_nothing(stream, clock):
    stream = stream()
    work = Working("forecast", stream, clock=clock)
    work("mecefo", 1, 3)
    clock.now += 1.9
    work("exact", 2, 3)
    assert stream.getvalue() == ""


def test_a_terminal_shows_one_line_that_is_removed_at_the_end(clock):
    stream = Terminal()
    with Working("forecast", stream, clock=clock) as work:
        work("mecefo", 1, 3)
        clock.now += 2
        work.tick()
        assert seen(stream.getvalue()) == "forecast: 1 of 3, mecefo, 2 s"
        clock.now += 60
        work("exact", 2, 3)
        assert seen(stream.getvalue()) == "forecast: 2 of 3, exact, 62 s"
    assert "\n" not in stream.getvalue() and seen(stream.getvalue()) == ""


def test_a_log_gets_a_line_every_half_minute(clock):
    stream = io.StringIO()
    with Working("forecast", stream, clock=clock) as work:
        for number in range(100):
            work("mecefo", number, 100)
            clock.now += 1
    lines = stream.getvalue().splitlines()
    assert lines == [f"forecast: {number} of 100, mecefo, {number} s" for number in (2, 32, 62)] + [
        "forecast: 92 of 100, mecefo, 2 min"
    ]
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()


def test_a_message_stays_above_the_line(clock):
    stream = Terminal()
    with Working("shrink", stream, clock=clock) as work:
        clock.now += 3
        work("run", 1, 30)
        work.message("run 1: fail")
        clock.now += 1
        work("run", 2, 30)
        assert seen(stream.getvalue()) == "shrink: 2 of 30, run, 4 s"
    assert re.sub("[^\n]*\r\x1b\\[K", "", stream.getvalue()) == "run 1: fail\n"


def test_a_long_line_is_cut_at_the_width_of_the_terminal(clock):
    stream = Terminal()
    with Working("日本" * 40, stream, clock=clock) as work:
        clock.now += 3
        work("part")
        assert seen(stream.getvalue()) == "日本" * 19 + "..."


def test_what_is_named_steers_no_terminal(clock):
    stream = Terminal()
    with Working("judging a\x1b[2Jb", stream, clock=clock) as work:
        clock.now += 3
        work("c\rd")
        assert seen(stream.getvalue()) == "judging a\\x1b[2Jb: c\\rd, 3 s"


def test_time_passes_within_a_part_without_a_call(clock):
    stream = Terminal()
    with Working("forecast", stream, clock=clock, first_seconds=0.0) as work:
        work("mecefo")
        clock.now += 7
        # Its own thread shows it; the test does not depend on when.
        for _ in range(200):
            if seen(stream.getvalue()) == "forecast: mecefo, 7 s":
                break
            work._is_over.wait(0.05)
        else:
            pytest.fail("the line was not rewritten")


def test_a_stream_that_was_closed_ends_nothing(clock):
    stream = Terminal()
    with Working("forecast", stream, clock=clock) as work:
        stream.close()
        clock.now += 3
        work("mecefo")
