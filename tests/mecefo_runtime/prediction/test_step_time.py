from dataclasses import replace

import pytest
from hypothesis import given

from mecefo_runtime.job.layout import Layout, Replica, Span, configured_layout
from mecefo_runtime.prediction.step_time import (
    commit_seconds,
    degraded_share_ratio,
    most_memory_bytes,
    pipeline_seconds,
    replica_seconds,
    span_memory_bytes,
    span_seconds,
    span_update_seconds,
    step_seconds,
)
from tests.mecefo_runtime.planning import PLAIN, clusters, costs

pytestmark = pytest.mark.unit

# Exact, degraded and recomputed layers take 3, 2 and 2.5 seconds and keep 10, 6 and 1 bytes.
COSTS = replace(
    PLAIN,
    embedding_forward_seconds=0.5 * 0.25,
    embedding_backward_seconds=0.5 * 0.25,
    head_forward_seconds=0.5 * 4.0,
    head_backward_seconds=0.5 * 4.0,
    layer_update_seconds=0.5,
    layer_checksum_seconds=1e-6,
    refresh_seconds=1e-6,
    layer_state_bytes=100,
    embedding_state_bytes=50,
    head_state_bytes=60,
)
FIRST = Span(0, 0, 2)
MIDDLE = Span(1, 2, 5, frozenset({3, 4}), frozenset({4}))
LAST = Span(2, 5, 6)
REPLICA = Replica(0, (FIRST, MIDDLE, LAST), 5)


FULLY = replace(MIDDLE, recomputes_fully=True)


@pytest.mark.parametrize(
    ("span", "seconds"), [(FIRST, 6.25), (MIDDLE, 7.5), (FULLY, 7.75), (LAST, 7.0), (Span(0, 0, 6), 22.25)]
)
def test_a_microbatch_through_a_span(span, seconds):
    assert span_seconds(span, 6, COSTS) == seconds


def test_a_replica_takes_its_slowest_stage_for_every_microbatch_but_one_and_all_stages_once():
    assert replica_seconds(REPLICA, 6, COSTS) == 4 * 7.5 + (6.25 + 7.5 + 7.0)
    assert replica_seconds(replace(REPLICA, num_microbatches=1), 6, COSTS) == 6.25 + 7.5 + 7.0
    assert replica_seconds(replace(REPLICA, num_microbatches=0), 6, COSTS) == 0.0
    assert pipeline_seconds(2.0, 2.0, 7) == 14.0


def test_an_update_goes_with_the_state():
    assert [span_update_seconds(span, 6, COSTS) for span in (FIRST, MIDDLE, LAST)] == [1.25, 1.5, 0.8]
    # Gradients are as many as parameters.
    reducing = replace(COSTS, layer_reduction_seconds=1.0)
    assert [span_update_seconds(span, 6, reducing) for span in (FIRST, MIDDLE, LAST)] == pytest.approx([3.75, 4.5, 2.4])


def test_a_commit_takes_as_long_as_the_rank_with_most_to_reduce():
    layout = Layout(6, (Replica(0, (FIRST, MIDDLE, LAST), 2),))
    assert commit_seconds(layout, COSTS) is None
    assert commit_seconds(layout, replace(COSTS, commit_seconds=0.5)) == 0.5
    reducing = replace(COSTS, commit_seconds=0.5, layer_reduction_seconds=1.0)
    assert commit_seconds(layout, reducing) == pytest.approx(0.5 + 3.0)


def test_a_step_waits_for_the_slowest_replica_and_then_for_the_slowest_update():
    other = Replica(1, (Span(3, 0, 6),), 2)
    layout = Layout(6, (REPLICA, other))
    assert replica_seconds(other, 6, COSTS) == 2 * 22.25
    assert step_seconds(layout, COSTS) == 50.75 + 0.5 * (6 + 1.1)


def test_memory_is_state_and_the_microbatches_in_flight():
    spans = [span_memory_bytes(REPLICA, position, 6, COSTS) for position in range(3)]
    # Of state there is one more gradient for every four values.
    assert spans == [312 + 3 * 20, 375 + 2 * (10 + 6 + 1), 200 + 10]
    assert most_memory_bytes(Layout(6, (REPLICA,)), COSTS) == 409
    # A single microbatch is never in flight twice.
    assert span_memory_bytes(replace(REPLICA, num_microbatches=1), 0, 6, COSTS) == 312 + 20


def test_the_share_of_samples_that_meet_degraded_layers():
    assert degraded_share_ratio(Layout(6, (REPLICA, Replica(1, (Span(3, 0, 6),), 15)))) == 0.25


@given(clusters(), costs())
def test_more_microbatches_or_slower_layers_never_make_a_step_shorter(cluster, any_costs):
    layout = configured_layout(cluster)
    seconds = step_seconds(layout, any_costs)
    more = tuple(replace(replica, num_microbatches=replica.num_microbatches + 1) for replica in layout.replicas)
    assert step_seconds(replace(layout, replicas=more), any_costs) > seconds
    slower = replace(any_costs, layer_forward_seconds=2 * any_costs.layer_forward_seconds)
    assert step_seconds(layout, slower) > seconds
