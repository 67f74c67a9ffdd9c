"""The loop of a rank: step, commit, and, when the membership changes, regroup and go on in the same process."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mecefo_runtime.approximate import degrade, is_degraded, refresh, restore
from mecefo_runtime.config import JobConfig
from mecefo_runtime.data import Corpus, read_corpus, samples_of_step
from mecefo_runtime.dilation import Pacer
from mecefo_runtime.events import Emitter
from mecefo_runtime.exchange import exchange
from mecefo_runtime.groups import LOOPBACK, EpochBroken, Formation, Groups, RendezvousStore, wait
from mecefo_runtime.hooks import Hooks
from mecefo_runtime.layout import Layout, Transfer, layer_unit
from mecefo_runtime.member import Membership
from mecefo_runtime.pipeline import Pipeline
from mecefo_runtime.probe import ProbeDesk, find_unreachable
from mecefo_runtime.schedule import learning_rate
from mecefo_runtime.state import Bank, UnitState, move_units
from mecefo_runtime.tally import TALLY_SIZE, Tally
from mecefo_runtime.wire import Message

# Forming groups has its own time-outs inside; this one catches what gloo forgets.
FORMATION_DEADLINE_SECONDS = 10.0


@dataclass(slots=True)
class Progress:
    """Where a rank is in the step-and-commit rule.

    `committed_step`: the last one applied, with its `totals` and `record`. `ready`: the step whose reduced gradients
    this rank holds and has not applied: {step, norms, tally, totals}.
    """

    committed_step: int = 0
    totals: Message | None = None
    record: dict[str, Any] | None = None
    ready: Message | None = None


@dataclass(slots=True)
class Epoch:
    """What a rank has while it trains in one epoch."""

    number: int
    leader: int
    layout: Layout
    members: tuple[int, ...]
    groups: Groups
    bank: Bank
    pipeline: Pipeline | None


class Trainer:
    """One rank of a job, from its first hello to the coordinator's goodbye."""

    def __init__(
        self,
        job: JobConfig,
        rank: int,
        node: int,
        attempt: int,
        address: str,
        token: str,
        emitter: Emitter,
        hooks: Hooks,
    ) -> None:
        self._job = job
        self._rank = rank
        self._emitter = emitter
        self._hooks = hooks
        self._pacer = Pacer(job.dilation_ratio)
        self._corpus = Corpus(read_corpus(job.data), job.sequence_length, job.seed)
        self._progress = Progress()
        self._units: dict[str, UnitState] = {}
        # What this rank gave away in the last regroup. Until a step is committed it is as good as what others hold, and
        # they may be lost before they are done.
        self._given_away: dict[str, UnitState] = {}
        self._bank: Bank | None = None
        self._step_began = 0.0
        self._layout: Layout | None = None
        self._members: tuple[int, ...] = ()
        self._status = "fresh"
        self._epoch: Epoch | None = None
        self._forming: Groups | None = None
        self._probe_desk = ProbeDesk(LOOPBACK)
        address_of_desk = self._probe_desk.address
        identity = {"token": token, "rank": rank, "node": node, "attempt": attempt, "address": address_of_desk}
        self._membership = Membership(
            address, identity, job.heartbeat_timeout_seconds / 4, self._describe, self._abort_groups
        )

    def run(self) -> None:
        """Train until the job is over.

        Raises:
            mecefo_runtime.member.Stopped: the coordinator ended the job early.
        """
        self._emitter.emit("rank_started")
        self._membership.start()
        try:
            while True:
                orders = self._membership.park()
                if orders["type"] == "goodbye":
                    self._commit_late(orders.get("commit"), is_last=True)
                    break
                if orders["type"] == "evicted":
                    self._start_over()
                elif self._run_epoch(orders):
                    break
            checksums = {name: unit.checksum() for name, unit in self._units.items()}
            self._emitter.emit(
                "rank_finished",
                step=self._progress.committed_step,
                checksums=checksums,
                compute_cpu_seconds=self._pacer.compute_seconds,
                compute_wall_seconds=self._pacer.wall_seconds,
            )
        finally:
            self._membership.close()
            self._probe_desk.close()

    def _run_epoch(self, orders: Message) -> bool:
        """Train in one epoch; returns True after the coordinator's goodbye, False when the epoch was left."""
        trouble = None
        try:
            self._enter(orders)
            if self._train():
                return True
        except EpochBroken as error:
            if not self._membership.must_leave:
                trouble = str(error)
        # Outside the except block: a traceback would keep the groups, and with them their sockets, alive. Without
        # them the peers notice at once, whatever the coordinator does.
        self._leave()
        if trouble is not None:
            self._membership.send({"type": "trouble", "epoch": orders["epoch"], "error": trouble})
        return False

    # ---- entering and leaving an epoch ----

    def _enter(self, orders: Message) -> None:
        began = time.monotonic()
        layout = Layout.from_dict(orders["layout"])
        self._commit_late(orders["commit"], is_last=False)
        members = tuple(orders["members"])
        addresses = {int(rank): address for rank, address in orders["addresses"].items() if int(rank) != self._rank}
        if unreachable := find_unreachable(addresses):
            raise EpochBroken(f"rank {self._rank} cannot reach ranks {unreachable}")
        groups = self._form_groups(orders["epoch"], members, layout)
        try:
            self._forming = groups
            group_seconds = time.monotonic() - began
            held = self._given_away | self._units
            bank = Bank(self._job, layout, self._rank, held, TALLY_SIZE)
            transfers = [Transfer(*transfer) for transfer in orders["transfers"]]
            transfer_seconds, transfer_bytes = move_units(groups, bank, held, transfers)
            self._degrade(layout, bank)
            pipeline = None
            if layout.find(self._rank) is not None:
                pipeline = Pipeline(
                    layout,
                    bank,
                    groups,
                    self._corpus,
                    self._pacer,
                    self._job.microbatch_size,
                    self._job.tokens_per_step,
                    self._membership.check,
                )
            self._epoch = Epoch(orders["epoch"], orders["leader"], layout, members, groups, bank, pipeline)
        finally:
            self._forming = None
        self._bank, self._units = bank, bank.units
        self._given_away = {name: unit for name, unit in held.items() if name not in bank.units}
        self._layout, self._members = layout, members
        self._progress.committed_step = orders["resume_step"] - 1
        self._status = "training"
        self._membership.enter(orders["epoch"])
        self._membership.send(
            {
                "type": "formed",
                "epoch": orders["epoch"],
                "group_seconds": group_seconds,
                "transfer_seconds": transfer_seconds,
                "transfer_bytes": transfer_bytes,
            }
        )
        if self._rank == orders["leader"] and self._progress.record is not None:
            # The old leader may have died before it could say so.
            self._emit_committed(self._progress.record, repeated=True)

    def _form_groups(self, epoch: int, members: tuple[int, ...], layout: Layout) -> Groups:
        membership = self._membership
        membership.forget_values()
        timeout_seconds = self._job.collective_timeout_seconds
        formation = Formation(
            lambda: Groups(
                RendezvousStore(membership.put, membership.take), epoch, self._rank, members, layout, timeout_seconds
            ),
            membership.notify,
        )
        try:
            membership.wait_until(lambda: formation.done, FORMATION_DEADLINE_SECONDS)
            return formation.take()
        finally:
            formation.abandon()

    def _leave(self) -> None:
        epoch, self._epoch = self._epoch, None
        self._status = "parked"
        if epoch is not None:
            epoch.pipeline = None
            epoch.groups.close()

    def _abort_groups(self) -> None:
        """From the membership's thread: end whatever the training thread is blocked in."""
        epoch = self._epoch
        groups = self._forming if epoch is None else epoch.groups
        if groups is not None:
            groups.abort()

    def _start_over(self) -> None:
        self._leave()
        self._progress = Progress()
        self._units, self._given_away = {}, {}
        self._layout, self._members = None, ()
        self._status = "fresh"
        self._membership.start_over()

    def _describe(self) -> Message:
        """What this rank has, as hellos and park reports carry it."""
        progress = self._progress
        return {
            "status": self._status,
            "epoch": self._membership.epoch,
            "committed_step": progress.committed_step,
            "totals": progress.totals,
            "ready": progress.ready,
            # What was given away has no gradients: if the step in flight is committed after all, it is out of date.
            "holdings": [*self._units, *(self._given_away if progress.ready is None else ())],
            "is_stateless": self._layout is None,
            "members": list(self._members),
            "layout": None if self._layout is None else self._layout.to_dict(),
        }

    def _degrade(self, layout: Layout, bank: Bank) -> None:
        place = layout.find(self._rank)
        if place is None:
            return
        span = place[0].spans[place[1]]
        for layer in span.layers:
            block = bank.units[layer_unit(layer)].module
            if layer not in span.degraded:
                restore(block)
            elif not is_degraded(block):
                with self._pacer:
                    degrade(block, self._job.approximation, seed=self._job.seed)

    # ---- steps ----

    def _train(self) -> bool:
        """Step until the last one; returns True after the coordinator's goodbye, False when called to a regroup."""
        epoch = self._epoch
        assert epoch is not None
        while self._progress.committed_step < self._job.steps:
            self._membership.check()
            if self._step(epoch, self._progress.committed_step + 1):
                return False
        self._status = "finished"
        self._membership.send({"type": "finished", "committed_step": self._progress.committed_step})
        return self._membership.wait_farewell()

    def _step(self, epoch: Epoch, step: int) -> bool:
        """Run and commit one step; returns whether all members have seen the call to park at this boundary."""
        self._step_began = time.monotonic()

        def announce(phase: str) -> None:
            self._hooks.announce(step, phase)

        bank = epoch.bank
        bank.gradients.zero_()
        tally = Tally()
        if epoch.pipeline is not None:
            self._refresh_approximation(epoch, step)
            tally = epoch.pipeline.run(samples_of_step(step, self._job.samples_per_step), announce)
        bank.tally.copy_(tally.encode()[: bank.tally.numel()])
        announce("reduce")
        works = [epoch.groups.start_all_reduce(bank.gradients[b.first : b.end], b.holders) for b in bank.buckets]
        for work in works:
            wait(work)
        bank.restore_attention_mean()
        self._progress.ready = {
            "step": step,
            "norms": bank.squared_norms(),
            "tally": asdict(Tally.decode(bank.tally)) if bank.tally.numel() else None,
            "totals": None,
        }
        total = exchange(epoch.groups, epoch.leader, self._contribution(epoch)).tolist()
        totals = {"squared_norm": total[1], "tally": asdict(Tally(total[2], *map(int, total[3:])))}
        # One assignment: a hello from the other thread sees the step with its totals or without them, never halves.
        self._progress.ready = {**self._progress.ready, "totals": totals}
        announce("optimizer")
        with self._pacer:
            self._apply(bank, step, totals)
        self._finish_step(epoch.number, step, totals)
        announce("commit")
        if self._rank == epoch.leader and self._progress.record is not None:
            self._emit_committed(self._progress.record, repeated=False)
        return bool(total[0] == len(epoch.members))

    def _contribution(self, epoch: Epoch) -> Tensor:
        """[sees the call to park, squared norm, tally]; each unit and the tally by the lowest of its holders only."""
        ready = self._progress.ready
        assert ready is not None
        norms, holders = ready["norms"], epoch.bank.holders
        squared_norm = sum(norm for unit, norm in norms.items() if holders[unit][0] == self._rank)
        tally = Tally(**ready["tally"]) if ready["tally"] and epoch.bank.holders["head"][0] == self._rank else Tally()
        return torch.tensor(
            [
                float(self._membership.wants_boundary),
                squared_norm,
                tally.loss_sum,
                tally.tokens,
                tally.samples,
                tally.checksum,
            ],
            dtype=torch.float64,
        )

    def _apply(self, bank: Bank, step: int, totals: Message) -> None:
        norm = totals["squared_norm"] ** 0.5
        clip = self._job.clip_grad_norm
        bank.apply(learning_rate(step, self._job), min(1.0, clip / norm) if norm > 0 else 1.0)

    def _finish_step(self, epoch_number: int, step: int, totals: Message) -> None:
        tally = totals["tally"]
        self._given_away.clear()
        self._progress = Progress(
            committed_step=step,
            totals=totals,
            record={
                "step": step,
                "epoch": epoch_number,
                "loss": tally["loss_sum"] / tally["tokens"] if tally["tokens"] else None,
                "tokens": tally["tokens"],
                "samples": tally["samples"],
                "samples_checksum": tally["checksum"],
                "began_monotonic": round(self._step_began, 6),
                "committed_monotonic": round(time.monotonic(), 6),
                "grad_norm": totals["squared_norm"] ** 0.5,
                "learning_rate": learning_rate(step, self._job),
            },
        )

    def _commit_late(self, commit: Message | None, *, is_last: bool) -> None:
        """At a regroup: apply the step that the survivors committed, if this rank has not yet."""
        progress = self._progress
        if commit is not None and progress.ready is not None and progress.committed_step < commit["step"]:
            assert self._bank is not None
            self._apply(self._bank, commit["step"], commit["totals"])
            self._finish_step(self._membership.epoch, commit["step"], commit["totals"])
        # Whatever was ready is applied by now or will be repeated.
        self._progress.ready = None
        if is_last and self._progress.record is not None:
            # No next epoch, whose leader would say it: everybody does, and the log takes the first.
            self._emit_committed(self._progress.record, repeated=True)

    def _refresh_approximation(self, epoch: Epoch, step: int) -> None:
        place = epoch.layout.find(self._rank)
        if place is None or step % self._job.approximation.refresh_steps:
            return
        span = place[0].spans[place[1]]
        with self._pacer:
            for layer in span.degraded:
                refresh(epoch.bank.units[layer_unit(layer)].module)

    def _emit_committed(self, record: dict[str, Any], *, repeated: bool) -> None:
        fields = {key: value for key, value in record.items() if key != "step"}
        self._emitter.emit("step_committed", step=record["step"], repeated=repeated, **fields)
