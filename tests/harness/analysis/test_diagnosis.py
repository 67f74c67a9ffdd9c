"""Did the job name the right cause? Rightly, partly, wrongly, or nobody; and for nothing."""

from dataclasses import replace

import pytest

from harness.analysis.diagnosis import diagnose
from harness.analysis.state import state_of
from harness.judging.summarize import summarize
from harness.judging.summary import NamedCause
from harness.report.wording import diagnosis_words
from mecefo_runtime.system.record import Record
from tests.harness.synthetic import DETECT_SECONDS, Fault, run, shifted

pytestmark = pytest.mark.unit


def diagnoses_of(events):
    state = state_of(events)
    return diagnose(state.of(Record), state.timeline)


def renamed(events, **changes):
    """The run, had its detections said something else."""
    return [shifted(event, **changes) if event.kind == "detected" else event for event in events]


def affected_in(events):
    return next(event for event in events if event.kind == "injected").fields["ranks"]


def test_who_names_all_that_was_affected_is_right():
    events = run()
    diagnoses = diagnoses_of(events)
    found = diagnoses.by_incident[0]
    assert (found.score, found.named) == ("right", set(affected_in(events)))
    assert found.seconds == pytest.approx(DETECT_SECONDS)
    assert (diagnoses.num_false, diagnoses.recall_ratio, diagnoses.precision_ratio) == (0, 1.0, 1.0)


def test_who_names_a_part_of_it_is_partly_right():
    events = run()
    affected = affected_in(events)
    assert len(affected) > 1
    diagnoses = diagnoses_of(renamed(events, lost=affected[:1]))
    assert diagnoses.by_incident[0].score == "partly"
    assert (diagnoses.recall_ratio, diagnoses.precision_ratio) == (1 / len(affected), 1.0)


def test_who_names_somebody_else_is_wrong():
    events = run()
    affected = affected_in(events)
    other = next(rank for rank in range(8) if rank not in affected)
    diagnoses = diagnoses_of(renamed(events, lost=[other], how="health"))
    assert diagnoses.by_incident[0].score == "wrong"
    assert diagnoses.by_incident[0].seconds is None
    assert (diagnoses.num_false, diagnoses.recall_ratio, diagnoses.precision_ratio) == (1, 0.0, 0.0)
    both = diagnoses_of(renamed(events, lost=[*affected, other], how="health"))
    assert both.by_incident[0].score == "wrong"
    assert both.precision_ratio == len(affected) / (len(affected) + 1)


def test_who_names_the_link_has_named_both_of_its_ends():
    events = run()
    affected = affected_in(events)
    assert diagnoses_of(renamed(events, lost=affected[:1], cut_links=[affected])).by_incident[0].score == "right"
    others = diagnoses_of(renamed(events, lost=affected[:1], cut_links=[[0, 1], [2, 3]]))
    assert others.by_incident[0].score == "partly", "of several links, the ranks that were sent away count"


def test_who_names_the_links_of_a_partition_one_by_one_has_named_all_sides():
    events = []
    for event in run():
        if event.kind == "injected":
            event = replace(event, fields={**event.fields, "ranks": [0, 1, 2, 3]})
        if event.kind != "detected":
            events.append(event)
            continue
        for lost in (2, 3):
            named = {**event.fields, "lost": [lost], "cut_links": [[0, lost], [1, lost]]}
            events.append(replace(event, fields=named))
    assert diagnoses_of(events).by_incident[0].score == "right"


def test_who_names_nobody_has_not_diagnosed_it():
    events = [event for event in run() if event.kind != "detected"]
    diagnoses = diagnoses_of(events)
    assert diagnoses.by_incident[0].score == "none"
    assert (diagnoses.recall_ratio, diagnoses.precision_ratio) == (0.0, None)


def test_an_accusation_before_any_fault_is_false():
    events = run()
    early = next(event for event in events if event.kind == "detected")
    early = replace(early, monotonic_seconds=state_of(events).timeline.started_seconds)
    diagnoses = diagnoses_of([shifted(early, how="health"), *events])
    assert diagnoses.num_false == len(early.fields["lost"])
    assert diagnoses.by_incident[0].score == "right"
    # That a rank is gone is no accusation.
    assert diagnoses_of([early, *events]).num_false == 0


def test_who_notices_another_loss_has_accused_nobody():
    events = run()
    gone = next(event for event in events if event.kind == "detected")
    late = replace(shifted(gone, lost=[6]), monotonic_seconds=events[-1].monotonic_seconds - 1.0)
    diagnoses = diagnoses_of([*events, late])
    assert (diagnoses.by_incident[0].score, diagnoses.num_false) == ("right", 0)


def test_a_fault_that_was_not_seen_cannot_be_diagnosed():
    events = [event for event in run(faults=(Fault(),)) if event.kind != "verified"]
    diagnoses = diagnoses_of(events)
    assert diagnoses.by_incident == {}
    assert diagnoses.recall_ratio is None


def test_the_summary_and_the_reports_say_it():
    summary = summarize(run())
    incident = summary.incidents[0]
    assert incident.diagnosis.score == "right"
    assert summary.diagnosis_recall_ratio == 1.0
    assert diagnosis_words(incident).startswith("diagnosed correctly: rank")
    assert diagnosis_words(replace(incident, diagnosis=NamedCause("none"))) == "not diagnosed: the job named no rank"
    assert diagnosis_words(replace(incident, diagnosis=None)) is None
    coordinator = NamedCause("right", named=("coordinator",), seconds=0.5)
    assert "the coordinator, 0.50 s after" in diagnosis_words(replace(incident, diagnosis=coordinator))
