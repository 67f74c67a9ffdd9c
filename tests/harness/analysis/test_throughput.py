from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.state import build
from harness.analysis.steps import CommittedStep, Steps
from harness.analysis.throughput import ThroughputFigures, _work_within, measure
from harness.judging.caveats import caveats
from harness.judging.summarize import summarize
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.reason import Reason
from tests.harness import synthetic
from tests.harness.analysis.test_attempts import RESTART, STEP, restarted
from tests.harness.synthetic import TOKENS_PER_STEP, Fault, run

pytestmark = pytest.mark.unit

STALL_SECONDS = (
    synthetic.DETECT_SECONDS + synthetic.ISOLATE_SECONDS + synthetic.GROUP_SECONDS + synthetic.TRANSFER_SECONDS
)
FULL_SPEED = TOKENS_PER_STEP / 0.1


def figures(events: list[Event]) -> ThroughputFigures:
    return measure(build(events))


def test_the_drop_runs_from_the_injection_to_the_repair():
    found = figures(run())
    assert found.throughput_per_second.before == pytest.approx(FULL_SPEED)
    assert found.throughput_per_second.during == pytest.approx(15 * TOKENS_PER_STEP / (STALL_SECONDS + 15 * 0.125))
    assert found.throughput_drop_ratio == pytest.approx(1 - found.throughput_per_second.during / FULL_SPEED)
    assert found.throughput_per_second.after == pytest.approx(FULL_SPEED)
    assert (found.num_steps_before, found.num_steps_after) == (14, 23)


def test_the_drop_over_the_whole_run_leaves_the_first_step_out():
    stalls = 0.05 + synthetic.HOLD_SECONDS + STALL_SECONDS + synthetic.GROUP_SECONDS + synthetic.TRANSFER_SECONDS
    seconds = 41 * 0.1 + 18 * 0.125 + stalls
    assert figures(run()).throughput_drop_whole_run_ratio == pytest.approx(
        1 - 59 * TOKENS_PER_STEP / seconds / FULL_SPEED
    )


def test_a_loss_that_is_not_repaired_counts_to_the_last_step_and_not_to_the_teardown():
    found = figures(run(faults=(Fault(repair_steps=None),)))
    assert found.throughput_per_second.during == pytest.approx(41 * TOKENS_PER_STEP / (STALL_SECONDS + 41 * 0.125))
    assert found.throughput_per_second.after is None


def test_a_job_that_died_stood_still_to_its_end():
    assert figures(run(faults=(Fault(recovers=False),), job_fails=True)).throughput_drop_ratio == 1.0


@pytest.mark.parametrize(
    "events",
    [run(faults=(Fault(recovers=False),), job_fails=True), run(ended="interrupted"), run(cut_off_after_step=50)],
    ids=["died", "interrupted", "cut off"],
)
def test_a_job_that_did_not_come_to_its_end_has_no_drop_over_the_whole_run(events):
    found = figures(events)
    assert found.throughput_drop_whole_run_ratio is None
    assert found.throughput_per_second.before == pytest.approx(FULL_SPEED)
    assert found.throughput_drop_ratio is not None


def test_a_step_in_flight_at_the_repair_counts_by_its_share():
    events = [
        replace(e, monotonic_seconds=e.monotonic_seconds + 0.025) if e.kind == "repair_started" else e for e in run()
    ]
    assert figures(events).throughput_per_second.during == pytest.approx(
        15.2 * TOKENS_PER_STEP / (STALL_SECONDS + 15.2 * 0.125)
    )


def step(previous: float, began: float, committed: float) -> CommittedStep:
    return CommittedStep(1, 0, None, 1.0, None, None, began, committed, previous)


@pytest.mark.parametrize(
    ("began", "windows", "work"),
    [
        (0.0, [(0.2, 0.4)], 0.2),
        (0.5, [(0.2, 1.0)], 1.0),  # in flight at its start was what was thrown away
        (0.5, [(0.25, 0.65)], 0.4 / 0.75),
        # Before the second fault there was only what it threw away; the whole step counts once.
        (0.5, [(0.0, 0.4), (0.45, 1.0)], 1.0),
        (0.42, [(0.0, 0.4), (0.45, 1.0)], 0.95),
        (0.0, [(0.1, 0.2), (0.3, 0.4), (0.5, 2.0)], 0.7),
        (0.5, [(2.0, 3.0)], 0.0),
    ],
)
def test_a_step_counts_once_however_short_the_windows(began: float, windows: list[tuple[float, float]], work: float):
    assert _work_within(Steps((step(0.0, began, 1.0),), ()), windows) == pytest.approx(work)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6),
    st.lists(st.floats(0, 6), max_size=8, unique=True),
)
def test_no_work_is_counted_twice(parts: list[tuple[float, float]], edges: list[float]):
    edges = sorted(edges)
    windows = list(zip(edges[::2], edges[1::2], strict=False))
    steps, now = [], 0.0
    for before, during in parts:
        steps.append(step(now, now + before, now + before + during))
        now += before + during
    for one in steps:
        assert 0.0 <= _work_within(Steps((one,), ()), windows) <= 1.0 + 1e-9
    assert _work_within(Steps(tuple(steps), ()), windows) == pytest.approx(
        sum(_work_within(Steps((one,), ()), windows) for one in steps)
    )


def test_a_fault_that_stops_nothing_costs_its_hold_alone():
    # 0.25 s without a coordinator: the step in flight counts from the injection on, not whole.
    found = figures(run(faults=(Fault(role="coordinator"),)))
    in_flight = 0.1 - 0.05 - synthetic.HOLD_SECONDS
    assert in_flight + 2 * 0.1 < synthetic.RESTART_SECONDS
    assert found.throughput_per_second.during == pytest.approx(FULL_SPEED)
    assert found.throughput_drop_ratio == pytest.approx(0.0, abs=1e-9)


def test_the_time_between_two_faults_is_not_under_fault():
    far_apart = figures(run(steps=200, faults=(Fault(step=20), Fault(step=150, node=2))))
    assert far_apart.throughput_per_second.during == pytest.approx(figures(run()).throughput_per_second.during)


def test_faults_at_once_are_not_counted_twice():
    found = figures(run(faults=(Fault(), Fault(node=2, during_regroup=True))))
    extra = synthetic.DETECT_SECONDS + synthetic.ISOLATE_SECONDS
    assert found.throughput_per_second.during == pytest.approx(
        15 * TOKENS_PER_STEP / (STALL_SECONDS + extra + 15 * 0.125)
    )


def test_without_a_verified_fault_there_is_no_drop():
    for events in (run(faults=()), run(faults=(Fault(verified=False),)), run(faults=(Fault(fires=False),))):
        found = figures(events)
        assert found.throughput_per_second.before == pytest.approx(FULL_SPEED)
        assert (
            found.throughput_per_second.during,
            found.throughput_per_second.after,
            found.throughput_drop_ratio,
            found.throughput_drop_whole_run_ratio,
        ) == (None, None, None, None)


def test_a_fault_in_the_first_step_has_no_baseline():
    found = figures(run(faults=(Fault(step=1),)))
    assert (found.throughput_per_second.before, found.throughput_drop_ratio) == (None, None)


def test_without_noise_neighbouring_stretches_are_equal():
    assert figures(run(steps=200, faults=(Fault(step=150),))).throughput_noise_ratio == pytest.approx(0.0, abs=1e-9)


def test_the_noise_is_that_of_stretches_as_long_as_the_fault():
    noisy = figures(run(steps=400, faults=(Fault(step=300),), jitter_ratio=0.2))
    longer = figures(run(steps=400, faults=(Fault(step=300, repair_steps=60),), jitter_ratio=0.2))
    assert noisy.throughput_noise_ratio is not None and longer.throughput_noise_ratio is not None
    assert 0.0 < longer.throughput_noise_ratio < noisy.throughput_noise_ratio < 0.2


def test_too_few_steps_before_the_fault_tell_no_noise():
    assert figures(run(steps=60, faults=(Fault(step=20),))).throughput_noise_ratio is None


def test_a_drop_within_the_noise_is_a_caveat():
    quiet = summarize(run(steps=300, faults=(Fault(step=200),), degraded_step_seconds=0.2))
    assert "drop_within_noise" not in {caveat.code for caveat in quiet.caveat_codes}
    assert quiet.throughput_drop_ratio > quiet.throughput_noise_ratio
    none = caveats(replace(quiet, throughput_drop_ratio=-0.01, throughput_noise_ratio=0.02), None, 0)
    assert Reason("drop_within_noise", drop_ratio=-0.01, noise_ratio=0.02) in none


def test_a_run_that_was_stopped_before_a_step_under_the_fault_has_no_drop():
    events = run(cut_off_after_step=25)
    injected = next(event.monotonic_seconds for event in events if event.kind == "injected")
    verified = next(event.monotonic_seconds for event in events if event.kind == "verified")
    found = figures([event for event in events if event.monotonic_seconds <= max(injected, verified) + 0.01])
    assert (
        found.throughput_per_second.before is not None
        and found.throughput_per_second.during is None
        and found.throughput_drop_ratio is None
    )


def test_the_outage_stands_beside_the_drop_and_the_speed_of_the_steps_after_it():
    found = figures(run(step_seconds=0.02, degraded_step_seconds=0.025))
    # From the injection to the first commit of fewer ranks.
    assert found.outage_seconds == pytest.approx(STALL_SECONDS + 0.025)
    assert found.throughput_drop_while_training_ratio == pytest.approx(1 - 0.02 / 0.025)


def test_a_restart_has_a_drop_of_all_and_trains_again_as_fast_as_before():
    found = figures(restarted(samples=64))
    assert (found.throughput_drop_ratio, found.outage_seconds) == (pytest.approx(1.0), pytest.approx(RESTART + STEP))
    assert found.throughput_drop_while_training_ratio == pytest.approx(0.0, abs=1e-9)


def test_a_fault_that_slows_steps_is_no_outage():
    slow = Fault(kind="slow-rank", repair_steps=None, lasts_steps=10)
    found = figures(run(faults=(slow,)))
    assert found.outage_seconds == 0.0
    assert found.throughput_drop_ratio is not None and found.throughput_drop_ratio > 0.0


def test_without_a_fault_or_a_step_after_it_neither_is_known():
    quiet, died = figures(run(faults=())), figures(run(faults=(Fault(recovers=False),), job_fails=True))
    assert (quiet.outage_seconds, quiet.throughput_drop_while_training_ratio) == (None, None)
    assert died.throughput_drop_while_training_ratio is None and died.outage_seconds is not None
