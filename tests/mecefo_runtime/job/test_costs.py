import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mecefo_runtime.job.config import PRESETS, ApproximationConfig, ModelConfig
from mecefo_runtime.job.costs import Costs, median_costs
from mecefo_runtime.job.layout import EMBEDDING, HEAD, layer_unit
from mecefo_runtime.model.model import build_unit
from mecefo_runtime.prediction.predicted_costs import predict_costs
from mecefo_runtime.system.json_values import from_json, to_json
from tests.mecefo_runtime.planning import PLAIN, costs

pytestmark = pytest.mark.unit

SMALL = ModelConfig(
    hidden_size=10, intermediate_size=20, num_layers=2, num_heads=2, num_key_value_heads=2, vocab_size=30
)


@given(costs())
def test_round_trip(any_costs):
    assert from_json(Costs, to_json(any_costs)) == any_costs


@pytest.mark.parametrize("name", [field.name for field in fields(Costs)])
@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan])
def test_refuses_what_cannot_be_measured(name, value):
    with pytest.raises(ValueError, match=f"{name} must be positive and finite"):
        replace(PLAIN, **{name: value})


def test_forward_and_backward_of_each_kind_of_layer():
    assert (PLAIN.layer_seconds, PLAIN.degraded_seconds, PLAIN.recomputed_seconds) == (3.0, 2.0, 2.5)
    assert PLAIN.fully_recomputed_seconds == 2.75


def test_costs_of_a_log_without_full_recomputation_are_read():
    # What `ratings` held before: the down projection is one of three maps of one size, of which two were measured.
    old = {key: value for key, value in to_json(PLAIN).items() if key != "fully_recomputed_backward_seconds"}
    assert from_json(Costs, old) == PLAIN
    noisy = {**old, "degraded_backward_seconds": 2.0}
    assert from_json(Costs, noisy).fully_recomputed_backward_seconds == PLAIN.recomputed_backward_seconds


def test_the_median_is_taken_figure_by_figure():
    several = [
        replace(PLAIN, layer_forward_seconds=1.0, head_backward_seconds=9.0, memory_bytes=100, layer_state_bytes=10),
        replace(PLAIN, layer_forward_seconds=2.0, head_backward_seconds=1.0, memory_bytes=None, layer_state_bytes=13),
        replace(PLAIN, layer_forward_seconds=9.0, head_backward_seconds=2.0, memory_bytes=201, layer_state_bytes=11),
    ]
    found = median_costs(several)
    assert (found.layer_forward_seconds, found.head_backward_seconds, found.layer_state_bytes) == (2.0, 2.0, 11)
    assert found.memory_bytes == 151, "of the two that have a limit, in whole bytes"
    assert median_costs([PLAIN]) == PLAIN
    with pytest.raises(ValueError, match="no costs"):
        median_costs([])


def test_a_prediction_counts_operations():
    predicted = predict_costs(
        SMALL, 5, 4, ApproximationConfig(rank=3), flops_per_second=1.0, accesses_bytes_per_second=1.0, memory_bytes=7
    )
    # 4 x 10 x 10 attention weights and 3 x 10 x 20 of the feed-forward half, 20 tokens; scores: 20 x 5 x 10 a product.
    assert predicted.layer_forward_seconds == 2 * 20 * 1000 + 2 * 1000
    assert predicted.layer_backward_seconds == 4 * 20 * 1000 + 5 * 1000
    assert predicted.degraded_forward_seconds == predicted.layer_forward_seconds
    low_rank = 3 * (2 * 20 * 3 * (10 + 20) + 2 * 3 * 10 * 20)
    assert predicted.degraded_backward_seconds == 2 * 20 * 600 + low_rank
    assert predicted.recomputed_backward_seconds == predicted.degraded_backward_seconds + 2 * 20 * 400
    assert predicted.fully_recomputed_backward_seconds == predicted.degraded_backward_seconds + 2 * 20 * 600
    assert predicted.head_seconds == 6 * 20 * 300
    assert predicted.layer_state_bytes == 16 * (1000 + 20)
    assert predicted.layer_update_seconds == 7 * 4 * (1000 + 20)
    assert predicted.memory_bytes == 7


def test_two_degraded_layers_take_little_more_than_one_exact_layer():
    # The published shape with many tokens: 1.12 times (I and III without recomputation), 1.41 with gate and up, 1.56
    # with all of the feed-forward part.
    predicted = predict_costs(PRESETS["7b"], 256, 64, ApproximationConfig(rank=64))
    assert 2 * predicted.degraded_seconds / predicted.layer_seconds == pytest.approx(1.12, abs=0.02)
    assert 2 * predicted.recomputed_seconds / predicted.layer_seconds == pytest.approx(1.41, abs=0.06)
    assert 2 * predicted.fully_recomputed_seconds / predicted.layer_seconds == pytest.approx(1.56, abs=0.06)


def _state_bytes(module):
    return 4 * sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _stored_bytes(block, x_BTH):
    weights = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    stored = {}

    def keep(tensor):
        stored[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = block(x_BTH)
    assert output.requires_grad
    return sum(num_bytes for pointer, num_bytes in stored.items() if pointer not in weights)


def test_predicted_bytes_are_those_of_the_model():
    model = PRESETS["llama-tiny"]
    predicted = predict_costs(model, 64, 2, ApproximationConfig())
    block: nn.Module = build_unit(layer_unit(0), model, seed=0)
    assert predicted.layer_state_bytes == _state_bytes(block)
    assert predicted.embedding_state_bytes == _state_bytes(build_unit(EMBEDDING, model, seed=0))
    assert predicted.head_state_bytes == _state_bytes(build_unit(HEAD, model, seed=0))
    x_BTH = torch.randn(2, 64, model.hidden_size, generator=torch.Generator().manual_seed(0), requires_grad=True)
    # Not counted: rotations, scales, and what norms keep besides where they are no single kernel, as on the CPU.
    assert predicted.layer_activation_bytes == pytest.approx(_stored_bytes(block, x_BTH), rel=0.15)


@given(st.sampled_from(sorted(PRESETS)), st.integers(1, 8), st.integers(1, 1024))
def test_predictions_are_in_order(name, microbatch_size, rank):
    predicted = predict_costs(PRESETS[name], 128, microbatch_size, ApproximationConfig(rank=rank))
    assert predicted.degraded_seconds < predicted.recomputed_seconds < predicted.fully_recomputed_seconds
    assert (
        predicted.recomputed_activation_bytes < predicted.degraded_activation_bytes < predicted.layer_activation_bytes
    )
