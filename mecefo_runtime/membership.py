"""Epochs: who is in, who is lost, who comes back, and what the members do about it.

The coordinator's mind, without I/O: reports go in, messages and events come out through `Effects`. An epoch is one
membership with one layout. A change goes through two stages: every member leaves the old epoch (*parks*: at once after
a loss, at the next step boundary for a rejoin) and reports what it has; then one message tells all of them the new
layout, which state moves, and whether the step in flight counts.

The rule for that step is in `commit`.
"""

from __future__ import annotations

from collections.abc import Callable

from mecefo_runtime.commit import Decision, RuleBroken, decide
from mecefo_runtime.layout import Cluster, Layout, Transfer, plan_transfers
from mecefo_runtime.losses import Losses
from mecefo_runtime.planners import NoLayout, Planner
from mecefo_runtime.roster import Effects, Member, Stage
from mecefo_runtime.wire import Message

# The ranks of a repaired node come up one after another.
REJOIN_GRACE_SECONDS = 0.5
START_TIMEOUT_SECONDS = 120.0
FORM_RETRY_SECONDS = 0.5


class Membership:
    """The coordinator's state machine. Call the `on_` methods with what happened, and `tick` at `next_deadline`."""

    def __init__(
        self,
        cluster: Cluster,
        planner: Planner,
        steps: int,
        effects: Effects,
        clock: Callable[[], float],
        heartbeat_timeout_seconds: float,
    ) -> None:
        self._cluster = cluster
        self._planner = planner
        self._steps = steps
        self._effects = effects
        self._clock = clock
        self._heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self._connected: dict[int, Member] = {}
        self._losses = Losses(cluster)
        self._absent: set[int] = set()
        self._learned: Message | None = None
        self._began_seconds = clock()
        self._deadline_seconds: float | None = self._began_seconds + START_TIMEOUT_SECONDS
        self._retry_seconds: float | None = None
        self._reason = "start"
        self._resume_step = 1
        self._rejoining: list[int] = []
        self._entered: frozenset[int] = frozenset()
        self.stage = Stage.GATHERING
        self.epoch = 0
        self.target = 0
        self.members: frozenset[int] = frozenset()
        self.layout: Layout | None = None
        self.failure: str | None = None

    # ---- what happened ----

    def on_hello(self, rank: int, message: Message) -> None:
        """A rank connected: a fresh one, or one of an epoch that this coordinator may not know yet."""
        now = self._clock()
        known = self._connected.get(rank)
        status, epoch = str(message["status"]), int(message["epoch"])
        if known is not None and known.attempt != message["attempt"] and rank in self.members:
            # The successor is faster than the news of the death.
            self._lose(rank, "connection")
        self._connected[rank] = member = Member(
            rank, int(message["attempt"]), now, status, epoch, message["address"], message
        )
        self._absent.discard(rank)
        if self.stage is Stage.ENDED:
            self._effects.send(rank, {"type": "stop", "reason": self.failure} if self.failure else {"type": "goodbye"})
        elif self.stage is Stage.GATHERING:
            self._learn(message)
        elif status == "fresh":
            if self.stage is Stage.TRAINING and self._deadline_seconds is None:
                self._deadline_seconds = now + REJOIN_GRACE_SECONDS
            self._effects.emit("rejoin_requested", ranks=[rank])
        elif epoch != self.epoch or rank not in self.members:
            self._evict(member)
        elif self.stage in (Stage.PARKING, Stage.JOINING):
            self._effects.send(rank, self._call())
        elif self.stage is Stage.FORMING:
            self._regroup("retry")
        self.tick()

    def on_heard(self, rank: int) -> None:
        """Any message is a sign of life."""
        if rank in self._connected:
            self._connected[rank].last_heard_seconds = self._clock()

    def on_supervisor(self, node: int) -> None:
        """A node's supervisor connected."""
        self._losses.supervisor_came(node)

    def on_supervisor_lost(self, node: int) -> None:
        """A node's supervisor is gone, and with it, most likely, the node."""
        self._losses.supervisor_went(node)
        self.tick()

    def on_lost(self, rank: int, how: str, attempt: int | None = None) -> None:
        """A rank is gone; `how` is `supervisor`, `connection` or `heartbeat`. `attempt` guards against late news."""
        member = self._connected.get(rank)
        if member is None or (attempt is not None and member.attempt != attempt):
            if rank not in self._connected and self.stage is Stage.GATHERING:
                self._absent.add(rank)
            return
        self._lose(rank, how)
        self.tick()

    def on_trouble(self, rank: int, epoch: int, error: str) -> None:
        """A member cannot reach a peer. If the peer is dead we hear of it soon; if not, the epoch is formed again."""
        if self.stage in (Stage.TRAINING, Stage.JOINING) and epoch == self.epoch:
            wait_seconds = 1.5 * self._heartbeat_timeout_seconds
        elif self.stage is Stage.FORMING and epoch == self.target:
            wait_seconds = FORM_RETRY_SECONDS
        else:
            return
        self._effects.emit("warning", message=f"rank {rank} lost touch with a peer: {error}")
        if self._retry_seconds is None:
            self._retry_seconds = self._clock() + wait_seconds

    def on_parked(self, rank: int, message: Message) -> None:
        """A member left its epoch for `message["epoch"]`."""
        member = self._connected.get(rank)
        if member is None or self.stage not in (Stage.PARKING, Stage.JOINING) or message["epoch"] != self.target:
            return
        member.report, member.parked_for, member.status = message, self.target, "parked"
        self.tick()

    def on_formed(self, rank: int, message: Message) -> None:
        """A member is in the new epoch, with its state."""
        member = self._connected.get(rank)
        if member is None or self.stage is not Stage.FORMING or message["epoch"] != self.target:
            return
        member.formed = message
        if all(self._connected[r].formed is not None for r in self.members):
            self._enter()

    def on_finished(self, rank: int) -> None:
        """A member committed the last step."""
        member = self._connected.get(rank)
        if member is None:
            return
        member.status = "finished"
        if self.stage in (Stage.TRAINING, Stage.JOINING) and all(
            r in self._connected and self._connected[r].status == "finished" for r in self.members
        ):
            self._end({"type": "goodbye"})

    def tick(self) -> None:
        """Do what is due by now."""
        now = self._clock()
        for member in list(self._connected.values()):
            if now - member.last_heard_seconds > self._heartbeat_timeout_seconds:
                self._lose(member.rank, "heartbeat")
                # Should it wake up, it must find out that it is out, by having to say hello again.
                self._effects.hang_up(member.rank)
        if self._losses and (self._losses.are_settled(self._connected) or now >= self._losses.deadline_seconds()):
            self._losses.clear()
            self._after_loss()
        if self._deadline_seconds is not None and now >= self._deadline_seconds:
            self._deadline_seconds = None
            self._on_deadline()
        if self._retry_seconds is not None and now >= self._retry_seconds:
            self._regroup("retry")
        self._advance()

    def next_deadline(self) -> float | None:
        """When `tick` should be called at the latest, in the clock's seconds."""
        due = [member.last_heard_seconds + self._heartbeat_timeout_seconds for member in self._connected.values()]
        due += [seconds for seconds in (self._deadline_seconds, self._retry_seconds) if seconds is not None]
        if self._losses:
            due.append(self._losses.deadline_seconds())
        return min(due, default=None)

    # ---- losses ----

    def _lose(self, rank: int, how: str) -> None:
        member = self._connected.pop(rank, None)
        if self.stage is Stage.GATHERING:
            self._absent.add(rank)
        if member is None or self.stage is Stage.ENDED:
            return
        if rank in self.members or self.stage is Stage.GATHERING:
            self._losses.add(rank, how, self._clock())
            self._effects.emit("detected", epoch=self.epoch, lost=[rank], how=how)

    def _after_loss(self) -> None:
        if self.stage in (Stage.TRAINING, Stage.JOINING, Stage.FORMING):
            self._regroup("loss")
        elif self.stage is Stage.PARKING:
            self._reason = "loss"

    # ---- the way into the next epoch ----

    def _learn(self, message: Message) -> None:
        """Remember the newest epoch that a rank knows: a restarted coordinator learns it from them."""
        if message["epoch"] > 0 and (self._learned is None or message["epoch"] > self._learned["epoch"]):
            self._learned = message
            self._deadline_seconds = self._clock() + self._heartbeat_timeout_seconds

    def _on_deadline(self) -> None:
        if self.stage is Stage.GATHERING:
            if self._learned is not None:
                self._resume()
            else:
                missing = sorted(set(range(self._cluster.num_ranks)) - set(self._connected))
                self._fail(f"ranks {missing} did not start within {START_TIMEOUT_SECONDS:.0f} s; see their logs")
        elif self.stage is Stage.TRAINING and self._newcomers():
            self._call_to_join()

    def _advance(self) -> None:
        """Take the next step if what it waits for is there."""
        if self.stage is Stage.GATHERING:
            self._advance_gathering()
        elif self.stage is Stage.TRAINING:
            newcomers = self._newcomers()
            nodes = {self._cluster.node_of(rank) for rank in newcomers}
            whole = all(r in self._connected for node in nodes for r in self._cluster.ranks_of(node))
            if newcomers and whole:
                self._deadline_seconds = None
                self._call_to_join()
        elif self.stage in (Stage.PARKING, Stage.JOINING) and not self._losses:
            waiting_for = [
                rank
                for rank in self.members
                if rank in self._connected and self._connected[rank].parked_for != self.target
            ]
            if not waiting_for:
                self._decide()

    def _advance_gathering(self) -> None:
        if self._learned is not None:
            if set(self._learned["members"]) <= set(self._connected) | self._absent:
                self._resume()
        elif not self._losses and len(self._connected) + len(self._absent) == self._cluster.num_ranks:
            self.target = 1
            self._decide()

    def _resume(self) -> None:
        """A restarted coordinator knows enough: go on where the ranks are."""
        assert self._learned is not None
        self.epoch = int(self._learned["epoch"])
        self.target = max([self.epoch, *(int(m.report.get("target", 0)) for m in self._connected.values())])
        self.members = frozenset(self._learned["members"])
        self._entered = self.members
        self.layout = Layout.from_dict(self._learned["layout"])
        self.stage = Stage.TRAINING
        self._deadline_seconds = None
        self._effects.emit("coordinator_restarted", epoch=self.epoch, members=sorted(self.members))
        for member in list(self._connected.values()):
            # A rank that was on its way into this epoch when the old coordinator died belongs to it.
            is_ours = self.epoch in (member.epoch, int(member.report.get("target", 0)))
            if member.status != "fresh" and not (is_ours and member.rank in self.members):
                self._evict(member)
        missing = sorted(self.members - set(self._connected))
        for rank in missing:
            self._effects.emit("detected", epoch=self.epoch, lost=[rank], how="heartbeat")
        if missing or any(self._connected[rank].status == "parked" for rank in self.members - set(missing)):
            self._regroup("loss" if missing else "retry")
        else:
            for rank in self.members:
                if self._connected[rank].status == "finished":
                    self.on_finished(rank)
                    break

    def _newcomers(self) -> list[int]:
        return sorted(r for r, member in self._connected.items() if member.status == "fresh" and r not in self.members)

    def _evict(self, member: Member) -> None:
        """A rank of an old epoch must not harm the new one: it starts over as a newcomer."""
        self._connected.pop(member.rank, None)
        self._effects.send(member.rank, {"type": "evicted", "epoch": self.epoch})

    def _call(self) -> Message:
        kind = "join" if self.stage is Stage.JOINING else "regroup"
        return {"type": kind, "epoch": self.target, "reason": self._reason}

    def _call_to_join(self) -> None:
        self.stage = Stage.JOINING
        self._reason = "rejoin"
        self.target = max(self.target, self.epoch) + 1
        self._tell_members()

    def _regroup(self, reason: str) -> None:
        self.stage = Stage.PARKING
        self._reason = reason
        self._deadline_seconds = self._retry_seconds = None
        self.target = max(self.target, self.epoch) + 1
        self._tell_members()

    def _tell_members(self) -> None:
        for rank in sorted(self.members & set(self._connected)):
            self._effects.send(rank, self._call())

    def _decide(self) -> None:
        """All survivors are parked: commit or repeat the step in flight, lay out, say what moves."""
        survivors = sorted(rank for rank in self.members if rank in self._connected)
        newcomers = self._newcomers() if self.epoch else sorted(self._connected)
        alive = sorted({*survivors, *newcomers})
        if self.epoch:
            self._effects.emit("isolated", epoch=self.target)
        reports = [self._connected[rank].report for rank in survivors]
        reports = [report for report in reports if not report["is_stateless"]]
        if self.epoch and not reports:
            self._fail("training cannot go on: every rank that held state is lost")
            return
        try:
            decision = decide(reports)
        except RuleBroken as error:
            self._fail(f"training cannot go on, and this is a bug of the runtime: {error}")
            return
        if self.epoch and decision.committed_step >= self._steps:
            self._end({"type": "goodbye", "commit": decision.commit})
            return
        try:
            layout = self._planner(self._cluster, alive)
        except NoLayout as error:
            self._fail(f"training cannot go on: {error}")
            return
        layout.check(self._cluster, alive)
        transfers: tuple[Transfer, ...] = ()
        missing: tuple[str, ...] = ()
        if decision.committed_step:
            holdings = {rank: self._connected[rank].report["holdings"] for rank in survivors}
            transfers, missing = plan_transfers(layout, holdings)
        if missing:
            self._fail(
                f"training cannot go on: no living rank holds {', '.join(missing)}. "
                "Every holder was lost at once; more replicas (--data-parallel) would have kept a copy"
            )
            return
        self._form(alive, layout, transfers, decision)

    def _form(self, alive: list[int], layout: Layout, transfers: tuple[Transfer, ...], decision: Decision) -> None:
        """Tell everybody the new epoch."""
        self.stage = Stage.FORMING
        self._rejoining = sorted(set(alive) - self._entered) if self.epoch else []
        self._resume_step = decision.committed_step + 1
        self.members, self.layout = frozenset(alive), layout
        message = {
            "type": "form",
            "epoch": self.target,
            "members": alive,
            "leader": alive[0],
            "addresses": {rank: self._connected[rank].address for rank in alive},
            "layout": layout.to_dict(),
            "transfers": [[t.unit, t.source, t.destination] for t in transfers],
            "commit": decision.commit,
            "resume_step": self._resume_step,
            "reason": self._reason,
        }
        for rank in alive:
            member = self._connected[rank]
            member.formed, member.status, member.epoch = None, "forming", self.target
            self._effects.send(rank, message)
        self._effects.emit(
            "layout",
            step=decision.committed_step or None,
            epoch=self.target,
            reason=self._reason,
            members=alive,
            layout=layout.to_dict(),
            degraded_layers=layout.num_degraded_layers,
            num_transfers=len(transfers),
            commit_step=decision.commit["step"] if decision.commit else None,
            resume_step=self._resume_step,
        )

    def _enter(self) -> None:
        """Every member is in: the new epoch has begun."""
        reports = [self._connected[rank].formed or {} for rank in self.members]
        self.epoch = self.target
        self._entered = self.members
        self.stage = Stage.TRAINING
        self._retry_seconds = None
        self._deadline_seconds = self._clock() + REJOIN_GRACE_SECONDS if self._newcomers() else None
        for rank in self.members:
            self._connected[rank].status = "training"
        self._effects.emit(
            "regrouped",
            step=self._resume_step - 1 or None,
            epoch=self.epoch,
            reason=self._reason,
            members=sorted(self.members),
            group_seconds=max(report["group_seconds"] for report in reports),
            transfer_seconds=max(report["transfer_seconds"] for report in reports),
            transfer_bytes=max(report["transfer_bytes"] for report in reports),
        )
        if self._rejoining:
            self._effects.emit("rejoined", step=self._resume_step - 1, epoch=self.epoch, ranks=self._rejoining)

    # ---- the end ----

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._effects.emit("job_failed", reason=reason)
        self._end({"type": "stop", "reason": reason})

    def _end(self, message: Message) -> None:
        self.stage = Stage.ENDED
        self._deadline_seconds = self._retry_seconds = None
        for rank in sorted(self._connected):
            self._effects.send(rank, message)
