"""A job under failures, against what can be computed by hand."""

from __future__ import annotations

from math import exp, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_chaos.studies.forecast.layouts import Change
from mecefo_chaos.studies.forecast.model import Rating, Recovery, Saving
from tests.mecefo_chaos.studies.forecast.jobs import TenRanks, simulated

pytestmark = pytest.mark.unit


def added_up(outcome):
    return outcome.productive_seconds + sum(outcome.lost_seconds.values())


def test_without_failures_and_saving_all_time_is_productive():
    outcome = simulated(horizon_seconds=1234.0)
    assert outcome.goodput_ratio == pytest.approx(1)
    assert outcome.num_steps == pytest.approx(123.4)
    assert not any(outcome.lost_seconds.values())


def test_without_failures_the_goodput_is_one_minus_the_checkpoints():
    # Every 10 steps of 10 s a checkpoint of 25 s: 100 of 125 s are productive.
    outcome = simulated(recovery=Recovery(checkpoint=Saving(100, 25)), horizon_seconds=1250)
    assert outcome.goodput_ratio == pytest.approx(100 / 125)
    assert outcome.lost_seconds["checkpoint"] == pytest.approx(250)


def test_redundant_computation_is_a_loss_of_its_own():
    outcome = simulated(rates=TenRanks(redundancy_seconds=2.5))
    assert outcome.goodput_ratio == pytest.approx(10 / 12.5)
    assert outcome.lost_seconds["redundancy"] == pytest.approx(200)


def test_one_failure_takes_its_step_its_regroup_and_speed_until_the_repair():
    # Lost in mid-step, detected after 3 s, 2 s of regroup and 1 s of transfer: 48 steps of 11 s from 111 on.
    recovery = Recovery(detection_seconds=3, regroup_seconds=2)
    rates = TenRanks({1: Change(transfer_seconds=1)})
    outcome = simulated([(105, 0, 529)], recovery=recovery, rates=rates, horizon_seconds=1000)
    # Back at 634, it joins at the boundary at 639, and is in at 641: 359 s of full speed.
    assert outcome.lost_seconds["repeated_work"] == pytest.approx(5)
    assert outcome.lost_seconds["detection"] == pytest.approx(3)
    assert outcome.lost_seconds["regroup"] == pytest.approx(2 + 2)
    assert outcome.lost_seconds["transfer"] == pytest.approx(1)
    assert outcome.lost_seconds["degraded_speed"] == pytest.approx(48)
    assert outcome.num_steps == pytest.approx(10 + 48 + 35.9)
    assert outcome.recovery_seconds == pytest.approx((3 + 2 + 1 + 11,))
    assert outcome.degraded_ratio == pytest.approx(0.1 * 48 / outcome.num_steps)
    assert outcome.down_ratio == pytest.approx(529 / 1000 / 10)
    assert added_up(outcome) == pytest.approx(1000)


def test_a_failure_without_repair_slows_the_job_to_its_end():
    outcome = simulated([(100, 0, inf)])
    assert outcome.num_steps == pytest.approx(10 + 900 / 11)


def test_a_layout_that_is_balanced_later_runs_the_first_one_meanwhile():
    rates = TenRanks({1: Change(first=Rating(20.0), num_first_steps=3)})
    outcome = simulated([(100, 0, inf)], rates=rates, recovery=Recovery(regroup_seconds=5))
    # 5 s, 3 steps of 20 s, 5 s, and steps of 11 s for the rest.
    assert outcome.num_steps == pytest.approx(10 + 3 + (900 - 70) / 11)
    assert outcome.num_regroups == 2


def test_a_second_failure_during_the_recovery_begins_it_anew():
    recovery = Recovery(detection_seconds=3, regroup_seconds=4)
    outcome = simulated([(100, 0, inf), (105, 1, inf)], recovery=recovery)
    assert outcome.lost_seconds["detection"] == pytest.approx(6)
    assert outcome.lost_seconds["regroup"] == pytest.approx(2 + 4)
    assert outcome.num_steps == pytest.approx(10 + (900 - 12) / 12)
    # Both are recovered from by the same step.
    assert outcome.recovery_seconds == pytest.approx((12 + 12, 7 + 12))


def test_the_loss_of_a_rank_that_is_down_is_none():
    once, twice = (simulated([(100, 0, inf)] * num) for num in (1, 2))
    assert twice == once
    later = simulated([(100, 0, inf), (300, 0, inf)])
    assert (later.num_losses, later.num_steps) == (1, pytest.approx(once.num_steps))


def test_a_restart_goes_back_to_the_newest_checkpoint():
    # Checkpoints at 100, 210, ...: the one of step 20 is safe at 220. Lost at 255: 35 s of work, 5 s of a step in them.
    recovery = Recovery(
        detection_seconds=2, restart_seconds=30, replacement_seconds=0, checkpoint=Saving(100, 10, restore_seconds=8)
    )
    outcome = simulated([(255, 0, 5000)], recovery=recovery, policy="checkpoint", horizon_seconds=400)
    assert outcome.lost_seconds["repeated_work"] == pytest.approx(35)
    assert outcome.lost_seconds["restart"] == pytest.approx(38)
    # From 295 on: 10 steps, a checkpoint until 405.
    assert outcome.num_steps == pytest.approx(20 + 10)
    assert added_up(outcome) == pytest.approx(400)


def test_without_a_spare_a_restart_waits_for_the_repair():
    outcome = simulated([(100, 0, 300)], recovery=Recovery(restart_seconds=30), policy="checkpoint")
    assert outcome.lost_seconds["restart"] == pytest.approx(330)
    # Nothing had been saved.
    assert outcome.lost_seconds["repeated_work"] == pytest.approx(100)
    assert outcome.num_steps == pytest.approx(57)


def test_a_job_that_cannot_run_waits_for_ranks_and_goes_back():
    losses = [(101, rank, 400) for rank in range(9)]
    outcome = simulated(losses, recovery=Recovery(restart_seconds=10, checkpoint=Saving(50, 1e-6)))
    assert outcome.lost_seconds["repeated_work"] == pytest.approx(1, abs=1e-3)
    # All are back at 501; the first of them is enough for a layout.
    assert outcome.lost_seconds["restart"] == pytest.approx(410)
    assert added_up(outcome) == pytest.approx(1000)


@pytest.mark.parametrize(("survival_ratio", "repeated_seconds"), [(1.0, 5.0), (0.0, 45.0)])
def test_a_snapshot_that_outlives_the_loss_is_newer_than_a_checkpoint(survival_ratio, repeated_seconds):
    recovery = Recovery(
        replacement_seconds=0,
        checkpoint=Saving(200, 1e-6),
        snapshot=Saving(10, 1e-6, survival_ratio=survival_ratio),
    )
    outcome = simulated([(245, 0, 0)], recovery=recovery, policy="checkpoint", horizon_seconds=250)
    assert outcome.lost_seconds["repeated_work"] == pytest.approx(repeated_seconds, abs=1e-3)


def test_checkpoint_restart_at_random_failures_has_the_known_goodput():
    # Exponential failures of mean M, intervals of T work and C saving, no restart time, a spare at once: of each
    # interval T counts, and it takes M (e^((T + C) / M) - 1) (Daly 2006).
    mean_seconds, interval, save = 3000.0, 500.0, 50.0
    gaps = np.random.default_rng(3).exponential(mean_seconds, 2000)
    times = gaps.cumsum()
    horizon = float(times[-1])
    recovery = Recovery(replacement_seconds=0, checkpoint=Saving(interval, save))
    outcome = simulated([(float(t), 0, 0.0) for t in times[:-1]], horizon, recovery, "checkpoint")
    expected = interval / (mean_seconds * (exp((interval + save) / mean_seconds) - 1))
    assert outcome.goodput_ratio == pytest.approx(expected, rel=0.02)


recoveries = st.builds(
    Recovery,
    detection_seconds=st.floats(0, 20),
    regroup_seconds=st.floats(0, 20),
    first_step_seconds=st.floats(0, 5),
    restart_seconds=st.floats(0, 50),
    replacement_seconds=st.none() | st.floats(0, 100),
    checkpoint=st.none() | st.builds(Saving, st.floats(20, 500), st.floats(0, 30), st.floats(0, 30)),
    snapshot=st.none()
    | st.builds(Saving, st.floats(10, 100), st.floats(0, 3), st.floats(0, 3), survival_ratio=st.floats(0, 1)),
)
losses_of_ten = st.lists(
    st.tuples(st.floats(0, 1500), st.integers(0, 9), st.floats(0, 400) | st.just(inf)), max_size=25
).map(sorted)
changes = st.dictionaries(
    st.integers(0, 8),
    st.builds(
        Change,
        transfer_seconds=st.floats(0, 30),
        first=st.none() | st.builds(Rating, st.floats(10, 40)),
        num_first_steps=st.integers(1, 9),
    ),
)


@given(losses_of_ten, recoveries, changes, st.sampled_from(["exact", "checkpoint"]))
def test_all_causes_and_productive_time_add_up_to_the_wall_clock(losses, recovery, moves, policy):
    outcome = simulated(losses, 1200.0, recovery, policy, TenRanks(moves))
    assert added_up(outcome) == pytest.approx(1200)
    assert all(seconds >= -1e-6 for seconds in outcome.lost_seconds.values())
    assert 0 <= outcome.productive_seconds <= 1200 * (1 + 1e-9)


@given(losses_of_ten, recoveries, changes, st.sampled_from(["exact", "checkpoint"]))
def test_the_same_losses_give_the_same_outcome(losses, recovery, moves, policy):
    first, second = (simulated(losses, 1200.0, recovery, policy, TenRanks(moves), seed=5) for _ in range(2))
    assert first == second


@given(losses_of_ten, recoveries, changes, st.sampled_from(["exact", "checkpoint"]), st.floats(0, 1199))
def test_one_more_failure_at_the_end_never_helps(losses, recovery, moves, policy, at_seconds):
    before = [loss for loss in losses if loss[0] <= at_seconds]
    without = simulated(before, 1200.0, recovery, policy, TenRanks(moves))
    more = simulated([*before, (at_seconds, 9, inf)], 1200.0, recovery, policy, TenRanks(moves))
    # But where it lets a job skip a slow first layout, or come to a better one sooner.
    slack_steps = 0 if not moves else 1200
    assert more.num_steps <= without.num_steps + slack_steps + 1e-6
