"""The share of degraded samples x layers, and rejected steps, from a log."""

from __future__ import annotations

import pytest

from harness.analysis.approximation import degraded_share_ratio
from harness.analysis.state import build, state_of
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.job_records import LayoutTold
from tests.harness.summaries import summarized
from tests.harness.synthetic import run

pytestmark = pytest.mark.unit


def layouts(events):
    return list(state_of(events).of(LayoutTold))


def rejected(job: str) -> Event:
    return Event("step_unfit", "rank", 0.0, 0.0, 1, job=job, step=3, fields={"verdict": "repeat"})


def test_the_share_is_of_all_steps_and_of_all_layers():
    events = run()
    timeline = build(events)
    degraded = [e for e in events if e.kind == "layout" and e.fields["degraded_layers"]]
    assert degraded, "nothing was degraded"
    share = degraded_share_ratio(layouts(events), timeline.steps.first)
    assert share is not None and 0 < share < 1
    epochs = {e.fields["epoch"] for e in degraded}
    only = [step for step in timeline.steps.first if step.epoch in epochs]
    assert share == pytest.approx(degraded_share_ratio(layouts(events), only) * len(only) / len(timeline.steps.first))
    assert summarized(events)["degraded_share_ratio"] == share


def test_without_faults_nothing_is_degraded_and_without_steps_nothing_is_known():
    events = run(faults=())
    assert degraded_share_ratio(layouts(events), build(events).steps.first) == 0
    assert degraded_share_ratio([], []) is None


def test_rejected_steps_of_the_job_are_counted_and_those_of_the_baseline_are_not():
    assert summarized(run())["unfit_steps"] == 0
    assert summarized([*run(), rejected(MAIN_JOB), rejected("twin")])["unfit_steps"] == 1


def test_a_summary_says_what_approximation_means_for_its_figures():
    caveats = summarized(run())["caveats"]
    assert any("approximately" in caveat for caveat in caveats)
    assert not any("approximately" in caveat for caveat in summarized(run(faults=()))["caveats"])
