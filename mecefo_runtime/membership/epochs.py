"""How an epoch is formed: members leave the previous one, are told the next one, and enter it.

A change goes through two stages: every member leaves the old epoch (*parks*: at once after a loss, at the next step
boundary for a rejoin) and reports what it has; then one message tells all of them the new layout, which state moves,
and whether the step in flight counts. The rule for that step is in `commit`, what the new layout is in `regroup`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from mecefo_runtime.comm.messages import Formed, Goodbye, Join, RankReport, Regroup, Stop
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout
from mecefo_runtime.job.snapshot_interval import Failures
from mecefo_runtime.job.state_source import (
    NOTHING_HELD,
    CheckpointSource,
    ParitySource,
    SnapshotSource,
    Source,
    Version,
    plan_pieces,
)
from mecefo_runtime.job.step_report import StepVerdict
from mecefo_runtime.membership.epoch_messages import form_message, layout_event
from mecefo_runtime.membership.member_table import Effects, Member, MemberTable, Stage
from mecefo_runtime.recovery.commit import Decision, decide, newest_history
from mecefo_runtime.recovery.kept_snapshots import KeptSnapshots
from mecefo_runtime.recovery.leaving import plan_leave
from mecefo_runtime.recovery.other_quality import OtherQuality
from mecefo_runtime.recovery.regroup import RegroupPlan, Rules, Survivors
from mecefo_runtime.recovery.rungs import totals
from mecefo_runtime.state.damaged_transfers import DamagedTransfers
from mecefo_runtime.system.job_records import (
    CheckpointRestored,
    Detected,
    Isolated,
    RatingsAgreed,
    Regrouped,
    Rejoined,
    SnapshotRestored,
)
from mecefo_runtime.system.json_values import to_json
from mecefo_runtime.system.run_records import Warned

DRAIN = "drain"
DRAINED = "the node of this rank is drained"
ALL_LOST = "every rank that held state was lost"


class Epochs:
    """The current epoch and the one that is to follow; the `MemberTable` knows who is connected.

    `number` and `target` are the numbers of both, the same while none follows. `members` and `layout` are those of
    the newer one once it has been told; `entered` is who was in the last one that began. `restore_reason`: the next
    one begins with stored state, for that reason, but from none of `refused`, which were found to be damaged.
    `damaged` is what arrived damaged since an epoch began. `kept` is what snapshot processes hold.
    """

    def __init__(
        self,
        rules: Rules,
        steps: int,
        connected: MemberTable,
        effects: Effects,
        clock: Callable[[], float],
        predicted_costs: Costs,
    ) -> None:
        self._rules = rules
        self._steps = steps
        self._connected = connected
        self._effects = effects
        self._clock = clock
        # Predicted until the first epoch is told; from then on those that its members agreed on.
        self._known_costs = predicted_costs
        self._called_seconds = clock()
        self._regroup_seconds = 0.0
        self._lineage = ""
        self._resume_step = 1
        self._rejoining: tuple[int, ...] = ()
        self._num_losses = 0
        self._first_told_seconds: float | None = None
        self.stage = Stage.GATHERING
        self.reason = "start"
        self.number = 0
        self.target = 0
        self.members: frozenset[int] = frozenset()
        self.entered: frozenset[int] = frozenset()
        self.layout: Layout | None = None
        # Until an epoch has begun with it: what ranks hold meanwhile is partly from before and partly from there.
        self.restore_reason: str | None = None
        self.refused: dict[tuple[Version, Source], str] = {}
        self.kept = KeptSnapshots()
        self.damaged = DamagedTransfers()
        # Ranks that are there, on nodes that will be taken away.
        self.leaving: set[int] = set()
        self._plan: RegroupPlan | None = None
        self._other_quality = OtherQuality(rules)

    @property
    def awaited(self) -> int:
        """The epoch that members' reports are about: the next one while it is being formed."""
        return self.target if self.stage is Stage.FORMING else self.number

    # ---- who has part in it ----

    def belongs(self, member: Member) -> bool:
        """Whether it has part in the epoch: it is in it, on its way into it, or in the one that was to follow.

        On its way, or in the older one: then nobody has trained in the newer one, which begins when all members are in.
        """
        return member.rank in self.members and max(member.epoch, member.target) >= self.number

    def survivors(self) -> list[int]:
        """The members that are still connected."""
        return self._connected.survivors(self.members)

    # ---- the call ----

    def call(self) -> Join | Regroup:
        """The message that calls a member out of its epoch."""
        if self.stage is Stage.JOINING:
            return Join(self.target, self.reason)
        # Who is in the way of others without being lost shows only in what goes wrong: then nobody waits for anything.
        lost = sorted(self.members.difference(self.survivors())) if self.reason == "loss" else ()
        return Regroup(self.target, self.reason, tuple(lost))

    def call_to_boundary(self, reason: str) -> None:
        """Let the members park at the next step boundary."""
        self._called_seconds = self._clock()
        self._call_for(Stage.JOINING, reason)

    def call_out(self, reason: str) -> None:
        """Let the members park at once."""
        if self.stage is not Stage.PARKING:
            self._called_seconds = self._clock()
        self._call_for(Stage.PARKING, reason)

    def _call_for(self, stage: Stage, reason: str) -> None:
        self.stage, self.reason = stage, reason
        self.number_next()
        for rank in self.survivors():
            self._effects.send(rank, self.call())

    def call_again(self) -> None:
        """Further ranks are lost: a member that drains its pipeline may be waiting for one of them."""
        self.reason = "loss"
        for rank in self.survivors():
            if self._connected[rank].parked_for != self.target:
                self._effects.send(rank, self.call())

    def are_all_parked(self) -> bool:
        """Whether every survivor has left its epoch for the one that is to follow."""
        return all(self._connected[rank].parked_for == self.target for rank in self.survivors())

    # ---- without a call ----

    def number_next(self) -> None:
        """Assign the number of the next epoch."""
        self.target = max(self.target, self.number) + 1

    def end_all(self, why: str | None, *, is_again: bool) -> None:
        """All ranks end, to be started again; the next epoch begins with stored state. `is_again`: they were ending.

        `why`: for what reason, None: as the strategy has it.
        """
        if not is_again:
            # Those who were lost will be back; the others never were away.
            self.entered &= frozenset(self._connected)
            is_anybody_left = any(member.status != "fresh" for member in self._connected.values())
            after_loss = "the strategy ends all ranks after a loss" if is_anybody_left else ALL_LOST
            self.restore_reason = why or after_loss
        self.stage, self.reason = Stage.GATHERING, "loss"
        self.members = frozenset()
        self._called_seconds = self._clock()

    def forget(self) -> None:
        """Reset to the state of a coordinator that has just started."""
        self.stage, self.reason = Stage.GATHERING, "loss"
        self.members = self.entered = frozenset()
        self.number = self.target = 0
        self.layout = None

    def resume(self, learned: RankReport) -> None:
        """Continue in the epoch that a member reported, as it knows it."""
        self.stage = Stage.TRAINING
        self.number = learned.epoch
        self.target = max([self.number, *(member.target for member in self._connected.values())])
        self.members = self.entered = frozenset(learned.members)
        self.layout = learned.layout
        self._lineage, self.restore_reason = learned.lineage, None

    # ---- the next one ----

    def form(self, *, has_completed: bool) -> Goodbye | None:
        """All survivors are parked: decide the step in flight, the layout and the transfers.

        Returns the final message if no epoch follows: the last step is committed, or a rank `has_completed`.

        Raises:
            mecefo_runtime.recovery.commit.RuleBroken: what the survivors report contradicts the rule.
            mecefo_runtime.recovery.regroup.CannotGoOn: no layout is possible, or state is lost for good.
        """
        if self.number and not self.leaving:
            self._effects.emit(Isolated(epoch=self.target))
        survivors = self._look_at_survivors()
        if self.restore_reason is not None:
            # Some may have gone back already, and others not: which step is in flight no longer matters.
            decision = Decision(0, history=newest_history(survivors.stateful))
        else:
            decision = decide(survivors.stateful, self._rules.health)
        if decision.judgement is not None and decision.judgement.verdict is not StepVerdict.COMMIT:
            step, reason = decision.committed_step + (decision.commit is None), decision.judgement.reason
            self._effects.emit(Warned(message=f"judged without a leader: {reason}"), step=step)
        if self.number and decision.committed_step >= self._steps and self._is_whole(survivors, decision):
            return Goodbye(decision.commit)
        if self.number and has_completed:
            # Of a job that is done these are the ranks that slept while the others came to the end.
            return Goodbye()
        self._tell(self._plan_leave(survivors, decision), survivors.costs)
        return None

    # ---- those who are asked to go ----

    @property
    def has_to_let_go(self) -> bool:
        """Whether members are leaving and no background transfer is in progress, so that they can be released."""
        is_fetching = self._plan is not None and bool(self._plan.background)
        return not is_fetching and not self.leaving.isdisjoint(self.members)

    def _plan_leave(self, survivors: Survivors, decision: Decision) -> RegroupPlan:
        """The next epoch, without those of the leaving who have nothing to give that others lack; they end now."""
        leave = plan_leave(self._rules, survivors, decision, self.reason)
        if leave.why_all_stay is not None:
            message = f"ranks {sorted(self.leaving)} are asked to go, and stay: {leave.why_all_stay}"
            self._effects.emit(Warned(message=message))
            self.leaving.clear()
        # Said before `isolated`: it is what everybody has parked for.
        self.dismiss(leave.dismissed)
        if survivors.leaving and self.number:
            self._effects.emit(Isolated(epoch=self.target))
        return leave.plan

    def dismiss(self, ranks: Collection[int]) -> None:
        """Release the leaving `ranks`."""
        if ranks:
            self._effects.emit(Detected(epoch=self.number, lost=tuple(sorted(ranks)), how=DRAIN))
        for rank in sorted(ranks):
            del self._connected[rank]
            self.leaving.discard(rank)
            self._effects.send(rank, Stop(DRAINED))
            self._effects.hang_up(rank)

    def _is_whole(self, survivors: Survivors, decision: Decision) -> bool:
        """Whether the survivors have all parameters after the last step."""
        if not self._rules.shards_optimizer:
            return True
        held = {unit for report in survivors.stateful.values() for unit in report.holdings}
        return decision.commit is None and self.layout is not None and held >= set(self.layout.holders())

    def _look_at_survivors(self) -> Survivors:
        newcomers = self._connected.newcomers() if self.number else sorted(self._connected)
        return Survivors(
            reports={rank: self._connected[rank].report for rank in self.survivors()},
            newcomers=tuple(newcomers),
            costs=self._connected.costs() or self._known_costs,
            # One that was told and never begun has left no state.
            layout=self.layout if self.number else None,
            regroup_seconds=self._regroup_seconds,
            restore_reason=self.restore_reason,
            refused=self.refused,
            snapshots=self.kept.offers(self.refused),
            newer_snapshots=self.kept.offers(self.refused, are_agreed=False),
            damaged=self.damaged,
            agreed=self.kept.newest_agreed,
            no_snapshot=self.kept.why_no_snapshot() if self._rules.has_snapshots else None,
            no_parity=self.kept.why_no_parity(),
            leaving=frozenset(self.leaving & set(self._connected)),
        )

    def _tell(self, plan: RegroupPlan, costs: Costs) -> None:
        """Tell everybody the new epoch."""
        self.stage = Stage.FORMING
        self._rejoining = tuple(sorted(set(plan.members) - self.entered)) if self.number else ()
        self._resume_step = plan.decision.committed_step + 1
        self.members, self.layout = frozenset(plan.members), plan.layout
        self._plan, self.restore_reason = plan, plan.passed_over.get("peer") if plan.returns_to is not None else None
        if plan.returns_to is not None or not self._lineage:
            # What was saved before must not be completed by what is saved from now on.
            self._lineage = os.urandom(8).hex()
        members = {rank: self._connected[rank] for rank in plan.members}
        message = form_message(
            plan,
            members,
            epoch=self.target,
            reason=self.reason,
            lineage=self._lineage,
            # Where all ranks end after a loss, nobody is left then to say how far the job had come.
            tells_commits=self._rules.stops_on_loss or self._rules.has_checkpoints or self._rules.has_snapshots,
            ratings=None if self._rules.rating_origin is None else costs,
            snapshot_processes=self._processes_of(plan.members),
            failures=self._count_failures(),
        )
        self._known_costs = costs
        self._connected.agree_on(costs)
        for rank, member in members.items():
            member.formed, member.status, member.epoch = None, "forming", self.target
            self._effects.send(rank, message)
        step = plan.decision.committed_step or None
        self._effects.emit(layout_event(plan, self._rules.cluster, costs, message), step=step)
        if plan.stored_sources:
            self._tell_restore(plan, plan.decision.committed_step)

    def _processes_of(self, members: Sequence[int]) -> dict[int, str]:
        """Where the snapshots of `members` are kept: of a node without any, nothing of the next one will be."""
        nodes = {self._rules.cluster.node_of(rank) for rank in members}
        return {node: address for node, address in self.kept.addresses.items() if node in nodes}

    def is_whole(self, version: Version) -> bool:
        """Whether snapshots hold all the state that this epoch needs at `version`."""
        offers = [one for one in self.kept.offers(self.refused) if one.version == version]
        return self.layout is not None and not plan_pieces(self.layout, offers, NOTHING_HELD)[1]

    def _count_failures(self) -> Failures:
        """What has been lost since the first epoch that this coordinator told."""
        if self._first_told_seconds is None:
            self._first_told_seconds = self._clock()
        self._num_losses += self.reason == "loss"
        return Failures(self._num_losses, self._clock() - self._first_told_seconds)

    def _tell_restore(self, plan: RegroupPlan, step: int) -> None:
        folders = [source.folder for source in plan.stored_sources if isinstance(source, CheckpointSource)]
        if folders:
            for reason in self._rules.rejected_checkpoints(step):
                self._effects.emit(Warned(message=f"newer checkpoint passed over: {reason}"))
            self._effects.emit(CheckpointRestored(folder=folders[0]), step=step)
        else:
            sources = plan.stored_sources
            nodes = {source.node for source in sources if isinstance(source, SnapshotSource)}
            rebuilt = {source.lost_node for source in sources if isinstance(source, ParitySource)}
            self._effects.emit(
                SnapshotRestored(nodes=tuple(sorted(nodes)), rebuilt_nodes=tuple(sorted(rebuilt))), step=step
            )

    def refuse(self, source: Source, error: str) -> None:
        """A member found that `source`, from which the epoch was to start, is damaged or gone."""
        # Of this version: what is saved there from now on is another one.
        if self._plan is not None:
            version = self._plan.returns_to or Version(self._plan.decision.committed_step, self._lineage)
            self.refused[version, source] = error

    # ---- its beginning ----

    def are_all_in(self) -> bool:
        """Whether every member has formed it. One that is lost is still one until the regroup begins."""
        return all(rank in self._connected and self._connected[rank].formed is not None for rank in self.members)

    def are_all(self, status: str) -> bool:
        """Whether every member is connected and has this status."""
        return all(rank in self._connected and self._connected[rank].status == status for rank in self.members)

    def begin(self) -> None:
        """Every member is in: the new epoch has begun."""
        reports = [formed for rank in self.members if (formed := self._connected[rank].formed) is not None]
        self.stage = Stage.TRAINING
        is_first = not self.number
        self._learn_ratings(reports, is_first=is_first)
        self.number = self.target
        self.entered = self.members
        self._regroup_seconds = self._clock() - self._called_seconds
        self.restore_reason = None
        self.damaged = DamagedTransfers()
        for rank in self.members:
            # The last step may be over before the last news of its epoch's beginning is here.
            if self._connected[rank].status != "finished":
                self._connected[rank].status = "training"
        self._effects.emit(self._regrouped(reports, is_first=is_first), step=self._resume_step - 1 or None)
        if self._rejoining:
            self._effects.emit(Rejoined(epoch=self.number, ranks=self._rejoining), step=self._resume_step - 1)
        self._predict_other_quality()

    def _predict_other_quality(self) -> None:
        """Log what another quality would have led to: only now, because planning delays no member that trains."""
        planned = self._other_quality.plan(self.number, self.members - self.leaving, self._known_costs)
        if planned is not None:
            self._effects.emit(planned, step=self._resume_step - 1 or None)

    def _regrouped(self, reports: Sequence[Formed], *, is_first: bool) -> Regrouped:
        """The event of the new epoch, with the sources of its state unless the job begins with it."""
        regrouped = Regrouped(
            epoch=self.number,
            reason=self.reason,
            members=tuple(sorted(self.members)),
            group_seconds=max(report.group_seconds for report in reports),
            transfer_seconds=max(report.transfer_seconds for report in reports),
            transfer_bytes=max(report.transfer_bytes for report in reports),
        )
        plan = self._plan
        if plan is None or (is_first and plan.returns_to is None):
            return regrouped
        sources = totals(report.received for report in reports)
        return Regrouped(**regrouped.given(), rung=plan.rung, sources=sources, passed_over=dict(plan.passed_over))

    def _learn_ratings(self, reports: Sequence[Formed], *, is_first: bool) -> None:
        """What the members agreed on on their way in stands for the rest of the job."""
        if self._rules.rating_origin is None:
            return
        agreed = next((report.ratings for report in reports if report.ratings is not None), None)
        if agreed is not None:
            self._known_costs = agreed
            self._connected.agree_on(agreed)
        if is_first:
            origin = self._rules.rating_origin.given()
            self._effects.emit(RatingsAgreed(**origin, costs=to_json(self._known_costs)))
