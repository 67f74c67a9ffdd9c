"""Epochs: who is in, who is lost, who comes back, and what the members do about it.

The coordinator's state machine, without I/O: reports go in, messages and events come out through `Effects`. An epoch
is one membership with one layout. This module handles each report; `transitions` decides what follows from all of
them.
"""

from __future__ import annotations

from collections.abc import Callable

from mecefo_runtime.comm.messages import Formed, Hello, Parked, Probed, Stop, Trouble, Unhealthy
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.job.protection import SnapshotOffers
from mecefo_runtime.membership.member_table import Effects, Member, Stage
from mecefo_runtime.membership.reprotection import Reprotection
from mecefo_runtime.membership.transitions import Transitions
from mecefo_runtime.recovery.regroup import BALANCE, Rules
from mecefo_runtime.system.job_records import DrainRequested, RejoinRequested
from mecefo_runtime.system.run_records import Warned

FORM_RETRY_SECONDS = 0.5


class Membership:
    """The coordinator's state machine. Call the `on_` methods with what happened, and `tick` at `next_deadline`.

    `predicted_costs` stand in for measured ones until a rank has told its own. With `must_resume` the job begins with a
    checkpoint. `begun_epoch` is the newest epoch that is known to have begun under an earlier coordinator, 0: none.
    """

    def __init__(
        self,
        rules: Rules,
        steps: int,
        effects: Effects,
        clock: Callable[[], float],
        heartbeat_timeout_seconds: float,
        *,
        predicted_costs: Costs,
        must_resume: bool = False,
        begun_epoch: int = 0,
    ) -> None:
        self._rules = rules
        self._effects = effects
        self._clock = clock
        self._heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self._transitions = transitions = Transitions(
            rules,
            steps,
            effects,
            clock,
            heartbeat_timeout_seconds,
            predicted_costs,
            must_resume=must_resume,
            begun_epoch=begun_epoch,
        )
        self._connected = transitions.connected
        self._losses = transitions.losses
        self._links = transitions.links
        self._gathering = transitions.gathering
        self._restart = transitions.restart
        self._epochs = transitions.epochs
        self._reprotection: Reprotection | None = None
        if rules.protects_snapshots:
            self._reprotection = Reprotection(transitions.epochs.kept, effects, clock)

    @property
    def stage(self) -> Stage:
        """The stage: what the coordinator waits for."""
        return self._epochs.stage

    @property
    def epoch(self) -> int:
        """The number of the last epoch that began, 0: none has."""
        return self._epochs.number

    @property
    def target(self) -> int:
        """The number of the one that is to follow, or of this one while none is."""
        return self._epochs.target

    @property
    def members(self) -> frozenset[int]:
        """The ranks in the epoch, or announced for the next one."""
        return self._epochs.members

    @property
    def layout(self) -> Layout | None:
        """Which rank holds which layers."""
        return self._epochs.layout

    @property
    def furthest_step(self) -> int:
        """The furthest step that is known to be committed, 0: none is."""
        return self._restart.furthest_step

    @property
    def failure(self) -> str | None:
        """Why the job cannot continue; None: it can, or is done."""
        return self._transitions.failure

    def tick(self) -> None:
        """Do what is due by now; all that has arrived must have been told before."""
        self._transitions.tick()

    def next_deadline(self) -> float | None:
        """When `tick` should be called at the latest, in the clock's seconds."""
        return self._transitions.next_deadline()

    # ---- what happened ----

    def on_hello(self, hello: Hello) -> None:
        """A rank connected: a fresh one, or one of an epoch that this coordinator may not know yet."""
        now, rank, report = self._clock(), hello.rank, hello.report
        if hello.is_cut_off and self.stage is not Stage.ENDED:
            # Its connection broke. It comes, as a newcomer, when it can reach its peers.
            self._links.cut_off.add(rank)
            if self.stage is Stage.GATHERING:
                self._gathering.absent.add(rank)
                self._transitions.proceed()
            return
        known = self._connected.get(rank)
        member = Member.of(hello, now)
        node = self._rules.cluster.node_of(rank)
        if hello.snapshots is not None and node not in self._epochs.kept.by_node:
            # Faster than what the process says itself.
            self._epochs.kept.learn(node, hello.snapshots)
        if self._restart.is_under_way and report.status != "fresh":
            # It slept while the others ended.
            self._restart.stop(rank)
            return
        if known is not None and rank in self.members and known.is_not(member):
            # The successor is faster than the news of the death.
            self._transitions.lose(rank, "connection")
        self._connected[rank] = member
        if member.status == "fresh" and known is None:
            # Of a node that is there again.
            self._epochs.leaving.discard(rank)
        self._restart.on_hello(rank, member.attempt)
        # To a coordinator that was started in the place of another, nobody told it.
        self._restart.on_committed(report.committed_step)
        for gone in (self._transitions.silent, self._gathering.absent, self._links.cut_off):
            gone.discard(rank)
        if hello.is_done:
            self._gathering.has_completed = True
        if self.stage is Stage.ENDED:
            self._transitions.tell_end(rank)
        elif self.stage is Stage.GATHERING:
            self._gathering.learn(report)
        elif member.status == "fresh":
            self._transitions.await_neighbours()
            self._effects.emit(RejoinRequested(ranks=(rank,)))
        elif not self._epochs.belongs(member):
            self._transitions.evict(member)
        elif self.stage in (Stage.PARKING, Stage.JOINING):
            self._effects.send(rank, self._epochs.call())
        elif self.stage is Stage.FORMING or member.has_left:
            self._transitions.regroup("retry")
        elif report.distrusted:
            self._transitions.regroup("heal")
        elif report.is_background_done:
            self._epochs.call_to_boundary(BALANCE)
        elif member.status == "finished":
            # It came to the end while it had no connection to say so by.
            self._transitions.end_if_finished()
        self._transitions.proceed()

    def on_heard(self, rank: int) -> None:
        """Any message counts as a heartbeat."""
        if rank in self._connected:
            self._connected[rank].last_heard_seconds = self._clock()

    def on_supervisor(self, node: int) -> None:
        """A node's supervisor connected."""
        self._losses.supervisor_came(node)

    def on_supervisor_lost(self, node: int) -> None:
        """A node's supervisor is lost, and most likely the node with it."""
        self._losses.supervisor_went(node)
        # Most likely its snapshots are gone, too; if not, their process says so again.
        self.on_snapshots(node, None)

    def on_leaving(self, node: int) -> None:
        """`node` will be preempted: its ranks hand over their layers while they can still send their state."""
        ranks = tuple(rank for rank in self._rules.cluster.ranks_of(node) if rank in self._connected)
        if not ranks or self.stage is Stage.ENDED:
            return
        self._effects.emit(DrainRequested(epoch=self.epoch, leaving_node=node, ranks=ranks))
        self._epochs.leaving.update(ranks)
        self._transitions.let_go()

    def on_snapshots(self, node: int, kept: SnapshotOffers | None) -> None:
        """What the snapshot process of `node` keeps; None: it is gone."""
        was_there = node in self._epochs.kept.by_node
        self._epochs.kept.learn(node, kept)
        if self._reprotection is not None and kept is None and was_there:
            self._reprotection.open()
        self._transitions.proceed()
        self._protect_again()

    def _protect_again(self) -> None:
        """Make good what was lost of snapshots, while ranks train and need none of them."""
        if self._reprotection is not None and self.stage is Stage.TRAINING:
            self._reprotection.look(self._epochs.is_whole)

    def on_lost(self, rank: int, how: str, attempt: int | None = None) -> None:
        """A rank is lost; `how` is `supervisor`, `connection` or `heartbeat`.

        `attempt` guards against reports of an earlier process.
        """
        member = self._connected.get(rank)
        if member is None or (attempt is not None and member.attempt != attempt):
            if rank not in self._connected and self.stage is Stage.GATHERING:
                self._transitions.end_early(rank, attempt)
            return
        self._transitions.lose(rank, how)
        self._transitions.proceed()

    def on_completed(self) -> None:
        """A rank ended in order: an earlier coordinator said goodbye to it before it was lost, so the job is done.

        Whoever has not heard it yet and still has state comes to the same end by itself; the others are told here.
        """
        self._gathering.on_completed()
        self._transitions.proceed()

    def on_trouble(self, rank: int, trouble: Trouble) -> None:
        """A member has left the epoch because it lost a peer.

        If the peer is dead, its loss is reported soon; if not, the epoch is formed again.
        """
        # Also when the members have been called out already: the next epoch is not planned yet.
        self._epochs.damaged = self._epochs.damaged.and_also(trouble.damaged)
        if self.stage is Stage.GATHERING and rank in self._connected:
            # It has left its epoch since its hello.
            member = self._connected[rank]
            member.status = "fresh" if member.status == "fresh" else "parked"
        if self.stage not in (Stage.TRAINING, Stage.JOINING, Stage.FORMING) or trouble.epoch != self._epochs.awaited:
            return
        wait_seconds = FORM_RETRY_SECONDS if self.stage is Stage.FORMING else 1.5 * self._heartbeat_timeout_seconds
        if trouble.refused is not None:
            self._epochs.refuse(trouble.refused, trouble.error)
        self._effects.emit(Warned(message=f"rank {rank} broke off: {trouble.error}"))
        self._restart.on_trouble(rank, trouble.error)
        if trouble.damaged:
            self._fetch_elsewhere()
            return
        if trouble.unreachable:
            self.on_unreachable(rank, trouble.epoch)
        if self._links.is_under_way:
            self._links.must_regroup()
        elif self._transitions.retry_seconds is None:
            self._transitions.retry_seconds = self._clock() + wait_seconds

    def _fetch_elsewhere(self) -> None:
        """State arrived damaged: the next epoch asks other holders. Who sent it again and again may have to go."""
        for source, number in self._epochs.damaged.repeated_sources.items():
            why = f"rank {source} sent damaged state {number} times"
            if self._rules.evicts_corrupt and source in self._connected:
                self._send_away(source, why)
            else:
                self._effects.emit(Warned(message=f"{why}: it is asked for none in this regroup"))
        if not self._losses:
            self._transitions.regroup("retry")
        self._transitions.proceed()

    def on_unreachable(self, rank: int, epoch: int) -> None:
        """A member cannot reach a peer: all members are probed."""
        if self.stage not in (Stage.TRAINING, Stage.JOINING, Stage.FORMING) or epoch != self._epochs.awaited:
            return
        if rank in self.members and rank in self._connected and not self._links.is_under_way:
            self._transitions.retry_seconds = None
            self._links.ask(self.members)

    def on_probed(self, rank: int, probed: Probed) -> None:
        """A member has tried to reach all the others."""
        if self._links.answer(rank, probed.check, probed.unreachable):
            self._transitions.proceed()

    def on_cut_off(self, rank: int) -> None:
        """A rank that was evicted because of its links asks whom it has to reach before it may come back."""
        if self.stage is Stage.ENDED:
            self._transitions.tell_end(rank)
        elif rank not in self._connected:
            self._links.tell_peers(rank, self.members)

    def on_parked(self, rank: int, parked: Parked) -> None:
        """A member left its epoch."""
        member, target = self._connected.get(rank), self._epochs.target
        if member is None or self.stage not in (Stage.PARKING, Stage.JOINING) or parked.epoch != target:
            return
        member.report, member.target = parked.report, 0
        member.parked_for, member.status = target, "parked"
        self._transitions.proceed()

    def on_formed(self, rank: int, formed: Formed) -> None:
        """A member is in the new epoch, with its state."""
        member = self._connected.get(rank)
        if member is not None and self.stage is Stage.GATHERING:
            # Its hello was from before. In what it entered others may have trained since.
            member.status, member.report = "training", formed.report
            member.epoch = member.target = formed.report.epoch
            self._gathering.learn(formed.report)
            self._transitions.proceed()
        if member is None or self.stage is not Stage.FORMING or formed.report.epoch != self._epochs.target:
            return
        member.formed = formed
        member.bytes_per_second = formed.bytes_per_second or member.bytes_per_second
        if self._epochs.are_all_in():
            self._transitions.enter()
            self._protect_again()

    def on_background_done(self, epoch: int) -> None:
        """A background fetch is complete: the layout that needs it can start."""
        if self.stage is Stage.TRAINING and epoch == self.epoch:
            self._epochs.call_to_boundary(BALANCE)

    def on_diverged(self, epoch: int) -> None:
        """A member found that its state differs from its peers': it gets theirs, in a new epoch."""
        if self.stage in (Stage.TRAINING, Stage.JOINING) and epoch == self.epoch:
            self._transitions.regroup("heal")

    def on_unhealthy(self, unhealthy: Unhealthy) -> None:
        """The members blame a rank for steps that cannot be committed: it is evicted."""
        rank = unhealthy.rank
        if (
            self.stage not in (Stage.TRAINING, Stage.JOINING)
            or unhealthy.epoch != self.epoch
            or rank not in self._connected
        ):
            return
        self._send_away(rank, unhealthy.reason)
        self._transitions.proceed()

    def _send_away(self, rank: int, why: str) -> None:
        self._effects.send(rank, Stop(why))
        self._transitions.lose(rank, "health")
        self._effects.hang_up(rank)

    def on_committed(self, step: int) -> None:
        """`step` is committed, in whatever epoch."""
        self._restart.on_committed(step)

    def on_finished(self, rank: int) -> None:
        """A member committed the last step."""
        if rank in self._connected:
            self._connected[rank].status = "finished"
            self._transitions.end_if_finished()
