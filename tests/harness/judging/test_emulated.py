"""What a run on an emulated device says of itself: the device's figures, and that they are emulated."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from harness.judging.summarize import summarize
from harness.judging.summary import read_summary
from harness.report.terminal import render
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import to_json
from tests.harness.synthetic import run

pytestmark = pytest.mark.unit

EMULATION = {
    "device_model": "a100-7b",
    "provenance": "predicted",
    "device": "NVIDIA A100",
    "model": "7b",
    "sequence_length": 256,
    "message_bytes": 2**24,
    "time_scale": 2.0,
    "is_scale_chosen": False,
}


def emulated(**changed: Any) -> list[Event]:
    emulation = EMULATION | changed
    return [
        replace(event, fields={**event.fields, "emulation": emulation}) if event.kind == "job_started" else event
        for event in run()
    ]


def test_speeds_and_steps_are_told_by_the_clock_of_the_device():
    plain, summary = summarize(run()), summarize(emulated())
    assert summary.emulated is not None and plain.emulated is None
    assert (summary.emulated.device_model, summary.emulated.provenance) == ("a100-7b", "predicted")
    before, device_before = plain.throughput_tokens_per_second.before, summary.emulated.throughput_tokens_per_second
    assert before is not None and plain.step_seconds is not None
    # A second of the device lasts two: twice as many tokens in each of them, and half of them for a step.
    assert device_before.before == pytest.approx(2 * before)
    assert summary.emulated.step_seconds == pytest.approx(plain.step_seconds / 2)
    # Ratios, and what is real, stay as they are.
    assert summary.throughput_tokens_per_second == plain.throughput_tokens_per_second
    assert summary.throughput_drop_ratio == plain.throughput_drop_ratio
    assert summary.incidents[0].recovery_seconds == plain.incidents[0].recovery_seconds
    assert read_summary(to_json(summary)) == summary


def test_it_is_said_wherever_figures_are_shown():
    events = emulated()
    summary = summarize(events)
    said = " ".join(summary.caveats)
    assert "Emulated: the predicted table a100-7b" in said
    assert "they weigh 0.5 of what they would at a time scale of 1" in said
    text = io.StringIO()
    render(summary, events, Console(file=text, width=100))
    assert "emulated NVIDIA A100 (a100-7b, predicted), time scale 2" in " ".join(text.getvalue().split())
    assert "Training speed (emulated tokens per second)" in text.getvalue()


@pytest.mark.parametrize(("scale", "words"), [(0.5, "2 times what they would"), (4.0, "0.25 of what they would")])
def test_the_weight_of_what_is_real_is_stated_by_its_factor(scale: float, words: str):
    assert words in " ".join(summarize(emulated(time_scale=scale)).caveats)


def test_at_a_scale_of_one_there_is_nothing_to_weigh():
    said = " ".join(summarize(emulated(time_scale=1.0)).caveats)
    assert "Emulated:" in said and "they weigh" not in said


def test_nothing_of_it_is_said_of_ranks_that_stand_for_themselves():
    assert not any("mulated" in caveat for caveat in summarize(run()).caveats)


def test_a_log_that_lacks_what_a_device_is_gives_no_figures_of_it():
    events = [
        replace(event, fields={**event.fields, "emulation": {"device": 7}}) if event.kind == "job_started" else event
        for event in run()
    ]
    assert summarize(events).emulated is None


def test_segments_that_were_late_are_told_though_all_of_them_took_no_longer_than_rated():
    # A rank that was woken up late has so much less to pad: its segments end when they should, or a little later.
    fields = {
        "checksums": {},
        "compute_cpu_seconds": 1.0,
        "compute_wall_seconds": 9.0,
        "compute_slot_seconds": 10.0,
        "num_segments": 100,
        "num_overruns": 32,
        "worst_overrun_seconds": 0.25,
    }
    late = Event("rank_finished", "rank", 1.0, 1.0, 100, rank=0, step=60, fields=fields)
    (told,) = (caveat for caveat in summarize([*emulated(), late]).caveats if "too busy" in caveat)
    assert told.startswith(
        "The machine was too busy for the time scale: 32.0% of its segments were late by up to 0.25 s."
    )
    assert "longer" not in told and told.endswith("a larger --time-scale.")
