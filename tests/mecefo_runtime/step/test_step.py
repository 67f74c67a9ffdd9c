"""A rank's own part of a step: what it tells the others, and what it does with their verdict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import inf, nan
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from mecefo_runtime.comm.operations import EpochBroken
from mecefo_runtime.job.background import Background
from mecefo_runtime.job.config import HealthConfig, JobConfig, ModelConfig
from mecefo_runtime.job.contribution import Completion, Work
from mecefo_runtime.job.layout import Layout, Replica, Span
from mecefo_runtime.job.snapshot_interval import NO_SNAPSHOT_COSTS
from mecefo_runtime.job.step_report import PartHealth, StepStats, StepTotals, StepVerdict
from mecefo_runtime.model.data import Corpus
from mecefo_runtime.model.schedule import learning_rate
from mecefo_runtime.state.activity import StateActivity
from mecefo_runtime.state.fetch import Fetching
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.step import step as step_module
from mecefo_runtime.step.commit_row import Outcome
from mecefo_runtime.step.degraded_layers import DegradedLayers
from mecefo_runtime.step.epoch import Epoch
from mecefo_runtime.step.health import Judgement
from mecefo_runtime.step.pipeline import Pipeline
from mecefo_runtime.step.ratings import Ratings
from mecefo_runtime.step.step import Stepper
from mecefo_runtime.step.step_stats import STEP_STATS_SIZE
from mecefo_runtime.system.dilation import pacer_for
from mecefo_runtime.system.job_records import StepCommitted

pytestmark = pytest.mark.unit

MODEL = ModelConfig(16, 32, num_layers=2, num_heads=2, num_key_value_heads=2, vocab_size=256)
JOB = JobConfig(
    MODEL,
    nodes=1,
    gpus_per_node=1,
    data_parallel=1,
    pipeline=1,
    steps=10,
    sequence_length=8,
    microbatches_per_replica=2,
)
LAYOUT = Layout(2, (Replica(0, (Span(0, 0, 2),), 2),))
CORPUS = Corpus(bytes(range(256)) * 4, JOB.sequence_length, JOB.seed)
CPU = torch.device("cpu")


class Alone:
    """The groups of a rank that holds everything; other members have nothing but a part in the commit."""

    rank = 0
    members = (0,)

    def start_all_reduce(self, tensor: Tensor, holders: tuple[int, ...]) -> None:
        assert holders == (0,)

    def all_gather(self, tensor: Tensor, holders: tuple[int, ...]) -> dict[int, Tensor]:
        return {0: tensor}


class Undisturbed:
    """Nobody calls."""

    def computing(self, ranks: Collection[int]) -> AbstractContextManager[None]:
        return nullcontext()

    def must_stop(self) -> bool:
        return False

    def stopped(self) -> NoReturn:
        raise AssertionError


class Rank:
    """One rank, whose steps can be run; `others` is what a member beside it adds to the commit."""

    def __init__(self, job: JobConfig = JOB, members: tuple[int, ...] = (0,)) -> None:
        self.wants_boundary = self.is_saving = False
        self.snapshots = 0, NO_SNAPSHOT_COSTS
        self.judgements: list[Judgement] = []
        self.phases: list[str] = []
        groups: Any = Alone()
        state = ModelState(job, LAYOUT, 0, {}, STEP_STATS_SIZE)
        pacer = pacer_for(CPU, 1.0)
        ratings = Ratings(None, LAYOUT, 0)
        pipeline = Pipeline(LAYOUT, state, groups, CORPUS, pacer, ratings, job, Undisturbed())
        degraded, fetching = DegradedLayers(LAYOUT, 0, state, job), Fetching(Background(), groups, state)
        self.epoch = Epoch(1, 0, LAYOUT, members, groups, state, degraded, fetching, pipeline, ratings)
        self.stepper = Stepper(job, 0, pacer, self)

    def announce(self, step: int, phase: str) -> None:
        self.phases.append(phase)

    def on_judged(self, epoch_number: int, step: int, judgement: Judgement) -> None:
        self.judgements.append(judgement)

    def on_applied(self, step: int, record: StepCommitted) -> None:
        """It is known from `progress`."""

    @property
    def unit(self) -> Any:
        return self.epoch.state.units["layer.1"]

    @property
    def parameters(self) -> Tensor:
        return torch.cat([unit.parameters for unit in self.epoch.state.units.values()]).clone()

    def run(self, step: int) -> Outcome:
        return self.stepper.run(self.epoch, step)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[float]], None]]:
    """Lets other members add these numbers to the commit."""
    added: list[float] = []

    def exchange(groups: Any, leader: int, part: Tensor, decide: Callable[[Tensor], None]) -> Tensor:
        total = part.clone()
        total[: len(added)] += torch.tensor(added, dtype=total.dtype)
        decide(total)
        return total

    monkeypatch.setattr(step_module, "exchange", exchange)
    yield added.extend


def test_a_step_is_computed_and_committed() -> None:
    rank = Rank()
    before = rank.parameters
    assert rank.run(1).verdict is StepVerdict.COMMIT
    progress = rank.stepper.progress
    assert (progress.committed_step, progress.ready) == (1, None)
    assert progress.record is not None and progress.totals is not None
    assert (progress.record.tokens, progress.record.samples) == (JOB.tokens_per_step, JOB.samples_per_step)
    assert progress.record.loss == pytest.approx(5.5, abs=0.5)  # of 256 tokens, before anything is learned
    assert not torch.equal(rank.parameters, before)
    assert rank.phases == ["data", "forward", "backward", "reduce", "optimizer", "commit"]


def test_what_uses_the_state_is_through_before_the_optimizer_changes_it() -> None:
    rank = Rank()
    told: list[str] = []

    class Watching(StateActivity):
        def begin(self, step: int) -> None:
            self.parameters = rank.parameters
            told.append(f"begin {step}")

        def advance(self) -> None:
            told.append("advance")

        def finish(self) -> None:
            assert torch.equal(rank.parameters, self.parameters)
            told.append("finish")

    rank.epoch.keeping = (Watching(),)
    rank.run(1)
    rank.run(2)
    # Two microbatches: two forward and two backward segments.
    assert told == ["begin 1", *["advance"] * 4, "finish", "begin 2", *["advance"] * 4, "finish"]


@pytest.mark.parametrize(("wants", "other", "all_called"), [(True, 1.0, True), (True, 0.0, False), (False, 1.0, False)])
def test_a_boundary_is_one_when_every_member_was_called(others, wants: bool, other: float, all_called: bool) -> None:
    others([other])
    rank = Rank(members=(0, 1))
    rank.wants_boundary = wants
    assert rank.run(1).all_called is all_called


@pytest.mark.parametrize(
    ("is_saving", "other", "can_save"), [(False, 0.0, True), (True, 0.0, False), (False, 1.0, False)]
)
def test_nobody_saves_while_anybody_still_writes(others, is_saving: bool, other: float, can_save: bool) -> None:
    others([0.0, other])
    rank = Rank(members=(0, 1))
    rank.is_saving = is_saving
    assert rank.run(1).can_save is can_save


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_parameters_that_are_not_finite_are_named_in_the_step_that_computes_with_them(value: float) -> None:
    rank = Rank()
    rank.run(1)
    kept = rank.parameters
    rank.unit.parameters[5] = value
    outcome = rank.run(2)
    assert outcome.verdict is StepVerdict.HEAL
    assert rank.judgements[-1].suspects == (0,)
    assert rank.stepper.distrusted == {"layer.1"}
    # Not committed now, and not by a regroup either.
    assert (rank.stepper.progress.committed_step, rank.stepper.progress.ready) == (1, None)
    rank.unit.parameters[5] = kept[rank.epoch.state.offsets["layer.1"] + 5]
    assert torch.equal(rank.parameters, kept)


def test_whoever_merely_gets_such_numbers_finds_its_own_state_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank()
    run = Pipeline.run

    def spoil(self: Pipeline, *told: Any) -> None:
        run(self, *told)
        rank.epoch.state.gradients[0] = nan

    monkeypatch.setattr(Pipeline, "run", spoil)
    before = rank.parameters
    assert [rank.run(1).verdict for _ in range(2)] == [StepVerdict.REPEAT, StepVerdict.SKIP]
    assert not rank.stepper.distrusted
    assert torch.equal(rank.parameters, before), "a step that is left out changes nothing"
    assert rank.stepper.progress.committed_step == 1
    assert rank.stepper.progress.record is not None and rank.stepper.progress.record.skipped


def test_who_looks_away_heals_nothing() -> None:
    rank = Rank(replace(JOB, health=HealthConfig(nonfinite="commit")))
    rank.unit.parameters[5] = nan
    assert rank.run(1).verdict is StepVerdict.COMMIT
    assert not rank.stepper.distrusted


def test_what_is_not_trusted_is_said_again_until_it_is_replaced() -> None:
    rank = Rank()
    rank.stepper.distrusted = frozenset({"layer.0"})
    assert rank.run(1).verdict is StepVerdict.HEAL
    assert rank.judgements[-1].reason == "rank 0: parameters differ from the peers'"
    rank.stepper.distrusted = frozenset()
    assert rank.run(1).verdict is StepVerdict.COMMIT


@pytest.mark.parametrize(("norm", "ratio"), [(0.5, 1.0), (1.0, 1.0), (4.0, 0.25), (0.0, 1.0)])
def test_gradients_are_clipped_to_the_norm_and_never_stretched(norm: float, ratio: float) -> None:
    rank = Rank()
    applied: list[tuple[float, float]] = []
    rank.epoch.state.apply = lambda rate, clip: applied.append((rate, clip))  # type: ignore[method-assign]
    rank.stepper.apply(rank.epoch.state, 3, StepTotals(norm**2, StepStats()))
    assert applied == [(learning_rate(3, JOB), ratio)]


def test_the_parts_of_all_members_are_read_by_their_place(others) -> None:
    # Behind the totals come the numbers of this rank, then those of the other one.
    others([0.0] * 16 + PartHealth(1.0, is_origin=True, is_corrupted=True).encode())
    rank = Rank(members=(0, 7))
    assert rank.run(1).verdict is StepVerdict.HEAL
    assert rank.judgements[-1].suspects == (7,)


class Broken(Alone):
    """A holder that this rank reduces with is gone, until it is `mended`."""

    mended = False

    def start_all_reduce(self, tensor: Tensor, holders: tuple[int, ...]) -> None:
        if not self.mended:
            tensor.fill_(nan)
            raise EpochBroken("a holder is gone")


def broken_rank() -> tuple[Rank, Broken]:
    rank = Rank()
    rank.epoch.groups = groups = Broken()  # type: ignore[assignment]
    with pytest.raises(EpochBroken):
        rank.run(1)
    return rank, groups


def regroup(rank: Rank, completion: Completion | None) -> None:
    """What the rank keeps goes through a state of a new epoch."""
    rank.stepper.keep(completion, 0)
    old = rank.epoch.state
    state = ModelState(JOB, LAYOUT, 0, old.units, STEP_STATS_SIZE)
    old.release()
    ratings = Ratings(None, LAYOUT, 0)
    groups = rank.epoch.groups
    pipeline = Pipeline(LAYOUT, state, groups, CORPUS, pacer_for(CPU, 1.0), ratings, JOB, Undisturbed())
    degraded, fetching = DegradedLayers(LAYOUT, 0, state, JOB), Fetching(Background(), groups, state)
    rank.epoch = Epoch(2, 0, LAYOUT, (0,), groups, state, degraded, fetching, pipeline, ratings, completion=completion)


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_was_computed_outlives_a_broken_reduction(is_kept: bool) -> None:
    twin = Rank()
    assert twin.run(1).verdict is StepVerdict.COMMIT
    rank, groups = broken_rank()
    said = rank.stepper.said
    assert said is not None and (said.step, said.microbatches) == (1, (0, 1))
    work = Work(0, said.microbatches, LAYOUT.replicas[0].spans)
    regroup(rank, Completion(1, (work,), {0: ()}) if is_kept else None)
    assert (rank.stepper.said is None) is not is_kept
    groups.mended = True
    rank.phases.clear()
    assert rank.run(1).verdict is StepVerdict.COMMIT
    assert rank.phases == ["data", "forward", "backward", "reduce", "optimizer", "commit"], "no point is left out"
    assert torch.equal(rank.parameters, twin.parameters)
    for key in ("loss", "tokens", "samples", "samples_checksum", "grad_norm"):
        assert rank.stepper.progress.record is not None and twin.stepper.progress.record is not None
        assert getattr(rank.stepper.progress.record, key) == getattr(twin.stepper.progress.record, key)
    assert rank.stepper.said is None, "it is no contribution to the step after"
    assert rank.run(2).verdict is twin.run(2).verdict is StepVerdict.COMMIT
    assert torch.equal(rank.parameters, twin.parameters)


def test_a_rank_is_never_told_to_keep_what_it_does_not_have() -> None:
    rank = Rank()
    with pytest.raises(AssertionError, match="does not have"):
        rank.stepper.keep(Completion(1, (Work(0, (0,), ()),)), 0)


def test_of_a_step_that_was_not_fit_nothing_counts() -> None:
    rank = Rank()
    rank.unit.parameters[5] = nan
    assert rank.run(1).verdict is StepVerdict.HEAL
    assert rank.stepper.said is None
