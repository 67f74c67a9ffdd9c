"""Figures between two hosts: what they come to, how uncertain they say that they are, and what gates make of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.state import RunState
from harness.judging.summary import read_summary
from harness.report.story import story
from mecefo_runtime.system.clocks import MOMENT_SUFFIX, ClockMapping, ClockSample
from mecefo_runtime.system.events import Event, Origin
from mecefo_runtime.system.host import Host
from mecefo_runtime.system.json_values import to_json
from tests.harness.judging.test_early_end import Told, now
from tests.harness.summaries import summarized
from tests.harness.synthetic import run

pytestmark = pytest.mark.unit

CLOCK, NODE0 = "another-boot time:[1]", Host("node0", "another-boot")
AHEAD_SECONDS = 3.0
UNCERTAINTY_SECONDS = 0.002
ROUNDING_SECONDS = 5e-6
# Of the story of `run()`, whose every time is known.
RECOVERY_SECONDS = 0.19


def mapping_of(error: float, uncertainty: float = UNCERTAINTY_SECONDS) -> ClockMapping:
    """Of a clock that is ahead: by a look whose middle was wrong by `error` times what it can be wrong."""
    sent = -uncertainty + error * uncertainty
    return ClockMapping(CLOCK, (ClockSample(sent, AHEAD_SECONDS, sent + 2 * uncertainty),), drift_ratio=0.0)


def as_recorded(events: Sequence[Event], mapping: ClockMapping) -> list[Event]:
    """The log of a run whose first node is another host with another clock."""
    return [recorded(event, mapping) if event.node == 0 else event for event in events]


def recorded(event: Event, mapping: ClockMapping) -> Event:
    times = {"monotonic": event.monotonic_seconds} | {
        name: value for name, value in event.fields.items() if name.endswith(MOMENT_SUFFIX) and value is not None
    }
    moments = {name: mapping.moment(seconds + AHEAD_SECONDS) for name, seconds in times.items()}
    raw = {name: moment.raw_seconds for name, moment in moments.items()}
    origin = Origin(NODE0, CLOCK, moments["monotonic"].uncertainty_seconds, raw)
    fields = {name: moments.get(name, value) for name, value in event.fields.items()}
    line = replace(event, monotonic_seconds=moments["monotonic"], fields=fields, origin=origin).to_json()
    return Event.from_json(line)


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*path, str(key)))
    else:
        yield path, value


@settings(max_examples=10, deadline=None)
@given(st.floats(-1.0, 1.0))
def test_the_figures_are_those_of_one_clock_within_what_they_say(error):
    one_clock = summarized(run(baseline=False))
    two_clocks = summarized(as_recorded(run(baseline=False), mapping_of(error)))
    (incident,) = two_clocks["incidents"]
    doubts = incident.pop("uncertainty_seconds")
    assert doubts["recovery_seconds"] == pytest.approx(UNCERTAINTY_SECONDS, abs=ROUNDING_SECONDS)
    assert "verify" not in doubts and "detection_seconds" not in doubts, "those are of one clock"
    (before,) = one_clock["incidents"]
    assert "uncertainty_seconds" not in before and incident.keys() == before.keys()
    exact = dict(leaves(before))
    for path, value in leaves(incident):
        if path[-1] in doubts:
            assert abs(value - exact[path]) <= doubts[path[-1]] + ROUNDING_SECONDS, path
        elif isinstance(value, float):
            # What it answers for begins and ends with steps: shares of the run's time, of either clock.
            assert value == pytest.approx(exact[path], rel=0.05, abs=2 * UNCERTAINTY_SECONDS), path
        else:
            assert value == exact[path], path
    for name in ("steps_committed", "steps_lost", "samples_lost", "final_loss", "job_outcome"):
        assert two_clocks[name] == one_clock[name]
    assert two_clocks["wall_clock_seconds"] == pytest.approx(one_clock["wall_clock_seconds"], abs=ROUNDING_SECONDS)


def test_live_and_stored_are_the_same():
    events = [Event.from_json(event.to_json()) for event in as_recorded(run(baseline=False), mapping_of(0.5))]
    stored = [Event.from_json(event.to_json()) for event in events]
    assert stored == events
    live, read = RunState(), RunState()
    for event, again in zip(events, stored, strict=True):
        live.feed(event)
        read.feed(again)
    assert live.timeline.incidents == read.timeline.incidents
    assert live.timeline.incidents[0].uncertainty_seconds == read.timeline.incidents[0].uncertainty_seconds != {}
    assert summarized(stored) == summarized(events)


@pytest.mark.parametrize(
    ("limit", "passed"),
    [
        (RECOVERY_SECONDS + 3 * UNCERTAINTY_SECONDS, True),
        (RECOVERY_SECONDS + UNCERTAINTY_SECONDS / 2, None),
        (RECOVERY_SECONDS - UNCERTAINTY_SECONDS / 2, None),
        (RECOVERY_SECONDS - 3 * UNCERTAINTY_SECONDS, False),
    ],
)
@pytest.mark.parametrize("aggregate", ["max", "p95", "mean"])
def test_a_gate_whose_limit_is_within_the_uncertainty_is_undecided(limit, passed, aggregate):
    gates = [f"recovery_seconds {aggregate} < {limit}", f"detection_seconds {aggregate} < {limit}"]
    summary = summarized(as_recorded(run(baseline=False, gates=gates), mapping_of(0.0)))
    uncertain, certain = summary["gates"][:2]
    assert uncertain["passed"] is passed and certain["passed"] is True
    assert (summary["verdict"] == "inconclusive") == (passed is None)
    if passed is None:
        assert uncertain["why"]["code"] == "within_uncertainty" and "±" in uncertain["reason"]


def test_a_run_is_not_ended_for_what_may_be_the_clocks():
    events = as_recorded(now(run(baseline=False)), mapping_of(0.0))
    assert Told(f"recovery_seconds < {RECOVERY_SECONDS - UNCERTAINTY_SECONDS / 2}").feed(events).ends == []
    told = Told(f"recovery_seconds < {RECOVERY_SECONDS - 3 * UNCERTAINTY_SECONDS}").feed(events)
    assert [reason for reason, _ in told.ends] == ["aborted"]
    assert told.fields["value"] == pytest.approx(RECOVERY_SECONDS - UNCERTAINTY_SECONDS, abs=ROUNDING_SECONDS)


def test_the_story_says_how_uncertain_a_time_is():
    raw = summarized(as_recorded(run(baseline=False), mapping_of(0.0)))
    assert to_json(read_summary(raw)) == raw
    assert any("± 2 ms" in sentence for sentence in story(read_summary(raw)))
    assert not any("±" in sentence for sentence in story(read_summary(summarized(run(baseline=False)))))
