"""One rank of a peer's job, as far as that is the same for all of them: the whole model, its optimizer, its data."""

# ruff: noqa: N803, N806
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.peers.job import PeerJob
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import EMBEDDING, HEAD, layer_unit
from mecefo_runtime.model.data import Corpus, read_corpus
from mecefo_runtime.model.model import Head, build_unit
from mecefo_runtime.model.schedule import learning_rate


class WholeModel(nn.Module):
    """All units of the model, built as our ranks build theirs."""

    def __init__(self, config: JobConfig) -> None:
        super().__init__()
        names = [EMBEDDING, *map(layer_unit, range(config.model.num_layers))]
        self.body = nn.Sequential(*(build_unit(name, config.model, config.seed) for name in names))
        self.head = cast(Head, build_unit(HEAD, config.model, config.seed))

    def forward(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy in nats, summed over all tokens."""
        return self.head.loss(self.body(inputs_BT), targets_BT)


def build_optimizer(model: nn.Module, config: JobConfig) -> torch.optim.AdamW:
    """AdamW as our ranks have it: no decay of norms."""
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=config.betas,
        fused=True,
    )


class Replica:
    """A rank's share of every step."""

    def __init__(self, job: PeerJob, rank: int) -> None:
        torch.set_num_threads(1)
        self._job = job
        self._rank = rank
        self._corpus = Corpus(read_corpus(job.config.data), job.config.sequence_length, job.config.seed)
        self.model = WholeModel(job.config)
        self._parameters = list(self.model.parameters())
        self.optimizer = build_optimizer(self.model, job.config)

    def compute(self, step: int, wrapped: nn.Module, no_sync: Callable[[], AbstractContextManager[object]]) -> float:
        """Forward and backward of this rank's microbatches through `wrapped`; returns the mean loss of its tokens.

        The gradients are those of that mean; all but the last microbatch run under `no_sync`.
        """
        shares = list(self._batches(step))
        num_tokens = sum(targets_BT.numel() for _, targets_BT in shares)
        loss_sum = 0.0
        for index, (inputs_BT, targets_BT) in enumerate(shares):
            is_last = index == len(shares) - 1
            with nullcontext() if is_last else no_sync():
                loss = wrapped(inputs_BT, targets_BT)
                (loss / num_tokens).backward()
            loss_sum += float(loss.detach())
        return loss_sum / num_tokens

    def gradients(self) -> Tensor:
        """A flat copy of all gradients."""
        return torch.cat([parameter.grad.flatten() for parameter in self._parameters if parameter.grad is not None])

    def take_gradients(self, gradients: Tensor) -> None:
        """Replace all gradients by `gradients`, flat as `gradients()` gives them."""
        sizes = [parameter.numel() for parameter in self._parameters]
        for parameter, gradient in zip(self._parameters, torch.split(gradients, sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)

    def prepare_update(self, step: int) -> None:
        """Clip the reduced gradients and set the learning rate, as our ranks do."""
        nn.utils.clip_grad_norm_(self.model.parameters(), self._job.config.clip_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self._job.config)

    def _batches(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        for samples in self._job.samples_of_rank(step, self._rank):
            yield self._corpus.batch(samples)
