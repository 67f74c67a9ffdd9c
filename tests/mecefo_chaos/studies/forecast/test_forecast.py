"""The way in: replications, the best checkpoint interval, and what users build on."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf

import pytest

from mecefo_chaos.studies.forecast.forecast import best_checkpoint_interval, forecast, rates_of, young_interval_seconds
from mecefo_chaos.studies.forecast.model import CAUSES, Failures, Policy, Recovery, Saving, with_costs
from tests.mecefo_chaos.studies.forecast.jobs import job_of

pytestmark = pytest.mark.unit

HIGH = Failures(interval_seconds=1800, repair_seconds=7200)
RECOVERY = Recovery(detection_seconds=2, regroup_seconds=3)


def test_without_failures_every_policy_but_redundancy_is_free():
    for name in ("mecefo", "ndb", "exact", "checkpoint", "bamboo"):
        found = forecast(job_of(4, 2), Policy(name), Failures(), RECOVERY, hours=1)
        assert found.drop_ratio.median == pytest.approx(0)
        assert found.recovery_seconds is None and found.num_losses == 0
        assert (found.goodput_ratio.median < 0.9) == (name == "bamboo")
        assert found.time_to_loss_ratio(0.35).median == pytest.approx(1 / found.goodput_ratio.median)


def test_the_same_seed_gives_the_same_forecast_and_another_one_another():
    job = job_of(4, 2)
    first, second, other = (
        forecast(job, Policy("exact"), HIGH, RECOVERY, hours=20, seed=seed, num_replications=3) for seed in (1, 1, 9)
    )
    assert first == second
    assert first.drop_ratio != other.drop_ratio
    assert first.drop_ratio.least < first.drop_ratio.median < first.drop_ratio.greatest


def test_all_policies_see_the_same_failures():
    job = job_of(4, 2)
    seen = {
        name: forecast(job, Policy(name), HIGH, RECOVERY, hours=20).num_losses for name in ("exact", "ndb", "bamboo")
    }
    assert len(set(seen.values())) == 1


def test_means_add_up_to_the_wall_clock():
    recovery = replace(RECOVERY, checkpoint=Saving(600, 10))
    for name in ("mecefo", "checkpoint", "bamboo"):
        found = forecast(job_of(4, 2), Policy(name), HIGH, recovery, hours=30, num_replications=3)
        assert set(found.lost_seconds) == set(CAUSES)
        assert found.productive_seconds + sum(found.lost_seconds.values()) == pytest.approx(30 * 3600)


def test_the_settled_drop_leaves_out_all_but_the_layouts():
    slow, quick = (
        forecast(job_of(4, 2), Policy("exact"), HIGH, Recovery(regroup_seconds=seconds), hours=30)
        for seconds in (30.0, 0.0)
    )
    assert slow.settled_drop_ratio.median == pytest.approx(quick.settled_drop_ratio.median, rel=0.02)
    assert slow.drop_ratio.median > quick.drop_ratio.median > quick.settled_drop_ratio.median * 0.99


def test_more_failures_and_longer_repairs_cost_more():
    job = job_of(8, 4)
    for name in ("mecefo", "exact", "bamboo"):
        rates = rates_of(job, Policy(name))

        def drop(interval, repair, rates=rates, name=name):
            failures = Failures(interval, repair)
            return forecast(
                job, Policy(name), failures, RECOVERY, hours=60, num_replications=3, rates=rates
            ).drop_ratio.median

        assert drop(14400, 7200) < drop(3600, 7200) < drop(1200, 7200)
        assert drop(3600, 1800) < drop(3600, 10800)


@pytest.mark.parametrize(("save_seconds", "interval_seconds"), [(20, 20_000), (60, 40_000), (5, 90_000)])
def test_the_best_checkpoint_interval_is_youngs(save_seconds, interval_seconds):
    recovery = Recovery(restart_seconds=60, replacement_seconds=0, checkpoint=Saving(1000, save_seconds))
    failures = Failures(interval_seconds, 0)
    found = best_checkpoint_interval(
        job_of(4, 2), Policy("checkpoint"), failures, recovery, hours=interval_seconds / 3600 * 200
    )
    young = young_interval_seconds(save_seconds, interval_seconds)
    # The optimum is flat: 1.4 times the interval costs next to nothing.
    assert young / 1.5 <= found.seconds <= young * 1.5
    best = dict(found.tried)[found.seconds]
    # Young's own loss is sqrt(2 t / M), to first order.
    assert 1 - best == pytest.approx((2 * save_seconds / interval_seconds) ** 0.5 + 60 / interval_seconds, rel=0.25)
    assert max(dict(found.tried).values()) == best


def test_there_is_no_best_interval_without_a_cost():
    with pytest.raises(ValueError, match="no best interval"):
        best_checkpoint_interval(job_of(4, 2), Policy("checkpoint"), HIGH, Recovery(), hours=1)


def test_time_to_train_and_to_the_loss():
    found = forecast(job_of(4, 2), Policy("mecefo"), HIGH, RECOVERY, hours=50)
    hours = 1000 * found.free_step_seconds / 3600
    assert found.hours_to_train(1000).median == pytest.approx(hours / found.goodput_ratio.median)
    # A degraded sample that is worth nothing counts as if it had been left out.
    assert found.steps_that_count_ratio(0).median == pytest.approx(1 - found.degraded_ratio.median)
    assert found.time_to_loss_ratio(1).median == pytest.approx(1 / found.goodput_ratio.median)
    assert found.time_to_loss_ratio(0.2).median > found.time_to_loss_ratio(0.8).median
    assert found.tokens_per_second.median == pytest.approx(found.goodput_ratio.median * found.free_tokens_per_second)


def test_a_faster_device_makes_a_shorter_step():
    job = job_of(4, 2)
    slow, fast = (forecast(with_costs(job, ratio), Policy("exact"), HIGH, RECOVERY, hours=10) for ratio in (2, 1))
    assert slow.free_step_seconds == pytest.approx(2 * fast.free_step_seconds)


def test_what_was_never_recovered_from_is_no_recovery():
    found = forecast(job_of(1, 2), Policy("mecefo"), replace(HIGH, repair_seconds=inf), RECOVERY, hours=50)
    assert found.recovery_seconds is None or found.recovery_seconds.num < found.num_losses
    assert found.goodput_ratio.median < 0.2


def test_nothing_cannot_be_simulated():
    for hours, number in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="nothing to simulate"):
            forecast(job_of(4, 2), Policy("exact"), HIGH, RECOVERY, hours=hours, num_replications=number)


@pytest.mark.parametrize("strategy", ["mecefo", "exact"])
def test_a_hundred_hours_of_the_papers_cluster_take_no_time(strategy):
    began = time.process_time()
    found = forecast(job_of(8, 4, 64), Policy(strategy), HIGH, RECOVERY, hours=100)
    assert found.num_losses > 150
    # Less than a second on a machine that is not busy with other things; a busy one runs at half its speed.
    assert time.process_time() - began < 2
