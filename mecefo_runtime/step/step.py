"""One step of one rank: compute, reduce, agree, apply. `StepProgress` says how far the rank is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from statistics import median

import torch
from torch import Tensor

from mecefo_runtime.comm.exchange import exchange
from mecefo_runtime.comm.operations import Operation, wait_all
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.contribution import Completion, Contribution
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.step_report import (
    HealthHistory,
    LateCommit,
    PartHealth,
    ReadyStep,
    StepTotals,
    StepVerdict,
)
from mecefo_runtime.model.data import samples_of_step
from mecefo_runtime.model.schedule import learning_rate
from mecefo_runtime.state.holdings import Holdings
from mecefo_runtime.state.model_state import ModelState
from mecefo_runtime.step import commit_row
from mecefo_runtime.step.calibrate import measure_message, process_seconds
from mecefo_runtime.step.commit_row import Outcome, outcome_of
from mecefo_runtime.step.contribution import OwnContribution
from mecefo_runtime.step.epoch import Epoch, StepHost, StepProgress
from mecefo_runtime.step.health import Judgement, after_commit, after_rejection, judge, odd_ones_out
from mecefo_runtime.step.ratings import Ratings
from mecefo_runtime.step.step_stats import decode_stats, encode_stats
from mecefo_runtime.system.devices import read_numbers
from mecefo_runtime.system.dilation import Pacer, Steady
from mecefo_runtime.system.job_records import StepCommitted

_NUM_RECENT_COMMITS = 5


class Stepper:
    """Runs a rank's steps. `distrusted` are units whose state differs from the peers': they need theirs.

    `own` is what this rank has computed of the step in flight, None: nothing that counts.
    """

    def __init__(self, job: JobConfig, rank: int, pacer: Pacer, host: StepHost) -> None:
        self._job = job
        self._rank = rank
        self._pacer = pacer
        self._host = host
        self._began_seconds = 0.0
        self._commits = Steady(_NUM_RECENT_COMMITS)
        self.progress = StepProgress()
        self.own: OwnContribution | None = None
        self.distrusted: frozenset[str] = frozenset()

    @property
    def said(self) -> Contribution | None:
        """What this rank has computed of the step after its last one, for any thread to tell."""
        own = self.own
        return None if own is None or own.said.step <= self.progress.committed_step else own.said

    def start_over(self) -> None:
        """Forget everything: this rank starts over."""
        self.progress, self.own = StepProgress(), None
        self.distrusted = frozenset()

    def resume(self, step: int, history: HealthHistory) -> None:
        """`step` is the next one, in an epoch whose members all know the same `history`."""
        self.progress = replace(self.progress, committed_step=step - 1, history=history)
        self.distrusted = frozenset()

    def rate_together(self, epoch: Epoch, costs: Costs | None) -> Costs | None:
        """The ratings `costs`, with what ranks do together: a message between stages, a reduction, a commit.

        None where nothing is missing. On devices as slow as these each takes the CPU time of all threads that have to
        do with it, so many times. It is tried a few times, with nothing in it; the median over the members is the same
        for all of them.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: a peer is gone.
        """
        agreed = None
        if costs is not None and costs.commit_seconds is None:
            agreed = self._measure_together(epoch, costs)
            reduces_by_link = epoch.traffic.link is not None
            epoch.ratings = Ratings(agreed, epoch.layout, self._rank, reduces_by_link=reduces_by_link)
        epoch.traffic.message_seconds = epoch.ratings.message_seconds
        return agreed

    def _measure_together(self, epoch: Epoch, costs: Costs) -> Costs:
        groups, state, members = epoch.groups, epoch.state, epoch.members
        neutral = commit_row.to_tensor(commit_row.neutral_row(len(members)))
        state.gradients.zero_()

        def reduce() -> None:
            own_norm = state.gradient_norm()
            # On links of known speed, what takes long is theirs.
            reductions = [] if epoch.traffic.link is not None else self._start_reductions(epoch)
            signs = self._vital_signs(state, self.progress.committed_step + 1)
            wait_all(reductions)
            self._read(state, 0, own_norm, signs, own_norm.new_zeros(()))

        num_layers = max(Ratings.in_layers(state.holders, costs), 1.0)
        measured = torch.tensor(
            [
                measure_message(groups, self._job),
                process_seconds(reduce) / num_layers,
                process_seconds(lambda: exchange(groups, epoch.leader, neutral)),
            ],
            dtype=torch.float64,
        )
        own = torch.zeros(len(measured), len(members), dtype=torch.float64)
        own[:, members.index(self._rank)] = self._pacer.ratio * measured
        rows = exchange(groups, epoch.leader, own).tolist()
        message_seconds, reduction_seconds, commit_seconds = (median(row) or None for row in rows)
        return replace(
            costs,
            message_seconds=message_seconds,
            layer_reduction_seconds=reduction_seconds,
            commit_seconds=commit_seconds,
        )

    def commit_late(self, epoch_number: int, holdings: Holdings, commit: LateCommit | None) -> None:
        """At a regroup: apply the step that the survivors committed, if this rank has not yet."""
        progress = self.progress
        if commit is not None and progress.ready is not None and progress.committed_step < commit.step:
            self.apply(holdings.state, commit.step, commit.totals)
            self.finish(epoch_number, commit.step, commit.totals)
            holdings.commit()
        # Whatever was ready is applied by now, or will be repeated.
        self.progress = replace(self.progress, ready=None)

    def keep(self, completion: Completion | None, replica: int | None) -> None:
        """Before the state of the last epoch is taken down: keep of it what counts of the step in flight, if any does.

        `replica` is the one that this rank computes in from now on.
        """
        kept = () if completion is None or replica is None else completion.kept_by(replica)
        if not kept or self.own is None:
            assert not kept, f"rank {self._rank} was told to keep what it does not have"
            self.own = None
            return
        said = self.own.said
        assert completion is not None and (said.step, said.microbatches) == (completion.step, kept)
        self.own.carry()

    def run(self, epoch: Epoch, step: int) -> Outcome:
        """Run `step`, or what is left of it, and commit it if it is fit for that.

        Raises:
            mecefo_runtime.comm.operations.EpochBroken: a peer is gone, or the epoch is over.
        """
        self._began_seconds = time.monotonic()
        epoch.state.enter_step(step)
        for activity in epoch.activities:
            activity.begin(step)
        odd_ranks = self._compare_state(epoch, step)
        # Of a step that is computed again nothing is left.
        completion, epoch.completion = epoch.completion, None
        if completion is not None and completion.step != step:
            completion = None
        own = self._compute(epoch, step, completion)
        ready, began = self._reduce(epoch, own, completion)
        ready = replace(ready, odd_ranks=odd_ranks)
        self.progress = replace(self.progress, ready=ready)
        return self._agree(epoch, ready, began)

    def _compute(self, epoch: Epoch, step: int, completion: Completion | None) -> OwnContribution:
        """Add what this rank has to compute to what it has computed of the step already."""
        state, pipeline, own = epoch.state, epoch.pipeline, self.own
        if completion is not None and own is not None and own.said.step == step:
            own.resume(state)
        else:
            self.own = own = OwnContribution(step, self.progress.history.num_verdicts, state)
        if pipeline is not None:
            microbatches = pipeline.microbatches
            if completion is not None:
                microbatches = completion.assigned.get(pipeline.replica, ())
            samples = samples_of_step(step, self._job.samples_per_step)
            pipeline.run(own, microbatches, samples, lambda phase: self._host.announce(step, phase), epoch.advance)
        return own

    def _reduce(
        self, epoch: Epoch, own: OwnContribution, completion: Completion | None
    ) -> tuple[ReadyStep, tuple[float, float]]:
        """Make the gradients of all replicas one; returns it, and when that was over, by the device and by the clock.

        What this rank has computed stays what it is.
        """
        state, step = epoch.state, own.said.step
        # Before the norm is taken: what a hook does to this rank's gradients must show in its own norm.
        self._host.announce(step, "reduce")
        own_norm = state.gradient_norm()
        state.begin_reduction()
        state.stats.copy_(encode_stats(own.stats)[: state.stats.numel()], non_blocking=True)
        if state.stats.numel():
            state.stats[0].copy_(own.loss_sum)
        reductions = self._start_reductions(epoch)
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
        epoch.degraded.sums_to_means(is_completed=completion is not None)
        return self._read(state, step, own_norm, signs, own.is_origin), (now_seconds, clock_seconds)

    def gather(self, epoch: Epoch) -> None:
        """After a commit: get the parameters that other holders have updated; raises `EpochBroken` if one is gone."""
        if self._job.sharded_optimizer:
            with self._pacer.segment(epoch.ratings.gather_seconds(epoch.state.holders)):
                epoch.state.gather_parameters(epoch.groups)

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
        record = StepCommitted(
            epoch=epoch_number,
            loss=stats.loss_sum / stats.tokens if stats.tokens else None,
            tokens=self._job.emulated_tokens(stats.tokens),
            samples=stats.samples,
            samples_checksum=stats.checksum,
            began_monotonic=round(self._began_seconds, 6),
            committed_monotonic=round(time.monotonic(), 6),
            grad_norm=totals.squared_norm**0.5,
            learning_rate=learning_rate(step, self._job),
            skipped=totals.verdict is StepVerdict.SKIP,
        )
        history = after_commit(self._job.health, self.progress.history, totals)
        self.progress = StepProgress(step, totals, record, None, history, step)
        self._host.on_applied(step, record)

    # ---- the parts of a step ----

    @staticmethod
    def _start_reductions(epoch: Epoch) -> list[Operation | None]:
        gradients = epoch.state.gradients
        return [epoch.groups.start_all_reduce(gradients[b.first : b.end], b.holders) for b in epoch.state.buckets]

    def _read(
        self, state: ModelState, step: int, own_norm: Tensor, signs: Mapping[str, Tensor], is_origin: Tensor
    ) -> ReadyStep:
        """What the commit needs to know of the step, brought to the host at one go."""
        norms = state.squared_norms()
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

        def decide(total: Tensor) -> None:
            row = total.tolist()
            loss_sum, squared_norm, parts = commit_row.to_judge(row, epoch.members)
            judgements.append(judge(self._job.health, history, step, loss_sum, squared_norm, parts))
            # Before anybody hears of it: who is to be healed may park, and the epoch be over, before this rank is on.
            self._host.on_judged(epoch.number, step, judgements[0])
            total[commit_row.VERDICT] = float(judgements[0].verdict)

        total = exchange(epoch.groups, epoch.leader, self._contribution(epoch, ready, began), decide).tolist()
        # It began when the last of them came.
        last_device_seconds, last_clock_seconds = commit_row.last_began(total)
        commit_seconds = self._commit_seconds(epoch, time.monotonic() - last_clock_seconds)
        self._pacer.set_now(last_device_seconds + commit_seconds, epoch.ratings.commit_seconds or 0.0)
        outcome = outcome_of(total, len(epoch.members), judgements[0] if judgements else None)
        if outcome.verdict not in (StepVerdict.COMMIT, StepVerdict.SKIP):
            # Not committed now, and not by a regroup either, which would keep what was computed.
            self.own = None
            newer = after_rejection(history, step, outcome.verdict, commit_row.to_judge(total, epoch.members)[-1])
            self.progress = replace(self.progress, ready=None, history=newer)
            return outcome
        totals = commit_row.totals_of(total)
        self.progress = replace(self.progress, ready=replace(ready, totals=totals))
        for activity in epoch.activities:
            activity.finish()
        self._host.announce(step, "optimizer")
        with self._pacer.segment(epoch.ratings.update_seconds(epoch.state.shares)):
            self.apply(epoch.state, step, totals)
        self.finish(epoch.number, step, totals)
        self._host.announce(step, "commit")
        return outcome

    def _commit_seconds(self, epoch: Epoch, elapsed_seconds: float) -> float:
        """How long a commit takes the devices that took so long by the clock.

        As it was rated; or, where links have become slower, what commits take at least. The rest is lateness. With an
        emulated device's links this machine's have nothing to do.
        """
        rated_seconds = epoch.ratings.commit_seconds
        if rated_seconds is None:
            return elapsed_seconds
        self._commits.add(elapsed_seconds)
        return rated_seconds if epoch.traffic.is_emulated else max(rated_seconds, self._commits.seconds)

    def _contribution(self, epoch: Epoch, ready: ReadyStep, began: tuple[float, float]) -> Tensor:
        """What this rank adds to the exchange; units and step stats count by their lowest holder only."""
        norms, stats, holders = ready.norms, ready.stats, epoch.state.holders
        row = commit_row.neutral_row(len(epoch.members))
        row[commit_row.WANTS_BOUNDARY] = float(self._host.wants_boundary)
        row[commit_row.IS_BUSY] = float(self._host.is_saving)
        squared_norm = sum(norm for unit, norm in norms.items() if holders[unit][0] == self._rank)
        is_heard = stats is not None and holders["head"][0] == self._rank
        commit_row.put_totals(row, squared_norm, stats if is_heard else None)
        commit_row.put_part(row, epoch.members.index(self._rank), ready.part, began, *self._host.snapshots)
        return commit_row.to_tensor(row)
