"""Epochs: who is in, who is lost, who comes back, and what the members do about it.

The coordinator's mind, without I/O: reports go in, messages and events come out through `Effects`. An epoch is one
membership with one layout. A change goes through two stages: every member leaves the old epoch (*parks*: at once after
a loss, at the next step boundary for a rejoin) and reports what it has; then one message tells all of them the new
layout, which state moves, and whether the step in flight counts.

The rule for that step is in `commit`, what the new layout is in `regroup`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

from mecefo_runtime.commit import Decision, RuleBroken, decide
from mecefo_runtime.costs import Costs
from mecefo_runtime.inquiry import Inquiry, Pair, fewest_to_evict
from mecefo_runtime.layout import Layout
from mecefo_runtime.losses import Losses
from mecefo_runtime.orders import form_orders, layout_fields
from mecefo_runtime.regroup import BALANCE, CannotGoOn, Plan, Rules, Survivors, plan_epoch
from mecefo_runtime.roster import Effects, Member, Roster, Stage
from mecefo_runtime.wire import Message

# The ranks of a repaired node come up one after another.
REJOIN_GRACE_SECONDS = 0.5
START_TIMEOUT_SECONDS = 120.0
FORM_RETRY_SECONDS = 0.5
RESTART = "a rank is lost: all start again"


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
        self._rules, self._begun_epoch = rules, begun_epoch
        self._cluster = rules.cluster
        self._steps = steps
        self._predicted_costs = predicted_costs
        # Until an epoch has begun with it: what ranks hold meanwhile is partly from before and partly from there.
        self._must_restore = must_resume
        self._refused: dict[str, str] = {}
        self._effects = effects
        self._clock = clock
        self._heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self._connected = Roster()
        self._losses = Losses(rules.cluster)
        self._absent: set[int] = set()
        # Members that are lost and may well live: nobody told of their end.
        self._silent: set[int] = set()
        self._inquiry: Inquiry | None = None
        self._num_inquiries = 0
        self._cut_off: set[int] = set()
        self._has_completed = False
        self._is_successor = False
        # All ranks were told to end, and none is waited for but its successor.
        self._is_restarting = False
        self._learned: Message | None = None
        self._began_seconds = clock()
        self._deadline_seconds: float | None = self._began_seconds + START_TIMEOUT_SECONDS
        self._retry_seconds: float | None = None
        self._reason = "loss" if begun_epoch else "start"
        self._resume_step = 1
        self._called_seconds = self._began_seconds
        self._regroup_seconds = 0.0
        self._lineage = ""
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
        if message.get("is_cut_off") and self.stage is not Stage.ENDED:
            # Its connection broke. It comes, as a newcomer, when it can reach its peers.
            self._cut_off.add(rank)
            if self.stage is Stage.GATHERING:
                self._absent.add(rank)
                self._proceed()
            return
        known = self._connected.get(rank)
        status, epoch = str(message["status"]), int(message["epoch"])
        if self._is_restarting and status != "fresh":
            # It slept while the others ended.
            self._effects.send(rank, {"type": "stop", "reason": RESTART})
            self._effects.hang_up(rank)
            return
        if status == "fresh" and message.get("target", 0):
            # It has been told an epoch and is on its way: it may have trained there before we hear of it again.
            status = "forming"
        member = Member(rank, int(message["attempt"]), now, status, epoch, message["address"], message)
        if known is not None and rank in self.members and known.is_not(member):
            # The successor is faster than the news of the death.
            self._lose(rank, "connection")
        self._connected[rank] = member
        self._silent.discard(rank)
        member.nccl_device = message.get("nccl_device")
        if message.get("costs") is not None:
            member.costs = Costs.from_dict(message["costs"])
        self._absent.discard(rank)
        self._cut_off.discard(rank)
        if message.get("is_done"):
            self._has_completed = True
        if self.stage is Stage.ENDED:
            self._tell_end(rank)
        elif self.stage is Stage.GATHERING:
            self._learn(message)
        elif status == "fresh":
            if self.stage is Stage.TRAINING and self._deadline_seconds is None:
                self._deadline_seconds = now + REJOIN_GRACE_SECONDS
            self._effects.emit("rejoin_requested", ranks=[rank])
        elif not self._belongs(member):
            self._evict(member)
        elif self.stage in (Stage.PARKING, Stage.JOINING):
            self._effects.send(rank, self._call())
        elif self.stage is Stage.FORMING or member.has_left:
            self._regroup("retry")
        elif message.get("distrusted"):
            self._regroup("heal")
        elif message.get("is_background_done"):
            self._call_to(BALANCE)
        self._proceed()

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
        self._proceed()

    def on_lost(self, rank: int, how: str, attempt: int | None = None) -> None:
        """A rank is gone; `how` is `supervisor`, `connection` or `heartbeat`. `attempt` guards against late news."""
        member = self._connected.get(rank)
        if member is None or (attempt is not None and member.attempt != attempt):
            if rank not in self._connected and self.stage is Stage.GATHERING and not self._is_restarting:
                self._absent.add(rank)
                self._proceed()
            return
        self._lose(rank, how)
        self._proceed()

    def on_completed(self) -> None:
        """A rank ended in order: a coordinator that is no more had said goodbye, the job is done.

        Whoever has not heard it yet and still has state comes to the same end by itself; the others are told here.
        """
        self._has_completed = True
        if self.stage is Stage.GATHERING and self._learned is None:
            self._deadline_seconds = self._clock() + self._heartbeat_timeout_seconds
        self._proceed()

    def on_trouble(
        self, rank: int, epoch: int, error: str, refused: str | None = None, unreachable: Collection[int] = ()
    ) -> None:
        """A member has left the epoch: it lost a peer. If that is dead we hear of it soon; if not, we form it again.

        `refused` is the folder of a checkpoint that it found to be damaged, `unreachable` whom it cannot reach.
        """
        if self.stage in (Stage.TRAINING, Stage.JOINING) and epoch == self.epoch:
            wait_seconds = 1.5 * self._heartbeat_timeout_seconds
        elif self.stage is Stage.FORMING and epoch == self.target:
            wait_seconds = FORM_RETRY_SECONDS
        elif self.stage is Stage.GATHERING and rank in self._connected:
            # It has left its epoch since its hello.
            self._connected[rank].status = "parked" if self._connected[rank].status != "fresh" else "fresh"
            return
        else:
            return
        if refused is not None:
            self._refused[refused] = error
        self._effects.emit("warning", message=f"rank {rank} broke off: {error}")
        if unreachable:
            self.on_unreachable(rank, epoch)
        if self._inquiry is not None:
            self._inquiry.must_regroup = True
        elif self._retry_seconds is None:
            self._retry_seconds = self._clock() + wait_seconds

    def on_unreachable(self, rank: int, epoch: int) -> None:
        """A member cannot reach a peer: all of them are asked whom they can reach."""
        is_of_now = epoch == (self.target if self.stage is Stage.FORMING else self.epoch)
        if self.stage not in (Stage.TRAINING, Stage.JOINING, Stage.FORMING) or not is_of_now:
            return
        if rank not in self.members or rank not in self._connected or self._inquiry is not None:
            return
        self._retry_seconds = None
        self._num_inquiries += 1
        asked = frozenset(self._connected.survivors(self.members))
        self._inquiry = Inquiry(self._num_inquiries, asked, self._clock() + self._heartbeat_timeout_seconds)
        for member in sorted(asked):
            self._effects.send(member, self._inquiry.question(self._connected))

    def on_probed(self, rank: int, inquiry: int, unreachable: Sequence[int]) -> None:
        """A member has tried to reach all the others."""
        if self._inquiry is not None and self._inquiry.number == inquiry:
            self._inquiry.answer(rank, unreachable)
            self._proceed()

    def on_cut_off(self, rank: int) -> None:
        """A rank that was evicted because of its links asks whom it has to reach before it may come back."""
        if self.stage is Stage.ENDED:
            self._tell_end(rank)
        elif rank not in self._connected:
            peers = self._connected.survivors(self.members)
            self._effects.send(rank, {"type": "peers", "addresses": self._connected.addresses(peers)})

    def on_parked(self, rank: int, message: Message) -> None:
        """A member left its epoch for `message["epoch"]`."""
        member = self._connected.get(rank)
        if member is None or self.stage not in (Stage.PARKING, Stage.JOINING) or message["epoch"] != self.target:
            return
        member.report, member.parked_for, member.status = message, self.target, "parked"
        self._proceed()

    def on_formed(self, rank: int, message: Message) -> None:
        """A member is in the new epoch, with its state."""
        member = self._connected.get(rank)
        if member is not None and self.stage is Stage.GATHERING:
            # Its hello was from before. In what it entered others may have trained since.
            member.status, member.epoch, member.report = "training", int(message["epoch"]), message
            self._learn(message)
            self._proceed()
        if member is None or self.stage is not Stage.FORMING or message["epoch"] != self.target:
            return
        member.formed = message
        member.bytes_per_second = message.get("bytes_per_second") or member.bytes_per_second
        # A member that is lost is still one until the regroup begins.
        if all(r in self._connected and self._connected[r].formed is not None for r in self.members):
            self._enter()

    def on_background_done(self, epoch: int) -> None:
        """What was fetched while training went on is there: the layout that needs it can begin."""
        if self.stage is Stage.TRAINING and epoch == self.epoch:
            self._call_to(BALANCE)

    def on_diverged(self, epoch: int) -> None:
        """A member found that its state differs from its peers': it gets theirs, in a new epoch."""
        if self.stage in (Stage.TRAINING, Stage.JOINING) and epoch == self.epoch:
            self._regroup("heal")

    def on_unhealthy(self, epoch: int, rank: int, why: str) -> None:
        """The members blame `rank` for steps that cannot be committed: it has to go."""
        if self.stage not in (Stage.TRAINING, Stage.JOINING) or epoch != self.epoch or rank not in self._connected:
            return
        self._effects.send(rank, {"type": "stop", "reason": f"evicted: {why}"})
        self._lose(rank, "health")
        self._effects.hang_up(rank)
        self._proceed()

    def on_finished(self, rank: int) -> None:
        """A member committed the last step."""
        member = self._connected.get(rank)
        if member is None:
            return
        member.status = "finished"
        self._end_if_finished()

    def _end_if_finished(self) -> None:
        if self.stage in (Stage.TRAINING, Stage.JOINING) and all(
            r in self._connected and self._connected[r].status == "finished" for r in self.members
        ):
            self._end({"type": "goodbye"})

    def tick(self) -> None:
        """Do what is due by now; all that has arrived must have been told before."""
        self._lose_silent()
        self._meet_deadlines()
        self._proceed()

    def _lose_silent(self) -> None:
        for rank in self._connected.take_silent(self._clock(), self._heartbeat_timeout_seconds):
            self._silent.add(rank)
            self._lose(rank, "heartbeat")
            # Should it wake up, it must find out that it is out, by having to say hello again.
            self._effects.hang_up(rank)

    def _proceed(self) -> None:
        """Do what is due, as far as it does not depend on who has not been heard."""
        now = self._clock()
        if self._losses and (self._losses.are_settled(self._connected) or now >= self._losses.deadline_seconds()):
            self._losses.clear()
            self._after_loss()
        if self._inquiry is not None and self._inquiry.is_answered(self._connected):
            self._conclude(self._inquiry)
        self._advance()

    def _meet_deadlines(self) -> None:
        now = self._clock()
        if self._deadline_seconds is not None and now >= self._deadline_seconds:
            self._deadline_seconds = None
            self._on_deadline()
        if self._retry_seconds is not None and now >= self._retry_seconds:
            self._regroup("retry")
        if self._inquiry is not None and now >= self._inquiry.deadline_seconds:
            self._conclude(self._inquiry)

    def next_deadline(self) -> float | None:
        """When `tick` should be called at the latest, in the clock's seconds."""
        due = [member.last_heard_seconds + self._heartbeat_timeout_seconds for member in self._connected.values()]
        due += [seconds for seconds in (self._deadline_seconds, self._retry_seconds) if seconds is not None]
        if self._losses:
            due.append(self._losses.deadline_seconds())
        if self._inquiry is not None:
            due.append(self._inquiry.deadline_seconds)
        return min(due, default=None)

    # ---- losses ----

    def _conclude(self, inquiry: Inquiry) -> None:
        """Evict the fewest members that leave a set of which all can reach each other."""
        self._inquiry = None
        severed = inquiry.severed(self._connected.survivors(self.members))
        evicted = fewest_to_evict(severed)
        for rank in sorted(evicted):
            self._lose(rank, "peers", severed)
            # It may come back when it can reach those who stay.
            self._cut_off.add(rank)
            self._effects.send(rank, {"type": "evicted", "epoch": self.epoch, "is_cut_off": True})
        if not evicted and inquiry.must_regroup:
            self._regroup("retry")
        elif evicted:
            self._proceed()

    def _lose(self, rank: int, how: str, severed: Collection[Pair] = ()) -> None:
        member = self._connected.pop(rank, None)
        if self._is_restarting:
            self._entered -= {rank}
        elif self.stage is Stage.GATHERING:
            self._absent.add(rank)
        if member is None or self.stage is Stage.ENDED:
            return
        if rank in self.members or self.stage is Stage.GATHERING:
            self._losses.add(rank, how, self._clock())
            cut: dict[str, Any] = {"cut_links": [list(pair) for pair in severed if rank in pair]} if severed else {}
            self._effects.emit("detected", epoch=self.epoch, lost=[rank], how=how, **cut)

    def _after_loss(self) -> None:
        if self.stage in (Stage.TRAINING, Stage.JOINING, Stage.FORMING) or self._is_restarting:
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
            elif self._has_completed:
                self._end({"type": "goodbye"})
            elif len(self._absent) == self._cluster.num_ranks:
                self._start()
            else:
                missing = sorted(set(range(self._cluster.num_ranks)) - set(self._connected))
                did_not = "come back" if self._begun_epoch else "start"
                self._fail(f"ranks {missing} did not {did_not} within {START_TIMEOUT_SECONDS:.0f} s; see their logs")
        elif self.stage is Stage.TRAINING and self._connected.newcomers():
            self._call_to("rejoin")

    def _advance(self) -> None:
        """Take the next step if what it waits for is there."""
        if self.stage is Stage.GATHERING:
            self._advance_gathering()
        elif self.stage is Stage.TRAINING:
            newcomers = self._connected.newcomers()
            nodes = {self._cluster.node_of(rank) for rank in newcomers}
            whole = all(r in self._connected for node in nodes for r in self._cluster.ranks_of(node))
            if newcomers and whole:
                self._deadline_seconds = None
                self._call_to("rejoin")
        elif (
            self.stage in (Stage.PARKING, Stage.JOINING)
            and not self._losses
            and all(self._connected[rank].parked_for == self.target for rank in self._connected.survivors(self.members))
        ):
            self._decide()

    def _advance_gathering(self) -> None:
        if self._is_restarting:
            if not self._losses and len(self._connected) == self._cluster.num_ranks:
                self._is_restarting = False
                self.target = max(self.target, self.epoch) + 1
                self._decide()
        elif self._learned is not None:
            if set(self._learned["members"]) <= set(self._connected) | self._absent:
                self._resume()
        elif not self._losses and len(self._connected) + len(self._absent) == self._cluster.num_ranks:
            if self._connected or self._has_completed:
                self._start()
            elif self._deadline_seconds is not None:
                # All are gone. Whether they had come to the end, their supervisors will tell in a moment.
                soon_seconds = self._clock() + self._heartbeat_timeout_seconds
                self._deadline_seconds = min(self._deadline_seconds, soon_seconds)

    def _start(self) -> None:
        """Nobody was in an epoch when it said hello: the first one begins, or everybody who held state is lost."""
        self.target = max((member.target for member in self._connected.values()), default=0)
        self._must_restore |= self._begun_epoch > 0
        if self._has_completed:
            self._end({"type": "goodbye"})
        elif self.target:
            # They had been told an epoch, and may be in it by now: a coordinator has died over it.
            self.members = frozenset(rank for rank, member in self._connected.items() if member.status != "fresh")
            self._regroup("start")
        else:
            self.target = self._begun_epoch + 1
            self._decide()

    def _resume(self) -> None:
        """A restarted coordinator knows enough: go on where the ranks are."""
        assert self._learned is not None
        self.epoch = int(self._learned["epoch"])
        self.target = max([self.epoch, *(member.target for member in self._connected.values())])
        self.members = frozenset(self._learned["members"])
        self._entered = self.members
        self._lineage, self._must_restore = str(self._learned["lineage"]), False
        self.layout = Layout.from_dict(self._learned["layout"])
        self.stage = Stage.TRAINING
        self._is_successor = True
        self._deadline_seconds = None
        self._effects.emit("coordinator_restarted", epoch=self.epoch, members=sorted(self.members))
        for member in list(self._connected.values()):
            if member.status != "fresh" and not self._belongs(member):
                self._evict(member)
        survivors = self._connected.survivors(self.members)
        missing = sorted(self.members - set(survivors))
        for rank in missing:
            self._effects.emit("detected", epoch=self.epoch, lost=[rank], how="heartbeat")
        if missing or any(self._connected[rank].has_left for rank in survivors):
            self._regroup("loss" if missing else "retry")
        else:
            self._end_if_finished()
        if self._connected.newcomers():
            self._deadline_seconds = self._clock() + REJOIN_GRACE_SECONDS
        self._advance()

    def _begin_again(self) -> None:
        """Nobody is heard of any more, and some may live: it is we who are cut off, and they go on training.

        So we wait for them as whoever is started in our place would, who learns from their hellos where they are.
        """
        self._begun_epoch = max(self._begun_epoch, self.epoch)
        self._effects.emit(
            "warning",
            message=f"nobody of {sorted(self.members)} is heard of any more: the coordinator may be cut off, and waits",
        )
        self._learned = self._inquiry = self._retry_seconds = self.layout = None
        self._silent.clear()
        self._losses.clear()
        self._reason, self._is_successor = "loss", False
        self.members = self._entered = frozenset()
        self.epoch = self.target = 0
        self.stage = Stage.GATHERING
        self._deadline_seconds = self._clock() + START_TIMEOUT_SECONDS

    def _belongs(self, member: Member) -> bool:
        """Whether it has part in the epoch: it is in it, on its way into it, or in the one that was to follow.

        Of the latter two nobody has trained in the newer one, for that takes all its members.
        """
        return member.rank in self.members and max(member.epoch, member.target) >= self.epoch

    def _evict_sleepers(self) -> bool:
        sleepers = self._connected.sleepers(self.members)
        for member in sleepers:
            self._evict(member)
        return bool(sleepers)

    def _evict(self, member: Member) -> None:
        """A rank of an old epoch must not harm the new one: it starts over as a newcomer."""
        self._connected.pop(member.rank, None)
        self._effects.send(member.rank, {"type": "evicted", "epoch": self.epoch})

    def _call(self) -> Message:
        kind = "join" if self.stage is Stage.JOINING else "regroup"
        return {"type": kind, "epoch": self.target, "reason": self._reason}

    def _call_to(self, reason: str) -> None:
        """Let the members park at the next step boundary."""
        self.stage = Stage.JOINING
        self._reason = reason
        self.target = max(self.target, self.epoch) + 1
        self._called_seconds = self._clock()
        self._tell_members()

    def _regroup(self, reason: str) -> None:
        is_forming = self.stage is Stage.FORMING
        if self._rules.stops_on_loss and (reason == "loss" or (reason == "retry" and not is_forming)):
            self._restart()
            return
        if self.stage is not Stage.PARKING:
            self._called_seconds = self._clock()
        self.stage = Stage.PARKING
        self._reason = reason
        self._deadline_seconds = self._retry_seconds = self._inquiry = None
        self.target = max(self.target, self.epoch) + 1
        self._tell_members()

    def _restart(self) -> None:
        """End all ranks, whatever they are doing; whoever runs the nodes starts them again when it can start all."""
        self._effects.emit("restarting", epoch=self.epoch, ranks=list(range(self._cluster.num_ranks)))
        for rank in sorted({*self._connected, *self._cut_off}):
            self._effects.send(rank, {"type": "stop", "reason": RESTART})
            self._effects.hang_up(rank)
        if not self._is_restarting:
            # Those who were lost will be back; the others never were away.
            self._entered &= frozenset(self._connected)
        self._connected.clear()
        self._cut_off.clear()
        self._absent.clear()
        self._losses.clear()
        self._deadline_seconds = self._retry_seconds = self._inquiry = self._learned = None
        self.members = frozenset()
        self.stage, self._reason = Stage.GATHERING, "loss"
        self._is_restarting = self._must_restore = True
        self._called_seconds = self._clock()

    def _tell_members(self) -> None:
        for rank in self._connected.survivors(self.members):
            self._effects.send(rank, self._call())

    def _decide(self) -> None:
        """All survivors are parked: say what becomes of the step in flight, who does what, and what moves."""
        if self._rules.stops_on_loss and len(self._connected) < self._cluster.num_ranks:
            self._restart()
            return
        if not self._connected and self._silent & self.members and not self._has_completed:
            self._begin_again()
            return
        newcomers = self._connected.newcomers() if self.epoch else sorted(self._connected)
        if self.epoch:
            self._effects.emit("isolated", epoch=self.target)
        survivors = Survivors(
            reports={rank: self._connected[rank].report for rank in self._connected.survivors(self.members)},
            newcomers=tuple(newcomers),
            costs=self._connected.costs() or self._predicted_costs,
            # One that was told and never begun has left no state.
            layout=self.layout if self.epoch else None,
            regroup_seconds=self._regroup_seconds,
            must_restore=self._must_restore,
            refused=self._refused,
        )
        try:
            decision = Decision(0, None) if self._must_restore else decide(survivors.stateful)
            if self.epoch and (decision.committed_step >= self._steps or self._has_completed):
                # Of a job that is done these are the ranks that slept while the others came to the end.
                is_last = decision.committed_step >= self._steps
                self._end({"type": "goodbye", "commit": decision.commit} if is_last else {"type": "goodbye"})
                return
            plan = plan_epoch(self._rules, survivors, decision, self._reason)
        except RuleBroken as error:
            if self._is_successor and self._evict_sleepers():
                self._proceed()
            else:
                self._fail(f"training cannot go on, and this is a bug of the runtime: {error}")
        except CannotGoOn as error:
            self._fail(f"training cannot go on: {error}")
        else:
            self._form(plan, survivors.costs)

    def _form(self, plan: Plan, costs: Costs) -> None:
        """Tell everybody the new epoch."""
        self.stage = Stage.FORMING
        self._rejoining = sorted(set(plan.members) - self._entered) if self.epoch else []
        self._resume_step = plan.decision.committed_step + 1
        self.members, self.layout = frozenset(plan.members), plan.layout
        self._must_restore = plan.restore is not None
        if plan.restore is not None or not self._lineage:
            # Checkpoints from before must not be completed by what is written from now on.
            self._lineage = os.urandom(8).hex()
        members = {rank: self._connected[rank] for rank in plan.members}
        orders = form_orders(plan, members, epoch=self.target, reason=self._reason, lineage=self._lineage)
        for rank, member in members.items():
            member.formed, member.status, member.epoch = None, "forming", self.target
            self._effects.send(rank, orders)
        step = plan.decision.committed_step or None
        self._effects.emit("layout", step=step, epoch=self.target, reason=self._reason, **layout_fields(plan, costs))
        if plan.restore is not None:
            for reason in self._rules.unfit_checkpoints(plan.restore.step):
                self._effects.emit("warning", message=f"newer checkpoint passed over: {reason}")
            self._effects.emit("checkpoint_restored", step=plan.restore.step, folder=plan.restore.folder)

    def _enter(self) -> None:
        """Every member is in: the new epoch has begun."""
        reports = [self._connected[rank].formed or {} for rank in self.members]
        self.epoch = self.target
        self._entered = self.members
        self.stage = Stage.TRAINING
        self._regroup_seconds = self._clock() - self._called_seconds
        self._must_restore = False
        self._retry_seconds = None
        self._deadline_seconds = self._clock() + REJOIN_GRACE_SECONDS if self._connected.newcomers() else None
        for rank in self.members:
            # The last step may be over before the last news of its epoch's beginning is here.
            if self._connected[rank].status != "finished":
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
        self._end_if_finished()

    # ---- the end ----

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._effects.emit("job_failed", reason=reason)
        self._end({"type": "stop", "reason": reason})

    def _end(self, message: Message) -> None:
        self.stage = Stage.ENDED
        self._deadline_seconds = self._retry_seconds = self._inquiry = None
        for rank in sorted({*self._connected, *self._cut_off}):
            self._effects.send(rank, message)

    def _tell_end(self, rank: int) -> None:
        self._effects.send(rank, {"type": "stop", "reason": self.failure} if self.failure else {"type": "goodbye"})
