"""What people see of an external job: its unit, its attempts, steps that nobody knew beforehand."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.judging.summarize import summarize
from harness.judging.summary import IncidentSummary
from harness.live.lines import PlainView
from harness.live.live import LiveView
from harness.report import html, wording
from harness.report.github import markdown
from harness.report.story import story
from harness.report.terminal import render
from tests.harness import synthetic
from tests.harness.analysis.test_attempts import LAST, Log, restarted

pytestmark = pytest.mark.unit

PLAN = {"incident": 0, "fault": "kill-process", "target": "rank=1", "phase": "forward"}


def terminal(events):
    stream = io.StringIO()
    render(summarize(events), events, Console(file=stream, width=120), folder=Path("out/n/1"))
    return stream.getvalue()


@pytest.mark.parametrize(("figures", "unit", "speed"), [({"samples": 4}, "samples", "40"), ({}, "steps", "10")])
def test_reports_name_the_unit(figures, unit, speed):
    events = restarted(**figures)
    text = terminal(events)
    assert f"Training speed ({unit} per second)" in text and "during the fault" in text
    assert f"The command torchrun t.py committed {LAST} steps in 2 attempts" in text
    assert "Its launcher restarted it (attempt 2), and it continued from step 11." in text
    page = html.render(summarize(events), events)
    assert f"Training speed over time, in {unit} per second" in page and f"{speed} {unit}/s" in page
    assert "tokens/s" not in page


def test_how_it_came_through():
    figures = {"recovery_seconds": 2.0, "progress_seconds": 2.0, "recovery_step": 11, "attempt": 1}
    incident = IncidentSummary(0, "kill-process", verified=True, **figures)
    same = str(wording.how_it_recovered(replace(incident, recovery_attempt=1)))
    assert "continued in the surviving processes" in same
    again = replace(incident, recovery_attempt=2)
    assert str(wording.how_it_recovered(again)).endswith("continued from step 11.")
    assert "3.50 s after the fault" in str(wording.how_it_recovered(replace(again, progress_seconds=3.5)))
    assert "did not reach a step" in str(wording.how_it_recovered(replace(again, progress_seconds=None)))
    assert wording.how_it_recovered(incident) is None


def test_the_plain_view_tells_steps_as_they_double_and_each_attempt():
    stream = io.StringIO()
    with PlainView(stream) as view:
        for event in restarted(samples=4):
            view.feed(event)
    lines = stream.getvalue()
    assert [f"{steps} steps done, " in lines for steps in (2, 4, 8, 16)] == [True] * 4
    assert "40 samples/s" in lines and "tokens" not in lines
    assert "the launcher restarted the job: attempt 2, 2 ranks" in lines
    assert "job started: torchrun t.py" in lines


def test_the_live_view_shows_attempt_and_steps():
    view = LiveView(Console(file=io.StringIO(), force_terminal=True, width=100, height=40))
    for event in restarted(samples=4):
        view.feed(event)
    text = view.render().plain
    assert f" {LAST} steps, completed" in text and "samples/s" in text and "attempt" in text


def test_the_page_names_the_bands_that_are_seen_and_steps_that_were_done_again():
    def signs(page, picture):
        (body,) = re.findall(rf'<svg[^>]*"{picture}-860-t.*?</svg>', page, re.DOTALL)
        return {words for words in ("fault active, or ranks missing", "stalled") if words in body}

    # No step came between the fault and the restart: all of the band is the other one, and by step there is none.
    page = html.render(summarize(restarted()), restarted())
    assert signs(page, "speed-over-time") == {"stalled"}
    assert "recomputed; committed" in page
    survived = synthetic.run()
    page = html.render(summarize(survived), survived)
    assert signs(page, "speed-over-time") == {"fault active, or ranks missing", "stalled"}
    assert signs(page, "loss") == {"fault active, or ranks missing"}
    assert "recomputed; committed" not in page


def before_the_first_step(is_verified):
    """A fault at a time, before a command's ranks have begun their first step; then the command has ended."""
    log = Log()
    log.events[1] = replace(log.events[1], fields={"incidents": [{**PLAN, "step": None, "at_seconds": 3.0}]})
    log.attempt(1)
    told = {"incident": 0, "fault": "kill-process", "is_loss": True, "ranks": [1], "target": "rank=1"}
    log.tell("injected", **told, phase="forward")
    if is_verified:
        log.tell("verified", incident=0, evidence={"summary": "gone"})
    else:
        log.tell("unverified", incident=0, reason="still running")
    log.tell("undone", incident=0)
    log.tell("job_failed", reason="the command was killed by SIGKILL", exit=-9)
    return log.end("failed")


@pytest.mark.parametrize("is_verified", [True, False])
def test_nothing_that_happened_before_the_first_step_is_told_with_a_step(is_verified):
    events = before_the_first_step(is_verified)
    summary = summarize(events)
    texts = {
        "terminal": terminal(events),
        "page": re.sub(r"<(style|script).*?</\1>", "", html.render(summary, events), flags=re.DOTALL),
        "story": " ".join(story(summary)),
        "GitHub": markdown(summary, None),
        "lines": in_lines(events),
        "live view": on_a_terminal(events),
    }
    for name, text in texts.items():
        assert not re.search(r"\bstep 1\b", text), name
    for name in ("terminal", "page", "GitHub", "live view"):
        assert "before the first step" in texts[name], name


def in_lines(events):
    stream = io.StringIO()
    with PlainView(stream) as view:
        for event in events:
            view.feed(event)
    return stream.getvalue()


def on_a_terminal(events):
    view = LiveView(Console(file=io.StringIO(), force_terminal=True, width=160, height=60))
    for event in events:
        view.feed(event)
    return view.render().plain
