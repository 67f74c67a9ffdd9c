"""Other runs on the machine: in the log when they are seen and when they have ended, then in the summary."""

import asyncio

import pytest

from chaos.undo.other_runs import OtherRun
from harness.comparison.sample import Run, Sample, overlapped_words
from harness.judging.summary import UNKNOWN, read_summary
from harness.run import overlaps
from harness.run.overlaps import Overlaps
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.run_records import RunOverlapped
from tests.harness.summaries import summarized
from tests.harness.synthetic import run

pytestmark = pytest.mark.unit

HERE = OtherRun("a" * 16, None, 7)
LATER = OtherRun("b" * 16, None, 0)


class Machine:
    """Each look sees the next of `looks`, and from then on the last."""

    def __init__(self, looks):
        self.looks = looks
        self.are_over = asyncio.Event()

    def alive(self):
        found = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if len(self.looks) == 1:
            self.are_over.set()
        if isinstance(found, Exception):
            raise found
        return {other.run: other for other in found}


def told(monkeypatch, *looks):
    """The events of a run during which the machine is looked at so often."""
    events = []

    async def run_it():
        machine = Machine(list(looks))
        monkeypatch.setattr(overlaps, "OtherRuns", lambda own: machine)
        monkeypatch.setattr(overlaps, "LOOK_SECONDS", 0.0)
        watch = Overlaps(Emitter(events.append, "conductor"))
        watch.start("own")
        await machine.are_over.wait()
        await watch.stop()
        await watch.stop()

    asyncio.run(run_it())
    return events


def test_a_run_alone_says_nothing(monkeypatch):
    assert told(monkeypatch, (), (), ()) == []


def test_another_run_is_told_when_it_is_seen_and_when_it_has_ended(monkeypatch):
    events = told(monkeypatch, (HERE,), (HERE, LATER), (LATER,), ())
    said = [(event.fields["other_run"], event.fields["ended_monotonic"] is None) for event in events]
    assert said == [(HERE.run, True), (LATER.run, True), (HERE.run, False), (LATER.run, False)]
    for other in (HERE, LATER):
        first, second = (event.fields for event in events if event.fields["other_run"] == other.run)
        assert first["began_monotonic"] == second["began_monotonic"] <= second["ended_monotonic"]


def test_a_look_that_fails_costs_the_caveat_only(monkeypatch):
    events = told(monkeypatch, (HERE,), OSError("gone"), (LATER,))
    assert [event.kind for event in events] == ["run_overlapped", "warning"]


def log_with(*overlapped):
    """A whole log whose first event is at `began`, and that began."""
    events = run()
    began = events[0].monotonic_seconds
    emitter = Emitter(events.append, "conductor")
    last = events.pop()
    for other, since, until in overlapped:
        ended = None if until is None else began + until
        folder, began_there = "/runs/x" if other is LATER else None, began + since
        told = {"folder": folder, "uid": other.uid, "began_monotonic": began_there, "ended_monotonic": ended}
        emitter.emit(RunOverlapped(other_run=other.run, **told))
    last.fields["num_events"] = len(events) + 1
    return [*events, last]


def test_the_summary_says_from_when_to_when_and_compare_that_there_was_company():
    summary = summarized(log_with((HERE, -1.0, None), (HERE, -1.0, 4.0), (LATER, 2.0, None)))
    first, second = summary["overlapping_runs"]
    assert (first["run"], first["from_seconds"], first["until_seconds"]) == (HERE.run, 0.0, 4.0)
    assert (second["folder"], second["from_seconds"], second["until_seconds"]) == ("/runs/x", 2.0, None)
    (caveat,) = (one for one in summary["caveats"] if "shared the machine" in one)
    assert caveat.startswith("2 other runs of chaos") and "/runs/x, from 2.00 s to the end of this run" in caveat
    found = read_summary(summary)
    assert to_json(found) == summary
    sample = Sample("exact", None, {}, {}, [Run.of(found), Run.of(UNKNOWN)])
    assert overlapped_words(sample, "here").startswith("1 of 2 runs here shared the machine")


def test_a_run_alone_has_no_caveat():
    summary = summarized(run())
    assert summary["overlapping_runs"] == [] and not any("shared the machine" in one for one in summary["caveats"])
    assert overlapped_words(Sample("exact", None, {}, {}, [Run.of(read_summary(summary))]), "here") is None
