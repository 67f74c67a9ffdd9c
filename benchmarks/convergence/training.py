"""A training run in one process that computes what the ranks of a job would, without being them.

Replicas that compute the same way are one batch. A step's gradient is what the all-reduce of the runtime gives: the sum
over replicas, the mean over samples, and for the attention of degraded layers the mean over the samples of N(l), the
replicas that do not degrade it (arXiv 2510.16415, section 4.1).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, cast

import torch
from torch import Tensor, nn

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import EMBEDDING, HEAD, layer_unit
from mecefo_runtime.model.approximate import bases, degrade, is_degraded, refresh
from mecefo_runtime.model.data import Corpus, read_corpus
from mecefo_runtime.model.low_rank import correct_, projections
from mecefo_runtime.model.model import Block, Embedding, Head, build_unit
from mecefo_runtime.model.schedule import learning_rate
from mecefo_runtime.model.segments import segments

# The text alternates between training and validation in blocks, so that both have the same kinds of text in them.
MAX_BLOCK_BYTES = 1 << 13
NUM_BLOCKS_PER_HELD_OUT = 40
NUM_VALIDATION_SEQUENCES = 2000
VALIDATION_BATCH = 50


@dataclass(frozen=True, slots=True)
class Group:
    """Samples of a step that are computed alike.

    The layers of the trained model in `degraded` run approximated, those in `projected` with low-rank weight gradients.
    """

    samples: tuple[int, ...]
    degraded: frozenset[int] = frozenset()
    projected: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Correction:
    """What may be done about the bias of degraded samples; ours, not the paper's, and off by default.

    `averages_rest`: what technique III drops of a weight gradient, (I - P) G, is scaled up to the mean over the samples
    for which the layer is neither degraded nor projected, as N(l) is for attention. `weight_below`: the weight of a
    sample in the layers below a layer that it passes degraded (and in the embedding), where its gradient misses what
    would have come through the attention.
    """

    averages_rest: bool = False
    weight_below: float = 1.0


NO_CORRECTION = Correction()
_Way = Literal["exact", "projected", "degraded"]


def split_text(data: str | None) -> tuple[bytes, bytes]:
    """The text (see `read_corpus`) as (training, validation): every 40th block of 8 KiB is held out.

    Raises:
        DataError: it cannot be used.
    """
    text = read_corpus(data, sequence_length=NUM_BLOCKS_PER_HELD_OUT)
    size = min(MAX_BLOCK_BYTES, len(text) // NUM_BLOCKS_PER_HELD_OUT)
    blocks = [text[first : first + size] for first in range(0, len(text), size)]
    middle = NUM_BLOCKS_PER_HELD_OUT // 2
    kept = (block for index, block in enumerate(blocks) if index % NUM_BLOCKS_PER_HELD_OUT != middle)
    return b"".join(kept), b"".join(blocks[middle::NUM_BLOCKS_PER_HELD_OUT])


class Training:
    """One run, from step 1. `job` gives the model, the recipe, the approximation and the seed of weights and data."""

    def __init__(self, job: JobConfig, training_text: bytes, correction: Correction) -> None:
        self._job = job
        self._correction = correction
        self._corpus = Corpus(training_text, job.sequence_length, job.seed)
        self._embedding = cast(Embedding, build_unit(EMBEDDING, job.model, job.seed))
        self._head = cast(Head, build_unit(HEAD, job.model, job.seed))
        self._blocks = [
            cast(Block, build_unit(layer_unit(layer), job.model, job.seed)) for layer in range(job.model.num_layers)
        ]
        # Each with the very parameters of its block, so that a layer can be exact for some samples of a step and
        # degraded for others.
        self._twins = [copy.deepcopy(block, {id(p): p for p in block.parameters()}) for block in self._blocks]
        units: list[nn.Module] = [self._embedding, *self._blocks, self._head]
        self._parameters = list(chain.from_iterable(unit.parameters() for unit in units))
        parts = [part for unit in units for part in segments(unit)]
        self._optimizer = torch.optim.AdamW(
            [
                {
                    "params": [p for part in parts if part.is_decayed is is_decayed for p in part.parameters],
                    "weight_decay": job.weight_decay if is_decayed else 0.0,
                }
                for is_decayed in (True, False)
            ],
            lr=job.learning_rate,
            betas=job.betas,
            fused=True,
        )

    def step(self, number: int, groups: Sequence[Group]) -> None:
        """Compute step `number` (from 1) and apply it."""
        self._compute(groups)
        torch.nn.utils.clip_grad_norm_(self._parameters, self._job.clip_grad_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(number, self._job)
        self._optimizer.step()
        if number % self._job.approximation.refresh_steps == 0:
            for twin in filter(is_degraded, self._twins):
                refresh(twin)

    def gradient_error(self, groups: Sequence[Group], samples: tuple[int, ...]) -> float:
        """How far the gradient of `groups` is from the exact one of `samples`, relative to the norm of the latter."""
        self._compute([Group(samples)])
        exact = [_gradient(parameter).clone() for parameter in self._parameters]
        self._compute(groups)
        difference = norm = 0.0
        for parameter, wanted in zip(self._parameters, exact, strict=True):
            missing = wanted if parameter.grad is None else wanted - parameter.grad
            difference += float(missing.square().sum(dtype=torch.float64))
            norm += float(wanted.square().sum(dtype=torch.float64))
        return float((difference / norm) ** 0.5)

    def gradients(self, groups: Sequence[Group]) -> dict[str, Tensor]:
        """The step's reduced gradient by parameter, before clipping; parameters without one are left out."""
        self._compute(groups)
        units: dict[str, nn.Module] = {EMBEDDING: self._embedding, HEAD: self._head}
        units |= {layer_unit(layer): block for layer, block in enumerate(self._blocks)}
        return {
            f"{name}.{key}": parameter.grad.clone()
            for name, unit in units.items()
            for key, parameter in unit.named_parameters()
            if parameter.grad is not None
        }

    @torch.no_grad()
    def validation_loss(self, text: bytes) -> float:
        """The mean cross-entropy over held-out sequences, in nats per byte."""
        corpus = Corpus(text, self._job.sequence_length, 0)
        num_sequences = min(NUM_VALIDATION_SEQUENCES, corpus.num_windows)
        total, num_tokens = 0.0, 0
        for first in range(0, num_sequences, VALIDATION_BATCH):
            inputs, targets = corpus.batch(range(first, min(first + VALIDATION_BATCH, num_sequences)))
            x = self._embedding(inputs)
            for block in self._blocks:
                x = block(x)
            total += float(self._head.loss(x, targets))
            num_tokens += targets.numel()
        return total / num_tokens

    def _compute(self, groups: Sequence[Group]) -> None:
        """Leave the step's reduced gradient in the parameters."""
        for parameter in self._parameters:
            parameter.grad = None
        num_samples = sum(len(group.samples) for group in groups)
        self._backward(groups, num_samples)
        with torch.no_grad():
            self._reduce(groups, num_samples)

    def _backward(self, groups: Sequence[Group], num_samples: int) -> None:
        samples = [sample for group in groups for sample in group.samples]
        inputs, targets = self._corpus.batch(samples)
        x = self._embedding(inputs)
        for layer in range(len(self._blocks)):
            ways = [_way(layer, group) for group in groups for _ in group.samples]
            places = {way: [place for place, own in enumerate(ways) if own == way] for way in sorted(set(ways))}
            if len(places) == 1:
                x = self._run(layer, ways[0], x)
                continue
            parts = [self._run(layer, way, x[own]) for way, own in places.items()]
            order = torch.tensor([place for own in places.values() for place in own])
            x = torch.cat(parts)[order.argsort()]
        torch.autograd.backward(self._head.loss(x, targets) / (num_samples * self._job.sequence_length))

    def _run(self, layer: int, way: _Way, x: Tensor) -> Tensor:
        if way == "exact":
            return cast(Tensor, self._blocks[layer](x))
        twin, skips = self._twins[layer], way == "degraded"
        degrade(twin, self._job.approximation, skip_attention=skips, seed=self._job.seed)
        if skips and self._correction.weight_below != 1.0:
            x = _Weigh.apply(x, self._correction.weight_below)  # type: ignore[no-untyped-call]
        return cast(Tensor, twin(x))

    def _reduce(self, groups: Sequence[Group], num_samples: int) -> None:
        """Turn sums over samples into means, layer by layer, from the head downwards."""
        weights = [1.0] * len(groups)
        for layer in reversed(range(len(self._blocks))):
            block = self._blocks[layer]
            weight_of_all = sum(w * len(group.samples) for w, group in zip(weights, groups, strict=True))
            weight_of_exact = sum(
                w * len(group.samples) for w, group in zip(weights, groups, strict=True) if layer not in group.degraded
            )
            of_all = num_samples / weight_of_all
            of_exact = num_samples / weight_of_exact if weight_of_exact else None
            for part in segments(block):
                for parameter in part.parameters:
                    if not part.is_attention:
                        _gradient(parameter).mul_(of_all)
                    elif of_exact is None:
                        parameter.grad = None
                    else:
                        _gradient(parameter).mul_(of_exact)
            weight_of_whole = sum(
                w * len(group.samples)
                for w, group in zip(weights, groups, strict=True)
                if layer not in group.degraded | group.projected
            )
            if self._correction.averages_rest and 0 < weight_of_whole < weight_of_all:
                self._average_rest(layer, weight_of_all / weight_of_whole)
            weights = [
                w * self._correction.weight_below if layer in group.degraded else w
                for w, group in zip(weights, groups, strict=True)
            ]
        weight_of_all = sum(w * len(group.samples) for w, group in zip(weights, groups, strict=True))
        _gradient(self._embedding.weight).mul_(num_samples / weight_of_all)

    def _average_rest(self, layer: int, scale: float) -> None:
        """Degraded replicas contributed P(G) alone; see `correct_`."""
        for projection in projections(self._blocks[layer], bases(self._twins[layer])):
            correct_(_gradient(projection.weight), projection.basis, scale, projection.side)


def _way(layer: int, group: Group) -> _Way:
    if layer in group.degraded:
        return "degraded"
    return "projected" if layer in group.projected else "exact"


class _Weigh(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a weight."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, weight: float) -> Tensor:
        ctx.weight = weight  # type: ignore[attr-defined]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.weight, None  # type: ignore[attr-defined]


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
