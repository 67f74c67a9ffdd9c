from dataclasses import replace

import pytest

from harness.analysis.step_ledger import read_steps
from harness.analysis.steps import median_step_seconds, median_work_per_second, steps_before
from mecefo_runtime.system.events import BASELINE_JOB, MAIN_JOB, Event
from tests.harness.synthetic import TOKENS_PER_STEP, run, shifted

pytestmark = pytest.mark.unit

PLAIN = run(steps=30, faults=(), baseline=False)


def commit_of(events: list[Event], step: int) -> Event:
    return next(event for event in events if event.kind == "step_committed" and event.step == step)


def again(event: Event, *, later_seconds: float, **changes: object) -> Event:
    committed = event.fields["committed_monotonic"] + later_seconds
    changes = {"began_monotonic": committed - 0.1, "committed_monotonic": committed, **changes}
    return replace(shifted(event, **changes), monotonic_seconds=event.monotonic_seconds + later_seconds)


def test_durations_run_from_commit_to_commit():
    steps = read_steps(PLAIN, MAIN_JOB).first
    assert [step.step for step in steps] == list(range(1, 31))
    assert [step.duration_seconds for step in steps] == pytest.approx([0.1] * 30)
    assert steps[7].work_per_second == pytest.approx(TOKENS_PER_STEP / 0.1)


def test_only_the_asked_job_counts():
    events = run(steps=10, faults=(), baseline=True)
    assert len(read_steps(events, BASELINE_JOB).first) == 10
    assert read_steps(PLAIN, BASELINE_JOB).first == ()


def test_a_repeated_record_does_not_replace_the_first():
    repeated = again(commit_of(PLAIN, 9), later_seconds=0.05, epoch=2, repeated=True, loss=99.0)
    steps = read_steps([*PLAIN, repeated], MAIN_JOB)
    assert steps == read_steps(PLAIN, MAIN_JOB)


def test_a_repeated_record_comes_second_even_when_it_is_earlier():
    repeated = again(commit_of(PLAIN, 9), later_seconds=-0.01, repeated=True, loss=99.0)
    assert read_steps([repeated, *PLAIN], MAIN_JOB) == read_steps(PLAIN, MAIN_JOB)


def test_a_repeated_record_fills_a_hole():
    lost = commit_of(PLAIN, 9)
    repeated = again(lost, later_seconds=0.05, epoch=2, repeated=True)
    steps = read_steps([event for event in PLAIN if event is not lost] + [repeated], MAIN_JOB)
    assert [step.step for step in steps.first] == list(range(1, 31))
    assert steps.redone == ()


def test_a_step_after_a_hole_lasts_from_its_own_beginning():
    lost = commit_of(PLAIN, 9)
    steps = read_steps([event for event in PLAIN if event is not lost], MAIN_JOB).first
    assert next(step for step in steps if step.step == 10).duration_seconds == pytest.approx(0.1)


def test_a_step_committed_again_in_a_later_epoch_is_redone():
    redone = again(commit_of(PLAIN, 9), later_seconds=5.0, epoch=2)
    steps = read_steps([*PLAIN, redone], MAIN_JOB)
    assert [step.step for step in steps.redone] == [9]
    assert steps.first == read_steps(PLAIN, MAIN_JOB).first


def test_the_baseline_leaves_the_warm_up_out_and_is_not_longer_than_fifty():
    steps = read_steps(run(steps=100, faults=(), baseline=False), MAIN_JOB).first
    assert [step.step for step in steps_before(steps, steps[19].committed_seconds)] == list(range(6, 21))
    assert [step.step for step in steps_before(steps, steps[89].committed_seconds)] == list(range(41, 91))


def test_a_job_that_goes_on_from_a_checkpoint_warms_up_too():
    resumed = [event for event in run(steps=100, faults=(), baseline=False) if event.step is None or event.step > 40]
    steps = read_steps(resumed, MAIN_JOB).first
    assert [step.step for step in steps_before(steps, steps[19].committed_seconds)] == list(range(46, 61))


def test_an_early_fault_leaves_the_warm_up_in():
    steps = read_steps(PLAIN, MAIN_JOB).first
    assert [step.step for step in steps_before(steps, steps[7].committed_seconds)] == list(range(1, 9))
    assert steps_before(steps, steps[0].began_seconds) == ()


def test_medians_of_nothing_are_none():
    assert median_work_per_second([]) is None
    assert median_step_seconds([]) is None
