"""The words of each report: one snapshot for all kinds of runs. `pytest --update-snapshots` writes them anew."""

import html as entities
import io
import json
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from harness.judging.summarize import summarize
from harness.judging.summary import Summary
from harness.report import github, html, junit
from harness.report.terminal import render
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import to_json
from tests.harness.judging.test_golden_summaries import LOGS

pytestmark = pytest.mark.unit

_PICTURES = re.compile(r"<(svg|style|script)\b.*?</\1>", re.DOTALL)


def on_a_terminal(summary: Summary, events: list[Event]) -> str:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    render(summary, events, console, environment={})
    return console.file.getvalue()


def on_github(summary: Summary, events: list[Event]) -> str:
    return "\n".join([github.markdown(summary, None, {}), *github.workflow_commands(summary), ""])


def in_junit(summary: Summary, events: list[Event]) -> str:
    return junit.render(summary).replace("><", ">\n<")


def on_the_page(summary: Summary, events: list[Event]) -> str:
    """Its text, a block a line."""
    text = re.sub(r"<[^>]+>", "\n", _PICTURES.sub("", html.render(summary, events, environment={})))
    return "\n".join(line for part in entities.unescape(text).splitlines() if (line := part.strip())) + "\n"


@pytest.mark.parametrize(
    ("file", "show"),
    [
        ("terminal.txt", on_a_terminal),
        ("github.md", on_github),
        ("junit.xml", in_junit),
        ("page.txt", on_the_page),
    ],
)
def test_a_report_says_what_it_said(file, show: Callable[[Summary, list[Event]], str], snapshot):
    parts = []
    for name, log in LOGS.items():
        events = log()
        parts.append(f"==== {name} ====\n{show(summarize(events), events)}")
    snapshot.check(file, "\n".join(parts))


def test_the_runs_have_many_kinds_of_reasons():
    summaries = [summarize(log()) for log in LOGS.values()]
    assert len({one.code for summary in summaries for one in summary.reason_codes}) >= 10
    assert len({one.code for summary in summaries for one in summary.caveat_codes}) >= 5
    assert json.dumps([to_json(summary) for summary in summaries])
