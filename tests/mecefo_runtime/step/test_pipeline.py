"""A pipeline that is called out of its epoch: all stages stop after the same microbatch, and go on where they were."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

import pytest
import torch
from torch import Tensor

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import EpochBroken, Operation
from mecefo_runtime.comm.rendezvous import RendezvousStore
from mecefo_runtime.job.background import Background
from mecefo_runtime.job.config import JobConfig, ModelConfig
from mecefo_runtime.model.data import Corpus, samples_of_step
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.step.contribution import OwnContribution
from mecefo_runtime.step.pipeline import Pipeline, one_forward_one_backward
from mecefo_runtime.step.ratings import Ratings
from mecefo_runtime.step.step_stats import STEP_STATS_SIZE
from mecefo_runtime.system.dilation import pacer_for
from tests.mecefo_runtime.comm.test_groups import Rendezvous
from tests.planning import layout_of

pytestmark = pytest.mark.unit

NUM_STAGES, NUM_MICROBATCHES, STEP = 3, 5, 4
MODEL = ModelConfig(16, 32, num_layers=3, num_heads=2, num_key_value_heads=2, vocab_size=256)
JOB = JobConfig(
    MODEL,
    nodes=1,
    gpus_per_node=NUM_STAGES,
    data_parallel=1,
    pipeline=NUM_STAGES,
    steps=10,
    sequence_length=8,
    microbatches_per_replica=NUM_MICROBATCHES,
)
LAYOUT = layout_of("exact", JOB.cluster(), range(NUM_STAGES))
CORPUS = Corpus(bytes(range(256)) * 4, JOB.sequence_length, JOB.seed)
ALL = tuple(range(NUM_MICROBATCHES))
DEADLINE_SECONDS = 120.0


class Called:
    """The last stage is called when it has so many microbatches; the others hear it from the one behind them."""

    def __init__(self, is_last: bool, after: int) -> None:
        self.own: OwnContribution | None = None
        self._is_last, self._after = is_last, after
        self.has_stopped = False

    def computing(self, ranks: Collection[int]) -> AbstractContextManager[None]:
        assert list(ranks) == list(range(NUM_STAGES))
        return nullcontext()

    def must_stop(self) -> bool:
        assert self.own is not None
        return self._is_last and len(self.own.said.microbatches) >= self._after

    def stopped(self) -> NoReturn:
        self.has_stopped = True
        raise EpochBroken("stopped")


class Stages:
    """The ranks of a replica, in threads; each has its state."""

    def __init__(self) -> None:
        self.states = [ModelState(JOB, LAYOUT, rank, {}, STEP_STATS_SIZE) for rank in range(NUM_STAGES)]
        self.owns = [OwnContribution(STEP, 0, state) for state in self.states]
        self.rendezvous, self.epoch = Rendezvous(), 0

    def run(self, microbatches: Sequence[int], after: int = NUM_MICROBATCHES, *, may_break: bool = False) -> list[bool]:
        """Compute these, up to where they are called; returns which of them stopped before."""
        self.epoch += 1
        reductions = Background().reduction_groups(LAYOUT)
        leaving = [Called(rank == NUM_STAGES - 1, after) for rank in range(NUM_STAGES)]

        def run(rank: int) -> None:
            store = RendezvousStore(self.rendezvous.put, self.rendezvous.take)
            groups = Groups(store, self.epoch, rank, range(NUM_STAGES), reductions, 10 * DEADLINE_SECONDS)
            parts = CORPUS, pacer_for(torch.device("cpu"), 1.0), Ratings(None, LAYOUT, rank), JOB, leaving[rank]
            leaving[rank].own = self.owns[rank]
            pipeline = Pipeline(LAYOUT, self.states[rank], groups, *parts)
            told = microbatches, samples_of_step(STEP, JOB.samples_per_step), lambda phase: None
            try:
                pipeline.run(self.owns[rank], *told)
            except EpochBroken:
                assert leaving[rank].has_stopped or may_break
                if may_break:
                    groups.abort()
            self.groups.append(groups)

        self.groups: list[Groups] = []
        on_threads(run)
        for groups in self.groups:
            groups.close()
        return [one.has_stopped for one in leaving]

    def regroup(self) -> None:
        """Each goes on in a new state of the same units."""
        for rank, own in enumerate(self.owns):
            own.carry()
            old = self.states[rank]
            self.states[rank] = ModelState(JOB, LAYOUT, rank, old.units, STEP_STATS_SIZE)
            old.release()
            own.resume(self.states[rank])

    def gradients(self) -> list[Tensor]:
        return [torch.cat(list(state.own_gradients().values())) for state in self.states]


def on_threads(run: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(NUM_STAGES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[Stages]:
    torch.set_num_threads(1)
    stages = Stages()
    assert stages.run(ALL) == [False] * NUM_STAGES
    yield stages


@pytest.mark.parametrize("after", range(NUM_MICROBATCHES + 1))
def test_all_stages_stop_after_the_same_microbatch_and_go_on_where_they_were(undisturbed: Stages, after: int):
    stages = Stages()
    assert stages.run(ALL, after) == [after < NUM_MICROBATCHES] * NUM_STAGES
    assert {own.said.microbatches for own in stages.owns} == {ALL[:after]}
    stages.regroup()
    assert stages.run(ALL[after:]) == [False] * NUM_STAGES
    for own, gradient, expected in zip(stages.owns, stages.gradients(), undisturbed.gradients(), strict=True):
        assert own.said.microbatches == ALL
        assert torch.equal(gradient, expected), "as if nobody had called"
    head, expected_head = stages.owns[-1], undisturbed.owns[-1]
    assert head.stats == expected_head.stats and head.stats.samples == JOB.samples_per_step
    assert torch.equal(head.loss_sum, expected_head.loss_sum)


def test_what_is_in_the_sum_is_counted_though_nobody_can_be_told(undisturbed: Stages, monkeypatch: pytest.MonkeyPatch):
    """A stage whose neighbour is gone when it passes a gradient on."""
    stages = Stages()
    send, num_sent = Groups.send, [0]

    def fail(self: Groups, tensor: Tensor, destination: int, tag: int) -> Operation:
        if self.rank == NUM_STAGES - 1:
            num_sent[0] += 1
            if num_sent[0] == 2:
                self.abort()
                raise EpochBroken("the neighbour is gone")
        return send(self, tensor, destination, tag)

    with monkeypatch.context() as patched:
        patched.setattr(Groups, "send", fail)
        stages.run(ALL, may_break=True)
    assert stages.owns[-1].said.microbatches == ALL[:2]
    only = Stages()
    only.run(ALL[:2])
    assert torch.equal(stages.gradients()[-1], only.gradients()[-1])


def test_microbatches_of_others_are_added_and_none_is_no_work(undisturbed: Stages):
    stages = Stages()
    stages.run((0, 3))
    stages.run(())
    stages.run((1, 2, 4))
    for own, gradient, expected in zip(stages.owns, stages.gradients(), undisturbed.gradients(), strict=True):
        assert own.said.microbatches == ALL
        assert torch.allclose(gradient, expected, atol=1e-6)


def test_own_gradients_outlive_a_reduction(undisturbed: Stages):
    state = undisturbed.states[0]
    before = undisturbed.gradients()[0].clone()
    state.begin_reduction()
    state.gradients.mul_(7.0)
    assert torch.equal(torch.cat(list(state.own_gradients().values())), before)


@pytest.mark.parametrize(("number", "num_behind"), [(0, 2), (1, 0), (1, 3), (4, 0), (4, 1), (5, 2), (2, 3)])
def test_one_forward_one_backward(number: int, num_behind: int):
    order = list(one_forward_one_backward(number, num_behind))
    for is_forward in (True, False):
        assert [index for kind, index in order if kind is is_forward] == list(range(number))
    most = max((sum(1 if kind else -1 for kind, _ in order[: place + 1]) for place in range(len(order))), default=0)
    assert most == min(number, num_behind + 1)
