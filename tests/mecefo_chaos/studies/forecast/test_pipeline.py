"""How long a step takes: 1F1B by its events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mecefo_chaos.studies.forecast.pipeline import _simulate, one_forward_one_backward, rate
from mecefo_runtime.job.layout import configured_layout
from mecefo_runtime.job.link import Link
from mecefo_runtime.prediction.step_time import step_seconds
from tests.mecefo_chaos.studies.forecast.jobs import job_of

pytestmark = pytest.mark.unit

stage_seconds = st.floats(0.5, 4.0)


@st.composite
def pipelines(draw):
    num_stages = draw(st.integers(1, 6))
    many = st.lists(stage_seconds, min_size=num_stages, max_size=num_stages).map(tuple)
    return draw(many), draw(many), (0.0,) * num_stages


@given(st.integers(1, 6), st.integers(1, 40), stage_seconds, stage_seconds)
def test_equal_stages_take_the_textbook_time(num_stages, num_microbatches, forward, backward):
    stages = (forward,) * num_stages, (backward,) * num_stages, (0.0,) * num_stages
    expected = (num_microbatches + num_stages - 1) * (forward + backward)
    assert max(one_forward_one_backward(*stages, num_microbatches, 0.0)) == pytest.approx(expected)


@given(pipelines(), st.integers(1, 40))
def test_no_pipeline_beats_its_slowest_stage_or_its_longest_way(stages, num_microbatches):
    forward, backward, _ = stages
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    seconds = max(one_forward_one_backward(*stages, num_microbatches, 0.0))
    assert seconds >= max(num_microbatches * max(both), sum(both)) - 1e-6
    # And none is worse than one microbatch after the other.
    assert seconds <= num_microbatches * sum(both) + 1e-6


@given(pipelines(), st.integers(250, 600), st.floats(0, 0.5))
# It repeats itself every two microbatches, and has three stages.
@example(((0.5, 1.0, 1.0), (0.5, 1.0, 1.0), (0.0, 0.0, 0.0)), 391, 0.5)
def test_a_long_pipeline_is_extrapolated(stages, num_microbatches, message_seconds):
    exact = _simulate(*stages, num_microbatches, message_seconds)
    found = one_forward_one_backward(*stages, num_microbatches, message_seconds)
    assert found == pytest.approx(exact, rel=0.005)


def test_messages_lengthen_the_way_of_a_microbatch():
    # Two stages, one microbatch: forward, message, forward, backward, message, backward.
    assert max(one_forward_one_backward((1.0, 1.0), (2.0, 2.0), (0.0, 0.0), 1, 0.25)) == pytest.approx(6.5)


def test_a_long_update_hides_behind_the_stages_before_it():
    # The second stage has nothing to do before 1 s.
    assert max(one_forward_one_backward((1.0, 1.0), (2.0, 2.0), (0.0, 1.0), 1, 0.0)) == pytest.approx(6.0)
    assert max(one_forward_one_backward((1.0, 1.0), (2.0, 2.0), (1.0, 0.0), 1, 0.0)) == pytest.approx(7.0)


def test_the_configured_layout_takes_about_what_planners_reckon():
    job = job_of()
    layout = configured_layout(job.cluster)
    assert rate(layout, job).step_seconds == pytest.approx(step_seconds(layout, job.costs), rel=0.02)


def test_links_and_overhead_make_a_step_longer():
    job = job_of()
    layout = configured_layout(job.cluster)
    free_seconds = rate(layout, job).step_seconds
    assert rate(layout, replace(job, overhead_seconds=0.3)).step_seconds == pytest.approx(free_seconds + 0.3)
    # Ring reduction of 8 holders: 2 x 7/8 of a stage's gradients. The first stage is through last, the one with
    # the head has more to reduce and begins earlier.
    link = Link(bandwidth_bytes_per_second=25e9)
    stage_bytes = (8 * job.costs.layer_state_bytes + job.costs.embedding_state_bytes) / 4
    by_link = rate(layout, replace(job, link=link)).step_seconds - free_seconds
    assert by_link == pytest.approx(2 * 7 / 8 * stage_bytes / 25e9, rel=1e-6)


def test_messages_reductions_and_commits_take_what_costs_say_of_them():
    job = job_of()
    layout = configured_layout(job.cluster)
    free_seconds = rate(layout, job).step_seconds
    committing = replace(job.costs, commit_seconds=0.5, layer_reduction_seconds=0.25)
    ends_bytes = max(job.costs.embedding_state_bytes, job.costs.head_state_bytes)
    largest = 8 + ends_bytes / job.costs.layer_state_bytes
    found = rate(layout, replace(job, costs=committing)).step_seconds
    assert found == pytest.approx(free_seconds + 0.5 + 0.25 * largest)
    # An activation on its way to the last stage, and a gradient back, at least.
    sending = replace(job.costs, message_seconds=0.1)
    assert rate(layout, replace(job, costs=sending)).step_seconds >= free_seconds + 0.2


def test_planners_are_told_how_long_reductions_take_over_a_link():
    job = job_of()
    assert job.planning_costs == job.costs
    link = Link(bandwidth_bytes_per_second=25e9)
    num_replicas = job.cluster.data_parallel
    layer_bytes = 2 * (num_replicas - 1) / num_replicas * job.costs.layer_state_bytes / 4
    told = replace(job, link=link).planning_costs
    assert told.layer_reduction_seconds == pytest.approx(layer_bytes / 25e9)
    # What a run measured counts.
    measured = replace(job, link=link, costs=replace(job.costs, layer_reduction_seconds=7.0))
    assert measured.planning_costs.layer_reduction_seconds == 7.0
    # What is reduced over the link is no part of the commit.
    assert rate(configured_layout(job.cluster), measured) == rate(
        configured_layout(job.cluster), replace(job, link=link)
    )
