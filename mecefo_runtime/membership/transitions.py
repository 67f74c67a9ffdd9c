"""From one stage into the next: what losses, newcomers, answers and deadlines make of the epoch.

Each part knows only its own subject: `epochs` how an epoch is formed, `gathering` what a coordinator must know
before, `connectivity` which ranks are evicted when links are cut, `restart` how a job without takeover restarts. This
module says in which stage each of them applies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from mecefo_runtime.comm.messages import Evicted, Goodbye, Stop
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.membership.connectivity import Connectivity, Pair
from mecefo_runtime.membership.epochs import ALL_LOST, DRAIN, Epochs
from mecefo_runtime.membership.gathering import Gathering, GatheringOutcome
from mecefo_runtime.membership.member_table import Effects, Member, MemberTable, Stage
from mecefo_runtime.membership.pending_losses import PendingLosses
from mecefo_runtime.membership.restart import Restart
from mecefo_runtime.recovery.commit import RuleBroken
from mecefo_runtime.recovery.regroup import CannotGoOn, NeedsAllRanks, Rules, newest_said
from mecefo_runtime.system.job_records import CoordinatorRestarted, Detected, JobFailed
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.run_records import Warned

# The ranks of a repaired node come up one after another.
REJOIN_GRACE_SECONDS = 0.5
# How long an epoch of all ranks that were started waits for snapshot processes, once all ranks are there.
SNAPSHOTS_TIMEOUT_SECONDS = 10.0


class Transitions:
    """The stages of one coordinator. Whoever tells it of something calls `proceed` then, and `tick` when it is due.

    `connected` are the ranks that are there, `silent` are members that are lost and may well live: nobody told of their
    end. `retry_seconds`: when to form the epoch again, None: it is whole. See `Membership` for the other arguments.
    """

    def __init__(
        self,
        rules: Rules,
        steps: int,
        effects: Effects,
        clock: Callable[[], float],
        heartbeat_timeout_seconds: float,
        predicted_costs: Costs,
        *,
        must_resume: bool,
        begun_epoch: int,
    ) -> None:
        self._rules = rules
        self._cluster = rules.cluster
        self._effects = effects
        self._clock = clock
        self._heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self.connected = MemberTable()
        self.silent: set[int] = set()
        self.losses = PendingLosses(rules.cluster)
        self.links = Connectivity(self.connected, effects, clock, heartbeat_timeout_seconds)
        self.gathering = Gathering(rules.cluster.num_ranks, clock, heartbeat_timeout_seconds, begun_epoch)
        self.restart = Restart(rules.cluster.num_ranks, rules.max_fruitless_restarts, self.connected, effects)
        self.epochs = Epochs(rules, steps, self.connected, effects, clock, predicted_costs)
        self.epochs.restore_reason = "the job begins with what was saved before" if must_resume else None
        self.epochs.reason = "loss" if begun_epoch else "start"
        self._is_successor = False
        self._rejoin_seconds: float | None = None
        self._snapshots_seconds: float | None = None
        self.retry_seconds: float | None = None
        self.failure: str | None = None

    # ---- what is due ----

    def tick(self) -> None:
        """Do what is due by now; all that has arrived must have been told before."""
        self._lose_silent()
        now = self._clock()
        if self.epochs.stage is Stage.GATHERING and _is_due(self.gathering.deadline_seconds, now):
            self._act_on(self.gathering.look_at_deadline())
        if _is_due(self._rejoin_seconds, now):
            self._rejoin_seconds = None
            if self.epochs.stage is Stage.TRAINING and self.connected.newcomers():
                self.epochs.call_to_boundary("rejoin")
        if _is_due(self.retry_seconds, now):
            self.regroup("retry")
        if _is_due(self.links.deadline_seconds, now):
            self._conclude_check(is_due=True)
        self.proceed()

    def next_deadline(self) -> float | None:
        """When `tick` should be called at the latest, in the clock's seconds."""
        due = [member.last_heard_seconds + self._heartbeat_timeout_seconds for member in self.connected.values()]
        gathering_seconds = self.gathering.deadline_seconds if self.epochs.stage is Stage.GATHERING else None
        # Once it is past, what is lacking is something else, for which nobody has to be woken again and again.
        is_waiting = self._snapshots_seconds is not None and self._snapshots_seconds > self._clock()
        snapshots_seconds = self._snapshots_seconds if is_waiting else None
        losses_seconds = self.losses.deadline_seconds() if self.losses else None
        others = (gathering_seconds, snapshots_seconds, self._rejoin_seconds, self.retry_seconds, losses_seconds)
        due += [seconds for seconds in (*others, self.links.deadline_seconds) if seconds is not None]
        return min(due, default=None)

    def proceed(self) -> None:
        """Do what is due, as far as it does not depend on ranks that have not reported."""
        if self.losses and (self.losses.are_settled(self.connected) or self._clock() >= self.losses.deadline_seconds()):
            self.losses.clear()
            self._after_loss()
        self._conclude_check(is_due=False)
        self._advance()

    def _advance(self) -> None:
        """Take the next step if what it waits for is there."""
        if self.epochs.stage is Stage.GATHERING:
            if not self.restart.is_under_way:
                outcome = self.gathering.look(self.connected, has_losses=bool(self.losses))
                if outcome is not GatheringOutcome.NEW or not self._awaits_snapshots():
                    self._act_on(outcome)
            elif not self.losses and self.restart.is_complete() and not self._awaits_snapshots():
                self.restart.is_under_way = False
                self.epochs.number_next()
                self._decide()
        elif self.epochs.stage is Stage.TRAINING:
            newcomers = self.connected.newcomers()
            nodes = {self._cluster.node_of(rank) for rank in newcomers}
            whole = all(rank in self.connected for node in nodes for rank in self._cluster.ranks_of(node))
            if newcomers and whole:
                self._rejoin_seconds = None
                self.epochs.call_to_boundary("rejoin")
        elif self.epochs.stage in (Stage.PARKING, Stage.JOINING) and not self.losses and self.epochs.are_all_parked():
            self._decide()

    # ---- losses ----

    def _lose_silent(self) -> None:
        for rank in self.connected.take_silent(self._clock(), self._heartbeat_timeout_seconds):
            self.silent.add(rank)
            self.lose(rank, "heartbeat")
            # Should it wake up, it must find out that it is out, by having to say hello again.
            self._effects.hang_up(rank)

    def _conclude_check(self, *, is_due: bool) -> None:
        result = self.links.conclude(self.epochs.members, is_due=is_due)
        if result is None:
            return
        for rank in result.evicted:
            self.lose(rank, "peers", result.severed)
            self.links.send_away(rank, self.epochs.number, result.severed)
        if result.evicted:
            self.proceed()
        elif result.must_regroup:
            self.regroup("retry")

    def lose(self, rank: int, how: str, severed: Collection[Pair] = ()) -> None:
        """`rank` is there no more, as `how` says; for `peers` because of the `severed` pairs."""
        member = self.connected.pop(rank, None)
        self.epochs.leaving.discard(rank)
        if self.restart.is_under_way:
            self.epochs.entered -= {rank}
        elif self.epochs.stage is Stage.GATHERING:
            self.gathering.absent.add(rank)
        if member is None or self.epochs.stage is Stage.ENDED:
            return
        if rank in self.epochs.members or self.epochs.stage is Stage.GATHERING:
            self.losses.add(rank, how, self._clock())
            self.restart.on_lost(rank, severed)
            cut = tuple(tuple(pair) for pair in severed if rank in pair)
            self._effects.emit(Detected(epoch=self.epochs.number, lost=(rank,), how=how, cut_links=cut))

    def end_early(self, rank: int, attempt: int | None) -> None:
        """A process of `rank` has ended that is not there, while ranks are gathered."""
        if attempt is not None:
            self.restart.on_end(rank, attempt)
        if not self.restart.is_under_way:
            self.gathering.absent.add(rank)
            self.proceed()
        elif (reason := self.restart.early_end_reason()) is not None:
            self._give_up(reason)

    def _after_loss(self) -> None:
        if self.epochs.stage in (Stage.TRAINING, Stage.JOINING, Stage.FORMING) or self.restart.is_under_way:
            self.regroup("loss")
        elif self.epochs.stage is Stage.PARKING:
            self.epochs.call_again()

    def evict(self, member: Member) -> None:
        """A rank of an old epoch must not harm the new one: it starts over as a new rank."""
        self.connected.pop(member.rank, None)
        self._effects.send(member.rank, Evicted(self.epochs.number))

    # ---- out of gathering ----

    def _awaits_snapshots(self) -> bool:
        """Whether the first epoch, of the job or after all its ranks ended, has to wait for snapshot processes.

        Whoever is not known when it is told takes no part in protecting what it keeps.
        """
        num_missing = self._rules.cluster.nodes - len(self.epochs.kept.by_node)
        if not self._rules.has_snapshots or self.gathering.begun_epoch or num_missing <= 0:
            return False
        if self._snapshots_seconds is None:
            self._snapshots_seconds = self._clock() + SNAPSHOTS_TIMEOUT_SECONDS
        if self._clock() < self._snapshots_seconds:
            return True
        self._snapshots_seconds = None
        message = f"{num_missing} nodes have no snapshot process yet: until the next epoch begins they protect nothing"
        self._effects.emit(Warned(message=message))
        return False

    def _act_on(self, outcome: GatheringOutcome) -> None:
        if outcome is GatheringOutcome.NEW:
            self._start()
        elif outcome is GatheringOutcome.EPOCH:
            self._resume()
        elif outcome is GatheringOutcome.END:
            self._end(Goodbye())
        elif outcome is GatheringOutcome.TOO_FEW:
            self._fail("ranks_missing", self.gathering.failure_reason(self.connected))

    def _start(self) -> None:
        """Nobody was in an epoch when it said hello: the first one begins, or everybody who held state is lost."""
        self.epochs.target = max((member.target for member in self.connected.values()), default=0)
        # A launcher that starts all ranks again starts a coordinator with them, which knows of nothing.
        if self.gathering.begun_epoch > 0 or self.epochs.kept.offers():
            self.epochs.restore_reason = ALL_LOST
        if self.gathering.has_completed:
            self._end(Goodbye())
        elif self.epochs.target:
            # They had been told an epoch, and may be in it by now: a coordinator has died over it.
            on_their_way = (rank for rank, member in self.connected.items() if member.status != "fresh")
            self.epochs.members = frozenset(on_their_way)
            self.regroup("start")
        else:
            self.epochs.target = self.gathering.begun_epoch + 1
            self._decide()

    def _resume(self) -> None:
        """A restarted coordinator knows enough: go on where the ranks are."""
        assert self.gathering.learned is not None
        self.epochs.resume(self.gathering.learned)
        self._is_successor = True
        self._effects.emit(CoordinatorRestarted(epoch=self.epochs.number, members=tuple(sorted(self.epochs.members))))
        for member in list(self.connected.values()):
            if member.status != "fresh" and not self.epochs.belongs(member):
                self.evict(member)
        survivors = self.epochs.survivors()
        missing = sorted(self.epochs.members - set(survivors))
        for rank in missing:
            self._effects.emit(Detected(epoch=self.epochs.number, lost=(rank,), how="heartbeat"))
        if missing or any(self.connected[rank].has_left for rank in survivors):
            self.regroup("loss" if missing else "retry")
        else:
            self.end_if_finished()
        if self.connected.newcomers():
            self._rejoin_seconds = self._clock() + REJOIN_GRACE_SECONDS
        self._advance()

    def _begin_again(self) -> None:
        """Nobody is heard of any more, and some may live: it is we who are cut off, and they go on training.

        So we wait for them as whoever is started in our place would, who learns from their hellos where they are.
        """
        nobody = f"nobody of {sorted(self.epochs.members)} is heard of any more"
        self._effects.emit(Warned(message=f"{nobody}: the coordinator may be cut off, and waits"))
        self.gathering.begin_again(self.epochs.number)
        self.epochs.forget()
        self._is_successor = False
        self.silent.clear()
        self.losses.clear()
        self._stop_waiting()

    # ---- into the next epoch ----

    def await_neighbours(self) -> None:
        """A new rank has connected: wait for the others of its node."""
        if self.epochs.stage is Stage.TRAINING and self._rejoin_seconds is None:
            self._rejoin_seconds = self._clock() + REJOIN_GRACE_SECONDS

    def enter(self) -> None:
        """Every member is in the new epoch."""
        self.retry_seconds = None
        self._rejoin_seconds = self._clock() + REJOIN_GRACE_SECONDS if self.connected.newcomers() else None
        self.epochs.begin()
        self.end_if_finished()
        self.let_go()

    def let_go(self) -> None:
        """Leaving ranks hand over their state at the next step boundary, and are released at the one after it."""
        if self.epochs.stage is Stage.TRAINING and self.epochs.has_to_let_go:
            self.epochs.call_to_boundary(DRAIN)

    def regroup(self, reason: str) -> None:
        """The members cannot continue in this epoch: call them out of it, or end them all if the strategy does so."""
        is_broken = reason == "loss" or (reason == "retry" and self.epochs.stage is not Stage.FORMING)
        self._stop_waiting()
        if self._rules.stops_on_loss and is_broken:
            self._start_again()
        else:
            self.epochs.call_out(reason)

    def _start_again(self, why: str | None = None) -> None:
        if (reason := self.restart.failure_reason()) is not None:
            self._give_up(reason)
            return
        self._stop_waiting()
        self._snapshots_seconds = None
        self.epochs.end_all(why, is_again=self.restart.is_under_way)
        self.restart.begin(self.epochs.number, self.links.cut_off)
        self.losses.clear()
        self.gathering.begin_anew()

    def _give_up(self, reason: str) -> None:
        self.restart.is_under_way = False
        newest = newest_said(self._rules, self.epochs.refused) or ". There is no checkpoint"
        self._fail("restart_failed", f"{reason}{newest}")

    def _stop_waiting(self) -> None:
        """Whatever this epoch was waited for is over."""
        self._rejoin_seconds = self.retry_seconds = None
        self.links.drop()

    def _decide(self) -> None:
        """All survivors are parked: let the next epoch be formed, if there is to be one."""
        has_completed = self.gathering.has_completed
        if self._rules.stops_on_loss and len(self.connected.keys() - self.epochs.leaving) < self._cluster.num_places:
            self.epochs.dismiss(self.epochs.leaving)
            self._start_again()
            return
        if not self.connected and self.silent & self.epochs.members and not has_completed:
            self._begin_again()
            return
        if not self.connected and not has_completed and self._is_state_kept():
            # Nobody is left who could take over, but what they had is.
            self._start_again()
            return
        try:
            farewell = self.epochs.form(has_completed=has_completed)
        except RuleBroken as error:
            if not (self._is_successor and self._evict_sleepers()):
                self._fail("runtime_bug", f"a bug of the runtime: {error}")
            else:
                self.proceed()
        except NeedsAllRanks as error:
            if self._is_state_kept():
                self._start_again(str(error))
            else:
                said = f"{error}. There is no snapshot and no checkpoint to start again from"
                self._fail("nothing_to_start_from", said)
        except CannotGoOn as error:
            self._fail("cannot_go_on", str(error))
        else:
            if farewell is not None:
                self._end(farewell)

    def _is_state_kept(self) -> bool:
        try:
            refused = self.epochs.refused
            return bool(self.epochs.kept.offers(refused)) or self._rules.newest_checkpoint(refused) is not None
        except CannotGoOn:
            # Another job's: the attempt to go on says so.
            return False

    def _evict_sleepers(self) -> bool:
        sleepers = self.connected.sleepers(self.epochs.members)
        for member in sleepers:
            self.evict(member)
        return bool(sleepers)

    # ---- the end ----

    def end_if_finished(self) -> None:
        """The job is done when every member has committed the last step."""
        if self.epochs.stage in (Stage.TRAINING, Stage.JOINING) and self.epochs.are_all("finished"):
            self._end(Goodbye())

    def _fail(self, code: str, reason: str) -> None:
        """End the job; `code` is one of `harness.analysis.job_failures`."""
        self.failure = reason
        self._effects.emit(JobFailed(reason=reason, why=Reason(code, sentence=reason)))
        self._end(Stop(reason))

    def _end(self, message: Goodbye | Stop) -> None:
        self.epochs.stage = Stage.ENDED
        self._stop_waiting()
        for rank in sorted({*self.connected, *self.links.cut_off}):
            self._effects.send(rank, message)

    def tell_end(self, rank: int) -> None:
        """`rank` connects after the end of the job: tell it the outcome."""
        self._effects.send(rank, Stop(self.failure) if self.failure else Goodbye())


def _is_due(deadline_seconds: float | None, now_seconds: float) -> bool:
    return deadline_seconds is not None and now_seconds >= deadline_seconds
