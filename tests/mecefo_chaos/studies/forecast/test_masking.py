"""Groups that others stand in for: `spare` and `replication`, and jobs of groups that are units."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.errors import UsageError
from mecefo_chaos.studies.forecast.cluster_file import load
from mecefo_chaos.studies.forecast.forecast import forecast
from mecefo_chaos.studies.forecast.masking import Replication, Spare, job_of_groups, most_redundancy
from mecefo_chaos.studies.forecast.model import Failures, Loss, Policy, Recovery, Saving
from mecefo_chaos.studies.forecast.simulation import simulate
from mecefo_chaos.studies.forecast.study import study
from mecefo_chaos.studies.forecast.text import to_text
from mecefo_runtime.stacks.placement import Placement
from mecefo_runtime.stacks.rectlr import original_stacks, reorder
from tests.mecefo_chaos.studies.forecast.jobs import job_of

pytestmark = pytest.mark.unit

GROUPS = """\
name: large
group: {gpus: 600, compute: 64s, reduction: 10s, tokens: 4000000, fetch: 30s}
cluster: {data_parallel: 1000}
training: {microbatches_per_replica: 8, steps: 10000}
failures: {every: 5min, repair: 2h, shape: 0.78}
recovery: {detection: 10s, regroup: 1s, restart: 1h, replacement: 0s}
checkpoint: {save: 60s, restore: 60s, interval: 20min}
"""


def loaded(tmp_path, text):
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return load(path)


def ten_groups(**others):
    """Each computes for 8 s, all reduce for 2 s, and one that is back fetches for 3 s."""
    return job_of_groups(10, 8, 8.0, 2.0, 3.0, 10_000, **others)


def simulated(rates, name, losses, horizon_seconds=100.0, **recovery):
    """What ten groups do under `losses`, each (seconds, group, repair seconds)."""
    found = [Loss(at_seconds, (group,), repair_seconds) for at_seconds, group, repair_seconds in losses]
    return simulate(rates, Policy(name), Recovery(**recovery), found, horizon_seconds, 10.0, 10)


@given(num_groups=st.integers(7, 60), redundancy=st.integers(1, 4), data=st.data())
def test_a_step_takes_the_least_depth_at_which_all_shards_have_a_group(num_groups, redundancy, data):
    redundancy = min(redundancy, most_redundancy("spare", num_groups))
    lost = data.draw(st.frozensets(st.integers(0, num_groups - 1), max_size=num_groups))
    alive = np.ones(num_groups, dtype=bool)
    alive[list(lost)] = False
    expected = reorder(original_stacks(Placement.of(num_groups, redundancy)), alive)
    found = Spare(job_of_groups(num_groups, 1, 8.0, 2.0, 0.0, 1), redundancy).rating(lost)
    if expected is None:
        assert found is None
    else:
        assert found.step_seconds == pytest.approx(8 * expected.depth + 2)


def test_a_group_is_out_with_any_of_its_ranks():
    job = job_of(4, 4)
    rates = Spare(job, 2)
    first = {rank for rank in range(16) if job.cluster.cell_of(rank)[0] == 1}
    assert len({rates.rating(frozenset([rank])).step_seconds for rank in first}) == 1
    assert rates.rating(frozenset(first)) == rates.rating(frozenset([min(first)]))
    assert rates.free.step_seconds < rates.rating(frozenset(first)).step_seconds


def test_copies_are_lost_with_the_last_group_of_a_set():
    # Two sets of three groups, and one of four, where every shard is left out by one group.
    rates = Replication(ten_groups(), 3)
    assert rates.free.step_seconds == pytest.approx(3 * 8 + 2)
    assert rates.rating(frozenset({0, 1, 4, 5, 7, 8})) == rates.free
    assert rates.rating(frozenset({4, 5, 6})) is None
    assert rates.rating(frozenset({0, 1, 3})) is None


def test_what_others_have_computed_of_a_step_counts():
    # Lost after 5 s of the third step, noticed in 2 s, in which others go on: all of it but 1 s is theirs already. One
    # of them computes the lost shard, too: 8 s, and the 2 s that all reduce.
    rates = Spare(ten_groups(), 3)
    outcome = simulated(rates, "spare", [(25, 0, inf)], detection_seconds=2, regroup_seconds=1)
    assert outcome.recovery_seconds == pytest.approx((2 + 1 + 1 + 8 + 2,))
    assert outcome.lost_seconds["repeated_work"] == pytest.approx(0, abs=1e-6)
    assert outcome.productive_seconds + sum(outcome.lost_seconds.values()) == pytest.approx(100)
    # In the reduction nothing is left but the lost shard.
    assert simulated(rates, "spare", [(29, 0, inf)]).recovery_seconds == pytest.approx((8 + 2,))


def test_replication_goes_on_where_it_was():
    rates = Replication(ten_groups(), 3)
    outcome = simulated(rates, "replication", [(30, 0, inf)], horizon_seconds=260, regroup_seconds=1)
    # 4 s of the second step had been computed: 20 s of it and the reduction are left.
    assert outcome.recovery_seconds == pytest.approx((1 + 20 + 2,))
    assert outcome.num_steps == pytest.approx((260 - 1) / 26)


def test_after_a_wipe_out_all_start_again_with_who_is_replaced():
    # Redundancy 2: group 9 and group 0 hold shard 0. Both come back 20 s later, and the job after 30 s more.
    rates = Spare(ten_groups(), 2)
    recovery = {"restart_seconds": 30, "replacement_seconds": 20, "checkpoint": Saving(10, 1e-6)}
    outcome = simulated(rates, "spare", [(21, 9, inf), (40, 0, inf)], horizon_seconds=200, **recovery)
    assert outcome.lost_seconds["restart"] == pytest.approx(50)
    assert outcome.rungs["checkpoint"] == 1
    # Two steps, one that is longer, and from 90 s on as many as without failures.
    assert outcome.num_steps == pytest.approx(3 + 11, abs=0.01)


def test_one_that_is_back_fetches_its_state():
    outcome = simulated(Spare(ten_groups(), 3), "spare", [(20, 0, 15)])
    assert outcome.lost_seconds["transfer"] == pytest.approx(3)


def test_redundancy_is_free_until_something_fails():
    job = job_of(8, 4)
    found = {name: forecast(job, Policy(name), Failures(), Recovery(), hours=1) for name in ("spare", "replication")}
    assert found["spare"].goodput_ratio.median == pytest.approx(1)
    assert found["replication"].goodput_ratio.median < 0.45


def test_six_hundred_thousand_gpus_are_a_thousand_groups(tmp_path):
    question = loaded(tmp_path, GROUPS)
    assert {policy.name for policy in question.policies} == {"spare", "replication", "exact", "checkpoint"}
    found = study(question, hours=12, num_replications=1, with_sensitivities=False)
    times = {answer.forecast.policy.name: found.time_to_loss(answer.forecast) for answer in found.answers}
    assert times["exact"] < times["spare"] < times["replication"] < times["checkpoint"]
    assert "600,000 GPUs in 1,000 groups of 600" in to_text(found)


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (("name: large", "device: a100-7b"), "leave one of the two out"),
        (("{data_parallel: 1000}", "{data_parallel: 1000, nodes: 5}"), "by `data_parallel` alone"),
        (("name: large", "strategies: [mecefo]"), "mecefo works inside of groups"),
        (("name: large", "strategies: [{name: spare, redundancy: 40}]"), "hold a shard 26 times at most"),
        (("name: large", "strategies: [{name: exact, redundancy: 4}]"), "has no redundancy"),
        (("name: large", "strategies: [{name: spare, redundancy: 0}]"), "whole number of at least 1"),
        (("gpus: 600", "gpus: 1000000"), "at most 1000000"),
    ],
)
def test_groups_say_what_is_wrong(tmp_path, change, mistake):
    with pytest.raises(UsageError, match=mistake):
        loaded(tmp_path, GROUPS.replace(*change))
