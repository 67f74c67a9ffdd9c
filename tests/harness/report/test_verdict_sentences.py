"""The sentences of a verdict stand once in every report: what it means, and the reasons that add something."""

from __future__ import annotations

import html as html_text
import io
import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.console import Console

from harness.judging.summarize import summarize
from harness.judging.summary import Summary
from harness.report import github, html, junit, terminal
from mecefo_runtime.system.events import Event
from tests.harness.analysis.test_attempts import restarted
from tests.harness.summaries import summary
from tests.harness.synthetic import Fault, Kill, run

pytestmark = pytest.mark.unit

NOT_VERIFIED = "incident 0 (kill-node on node=1) was injected, but could not be verified: its processes are still there"
UNDECIDED = [
    f"gate '{name} == 0' is undecided: the run was {{}} before {name} was final"
    for name in ("steps_lost", "samples_lost", "unrecovered_incidents")
]


def without_injection() -> list[Event]:
    """A job that fails by itself."""
    events = run(faults=(Fault(recovers=False),), job_fails=True, baseline=False)
    return [event for event in events if event.kind not in ("held", "injected", "verified", "undone")]


LOGS: dict[str, Callable[[], list[Event]]] = {
    "pass": run,
    "without a fault": lambda: run(faults=()),
    "of a command": restarted,
    "a gate failed": lambda: run(gates=["goodput >= 100%"]),
    "inconclusive": lambda: run(faults=(Fault(verified=False),)),
    "halted": lambda: run(ended="halted"),
    "interrupted": lambda: run(ended="interrupted"),
    "dirty": lambda: run(residue=(4711,)),
    "unplanned": lambda: run(kills=[Kill(30, 5, 40)]),
    "by itself": without_injection,
}
HEADS: dict[str, tuple[str, list[str]]] = {
    "pass": ("PASS", ["Every fault was verified, the job recovered from each, and all gates passed."]),
    "without a fault": ("PASS", ["The job completed without a fault, and all gates passed."]),
    "of a command": ("PASS", ["Every fault was verified, the job recovered from each, and all gates passed."]),
    "a gate failed": (
        "FAIL",
        [
            "At least one gate failed.",
            "- gate 'goodput >= 100%' failed: goodput_ratio is 73.90%, 26.10 points below the limit",
        ],
    ),
    "inconclusive": (
        "INCONCLUSIVE",
        [
            "No verdict is possible: something that it needs was not verified or not measured.",
            f"- {NOT_VERIFIED}",
        ],
    ),
    "halted": (
        "HALTED",
        ["- a halt condition became true: training_loss > 20", *(f"- {one.format('halted')}" for one in UNDECIDED)],
    ),
    "interrupted": (
        "HALTED",
        ["- the run was interrupted (SIGINT)", *(f"- {one.format('interrupted')}" for one in UNDECIDED)],
    ),
    "dirty": (
        "DIRTY",
        [
            "A fault was not undone, or something was left behind. Run `chaos heal` first.",
            "- processes were left behind: 4711; `chaos heal` ends them",
        ],
    ),
    "unplanned": ("PASS", ["Every fault was verified, the job recovered from each, and all gates passed."]),
}


def on_a_terminal(found: Summary, events: list[Event]) -> str:
    console = Console(file=io.StringIO(), width=80)
    terminal.render(found, events, console)
    return console.file.getvalue()


def head(found: Summary, events: list[Event]) -> tuple[str, list[str]]:
    """The verdict on a terminal and its sentences, each as one line."""
    first, *lines = on_a_terminal(found, events).split("\n\n")[0].splitlines()
    text = "\n".join(lines)
    return first.split(": ")[1], re.sub(r"\n    (?=\S)|\n  (?![-\s])", " ", text).replace("\n  ", "\n").strip().split(
        "\n"
    )


def views(found: Summary, events: list[Event]) -> dict[str, str]:
    """The words of each report, as they are read."""
    page = re.sub(r"<style>.*?</style>|<[^>]+>", " ", html.render(found, events), flags=re.DOTALL)
    cases = ElementTree.fromstring(junit.render(found).encode()).iter()
    marked = re.sub(r"\\(.)", r"\1", github.markdown(found, None)).replace("@\u200b", "@")
    texts = {
        "terminal": on_a_terminal(found, events),
        "page": html_text.unescape(page),
        "github": html_text.unescape(marked),
        "junit": "\n".join(f"{one.get('message', '')} {one.text or ''}" for one in cases),
    }
    return {name: " ".join(text.split()) for name, text in texts.items()}


@pytest.mark.parametrize("name", HEADS)
def test_a_report_begins_with_the_verdict_and_each_fact_once(name):
    events = LOGS[name]()
    assert head(summarize(events), events) == HEADS[name]


@pytest.mark.parametrize("name", LOGS)
def test_no_sentence_of_the_verdict_stands_twice(name):
    events = LOGS[name]()
    found = summarize(events)
    expected, sentences = head(found, events)
    assert expected.lower() == found.verdict
    for view, text in views(found, events).items():
        for sentence in sentences:
            words = sentence.removeprefix("- ")
            # On the page a reason begins with a capital letter.
            assert text.lower().count(words.lower()) <= 1, (view, words)
        if found.verdict == "pass":
            assert "every fault was verified and the job recovered;" not in text


def test_a_job_that_failed_by_itself_says_so_once():
    found = summarize(without_injection())
    assert found.verdict == "fail"
    for view, text in views(found, without_injection()).items():
        assert text.lower().count("the job failed by itself") == (0 if view == "junit" else 1), view


def test_a_command_that_never_trained_says_so_once():
    reasons = ["the job never began to train: rank 0 ended with exit code 1"]
    found = summary(verdict="error", command="torchrun t.py", job_outcome="failed", reasons=reasons, gates=[])
    _, sentences = head(found, [])
    assert sentences == ["This says nothing about what the command survives.", f"- {reasons[0]}"]
    for text in views(found, []).values():
        assert text.lower().count("never began to train") == 1


@pytest.mark.parametrize("verdict", ["pass", "fail", "inconclusive", "halted", "error", "dirty", "other"])
def test_without_reasons_the_verdict_is_explained(verdict):
    found = replace(summary(verdict=verdict), reasons=())
    assert head(found, [])[1] != [""]
