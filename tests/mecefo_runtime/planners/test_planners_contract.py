"""What every planner keeps to, for any cluster and any set of survivors. A new planner is tried by being there."""

import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime import planners
from mecefo_runtime.job.config import ApproximationConfig, JobConfig
from mecefo_runtime.job.layout import Cluster, Layout, Replica, Span, split_evenly
from mecefo_runtime.planners import NoLayout, Situation, WipeOut
from mecefo_runtime.system.json_values import from_json, to_json
from tests.examples import FEW
from tests.mecefo_runtime.planning import costs

pytestmark = pytest.mark.unit

each_planner = pytest.mark.parametrize("name", planners.names())
# Those whose replicas can compute anything.
any_data = pytest.mark.parametrize("name", [name for name in planners.names() if not planners.places_shards(name)])


@st.composite
def clusters(draw):
    data_parallel, pipeline = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    num_ranks = data_parallel * pipeline
    nodes = draw(st.sampled_from([n for n in range(1, num_ranks + 1) if num_ranks % n == 0]))
    return Cluster(
        nodes=nodes,
        gpus_per_node=num_ranks // nodes,
        data_parallel=data_parallel,
        pipeline=pipeline,
        num_layers=draw(st.integers(pipeline, 3 * pipeline + 2)),
        num_microbatches=draw(st.integers(data_parallel, 4 * data_parallel)),
    )


@st.composite
def situations(draw):
    """A cluster of which at least one rank lives, and any costs without a memory limit."""
    cluster = draw(clusters())
    alive = draw(st.sets(st.integers(0, cluster.num_ranks - 1), min_size=1))
    return Situation(cluster, frozenset(alive), draw(costs()))


def configured(cluster):
    """The layout of a cluster that nothing has happened to."""
    shares = split_evenly(cluster.num_microbatches, cluster.data_parallel)
    stages = [cluster.stage_layers(stage) for stage in range(cluster.pipeline)]
    return Layout(
        cluster.num_layers,
        tuple(
            Replica(
                replica,
                tuple(Span(cluster.rank_at(replica, s), layers.start, layers.stop) for s, layers in enumerate(stages)),
                shares[replica],
            )
            for replica in range(cluster.data_parallel)
        ),
    )


def test_the_papers_planner_and_ours_are_there():
    assert {"exact", "mecefo", "mecefo-paper", "ndb", "oobleck-like"} <= set(planners.names())
    assert list(planners.names()) == sorted(planners.names())
    with pytest.raises(KeyError):
        planners.find("no-such-planner")
    with pytest.raises(KeyError):
        planners.find("_takeover")
    with pytest.raises(KeyError):
        planners.find("mecefo_paper")


@each_planner
def test_metadata(name):
    plan = planners.find(name)
    assert len(inspect.getmodule(plan).__doc__.splitlines()[0]) > 20
    assert list(inspect.signature(plan).parameters) == ["situation"]


@each_planner
def test_what_a_strategy_fixes_can_be_set(name):
    job = planners.with_fixed_settings(JobConfig(strategy=name))
    assert planners.with_fixed_settings(job) == job
    for key, value in planners.fixed_settings(name).items():
        own = getattr(job, key)
        assert own == (replace(own, **value) if isinstance(value, dict) else value)


def test_the_papers_approximation_is_fixed_and_ours_is_not():
    ours = ApproximationConfig(rank=3, down_projection="left", average_rest=True)
    job = JobConfig(strategy="mecefo-paper", approximation=ours, degraded_share_limit=0.25)
    fixed = planners.with_fixed_settings(job)
    assert fixed.approximation == ApproximationConfig(rank=3, down_projection="right", average_rest=False)
    assert (fixed.takeover, fixed.degraded_share_limit) == ("direct", 1.0)
    assert planners.with_fixed_settings(replace(job, strategy="ndb")) == replace(job, strategy="ndb")
    assert not planners.fixed_settings("no-such-planner")


def test_planning_needs_no_torch():
    code = "import sys\nfrom mecefo_runtime import planners\n[planners.find(n) for n in planners.names()]\n"
    code += "sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@each_planner
@given(situation=situations())
def test_a_layout_is_sound_and_runs_on_the_living(name, situation):
    cluster, alive = situation.cluster, situation.alive
    try:
        layout = planners.find(name)(situation)
    except WipeOut:
        assert planners.places_shards(name)
        return
    layout.check(cluster, alive)
    assert layout.replicas
    assert layout.num_layers == cluster.num_layers
    assert layout.ranks() <= alive
    numbers = [replica.replica for replica in layout.replicas]
    assert numbers == sorted(set(numbers))
    assert all(0 <= number < cluster.data_parallel for number in numbers)
    covered = [index for number in numbers for index in layout.microbatches_of(number)]
    assert sorted(covered) == list(range(cluster.num_microbatches))
    assert from_json(Layout, to_json(layout)) == layout


@any_data
@given(situation=situations(), random=st.randoms(use_true_random=False))
def test_the_same_survivors_give_the_same_layout(name, situation, random):
    plan = planners.find(name)
    shuffled = list(situation.alive)
    random.shuffle(shuffled)
    assert plan(situation) == plan(replace(situation, alive=frozenset(shuffled))) == plan(situation)


@each_planner
@given(cluster=clusters(), any_costs=costs())
def test_with_everybody_alive_it_is_the_configured_layout(name, cluster, any_costs):
    situation = Situation(cluster, frozenset(range(cluster.num_ranks)), any_costs)
    assert planners.find(name)(situation) == configured(cluster)


@each_planner
@FEW
@given(cluster=clusters(), any_costs=costs())
def test_without_survivors_there_is_no_layout(name, cluster, any_costs):
    with pytest.raises(NoLayout, match="no replica has a living rank"):
        planners.find(name)(Situation(cluster, frozenset(), any_costs))


@any_data
@given(cluster=clusters(), any_costs=costs(), data=st.data())
def test_any_single_survivor_carries_on(name, cluster, any_costs, data):
    survivor = data.draw(st.integers(0, cluster.num_ranks - 1))
    layout = planners.find(name)(Situation(cluster, frozenset([survivor]), any_costs))
    (replica,) = layout.replicas
    assert [(span.rank, span.first, span.end) for span in replica.spans] == [(survivor, 0, cluster.num_layers)]
    assert replica.num_microbatches == cluster.num_microbatches


@given(situation=situations())
def test_exact_degrades_nothing(situation):
    assert planners.find("exact")(situation).num_degraded_layers == 0


@pytest.mark.parametrize("name", ["mecefo-paper", "ndb"])
@given(situation=situations())
def test_whoever_does_both_degrades_all_and_nobody_else_does(name, situation):
    cluster = situation.cluster
    for replica in planners.find(name)(situation).replicas:
        for span in replica.spans:
            _, stage = cluster.cell_of(span.rank)
            took_over = span.layers != cluster.stage_layers(stage)
            assert span.degraded == span.recomputed == (frozenset(span.layers) if took_over else frozenset())
            assert span.recomputes_fully is (took_over and name == "mecefo-paper")


@pytest.mark.parametrize("name", ["exact", "mecefo-paper", "ndb"])
@given(situation=situations())
def test_a_takeover_stays_in_the_replica_and_stages_stay_whole(name, situation):
    cluster, alive = situation.cluster, situation.alive
    layout = planners.find(name)(situation)
    living_replicas = {cluster.cell_of(rank)[0] for rank in alive}
    assert {replica.replica for replica in layout.replicas} == living_replicas
    assert layout.ranks() == alive, "whoever lives works"
    shares = [replica.num_microbatches for replica in layout.replicas]
    assert max(shares) - min(shares) <= 1
    bounds = {cluster.stage_layers(stage).start for stage in range(cluster.pipeline)}
    for replica in layout.replicas:
        for span in replica.spans:
            own_replica, own_stage = cluster.cell_of(span.rank)
            assert own_replica == replica.replica
            assert set(cluster.stage_layers(own_stage)) <= set(span.layers), "its own stage stays where it is"
            assert span.first in bounds
