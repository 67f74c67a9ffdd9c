from dataclasses import replace

import pytest

from harness.analysis.integrity import (
    compare_losses,
    count_samples_lost,
    count_steps_lost,
    dilation_overrun_ratio,
)
from harness.analysis.state import build, state_of
from harness.analysis.violations import find_diverged_units
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import RankFinished
from tests.harness.summaries import summarized
from tests.harness.synthetic import SAMPLES_PER_STEP, Fault, loss_of, run, shifted

pytestmark = pytest.mark.unit


def told(events: list[Event]) -> list[RankFinished]:
    return list(state_of(events).of(RankFinished))


def changed(events: list[Event], step: int, **changes: object) -> list[Event]:
    return [
        shifted(e, **changes) if e.kind == "step_committed" and e.step == step and e.job == "main" else e
        for e in events
    ]


def without(events: list[Event], step: int) -> list[Event]:
    return [e for e in events if not (e.kind == "step_committed" and e.step == step and e.job == "main")]


def test_a_sound_run_loses_nothing():
    timeline = build(run())
    assert (count_steps_lost(timeline), count_samples_lost(timeline)) == (0, 0)


@pytest.mark.parametrize("step", [1, 33, 60])
def test_a_step_that_a_completed_run_never_committed_is_lost(step: int):
    assert count_steps_lost(build(without(run(), step))) == 1


def test_a_log_with_an_absurd_step_is_counted_all_the_same():
    events = [replace(e, step=10**15) if e.kind == "step_committed" and e.step == 60 else e for e in run()]
    assert count_steps_lost(build(events)) == 10**15 - 60


def test_a_step_that_a_stopped_run_did_not_reach_is_not_lost():
    assert count_steps_lost(build(run(cut_off_after_step=30))) == 0
    assert count_steps_lost(build(run(faults=(Fault(recovers=False),), job_fails=True))) == 0


def test_a_step_that_was_undone_and_done_again_is_lost():
    events = run(cut_off_after_step=30)
    again = [
        replace(shifted(e, epoch=9), monotonic_seconds=e.monotonic_seconds + 9)
        for e in events
        if e.kind == "step_committed" and e.step in (28, 29)
    ]
    again = [
        shifted(e, committed_monotonic=e.monotonic_seconds, began_monotonic=e.monotonic_seconds - 0.1) for e in again
    ]
    assert count_steps_lost(build([*events, *again])) == 2
    repeated = [shifted(e, repeated=True) for e in again]
    assert count_steps_lost(build([*events, *repeated])) == 0


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"samples": SAMPLES_PER_STEP - 4}, 4),
        ({"samples": SAMPLES_PER_STEP + 4}, 4),
        ({"samples": 0}, SAMPLES_PER_STEP),
        ({"samples_checksum": 1}, 1),
    ],
)
def test_samples_that_were_missed_or_used_twice_show(changes: dict[str, int], lost: int):
    assert count_samples_lost(build(changed(run(), 21, **changes))) == lost


def test_a_job_that_does_not_tell_its_samples_has_no_count():
    events = [shifted(e, samples=None, samples_checksum=None) for e in run()]
    assert count_samples_lost(build(events)) is None


def test_a_job_like_its_baseline_deviates_by_nothing():
    timeline = build(run())
    losses = compare_losses(timeline.steps.first, timeline.baseline.first)
    assert losses.final_loss == losses.baseline_loss == pytest.approx(sum(loss_of(step) for step in range(51, 61)) / 10)
    assert (losses.loss_deviation_ratio, losses.loss_curve_max_deviation_ratio, losses.num_loss_steps) == (0.0, 0.0, 10)


def test_deviations_are_relative_to_the_baseline():
    timeline = build(run(main_loss_ratio=1.02))
    losses = compare_losses(timeline.steps.first, timeline.baseline.first)
    assert losses.loss_deviation_ratio == pytest.approx(0.02)
    assert losses.loss_curve_max_deviation_ratio == pytest.approx(0.02)


def test_one_bad_step_shows_in_the_curve_and_not_in_the_end():
    timeline = build(changed(run(), 30, loss=2 * loss_of(30)))
    losses = compare_losses(timeline.steps.first, timeline.baseline.first)
    assert losses.loss_deviation_ratio == 0.0
    assert losses.loss_curve_max_deviation_ratio == pytest.approx(1.0)


def test_both_means_are_over_the_same_steps():
    timeline = build(run(cut_off_after_step=40))
    baseline = build(run()).baseline.first
    losses = compare_losses(timeline.steps.first, baseline)
    assert losses.baseline_loss == pytest.approx(sum(loss_of(step) for step in range(31, 41)) / 10)


def test_without_a_baseline_there_is_a_final_loss_and_no_deviation():
    losses = compare_losses(build(run(baseline=False)).steps.first, ())
    assert losses.final_loss == pytest.approx(sum(loss_of(step) for step in range(51, 61)) / 10)
    assert (losses.baseline_loss, losses.loss_deviation_ratio, losses.loss_curve_max_deviation_ratio) == (
        None,
        None,
        None,
    )


def test_a_loss_that_is_no_number_has_no_deviation():
    timeline = build(changed(run(), 55, loss=float("nan")))
    losses = compare_losses(timeline.steps.first, timeline.baseline.first)
    assert (losses.final_loss, losses.loss_deviation_ratio, losses.loss_curve_max_deviation_ratio) == (None, None, None)
    assert losses.first_non_finite_loss_step == 55


def test_nothing_compares_to_nothing():
    losses = compare_losses((), ())
    assert (losses.final_loss, losses.num_loss_steps) == (None, 0)


def finished(rank: int, checksums: dict[str, int], job: str = "main") -> Event:
    return Event(
        "rank_finished", "rank", 1.0, 1.0, 100 + rank, job=job, rank=rank, step=60, fields={"checksums": checksums}
    )


def test_holders_that_end_up_equal_have_not_diverged():
    events = [finished(0, {"layer.0": 5, "layer.1": 6}), finished(1, {"layer.0": 5}), finished(2, {"layer.1": 6})]
    assert find_diverged_units(told(events)) == {}


def test_a_holder_that_ends_up_different_is_named():
    events = [finished(0, {"layer.0": 5, "layer.1": 6}), finished(1, {"layer.0": 4}), finished(2, {"layer.1": 6})]
    assert find_diverged_units(told(events)) == {"layer.0": {0: 5, 1: 4}}


def test_the_baseline_is_another_job_and_silence_is_no_agreement():
    assert find_diverged_units(told([finished(0, {"layer.0": 5}, job="twin")])) is None


def test_a_run_whose_holders_diverged_fails():
    summary = summarized([*run(), finished(0, {"head": 1}), finished(1, {"head": 2})])
    assert (summary["verdict"], summary["diverged_units"]) == ("fail", 1)
    assert summary["reasons"][0].endswith("differ at the end between the ranks that hold them: head (ranks 0, 1)")


def computed(cpu_seconds: float, wall_seconds: float) -> Event:
    fields = {"checksums": {}, "compute_cpu_seconds": cpu_seconds, "compute_wall_seconds": wall_seconds}
    return Event("rank_finished", "rank", 1.0, 1.0, 100, rank=0, step=60, fields=fields)


def test_compute_that_took_longer_than_the_dilation_says_is_an_overrun():
    events = [computed(1.0, 5.0), computed(1.0, 6.0)]
    assert dilation_overrun_ratio(told(events), 5.0) == pytest.approx(0.1)
    assert dilation_overrun_ratio(told(events), 1.0) is None
    assert dilation_overrun_ratio([], 5.0) is None


def test_a_machine_that_was_too_busy_is_a_caveat():
    busy = summarized([*run(dilation_ratio=5.0), computed(1.0, 6.0)])
    quiet = summarized([*run(dilation_ratio=5.0), computed(1.0, 5.01)])
    assert any("too busy" in caveat for caveat in busy["caveats"])
    assert not any("too busy" in caveat for caveat in quiet["caveats"])
