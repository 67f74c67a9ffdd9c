"""What a failed gate was decided by: the events that a reader is sent to."""

import re

import pytest

from harness.analysis.state import state_of
from harness.judging.gates import Gate, evaluate
from harness.judging.series import Recorded
from harness.judging.summarize import summarize
from harness.report.deciding import deciding
from harness.report.html import render
from tests.harness import synthetic
from tests.harness.synthetic import Fault

pytestmark = pytest.mark.unit

FAULTS = [Fault(step=40, repair_steps=5), Fault(step=120, node=2, repair_steps=20)]
EVENTS = synthetic.run(steps=200, faults=FAULTS)


def decided(gate, events=EVENTS):
    summary = summarize(events)
    result = evaluate(Gate.parse(gate), summary, Recorded(state_of(events)))
    return [(one.words, [events[number - 1] for number in one.events]) for one in deciding(result, summary, events)]


@pytest.mark.parametrize(
    ("gate", "end"),
    [
        ("recovery_seconds < 1ms", "step_committed"),
        ("detection_seconds < 0.001ms", "detected"),
        ("rejoin_seconds < 1ms", "rejoined"),
        ("repair_wait_seconds < 1ms", "repair_started"),
        ("verify_seconds < 0.001ms", "verified"),
    ],
)
def test_of_incidents_it_is_their_fault_and_what_ended_the_phase(gate, end):
    found = decided(gate)
    assert sorted(words for words, _ in found) == ["incident 0", "incident 1"]
    for words, events in found:
        assert [event.kind for event in events] == ["injected", end]
        assert events[0].fields["incident"] == int(words.split()[1])
        assert events[0].monotonic_seconds <= events[1].monotonic_seconds


def test_only_the_incidents_beyond_the_limit_are_named():
    waits = [i.phases_seconds["repair_wait"] for i in summarize(EVENTS).incidents]
    limit = sum(waits) / 2
    ((words, _),) = decided(f"repair_wait_seconds < {limit}")
    assert words == f"incident {waits.index(max(waits))}"


def test_of_a_series_it_is_the_worst_step():
    ((words, events),) = decided("training_loss max < 0.1")
    worst = max((e for e in EVENTS if e.kind == "step_committed" and e.job == "main"), key=lambda e: e.fields["loss"])
    assert words == f"step {worst.step}" and events[0].step == worst.step


@pytest.mark.parametrize(
    ("gate", "kinds"),
    [
        ("throughput_drop < 0%", {"injected", "repair_started", "rejoined", "undone"}),
        ("loss_deviation < 0%", {"step_committed"}),
        ("goodput > 99.99%", {"job_ended"}),
        ("layout_changes < 1", {"layout"}),
    ],
)
def test_of_a_figure_of_the_run_it_is_where_the_figure_comes_from(gate, kinds):
    ((_, events),) = decided(gate)
    assert events and {event.kind for event in events} <= kinds


def test_a_gate_that_passed_has_none():
    assert decided("recovery_seconds < 1min") == []


def test_the_page_links_a_failed_gate_to_its_events():
    events = synthetic.run(
        steps=200, faults=FAULTS, gates=["recovery_seconds < 1ms", "training_loss max < 0.1", "goodput > 1%"]
    )
    summary = summarize(events)
    assert summary.verdict == "fail"
    html = render(summary, events)
    (table,) = re.findall(r'<section id="gates">.*?</section>', html, re.DOTALL)
    links = re.findall(r'href="#(event-\d+)"', table)
    assert len(links) >= 5
    assert all(html.count(f'<tr id="{link}">') == 1 for link in links)
    assert "above the limit" in table
