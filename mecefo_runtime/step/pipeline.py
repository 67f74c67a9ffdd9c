"""One step of one layout on one rank: microbatches through the replica's pipeline in 1F1B order.

1F1B: PipeDream-flush (Narayanan et al. 2021, arXiv 2006.09503, section 2.2). A replica whose layers all sit on one
rank is a pipeline of one stage and sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import isfinite
from typing import NoReturn, Protocol, cast

import torch
from torch import Tensor

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import Operation, wait_all
from mecefo_runtime.comm.transport import FIRST_STATE_TAG
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import EMBEDDING, HEAD, Layout
from mecefo_runtime.model.backward import backward
from mecefo_runtime.model.data import Corpus
from mecefo_runtime.model.held_data import HeldData
from mecefo_runtime.model.model import Head
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.traffic import FREE, Traffic
from mecefo_runtime.step.contribution import OwnContribution
from mecefo_runtime.step.ratings import Ratings
from mecefo_runtime.system.dilation import Pacer

# What rides behind a gradient: that it is one, or that none follows.
_GO_ON, _STOP = 0.0, 1.0
# Behind all tags of activations, before those of state.
_DONE_TAG = FIRST_STATE_TAG - 1


class Leaving(Protocol):
    """Whether this rank is called out of its epoch, as its pipeline asks between microbatches."""

    def computing(self, ranks: Collection[int]) -> AbstractContextManager[None]:
        """The context in which the pipeline of `ranks` computes."""
        ...

    def must_stop(self) -> bool:
        """Whether it is called, and the pipeline finishes what it has in flight first; raises to leave at once."""
        ...

    def stopped(self) -> NoReturn:
        """All ranks of the pipeline have stopped after the same microbatch: leave."""
        ...


class Pipeline:
    """One rank's part of its replica. `leaving` is asked between microbatches and may raise to leave the step.

    When the pipeline may drain, the last stage stops after a microbatch; a flag that is sent with every gradient
    tells the earlier stages, which then have the same microbatches.
    """

    def __init__(
        self,
        layout: Layout,
        state: ModelState,
        groups: Groups,
        corpus: Corpus | HeldData,
        pacer: Pacer,
        ratings: Ratings,
        job: JobConfig,
        leaving: Leaving,
        traffic: Traffic = FREE,
    ) -> None:
        place = layout.find(groups.rank)
        if place is None:
            raise ValueError(f"rank {groups.rank} holds no layers")
        replica, position = place
        self.microbatches: Sequence[int] = layout.microbatches_of(replica.replica)
        self.replica = replica.replica
        self._groups = groups
        self._traffic = traffic
        self._corpus = corpus
        self._pacer = pacer
        self._ratings = ratings
        self._leaving = leaving
        self._precision = job.precision
        self._microbatch_size = job.microbatch_size
        self._tokens_per_step = job.tokens_per_step
        self._ranks = [span.rank for span in replica.spans]
        self._span = replica.spans[position]
        self._num_behind = len(replica.spans) - 1 - position
        self._previous = self._ranks[position - 1] if position else None
        self._next = self._ranks[position + 1] if self._num_behind else None
        self._body = [state.units[name].module for name in state.computed if name != HEAD]
        self._head = cast(Head, state.units[HEAD].module) if HEAD in state.computed else None
        self._has_embedding = EMBEDDING in state.computed
        self._hidden_size = state.hidden_size
        self._device = state.device

    def run(
        self,
        own: OwnContribution,
        microbatches: Sequence[int],
        samples: Sequence[int],
        announce: Callable[[str], None],
        between: Callable[[], None] = lambda: None,
    ) -> None:
        """Forward and backward of `microbatches`, of `samples`, which are the whole step's; `own` counts them.

        `between` is called after every compute segment.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: a neighbour is gone, or the epoch is to be left; `own` counts
                what has been computed by then.
        """
        flights: dict[int, _Flight] = {}
        self._sends: list[tuple[Operation, Tensor]] = []
        has_announced_backward = False
        with self._leaving.computing(self._ranks):
            announce("data")
            batches = [self._load(samples, microbatch) for microbatch in microbatches]
            announce("forward")
            for is_forward, index in one_forward_one_backward(len(batches), self._num_behind):
                must_stop = self._leaving.must_stop()
                if is_forward:
                    if must_stop and self._next is None:
                        self._stop_before(index)
                    flights[index] = self._forward(own, index, batches[index])
                else:
                    flight = flights.pop(index)
                    gradient_BTH, ready_seconds = self._receive_gradient(flight.output, index)
                    if not has_announced_backward:
                        has_announced_backward = True
                        announce("backward")
                    with self._pacer.segment(self._ratings.backward_seconds, ready_seconds):
                        backward(flight.output, gradient_BTH)
                    # Before anything that may fail: the gradients are in the sum.
                    own.count(microbatches[index], self._span)
                    if flight.loss is not None:
                        mine, _, targets_BT = batches[index]
                        own.count_loss(flight.loss, mine, 0 if targets_BT is None else targets_BT.numel())
                    self._pass_on(own, index, flight.received, gradient_BTH)
                # What goes on beside may wait for ranks that have left.
                if not must_stop:
                    between()
            wait_all([work for work, _ in self._sends])
            self._sends.clear()
            if not has_announced_backward:
                announce("backward")

    def _load(self, samples: Sequence[int], microbatch: int) -> tuple[Sequence[int], Tensor | None, Tensor | None]:
        """(samples, inputs_BT, targets_BT) of a microbatch; only the ends of the pipeline read text."""
        mine = samples[microbatch * self._microbatch_size : (microbatch + 1) * self._microbatch_size]
        if not self._has_embedding and self._head is None:
            return mine, None, None
        inputs_BT, targets_BT = self._corpus.batch(mine)
        return mine, inputs_BT.to(self._device, non_blocking=True), targets_BT.to(self._device, non_blocking=True)

    def _forward(
        self,
        own: OwnContribution,
        index: int,
        batch: tuple[Sequence[int], Tensor | None, Tensor | None],
    ) -> _Flight:
        mine, inputs_BT, targets_BT = batch
        x_BTH: Tensor
        received_BTH = loss = None
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
        self._look(own, x_BTH, received_BTH)
        if self._head is not None:
            loss = x_BTH.detach()
            # Summed over all replicas, the gradient is that of the mean over the step's tokens.
            x_BTH = x_BTH / self._tokens_per_step
        else:
            assert self._next is not None
            activation_BTH = x_BTH.detach().contiguous()
            self._send(activation_BTH, self._next, 2 * index)
        return _Flight(loss, received_BTH, x_BTH)

    def _receive_gradient(self, output: Tensor, index: int) -> tuple[Tensor | None, float]:
        """The gradient of `output`, and when it is there; does not return where the last stage has stopped before."""
        if self._next is None:
            return None, 0.0
        packed = torch.empty(output.numel() + 1, device=self._device)
        ready_seconds = self._receive(packed, self._next, 2 * index + 1)
        if float(packed[-1]) == _STOP:
            self._stop_before(index)
        return packed[:-1].view(output.shape), ready_seconds

    def _pass_on(
        self, own: OwnContribution, index: int, received_BTH: Tensor | None, gradient_BTH: Tensor | None
    ) -> None:
        """Send the stage before this one the gradient of what it sent."""
        if self._previous is not None:
            assert received_BTH is not None and received_BTH.grad is not None
            # What the forward pass got counts too: the last stage gets nothing else.
            self._look(own, received_BTH.grad, gradient_BTH, received_BTH.detach())
            self._send_gradient(received_BTH.grad, _GO_ON, index)

    def _send_gradient(self, gradient: Tensor, word: float, index: int) -> None:
        assert self._previous is not None
        packed = torch.empty(gradient.numel() + 1, device=self._device)
        packed[:-1].copy_(gradient.flatten())
        packed[-1] = word
        self._send(packed, self._previous, 2 * index + 1)

    def _stop_before(self, index: int) -> NoReturn:
        """Tell the stages before this one to stop, and leave when they have what they need of it."""
        done = torch.zeros(1)
        if self._previous is not None:
            nothing = torch.zeros(self._microbatch_size, self._corpus.sequence_length, self._hidden_size)
            self._send_gradient(nothing.to(self._device), _STOP, index)
            self._groups.receive(done, self._previous, _DONE_TAG)
        if self._next is not None:
            self._groups.send(done, self._next, _DONE_TAG).wait()
        self._leaving.stopped()

    def _send(self, tensor: Tensor, destination: int, tag: int) -> None:
        self._sends.append(self._traffic.send(self._groups, tensor, destination, tag, self._pacer.now_seconds))

    def _receive(self, into: Tensor, source: int, tag: int) -> float:
        return self._traffic.receive(self._groups, into, source, tag, self._pacer.now_seconds)

    def _look(self, own: OwnContribution, outcome: Tensor, *incomes: Tensor | None) -> None:
        received = [income for income in incomes if income is not None]
        if self._device.type == "cpu":
            if not _is_finite(outcome) and all(map(_is_finite, received)):
                own.is_origin.fill_(True)
            return
        is_origin = outcome.detach().isfinite().all().logical_not()
        for income in received:
            is_origin &= income.detach().isfinite().all()
        own.is_origin |= is_origin


def in_precision(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a forward pass on `device` computes as `JobConfig.precision` asks."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def _is_finite(tensor: Tensor) -> bool:
    """Whether all is finite, by one sum: what is not finite stays so in it. A sum that overflows is none of these."""
    return isfinite(float(tensor.detach().sum())) or bool(tensor.isfinite().all())


def one_forward_one_backward(num_microbatches: int, num_behind: int) -> Iterator[tuple[bool, int]]:
    """(is it the forward pass, of which microbatch) of a stage with `num_behind` stages behind it, in order."""
    num_warmup = min(num_behind, num_microbatches)
    yield from ((True, index) for index in range(num_warmup))
    for index in range(num_warmup, num_microbatches):
        yield True, index
        yield False, index - num_warmup
    yield from ((False, index) for index in range(num_microbatches - num_warmup, num_microbatches))


@dataclass(frozen=True, slots=True)
class _Flight:
    """A microbatch between its forward and its backward pass; `loss` is known to the head."""

    loss: Tensor | None
    received: Tensor | None
    output: Tensor
