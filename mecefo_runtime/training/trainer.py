"""The loop of a rank: step, commit, and, when the membership changes, regroup and continue in the same process."""

from __future__ import annotations

import time
from dataclasses import replace

from mecefo_runtime.comm import nccl
from mecefo_runtime.comm.coordinator_client import CoordinatorClient, CoordinatorLost
from mecefo_runtime.comm.forming import form_groups
from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.messages import (
    BackgroundDone,
    Committed,
    Diverged,
    Evicted,
    Finished,
    Form,
    Formed,
    Goodbye,
    Hello,
    RankReport,
    RankStatus,
    Trouble,
    Unhealthy,
)
from mecefo_runtime.comm.operations import EpochBroken
from mecefo_runtime.comm.participant import CoordinatorAddress
from mecefo_runtime.comm.probe import PeersUnreachable, ProbeServer
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.job.snapshot_interval import SnapshotCosts
from mecefo_runtime.job.step_report import LateCommit, StepVerdict
from mecefo_runtime.snapshots.keeping import Keeping
from mecefo_runtime.state.holdings import Holdings
from mecefo_runtime.state.stored import StoredStateRefused
from mecefo_runtime.state.traffic import Traffic
from mecefo_runtime.state.transfer import StateCorrupt
from mecefo_runtime.step.calibrate import measure_apart
from mecefo_runtime.step.commit_row import Outcome
from mecefo_runtime.step.epoch import Epoch
from mecefo_runtime.step.health import Judgement
from mecefo_runtime.step.step import Stepper
from mecefo_runtime.system.devices import find_device, has_driver, nccl_device, require_device
from mecefo_runtime.system.dilation import pacer_for
from mecefo_runtime.system.job_records import RankFinished, RankStarted, StepCommitted, StepUnfit, TransferDamaged
from mecefo_runtime.system.run_records import Warned
from mecefo_runtime.training.drain import Drain
from mecefo_runtime.training.epoch_building import EpochBuilder
from mecefo_runtime.training.exporter import RankFigures
from mecefo_runtime.training.inspection import Inspection
from mecefo_runtime.training.rank_setup import Observers, RankIdentity

# How long to wait for the coordinator's call before it is asked again.
CALL_SECONDS = 1.0


class Trainer:
    """One rank of a job, from its registration to the end of the job."""

    def __init__(
        self, job: JobConfig, identity: RankIdentity, coordinator: CoordinatorAddress, observers: Observers
    ) -> None:
        """Get ready, without a word to anybody.

        Raises:
            mecefo_runtime.system.devices.DeviceError: the job is to run on GPUs, and this rank has none.
        """
        self._job = job
        self._identity = identity
        self._rank = rank = identity.rank
        self._observers = observers
        self._emitter = observers.emitter
        self._layout: Layout | None = None
        self._members: tuple[int, ...] = ()
        self._status: RankStatus = "fresh"
        self._epoch: Epoch | None = None
        self._forming: Groups | None = None
        self._background_step = 0
        # Of the checkpoints that this rank writes; the coordinator names another after every return to an old one.
        self._lineage = ""
        # Whether the coordinator wants to hear of every step from the leader.
        self._tells_commits = False
        require_device(job.device)
        # Who comes back later is in a hurry, and the others know by then. Before this process has to do with CUDA, and
        # has other threads: neither survives a fork.
        costs = job.ratings
        if costs is None and identity.attempt == 1:
            costs = measure_apart(job, identity.device_place)
        self._keeping = Keeping(job, rank, identity.snapshots, coordinator.token, self._emitter, self.announce)
        if job.device != "cpu" and has_driver():
            nccl.prepare()
        self._device = find_device(job.device, identity.device_place)
        self._holdings = Holdings(job, rank, self._device)
        self._pacer = pacer_for(self._device, job.dilation_ratio, is_rated=job.is_rated)
        self._traffic = Traffic.of(job, rank)
        self._figures = RankFigures(rank, identity.node, str(self._device), self._pacer)
        self._probe_server = ProbeServer(identity.host)
        gpu = nccl_device(self._device)
        said = Hello(rank, identity.attempt, self._probe_server.address, RankReport(), costs=costs, nccl_device=gpu)
        self._client = CoordinatorClient(
            coordinator, self._keeping.greet(said), job.heartbeat_timeout_seconds, self, job.coordinator_timeout_seconds
        )
        self._stepper = Stepper(job, rank, self._pacer, self)
        self._drain = Drain(self._client, job.heartbeat_timeout_seconds)
        kept = self._pacer, self._traffic, self._holdings, self._keeping
        self._builder = EpochBuilder(job, rank, self._device, *kept, self.announce)

    def run(self) -> None:
        """Train until the job is over.

        Raises:
            mecefo_runtime.comm.coordinator_client.Stopped: the coordinator ended the job early.
            mecefo_runtime.comm.coordinator_client.CoordinatorLost: this rank cannot continue without one.
        """
        metrics = self._figures.serve(self._observers.metrics, self._identity.host, self._identity.device_place)
        self._emitter.emit(RankStarted(device=str(self._device), metrics=metrics))
        self._client.start()
        try:
            while True:
                message = self._client.park()
                if isinstance(message, Goodbye):
                    self._commit_late(message.commit, is_last=True)
                    break
                if isinstance(message, Evicted):
                    self._start_over()
                elif self._run_epoch(message):
                    break
            self._keeping.close()
            # A rank that slept while the others came to the end has nothing that counts.
            is_done = self.committed_step == self._job.steps
            held = self._holdings.trusted(self._stepper.distrusted) if is_done else {}
            checksums = {name: unit.checksum() for (name, _), unit in held.items() if unit.has_all_parameters}
            self._pacer.settle()
            link = self._traffic.link
            self._emitter.emit(
                RankFinished(
                    checksums=checksums,
                    compute_cpu_seconds=self._pacer.compute_seconds,
                    compute_wall_seconds=self._pacer.wall_seconds,
                    compute_slot_seconds=self._pacer.slot_seconds,
                    num_segments=self._pacer.num_segments,
                    num_overruns=self._pacer.num_overruns,
                    overrun_seconds=self._pacer.overrun_seconds,
                    worst_overrun_seconds=self._pacer.worst_overrun_seconds,
                    link_seconds=None if link is None else link.rated_seconds,
                    link_waited_seconds=None if link is None else link.waited_seconds,
                ),
                step=self.committed_step,
            )
        finally:
            self._client.close()
            self._probe_server.close()

    def _run_epoch(self, form: Form) -> bool:
        """Train in one epoch; returns True after the coordinator's goodbye, False when the epoch was left."""
        trouble: Trouble | None = None
        unreachable: list[int] | None = None
        try:
            self._enter(form)
            if self._train():
                return True
        except StateCorrupt as error:
            # Also to a coordinator that has called: it must not ask the same holders again.
            damaged = tuple((transfer.unit, transfer.source) for transfer in error.damaged)
            trouble, unreachable = Trouble(form.epoch, str(error), damaged=damaged), []
            step = self.committed_step or None
            for transfer in error.damaged:
                self._emitter.emit(
                    TransferDamaged(epoch=form.epoch, unit=transfer.unit, source_rank=transfer.source), step=step
                )
        except EpochBroken as error:
            if not self._client.must_leave:
                refused = error.source if isinstance(error, StoredStateRefused) else None
                trouble = Trouble(form.epoch, str(error), refused)
                unreachable = list(error.ranks) if isinstance(error, PeersUnreachable) else None
        # Outside the except block: a traceback would keep the groups, and with them their sockets, alive. Without
        # them the peers notice at once, whatever the coordinator does.
        self._leave()
        if trouble is not None:
            if unreachable is None:
                unreachable = self._client.find_unreachable()
            self._client.send(replace(trouble, unreachable=tuple(unreachable)))
        return False

    # ---- entering and leaving an epoch ----

    def _enter(self, form: Form) -> None:
        began = time.monotonic()
        is_first = self._status == "fresh"
        layout, background = form.layout, form.background
        self._commit_late(form.commit, is_last=False)
        place = layout.find(self._rank)
        self._stepper.keep(form.completion, None if place is None else place[0].replica)
        if unreachable := self._client.find_unreachable():
            raise PeersUnreachable(self._rank, unreachable)
        if not is_first:
            self.announce(form.resume_step, "regroup")
        groups = form_groups(form, self._rank, self._job, self._device, self._client, self._identity.host)
        try:
            self._forming = groups
            group_seconds = time.monotonic() - began
            built = self._builder.build(form, groups, self._stepper.distrusted, self._drain)
            self._epoch = epoch = built.epoch
        finally:
            self._forming = None
            if self._epoch is None:
                groups.close()
        self._holdings.adopt(epoch.state, background, built.held, restored=form.returns_to is not None)
        self._observers.hooks.expose(Inspection(epoch.state, self._pacer))
        self._background_step = background.last_step
        self._layout, self._members, self._lineage = layout, form.members, form.lineage
        self._tells_commits = form.tells_commits
        self._figures.enter(form.epoch, layout, self._rank)
        self._stepper.resume(form.resume_step, form.history)
        self._keeping.enter(form, epoch.state)
        self._status = "training"
        self._client.enter(form.epoch)
        agreed = self._stepper.rate_together(epoch, form.ratings)
        if agreed is not None:
            self._client.agree_on(agreed)
        self._pacer.set_now(time.monotonic())
        self._client.send(Formed(self.report(), group_seconds, *built.transferred, built.bytes_per_second, agreed))
        if self._rank == form.leader and self._stepper.progress.record_step < form.resume_step:
            # The old leader may have died before it could say so.
            self._emit_committed(repeated=True)

    def _leave(self) -> None:
        epoch, self._epoch = self._epoch, None
        self._status = "parked"
        if epoch is not None:
            for activity in epoch.activities:
                activity.leave()
            self._holdings.receive(epoch.fetching.received)
            epoch.pipeline = None
            epoch.groups.close()

    def _start_over(self) -> None:
        self._leave()
        self._stepper.start_over()
        self._holdings.clear()
        self._background_step = 0
        self._layout, self._members = None, ()
        self._status = "fresh"
        self._client.start_over()

    # ---- for the client, from its threads ----

    @property
    def committed_step(self) -> int:
        """The last step that this rank has applied."""
        return self._stepper.progress.committed_step

    def abort(self) -> None:
        """End the blocked operation of the training thread, unless the rank is to finish it first."""
        if self._drain.is_under_way():
            return
        epoch = self._epoch
        groups = self._forming if epoch is None else epoch.groups
        if groups is not None:
            groups.abort()

    def report(self) -> RankReport:
        """What this rank has."""
        progress, epoch = self._stepper.progress, self._epoch
        received = frozenset[str]() if epoch is None else epoch.fetching.received
        return RankReport(
            status=self._status,
            epoch=self._client.epoch,
            committed_step=progress.committed_step,
            totals=progress.totals,
            ready=progress.ready,
            contribution=self._stepper.said,
            history=progress.history,
            distrusted=tuple(sorted(self._stepper.distrusted)),
            is_background_done=self._is_background_done(),
            members=self._members,
            lineage=self._lineage,
            layout=self._layout,
            **self._holdings.report(self._stepper.distrusted, received),
        )

    def _is_background_done(self) -> bool:
        return 0 < self._background_step <= self.committed_step

    # ---- for the steps ----

    @property
    def wants_boundary(self) -> bool:
        """Whether the members are asked to park at the next step boundary."""
        return self._client.wants_boundary

    @property
    def is_saving(self) -> bool:
        """Whether this rank is still writing a checkpoint."""
        return self._keeping.is_saving

    @property
    def snapshots(self) -> tuple[int, SnapshotCosts]:
        """The step of this rank's newest complete snapshot, 0: it has none; and what one takes."""
        return self._keeping.snapshot_step, self._keeping.snapshot_costs

    def announce(self, step: int, phase: str) -> None:
        """Announce a phase to the hooks."""
        self._observers.hooks.announce(step, phase)

    def on_applied(self, step: int, record: StepCommitted) -> None:
        """Update this rank's metrics."""
        self._figures.commit(step, record)

    def on_judged(self, epoch_number: int, step: int, judgement: Judgement) -> None:
        """On the leader: emit the verdict on a step that cannot be committed."""
        if judgement.verdict is StepVerdict.COMMIT:
            return
        self._emitter.emit(
            StepUnfit(
                epoch=epoch_number,
                verdict=judgement.verdict.name.lower(),
                suspects=tuple(judgement.suspects),
                reason=judgement.reason,
            ),
            step=step,
        )

    # ---- steps ----

    def _train(self) -> bool:
        """Step until the last one; returns True after the coordinator's goodbye, False when called to a regroup."""
        epoch = self._epoch
        assert epoch is not None
        while self.committed_step < self._job.steps:
            self._client.check()
            step = self.committed_step + 1
            if step % self._job.approximation.refresh_steps == 0:
                num_refreshed = epoch.degraded.num_refreshed
                with self._pacer.segment(epoch.ratings.refresh_seconds(num_refreshed)):
                    epoch.degraded.refresh()
            outcome = self._stepper.run(epoch, step)
            if outcome.verdict in (StepVerdict.EVICT, StepVerdict.HEAL):
                self._await_call(epoch, outcome)
            elif outcome.verdict in (StepVerdict.COMMIT, StepVerdict.SKIP):
                self._on_committed(epoch, step, outcome)
            if outcome.all_called:
                return False
        self._status = "finished"
        self._client.send(Finished())
        try:
            return self._client.wait_farewell()
        except CoordinatorLost as error:
            # Nothing is left to do that would take one.
            self._emitter.emit(Warned(message=f"the job is done, but {error}"))
            return True

    def _on_committed(self, epoch: Epoch, step: int, outcome: Outcome) -> None:
        self._holdings.commit()
        if self._rank == epoch.leader:
            self._emit_committed(repeated=False)
            if self._tells_commits:
                self._client.send(Committed(step))
        self._stepper.gather(epoch)
        self._keeping.on_committed(step, epoch.groups, outcome.can_save, outcome.snapshot_step, outcome.snapshot_costs)
        if self._rank == epoch.leader and step == self._background_step:
            self._client.send(BackgroundDone(epoch.number))

    def _await_call(self, epoch: Epoch, outcome: Outcome) -> None:
        """The members cannot go on as they are: ask the coordinator for another epoch until it calls."""
        while True:
            if outcome.verdict is StepVerdict.HEAL and self._stepper.distrusted:
                self._client.send(Diverged(epoch.number))
            elif outcome.judgement is not None and outcome.verdict is StepVerdict.EVICT:
                self._client.send(Unhealthy(epoch.number, outcome.judgement.suspects[0], outcome.judgement.reason))
            self._client.require_coordinator()
            self._client.wait_until(lambda: False, CALL_SECONDS)

    def _commit_late(self, commit: LateCommit | None, *, is_last: bool) -> None:
        self._stepper.commit_late(self._client.epoch, self._holdings, commit)
        if is_last:
            # No next epoch, whose leader would say it: everybody does, and the log takes the first.
            self._emit_committed(repeated=True)

    def _emit_committed(self, *, repeated: bool) -> None:
        """Emit the newest step that was computed here, if there is one."""
        progress = self._stepper.progress
        if progress.record is not None:
            committed = StepCommitted(**progress.record.given(), repeated=repeated)
            self._emitter.emit(committed, step=progress.record_step)
