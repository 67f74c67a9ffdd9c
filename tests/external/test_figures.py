"""The figures of a step that can be seen, and that what cannot be known is left out."""

import math

import pytest
import torch

from chaos.external.figures import Figures, num_samples, num_tokens

pytestmark = pytest.mark.unit

LOSS = torch.tensor(2.5)


class DistributedDataParallel:
    class process_group:  # noqa: N801 - an attribute, where the real one has an instance
        size = staticmethod(lambda: 4)


def test_the_batches_that_were_used_count_in_the_order_of_their_fetch():
    figures = Figures()
    for size in (8, 8, 3):
        figures.fetched(1, [torch.zeros(size, 2)])
    figures.backward(LOSS, None)
    figures.backward(LOSS, None)
    assert figures.take(1) == {"loss": 5.0, "samples": 16}
    figures.backward(LOSS, None)
    assert figures.take(2) == {"loss": 2.5, "samples": 3}
    assert figures.take(3) == {}


def test_batches_of_evaluation_do_not_count():
    figures = Figures()
    for step in (1, 2):
        figures.fetched(1, torch.zeros(8))
        figures.backward(LOSS, None)
        figures.fetched(2, torch.zeros(100))
        assert figures.take(step)["samples"] == 8
    assert figures.trained_from == 1


def test_another_loader_takes_over():
    figures = Figures()
    figures.fetched(1, torch.zeros(8))
    figures.backward(LOSS, None)
    figures.take(1)
    figures.fetched(2, torch.zeros(5))
    figures.backward(LOSS, None)
    assert figures.take(2)["samples"] == 5


def test_two_losses_of_one_batch_count_it_once():
    figures = Figures()
    figures.fetched(1, torch.zeros(8))
    figures.backward(LOSS, None)
    figures.backward(LOSS, None)
    assert figures.take(1) == {"loss": 5.0, "samples": 8}


def test_tokens_are_those_of_the_batch_or_of_the_ids_that_the_model_is_given():
    figures = Figures()
    figures.fetched(1, {"input_ids": torch.zeros(2, 8, dtype=torch.long), "labels": torch.zeros(2, 8)})
    figures.forward(None, (torch.zeros(2, 3, dtype=torch.long),))
    figures.backward(LOSS, None)
    assert figures.take(1) == {"loss": 2.5, "samples": 2, "tokens": 16}
    figures.forward(None, (torch.zeros(2, 3, dtype=torch.long),))
    figures.backward(LOSS, None)
    figures.backward(LOSS, None)
    assert figures.take(2) == {"loss": 5.0, "tokens": 12}


def test_of_several_ranks_they_are_known_where_the_model_is_replicated():
    figures = Figures()
    figures.set_world_size(8)
    figures.fetched(1, torch.zeros(8))
    figures.forward(torch.nn.Linear(1, 1), ())
    figures.backward(LOSS, None)
    assert figures.take(1) == {"loss": 2.5}
    figures.fetched(1, torch.zeros(8))
    figures.forward(DistributedDataParallel(), ())
    figures.backward(LOSS, None)
    assert figures.take(2) == {"loss": 2.5, "samples": 32}


@pytest.mark.parametrize(
    ("tensors", "gradients"), [(torch.zeros(3), torch.ones(3)), ([LOSS], None), (LOSS, LOSS)], ids=str
)
def test_a_backward_pass_that_is_given_a_gradient_has_no_loss(tensors, gradients):
    figures = Figures()
    figures.backward(tensors, gradients)
    assert figures.take(1) == {}


def test_a_loss_that_a_scaler_scales_is_told_as_it_was_before():
    figures = Figures()
    for step in (1, 2):
        scaled = LOSS * 2**16
        figures.scaled(LOSS, scaled)
        figures.backward(scaled, None)
        assert figures.take(step) == {"loss": 2.5}


def test_what_was_computed_from_a_scaled_loss_is_not_told():
    figures = Figures()
    scaled = LOSS * 2**16
    figures.scaled(LOSS, scaled)
    figures.backward(scaled / 4, None)
    assert figures.take(1) == {}
    # Nor when the scaler was given several losses at once, or somebody scales beside it.
    figures.scaled([LOSS, LOSS], [scaled, scaled])
    figures.backward(scaled, None)
    assert figures.take(2) == {}


@pytest.mark.parametrize("losses", [("nan",), ("1.5", "nan"), ("inf", "-inf")], ids=str)
def test_a_loss_that_is_no_number_is_told(losses):
    figures = Figures()
    for loss in losses:
        figures.backward(torch.tensor(float(loss)), None)
    assert math.isnan(figures.take(1)["loss"])


def test_loaders_that_are_never_trained_from_fill_no_memory():
    figures = Figures()
    for loader in range(100):
        for _ in range(100):
            figures.fetched(loader, torch.zeros(2))
    assert sum(map(len, figures._waiting.values())) <= 64 * 16


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(4, 2), 4),
        ([torch.zeros(()), (torch.zeros(3), torch.zeros(9))], 3),
        ({"a": "text", "b": {"c": torch.zeros(5)}}, 5),
        (["text", 3, None], None),
        (torch.zeros(()), None),
        ([[[[[[torch.zeros(2)]]]]]], None),
    ],
)
def test_samples_of_a_batch(batch, samples):
    assert num_samples(batch) == samples


def test_tokens_of_a_batch():
    ids = torch.zeros(2, 8, dtype=torch.long)
    assert num_tokens({"input_ids": ids, "decoder_input_ids": ids[:, :4]}) == 24
    assert num_tokens({"ids": ids}) is None
    assert num_tokens([ids]) is None
