"""Costs and clusters to plan with, for tests."""

from __future__ import annotations

from hypothesis import strategies as st

from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Cluster

# A layer takes 3 seconds and a degraded one 2 (recomputed 2.5, fully 2.75); there is nothing beside layers to speak of.
PLAIN = Costs(
    layer_forward_seconds=1.0,
    layer_backward_seconds=2.0,
    degraded_forward_seconds=1.0,
    degraded_backward_seconds=1.0,
    recomputed_backward_seconds=1.5,
    fully_recomputed_backward_seconds=1.75,
    embedding_forward_seconds=0.5 * 1e-6,
    embedding_backward_seconds=0.5 * 1e-6,
    head_forward_seconds=0.5 * 1e-6,
    head_backward_seconds=0.5 * 1e-6,
    layer_update_seconds=1e-6,
    layer_checksum_seconds=1e-6,
    refresh_seconds=1e-6,
    layer_state_bytes=100,
    embedding_state_bytes=1,
    head_state_bytes=1,
    layer_activation_bytes=10,
    degraded_activation_bytes=6,
    recomputed_activation_bytes=1,
    transfer_bytes_per_second=1e9,
)


@st.composite
def clusters(draw: st.DrawFn, max_data_parallel: int = 5, max_pipeline: int = 5) -> Cluster:
    data_parallel, pipeline = draw(st.integers(1, max_data_parallel)), draw(st.integers(1, max_pipeline))
    return Cluster(
        nodes=data_parallel * pipeline,
        gpus_per_node=1,
        data_parallel=data_parallel,
        pipeline=pipeline,
        num_layers=draw(st.integers(pipeline, 3 * pipeline + 2)),
        num_microbatches=draw(st.integers(data_parallel, 8 * data_parallel)),
    )


@st.composite
def costs(draw: st.DrawFn, *, is_ordered: bool = False, memory_bytes: int | None = None) -> Costs:
    """Any costs. `is_ordered`: degrading saves time and memory, recomputing more memory for some time."""
    seconds, small = st.floats(0.1, 3.0), st.floats(0.01, 6.0)
    num_bytes = st.integers(1, 50)
    layer, degraded, recomputed = draw(seconds), draw(seconds), draw(seconds)
    activations = [draw(num_bytes) for _ in range(3)]
    if is_ordered:
        degraded, recomputed, layer = sorted((layer, degraded, recomputed))
        layer, recomputed = layer + 0.01, max(degraded, recomputed)
        activations.sort(reverse=True)
    return Costs(
        layer_forward_seconds=layer / 3,
        layer_backward_seconds=layer * 2 / 3,
        degraded_forward_seconds=degraded / 3,
        degraded_backward_seconds=degraded * 2 / 3,
        recomputed_backward_seconds=max(0.01, recomputed - degraded / 3),
        fully_recomputed_backward_seconds=max(0.01, recomputed - degraded / 3) * draw(st.floats(1, 1.5)),
        embedding_forward_seconds=draw(small),
        embedding_backward_seconds=draw(small),
        head_forward_seconds=draw(small),
        head_backward_seconds=draw(small),
        layer_update_seconds=draw(st.one_of(st.just(1e-6), st.floats(0.01, 2.0))),
        layer_reduction_seconds=draw(st.one_of(st.none(), st.floats(0.01, 2.0))),
        layer_checksum_seconds=1e-6,
        refresh_seconds=1e-6,
        layer_state_bytes=draw(num_bytes),
        embedding_state_bytes=draw(num_bytes),
        head_state_bytes=draw(num_bytes),
        layer_activation_bytes=activations[0],
        degraded_activation_bytes=activations[1],
        recomputed_activation_bytes=activations[2],
        transfer_bytes_per_second=1e9,
        memory_bytes=memory_bytes,
    )
