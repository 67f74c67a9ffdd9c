"""Repairs that were planned and did not bring anybody back: silent no longer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mecefo_runtime.system.events import Event
from tests.harness.summaries import summarized
from tests.harness.synthetic import Fault, run, shifted

pytestmark = pytest.mark.unit


def reasons_and_caveats(events: list[Event]) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """The verdict, and the unfinished repairs among its reasons and among the caveats."""
    summary = summarized(events)
    reasons = [one for one in summary["reason_codes"] if one["code"] == "repair_unfinished"]
    caveats = [one["repair"] for one in summary["caveat_codes"] if one["code"] == "repair_unfinished"]
    return summary["verdict"], reasons, caveats


def planned(events: list[Event], **plan: object) -> list[Event]:
    """The run, had its repair been planned otherwise."""
    first = next(event for event in events if event.kind == "incidents_planned")
    incidents = [{**first.fields["incidents"][0], **plan}]
    return [shifted(event, incidents=incidents) if event is first else event for event in events]


def test_a_repair_that_brings_nobody_back_although_it_has_time_is_inconclusive():
    verdict, reasons, caveats = reasons_and_caveats(run(faults=[Fault(rejoins=False)]))
    assert (verdict, caveats) == ("inconclusive", [])
    assert (reasons[0]["incident"], reasons[0]["due"], reasons[0]["ranks"]) == (0, "began", [2, 3])
    assert 3.0 <= reasons[0]["began_seconds"] < 4.0
    # As long as one of them is missing.
    half = [shifted(event, ranks=[2]) if event.kind == "rejoined" else event for event in run()]
    half = [
        shifted(e, members=[r for r in e.fields["members"] if r != 3]) if e.kind == "regrouped" else e for e in half
    ]
    verdict, reasons, _ = reasons_and_caveats(half)
    assert verdict == "inconclusive"
    assert reasons[0]["ranks"] == [3]


def test_a_repair_for_which_the_job_ended_too_soon_is_a_caveat():
    # It begins 0.5 s of teardown and some steps before the end; the job had taken 1 s to start.
    verdict, reasons, caveats = reasons_and_caveats(run(faults=[Fault(repair_steps=38, rejoins=False)]))
    assert (verdict, reasons) == ("pass", [])
    assert [one["due"] for one in caveats] == ["began"]


def test_a_repair_that_was_not_due_before_the_end_is_a_caveat():
    verdict, reasons, caveats = reasons_and_caveats(run(faults=[Fault(repair_steps=90)]))
    assert (verdict, reasons) == ("pass", [])
    incident = {"code": "repair_unfinished", "incident": 0, "fault": "kill-node", "target": "node=1"}
    assert caveats == [{**incident, "ranks": [2, 3], "due": "later", "after_steps": 90, "step": 20}]
    in_time = planned(run(faults=[Fault(repair_steps=90)]), repair_steps=None, repair_seconds=3600.0)
    assert reasons_and_caveats(in_time)[2] == [{**incident, "ranks": [2, 3], "due": "later", "after_seconds": 3600.0}]


@pytest.mark.parametrize("plan", [{"repair_steps": 10}, {"repair_steps": None, "repair_seconds": 1.0}])
def test_a_repair_that_was_due_and_never_began_is_inconclusive(plan):
    verdict, reasons, _ = reasons_and_caveats(planned(run(faults=[Fault(repair_steps=None)]), **plan))
    assert verdict == "inconclusive"
    assert reasons[0]["due"] == "missed"


def test_who_is_back_or_was_not_to_come_back_is_not_missed():
    for events in (run(), run(faults=[Fault(repair_steps=None)]), run(faults=[Fault(role="coordinator")])):
        assert reasons_and_caveats(events) == ("pass", [], [])


def test_of_a_run_that_was_stopped_nobody_knows_what_would_have_come():
    verdict, reasons, caveats = reasons_and_caveats(run(faults=[Fault(rejoins=False)], ended="interrupted"))
    assert (verdict, reasons, caveats) == ("halted", [], [])


def test_whom_a_cut_link_cost_its_place_and_who_is_not_back_is_a_caveat():
    events = [event for event in run(faults=[Fault(rejoins=False, repair_steps=None)]) if event.kind != "undone"]
    cut = next(event for event in events if event.kind == "injected")
    events[events.index(cut)] = shifted(cut, fault="drop-link", is_loss=False, goes_on=True)
    over = replace(cut, kind="undone", monotonic_seconds=cut.monotonic_seconds + 1.0, fields={"incident": 0})
    verdict, reasons, caveats = reasons_and_caveats([*events, over])
    assert (verdict, reasons) == ("pass", [])
    incident = {"code": "repair_unfinished", "incident": 0, "fault": "drop-link", "target": "node=1"}
    assert caveats == [{**incident, "ranks": [2, 3], "due": "never"}]
