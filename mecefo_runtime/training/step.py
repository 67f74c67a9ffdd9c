"""One step of one rank: compute, reduce, agree, apply. What the rank is through with is its `StepProgress`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Protocol

import torch
from torch import Tensor

from mecefo_runtime.comm.exchange import exchange
from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import wait_all
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.job.step_report import (
    NO_HISTORY,
    PART_SIZE,
    HealthHistory,
    LateCommit,
    PartHealth,
    ReadyStep,
    StepStats,
    StepTotals,
    StepVerdict,
)
from mecefo_runtime.model.data import samples_of_step
from mecefo_runtime.model.schedule import learning_rate
from mecefo_runtime.state.fetch import Fetching
from mecefo_runtime.state.holdings import Holdings
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.state.traffic import FREE, Traffic
from mecefo_runtime.system.devices import read_numbers
from mecefo_runtime.system.dilation import Pacer
from mecefo_runtime.training.degraded_layers import DegradedLayers
from mecefo_runtime.training.health import Judgement, after_commit, after_rejection, judge, odd_ones_out
from mecefo_runtime.training.pipeline import Pipeline
from mecefo_runtime.training.ratings import Ratings
from mecefo_runtime.training.step_stats import decode_stats, encode_stats

# What the commit exchange carries, by place; the parts of all members follow.
_WANTS_BOUNDARY, _IS_BUSY, _SQUARED_NORM, _LOSS_SUM, _TOKENS, _SAMPLES, _CHECKSUM, _VERDICT, _PARTS = range(9)
# Of each member: how well its part went, and when it came to the exchange.
_MEMBER_SIZE = PART_SIZE + 2


@dataclass(frozen=True, slots=True)
class StepProgress:
    """Where a rank is in the step-and-commit rule; replaced as a whole, since another thread reports it.

    `committed_step`: the last one applied, with its `totals` and `record`. `ready`: the step whose reduced gradients
    this rank holds and has not applied. `history` is what `ready` is judged by.
    """

    committed_step: int = 0
    totals: StepTotals | None = None
    record: dict[str, Any] | None = None
    ready: ReadyStep | None = None
    history: HealthHistory = NO_HISTORY


@dataclass(slots=True)
class Epoch:
    """What a rank has while it trains in one epoch."""

    number: int
    leader: int
    layout: Layout
    members: tuple[int, ...]
    groups: Groups
    state: ModelState
    degraded: DegradedLayers
    fetching: Fetching
    pipeline: Pipeline | None
    ratings: Ratings
    traffic: Traffic = FREE


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step went, the same for all members but for the leader's `judgement`.

    `all_called`: every member has seen the call to park at this boundary. `can_save`: nobody is still writing a
    checkpoint.
    """

    verdict: StepVerdict
    all_called: bool
    can_save: bool
    judgement: Judgement | None = None


class StepHost(Protocol):
    """The rest of a rank, as its steps see it."""

    @property
    def wants_boundary(self) -> bool:
        """Whether the members are asked to park at the next step boundary."""

    @property
    def is_saving(self) -> bool:
        """Whether a checkpoint is still being written."""

    def announce(self, step: int, phase: str) -> None:
        """The rank is about to enter `phase` of `step`."""

    def on_judged(self, epoch_number: int, step: int, judgement: Judgement) -> None:
        """Of the leader: what it makes of a step, before anybody else hears of it."""

    def on_applied(self, record: Mapping[str, Any]) -> None:
        """A step is committed and applied here; `record` is what its event says."""


class Stepper:
    """Runs a rank's steps. `distrusted` are units whose state differs from the peers': they need theirs."""

    def __init__(self, job: JobConfig, rank: int, pacer: Pacer, host: StepHost) -> None:
        self._job = job
        self._rank = rank
        self._pacer = pacer
        self._host = host
        self._began_seconds = 0.0
        self.progress = StepProgress()
        self.distrusted: frozenset[str] = frozenset()

    def start_over(self) -> None:
        """Forget everything: this rank is a newcomer."""
        self.progress = StepProgress()
        self.distrusted = frozenset()

    def resume(self, step: int, history: HealthHistory) -> None:
        """`step` is the next one, in an epoch whose members all know the same `history`."""
        self.progress = replace(self.progress, committed_step=step - 1, history=history)
        self.distrusted = frozenset()

    def commit_late(self, epoch_number: int, holdings: Holdings, commit: LateCommit | None) -> None:
        """At a regroup: apply the step that the survivors committed, if this rank has not yet."""
        progress = self.progress
        if commit is not None and progress.ready is not None and progress.committed_step < commit.step:
            self.apply(holdings.state, commit.step, commit.totals)
            self.finish(epoch_number, commit.step, commit.totals)
            holdings.commit()
        # Whatever was ready is applied by now, or will be repeated.
        self.progress = replace(self.progress, ready=None)

    def run(self, epoch: Epoch, step: int) -> Outcome:
        """Run `step`, and commit it if it is fit for that.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: a peer is gone, or the epoch is over.
        """
        self._began_seconds = time.monotonic()

        def announce(phase: str) -> None:
            self._host.announce(step, phase)

        state = epoch.state
        state.enter_step(step)
        epoch.fetching.begin(step)
        odd_ranks = self._compare_state(epoch, step)
        state.gradients.zero_()
        pipeline, stats = epoch.pipeline, StepStats()
        if pipeline is not None:
            stats = pipeline.run(samples_of_step(step, self._job.samples_per_step), announce)
        # Before the norm is taken: what a hook does to this rank's gradients must show in its own norm.
        announce("reduce")
        own_norm = state.gradient_norm()
        state.stats.copy_(encode_stats(stats)[: state.stats.numel()], non_blocking=True)
        if pipeline is not None and state.stats.numel():
            state.stats[0].copy_(pipeline.loss_sum)
        reductions = [epoch.groups.start_all_reduce(state.gradients[b.first : b.end], b.holders) for b in state.buckets]
        traffic, size = epoch.traffic, state.gradients.element_size()
        now_seconds, clock_seconds = self._pacer.now_seconds, time.monotonic()
        reduced_seconds = [
            traffic.reduce(b.units, (b.end - b.first) * size, b.holders, now_seconds) for b in state.buckets
        ]
        # While the gradients are on their way.
        signs = self._vital_signs(state, step)
        wait_all(reductions)
        if traffic.link is not None:
            now_seconds = max(now_seconds, *reduced_seconds, 0.0)
            traffic.wait(epoch.groups, now_seconds)
            clock_seconds = time.monotonic()
        epoch.degraded.sums_to_means()
        ready = replace(self._read(state, step, own_norm, signs, pipeline), odd_ranks=odd_ranks)
        self.progress = replace(self.progress, ready=ready)
        return self._agree(epoch, ready, (now_seconds, clock_seconds))

    def apply(self, state: ModelState, step: int, totals: StepTotals) -> None:
        """The optimizer step that `totals` ask for."""
        if totals.verdict is StepVerdict.SKIP:
            return
        norm = totals.squared_norm**0.5
        clip = self._job.clip_grad_norm
        state.apply(learning_rate(step, self._job), min(1.0, clip / norm) if norm > 0 else 1.0)

    def finish(self, epoch_number: int, step: int, totals: StepTotals) -> None:
        """`step` is applied: it is this rank's last one."""
        stats = totals.stats
        record = {
            "step": step,
            "epoch": epoch_number,
            "loss": stats.loss_sum / stats.tokens if stats.tokens else None,
            "tokens": self._job.emulated_tokens(stats.tokens),
            "samples": stats.samples,
            "samples_checksum": stats.checksum,
            "began_monotonic": round(self._began_seconds, 6),
            "committed_monotonic": round(time.monotonic(), 6),
            "grad_norm": totals.squared_norm**0.5,
            "learning_rate": learning_rate(step, self._job),
            "skipped": totals.verdict is StepVerdict.SKIP,
        }
        history = after_commit(self._job.health, self.progress.history, totals)
        self.progress = StepProgress(step, totals, record, None, history)
        self._host.on_applied(record)

    # ---- the parts of a step ----

    def _read(
        self, state: ModelState, step: int, own_norm: Tensor, signs: Mapping[str, Tensor], pipeline: Pipeline | None
    ) -> ReadyStep:
        """What the commit needs to know of the step, brought to the host at one go."""
        norms = state.squared_norms()
        is_origin = own_norm.new_zeros(()) if pipeline is None else pipeline.is_origin
        own, origin, stats, *others = read_numbers([own_norm, is_origin, state.stats, *norms.values(), *signs.values()])
        numbers = [number for (number,) in others]
        differs = bool(self.distrusted)
        # Parameters that are not finite show in what is computed with them, here and in the ranks behind.
        is_suspected = bool(origin[0]) or not isfinite(own[0])
        told = zip(signs, numbers[len(norms) :], strict=True)
        suspected = (name for name, sign in told if is_suspected or not isfinite(sign))
        corrupted = frozenset(name for name in suspected if state.units[name].is_corrupted())
        self.distrusted |= corrupted
        return ReadyStep(
            step,
            norms=dict(zip(norms, numbers[: len(norms)], strict=True)),
            stats=decode_stats(stats) if state.has_live_stats else None,
            part=PartHealth(own[0], bool(origin[0]), differs, bool(corrupted)),
        )

    def _vital_signs(self, state: ModelState, step: int) -> dict[str, Tensor]:
        """Of each unit that the optimizer is to step, whether that can go well."""
        if self._job.health.nonfinite == "commit":
            return {}
        return {name: state.units[name].vital_sign() for name in state.settled_units(step)}

    def _compare_state(self, epoch: Epoch, step: int) -> tuple[int, ...]:
        """Every so many steps: find out whether all holders of each unit hold the same; returns who does not."""
        every = self._job.health.checksum_every_steps
        if not every or step % every:
            return ()
        odd_ranks: set[int] = set()
        state = epoch.state
        settled = state.settled_units(step)
        with self._pacer.segment(epoch.ratings.checksum_seconds(settled)):
            checksums = {name: state.units[name].checksum() for name in settled}
        for holders, names in state.units_by_holders(step).items():
            mine = torch.tensor([checksums[name] for name in names], dtype=torch.int64)
            theirs = epoch.groups.all_gather(mine, holders)
            for index, name in enumerate(names):
                odd = odd_ones_out({rank: int(values[index]) for rank, values in theirs.items()})
                odd_ranks.update(odd)
                if self._rank in odd:
                    self.distrusted |= {name}
        return tuple(sorted(odd_ranks))

    def _agree(self, epoch: Epoch, ready: ReadyStep, began: tuple[float, float]) -> Outcome:
        """The commit: totals and verdict, the same for all members, then the optimizer.

        `began`: when this rank came to it, by its device and by the clock.
        """
        step, history = ready.step, self.progress.history
        judgements: list[Judgement] = []

        def parts_of(numbers: Sequence[float]) -> dict[int, PartHealth]:
            places = range(_PARTS, len(numbers), _MEMBER_SIZE)
            return {
                member: PartHealth.decode(numbers[place : place + PART_SIZE])
                for member, place in zip(epoch.members, places, strict=True)
            }

        def decide(total: Tensor) -> None:
            numbers = total.tolist()
            loss_sum, squared_norm = numbers[_LOSS_SUM], numbers[_SQUARED_NORM]
            judgements.append(judge(self._job.health, history, step, loss_sum, squared_norm, parts_of(numbers)))
            # Before anybody hears of it: who is to be healed may park, and the epoch be over, before this rank is on.
            self._host.on_judged(epoch.number, step, judgements[0])
            total[_VERDICT] = float(judgements[0].verdict)

        total = exchange(epoch.groups, epoch.leader, self._contribution(epoch, ready, began), decide).tolist()
        # It began when the last of them came, and took for all devices what it took by the clock since then.
        first = _PARTS + PART_SIZE
        last_device_seconds, last_clock_seconds = (max(total[first + i :: _MEMBER_SIZE]) for i in range(2))
        self._pacer.set_now(last_device_seconds + time.monotonic() - last_clock_seconds)
        verdict = StepVerdict(int(total[_VERDICT]))
        outcome = Outcome(
            verdict,
            all_called=total[_WANTS_BOUNDARY] == len(epoch.members),
            can_save=total[_IS_BUSY] == 0,
            judgement=judgements[0] if judgements else None,
        )
        if verdict not in (StepVerdict.COMMIT, StepVerdict.SKIP):
            # Not committed now, and not by a regroup either.
            newer = after_rejection(history, step, verdict, parts_of(total))
            self.progress = replace(self.progress, ready=None, history=newer)
            return outcome
        counts = (int(total[place]) for place in (_TOKENS, _SAMPLES, _CHECKSUM))
        totals = StepTotals(total[_SQUARED_NORM], StepStats(total[_LOSS_SUM], *counts), verdict)
        self.progress = replace(self.progress, ready=replace(ready, totals=totals))
        epoch.fetching.finish()
        self._host.announce(step, "optimizer")
        with self._pacer.segment(epoch.ratings.update_seconds(epoch.state.holders)):
            self.apply(epoch.state, step, totals)
        self.finish(epoch.number, step, totals)
        self._host.announce(step, "commit")
        return outcome

    def _contribution(self, epoch: Epoch, ready: ReadyStep, began: tuple[float, float]) -> Tensor:
        """What this rank adds to the exchange; units and step stats count by their lowest holder only."""
        norms, stats, holders = ready.norms, ready.stats, epoch.state.holders
        numbers = [0.0] * (_PARTS + _MEMBER_SIZE * len(epoch.members))
        numbers[_WANTS_BOUNDARY] = float(self._host.wants_boundary)
        numbers[_IS_BUSY] = float(self._host.is_saving)
        numbers[_SQUARED_NORM] = sum(norm for unit, norm in norms.items() if holders[unit][0] == self._rank)
        if stats is not None and holders["head"][0] == self._rank:
            numbers[_LOSS_SUM : _CHECKSUM + 1] = [stats.loss_sum, stats.tokens, stats.samples, stats.checksum]
        first = _PARTS + _MEMBER_SIZE * epoch.members.index(self._rank)
        numbers[first : first + _MEMBER_SIZE] = [*ready.part.encode(), *began]
        return torch.tensor(numbers, dtype=torch.float64)
