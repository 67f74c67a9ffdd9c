from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.report.curves import StepPoint, differences, mean_rates, thin_losses, trace
from tests.harness import synthetic
from tests.harness.analysis.test_attempts import restarted
from tests.harness.synthetic import Fault

pytestmark = pytest.mark.unit


def test_a_step_counts_once_whatever_is_said_again():
    events = synthetic.run(baseline=False)
    step = next(e for e in events if e.kind == "step_committed" and e.step == 5)
    again = synthetic.shifted(step, repeated=True, loss=99.0)
    assert trace([*events, again]) == trace(events)
    assert [point.step for point in trace(events).main] == list(range(1, 61))


def test_the_order_of_arrival_does_not_matter():
    there, back = trace(synthetic.run()), trace(reversed(synthetic.run()))
    assert (there.main, there.baseline, there.lanes) == (back.main, back.baseline, back.lanes)
    assert set(there.marks) == set(back.marks)


def test_job_and_baseline_are_kept_apart():
    curves = trace(synthetic.run(main_loss_ratio=2.0))
    assert curves.main[30].loss == pytest.approx(2 * curves.baseline[30].loss)


def test_marks_stand_where_things_happened():
    marks = trace(synthetic.run()).marks
    assert [mark.kind for mark in marks] == ["injected", "regrouped", "repair_started", "regrouped", "rejoined"]
    assert [mark.step for mark in marks] == [20, 20, 35, 38, 38]
    assert marks[0].seconds == pytest.approx(1.0 + 19 * 0.1 + 0.05 + 0.004)


def test_lanes_say_who_held_what_when():
    lanes = trace(synthetic.run()).lanes
    assert sorted(lanes) == list(range(8))
    before, away, after = lanes[2]
    assert [piece.layers is None for piece in lanes[2]] == [False, True, False]
    assert before.replica == 2 and len(before.layers) == 2
    assert away.since_seconds == before.until_seconds == pytest.approx(1.0 + 19 * 0.1 + 0.05 + 0.004), "at the kill"
    assert away.until_seconds == after.since_seconds, "until the regroup that took it back"
    assert any(holding.degraded for lane in lanes.values() for holding in lane)


def test_every_layer_of_every_replica_is_in_some_lane_whenever_a_step_is_committed():
    curves = trace(synthetic.run(faults=[Fault(), Fault(step=25, node=2)]))
    for point in curves.main:
        at = point.committed_seconds
        held = [(h.replica, layer) for lane in curves.lanes.values() for h in lane
                if h.since_seconds <= at <= h.until_seconds for layer in h.layers or ()]  # fmt: skip
        assert len(held) == len(set(held))
        replicas = {replica for replica, _ in held}
        assert replicas and sorted(held) == sorted((r, layer) for r in replicas for layer in range(4))


@pytest.mark.parametrize("faults", [[Fault(), Fault(node=2, during_regroup=True)], [Fault(rejoins=False)], []])
def test_a_lane_never_says_two_things_at_once_and_ends_with_the_job(faults):
    events = synthetic.run(faults=faults)
    curves = trace(events)
    ended = next(e for e in events if e.kind == "job_ended").monotonic_seconds - curves.began_seconds
    for lane in curves.lanes.values():
        assert all(piece.until_seconds > piece.since_seconds for piece in lane)
        assert all(one.until_seconds <= later.since_seconds for one, later in pairwise(lane))
        assert lane[-1].until_seconds == pytest.approx(ended)


def test_lanes_of_a_command_are_its_attempts():
    lanes = trace(restarted()).lanes
    assert lanes and all([piece.attempt for piece in lane] == [1, 2] for lane in lanes.values())
    assert all(one.until_seconds <= two.since_seconds for one, two in lanes.values())


def test_differences_are_those_of_steps_that_both_know():
    main = [StepPoint(step, 0.0, 1.0, 1.0, 3.0) for step in (1, 2, 3)]
    baseline = [StepPoint(1, 0.0, 1.0, 1.0, 2.0), StepPoint(2, 0.0, 1.0, 1.0, None), StepPoint(4, 0.0, 1.0, 1.0, 2.0)]
    assert differences(main, baseline, 10) == ((1.0, 0.5),)


def test_nothing_gives_nothing():
    curves = trace([])
    assert (curves.main, curves.baseline, curves.marks, curves.lanes) == ((), (), (), {})
    assert mean_rates((), 10) == ()
    assert thin_losses((), 10) == ()


def test_a_loss_that_is_no_number_is_unknown():
    events = [
        synthetic.shifted(e, loss=float("nan")) if e.kind == "step_committed" and e.step == 3 else e
        for e in synthetic.run(baseline=False)
    ]
    points = trace(events).main
    assert points[2].loss is None and points[2].is_loss_bad
    assert not points[3].is_loss_bad
    assert len(thin_losses(points, 1000)) == 59


@given(
    st.lists(st.tuples(st.floats(0.001, 10), st.floats(0, 1e5)), min_size=1, max_size=40),
    st.integers(1, 50),
)
def test_the_area_under_the_rates_is_the_tokens(durations, num_bins):
    points, now = [], 5.0
    for step, (seconds, tokens) in enumerate(durations, start=1):
        points.append(StepPoint(step, now, now + seconds, tokens, None))
        now += seconds
    rates = mean_rates(points, num_bins)
    assert len(rates) == num_bins
    width = (now - 5.0) / num_bins
    assert sum(rate for _, rate in rates) * width == pytest.approx(sum(p.work for p in points), rel=1e-6, abs=1e-3)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(2, 50))
def test_thinning_keeps_the_extremes_and_the_order(losses, max_points):
    points = [StepPoint(step, 0.0, 1.0, 1.0, loss) for step, loss in enumerate(losses)]
    thin = thin_losses(points, max_points)
    assert len(thin) <= max_points
    assert set(thin) <= {(point.step, point.loss) for point in points}
    assert [step for step, _ in thin] == sorted({step for step, _ in thin})
    values = [loss for _, loss in thin]
    assert (min(values), max(values)) == (min(losses), max(losses))


def test_a_difference_in_a_single_step_survives_thinning():
    baseline = [StepPoint(step, 0.0, 1.0, 1.0, 2.0) for step in range(1, 2001)]
    main = [replace(point, loss=2.0088) if point.step == 1500 else point for point in baseline]
    assert max(ratio for _, ratio in differences(main, baseline, 160)) == pytest.approx(0.0044)


def test_a_job_that_was_stopped_before_its_ranks_had_come_together_has_no_lanes():
    regrouped = next(i for i, event in enumerate(synthetic.run()) if event.kind == "regrouped")
    curves = trace(synthetic.run()[:regrouped])
    assert (curves.main, curves.lanes) == ((), {})
