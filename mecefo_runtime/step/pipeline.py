"""One step of one layout on one rank: microbatches through the replica's pipeline in 1F1B order.

1F1B: PipeDream-flush (Narayanan et al. 2021, arXiv 2006.09503, section 2.2). A replica whose layers all sit on one
rank is a pipeline of one stage and sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from typing import cast

import torch
from torch import Tensor

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import Operation, wait_all
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import EMBEDDING, HEAD, Layout
from mecefo_runtime.job.step_report import StepStats
from mecefo_runtime.model.data import Corpus, checksum
from mecefo_runtime.model.model import Head
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.traffic import FREE, Traffic
from mecefo_runtime.step.ratings import Ratings
from mecefo_runtime.system.dilation import Pacer


class Pipeline:
    """One rank's part of its replica. `check` is called between microbatches and may raise to leave the step."""

    def __init__(
        self,
        layout: Layout,
        state: ModelState,
        groups: Groups,
        corpus: Corpus,
        pacer: Pacer,
        ratings: Ratings,
        job: JobConfig,
        check: Callable[[], None],
        traffic: Traffic = FREE,
    ) -> None:
        place = layout.find(groups.rank)
        if place is None:
            raise ValueError(f"rank {groups.rank} holds no layers")
        replica, position = place
        self._groups = groups
        self._traffic = traffic
        self._corpus = corpus
        self._pacer = pacer
        self._ratings = ratings
        self._check = check
        self._precision = job.precision
        self._microbatch_size = job.microbatch_size
        self._tokens_per_step = job.tokens_per_step
        self._microbatches = layout.microbatches_of(replica.replica)
        self._num_behind = len(replica.spans) - 1 - position
        self._previous = replica.spans[position - 1].rank if position else None
        self._next = replica.spans[position + 1].rank if self._num_behind else None
        self._body = [state.units[name].module for name in state.computed if name != HEAD]
        self._head = cast(Head, state.units[HEAD].module) if HEAD in state.computed else None
        self._has_embedding = EMBEDDING in state.computed
        self._hidden_size = state.hidden_size
        self._device = state.device
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=self._device)
        self.is_origin = torch.zeros((), dtype=torch.bool, device=self._device)

    def run(
        self,
        samples: Sequence[int],
        announce: Callable[[str], None],
        between: Callable[[], None] = lambda: None,
    ) -> StepStats:
        """Forward and backward of this replica's share of `samples`, which are the whole step's.

        `between` is called after every compute segment.

        Gradients accumulate in the model state. Afterwards `is_origin` says whether something that is not finite came
        out of this rank though all that went in was, and `loss_sum` is that of the step stats: scalars on the device,
        so that nobody waits for it. Returns what this rank's head consumed, but for the loss; empty step stats where
        there is no head.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: a neighbour is gone.
        """
        flights = _Flights()
        self._sends: list[tuple[Operation, Tensor]] = []
        self._stats = StepStats()
        self._has_announced_backward = False
        self.loss_sum.zero_()
        self.is_origin.zero_()
        announce("data")
        batches = [self._load(samples, microbatch) for microbatch in self._microbatches]
        announce("forward")
        num_warmup = min(self._num_behind, len(batches))
        for index in range(num_warmup):
            self._forward(flights, index, batches[index])
            between()
        for index in range(num_warmup, len(batches)):
            self._forward(flights, index, batches[index])
            between()
            self._backward(flights, index - num_warmup, announce)
            between()
        for index in range(len(batches) - num_warmup, len(batches)):
            self._backward(flights, index, announce)
            between()
        wait_all([work for work, _ in self._sends])
        self._sends.clear()
        return self._stats

    def _load(self, samples: Sequence[int], microbatch: int) -> tuple[Sequence[int], Tensor | None, Tensor | None]:
        """(samples, inputs_BT, targets_BT) of a microbatch; only the ends of the pipeline read text."""
        mine = samples[microbatch * self._microbatch_size : (microbatch + 1) * self._microbatch_size]
        if not self._has_embedding and self._head is None:
            return mine, None, None
        inputs_BT, targets_BT = self._corpus.batch(mine)
        return mine, inputs_BT.to(self._device, non_blocking=True), targets_BT.to(self._device, non_blocking=True)

    def _forward(
        self, flights: _Flights, index: int, batch: tuple[Sequence[int], Tensor | None, Tensor | None]
    ) -> None:
        self._check()
        mine, inputs_BT, targets_BT = batch
        x_BTH: Tensor
        received_BTH = None
        ready_seconds = 0.0
        if self._previous is None:
            assert inputs_BT is not None
            x_BTH = inputs_BT
        else:
            received_BTH = torch.empty(len(mine), self._corpus.sequence_length, self._hidden_size, device=self._device)
            ready_seconds = self._receive(received_BTH, self._previous, 2 * index)
            x_BTH = received_BTH.requires_grad_()
        with (
            self._pacer.segment(self._ratings.forward_seconds, ready_seconds),
            in_precision(self._precision, self._device),
        ):
            for module in self._body:
                x_BTH = module(x_BTH)
            if self._head is not None:
                assert targets_BT is not None
                x_BTH = self._head.loss(x_BTH, targets_BT)
        self._look(x_BTH, received_BTH)
        if self._head is not None:
            self.loss_sum += x_BTH.detach()
            self._stats = StepStats(
                0.0,
                self._stats.tokens + (0 if targets_BT is None else targets_BT.numel()),
                self._stats.samples + len(mine),
                self._stats.checksum + checksum(mine),
            )
            # Summed over all replicas, the gradient is that of the mean over the step's tokens.
            x_BTH = x_BTH / self._tokens_per_step
        else:
            assert self._next is not None
            activation_BTH = x_BTH.detach().contiguous()
            self._send(activation_BTH, self._next, 2 * index)
        flights.add(index, received_BTH, x_BTH)

    def _backward(self, flights: _Flights, index: int, announce: Callable[[str], None]) -> None:
        self._check()
        received_BTH, output = flights.pop(index)
        gradient_BTH = None
        ready_seconds = 0.0
        if self._next is not None:
            gradient_BTH = torch.empty_like(output)
            ready_seconds = self._receive(gradient_BTH, self._next, 2 * index + 1)
        if not self._has_announced_backward:
            self._has_announced_backward = True
            announce("backward")
        with self._pacer.segment(self._ratings.backward_seconds, ready_seconds):
            torch.autograd.backward(output, gradient_BTH)
        if self._previous is not None:
            assert received_BTH is not None and received_BTH.grad is not None
            # What the forward pass got counts too: the last stage gets nothing else.
            self._look(received_BTH.grad, gradient_BTH, received_BTH.detach())
            gradient_BTH = received_BTH.grad
            self._send(gradient_BTH, self._previous, 2 * index + 1)

    def _send(self, tensor: Tensor, destination: int, tag: int) -> None:
        self._sends.append(self._traffic.send(self._groups, tensor, destination, tag, self._pacer.now_seconds))

    def _receive(self, into: Tensor, source: int, tag: int) -> float:
        return self._traffic.receive(self._groups, into, source, tag, self._pacer.now_seconds)

    def _look(self, outcome: Tensor, *incomes: Tensor | None) -> None:
        received = [income for income in incomes if income is not None]
        if self._device.type == "cpu":
            if not _is_finite(outcome) and all(map(_is_finite, received)):
                self.is_origin.fill_(True)
            return
        is_origin = outcome.detach().isfinite().all().logical_not()
        for income in received:
            is_origin &= income.detach().isfinite().all()
        self.is_origin |= is_origin


def in_precision(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a forward pass on `device` computes as `JobConfig.precision` asks."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def _is_finite(tensor: Tensor) -> bool:
    """Whether all is finite, by one sum: what is not finite stays so in it. A sum that overflows is none of these."""
    return isfinite(float(tensor.detach().sum())) or bool(tensor.isfinite().all())


class _Flights:
    """Microbatches between their forward and their backward pass: (received activation, output)."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Tensor | None, Tensor]] = {}

    def add(self, index: int, received_BTH: Tensor | None, output: Tensor) -> None:
        self._waiting[index] = (received_BTH, output)

    def pop(self, index: int) -> tuple[Tensor | None, Tensor]:
        return self._waiting.pop(index)
