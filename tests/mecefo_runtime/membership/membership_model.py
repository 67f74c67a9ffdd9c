"""A coordinator and its ranks without processes: messages in order on every connection, all else in any order.

The ranks do what `member` and `trainer` do, step by step, so that a schedule can stop them anywhere: between a message
and its answer, with gradients reduced and not applied, in an epoch that others have not entered. State is modelled by
its version: how many steps it has seen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from mecefo_runtime.comm.messages import (
    Evicted,
    Finished,
    Form,
    Formed,
    FromCoordinator,
    FromRank,
    Goodbye,
    Hello,
    Join,
    Parked,
    RankReport,
    Regroup,
    Stop,
    Trouble,
)
from mecefo_runtime.job.config import HealthConfig
from mecefo_runtime.job.contribution import Completion, ComputedPart, Contribution
from mecefo_runtime.job.layout import Cluster, Layout
from mecefo_runtime.job.step_report import HealthHistory, LateCommit, PartHealth, ReadyStep, StepStats, StepTotals
from mecefo_runtime.membership.member_table import Stage
from mecefo_runtime.membership.membership import Membership
from mecefo_runtime.planners import find
from mecefo_runtime.recovery.regroup import Rules
from mecefo_runtime.step.health import after_commit
from mecefo_runtime.system.record import Record
from tests.planning import COSTS, layout_of

CLUSTER = Cluster(nodes=2, gpus_per_node=2, data_parallel=2, pipeline=2, num_layers=4, num_microbatches=8)
HEARTBEAT_TIMEOUT_SECONDS = 2.0
HEARTBEAT_SECONDS = 0.25
END = object()


@dataclass(eq=False)
class Link:
    """One connection. A coordinator that dies takes along what it was sent, but not what it had sent."""

    rank: int
    up: deque = field(default_factory=deque)
    down: deque = field(default_factory=deque)
    is_accepted: bool = False
    coordinator: int = 0
    is_cut: bool = False


@dataclass(eq=False)
class Epoch:
    """What the members of one epoch share: nobody gets past a point that needs all of them before all are there."""

    members: tuple[int, ...]
    leader: int
    coordinator: int
    held: dict[int, dict[str, int]] = field(default_factory=dict)
    inside: dict[int, SimulatedRank] = field(default_factory=dict)
    reduced: dict[int, set[int]] = field(default_factory=dict)
    computed: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    contributed: dict[int, dict[int, bool]] = field(default_factory=dict)
    summed: set[int] = field(default_factory=set)

    def can_go_on(self) -> bool:
        return all(
            member in self.inside and self.inside[member].is_alive and self.inside[member].shared is self
            for member in self.members
        )


def totals_of(step: int) -> StepTotals:
    return StepTotals(float(step), StepStats(1.0, 1, 1, step))


class SimulatedRank:
    """One process of a rank: its connection, what the listening thread knows, and how far the training thread is."""

    def __init__(self, world: World, rank: int, attempt: int) -> None:
        self.world, self.rank, self.attempt = world, rank, attempt
        self.is_alive, self.is_hung, self.exit = True, False, None
        self.units: dict[str, int] = {}
        self.given_away: dict[str, int] = {}
        self.committed, self.totals, self.ready = 0, None, None
        self.reduced_in: Epoch | None = None
        self.layout: Layout | None = None
        self.members: tuple[int, ...] = ()
        self.status, self.state, self.parked_for = "fresh", "parked", None
        self.epoch = self.target = self.leave_for = 0
        self.must_leave = self.is_evicted = False
        self.history = HealthHistory()
        self.contribution: Contribution | None = None
        self.completion: Completion | None = None
        self.next_form = self.farewell = None
        self.shared: Epoch | None = None
        self.link: Link | None = None
        self.connect()

    # ---- the listening thread ----

    def connect(self) -> None:
        self.link = Link(self.rank)
        self.world.links.append(self.link)
        self.send(self.hello())

    def hello(self) -> Hello:
        is_done = isinstance(self.farewell, Goodbye)
        return Hello(self.rank, self.attempt, f"127.0.0.1:{self.rank}", self.report(), self.target, is_done)

    def send(self, message: FromRank) -> None:
        if self.link is not None and not self.link.is_cut:
            self.link.up.append(message)

    def report(self) -> RankReport:
        return RankReport(
            status=self.status,
            epoch=self.epoch,
            committed_step=self.committed,
            totals=self.totals,
            ready=self.ready,
            contribution=self.contribution,
            history=self.history,
            holdings=tuple(self.units),
            given_away=tuple(self.given_away),
            members=self.members,
            layout=self.layout,
        )

    def hear(self, message: object) -> None:
        match message:
            case Join(epoch):
                self.target = max(self.target, epoch)
            case Regroup(epoch):
                self.target = self.leave_for = max(self.target, epoch)
                self.must_leave = True
            case Form():
                self.next_form = (message, self.link.coordinator)
                self.target = max(self.target, message.epoch)
                if self.state != "parked":
                    self.leave_for, self.must_leave = self.target, True
            case Evicted():
                self.is_evicted = self.must_leave = True
            case Goodbye() | Stop():
                self.farewell = message
                self.must_leave = self.must_leave or isinstance(message, Stop)
            case _:
                assert message is END
                self.connect()

    # ---- the training thread ----

    def act(self) -> bool:
        """Go on by one move; False when there is none."""
        match self.state:
            case "parked":
                return self.park()
            case "forming":
                return self.form()
            case "training":
                return self.train()
        if self.farewell is not None or self.target > self.epoch:
            self.leave()
            return True
        return False

    def leave(self) -> None:
        self.shared, self.status, self.state, self.parked_for = None, "parked", "parked", None

    def give_up(self) -> None:
        """A peer is gone."""
        epoch = self.given.epoch
        self.leave()
        self.send(Trouble(epoch, "a peer is gone"))

    def park(self) -> bool:
        self.must_leave = False
        if self.farewell is not None:
            if isinstance(self.farewell, Goodbye):
                self.commit_late(self.farewell.commit)
            self.world.end(self, 0 if isinstance(self.farewell, Goodbye) else 1)
        elif self.is_evicted:
            self.units, self.given_away, self.layout, self.members = {}, {}, None, ()
            self.committed, self.totals, self.ready = 0, None, None
            self.contribution = self.completion = None
            self.history = HealthHistory()
            self.status, self.is_evicted, self.next_form = "fresh", False, None
            self.epoch = self.target = self.leave_for = 0
            self.send(self.hello())
        elif self.next_form is not None and self.next_form[0].epoch >= self.target:
            (given, coordinator), self.next_form = self.next_form, None
            self.commit_late(given.commit)
            self.state, self.given = "forming", given
            key = (coordinator, given.epoch)
            self.shared = self.world.epochs.setdefault(key, Epoch(given.members, given.leader, coordinator))
            self.shared.held[self.rank] = self.given_away | self.units
            self.shared.inside[self.rank] = self
        elif self.parked_for != self.target and self.target > self.epoch and not self.link.is_cut:
            self.send(Parked(self.target, self.report()))
            self.parked_for = self.target
        else:
            return False
        return True

    def form(self) -> bool:
        shared = self.shared
        if self.must_leave:
            self.leave()
        elif set(shared.held) >= set(shared.members):
            self.enter()
        elif not self.world.can_form(shared):
            self.give_up()
        else:
            return False
        return True

    def enter(self) -> None:
        given, shared = self.given, self.shared
        layout = given.layout
        held = dict(shared.held[self.rank])
        for transfer in given.transfers:
            if transfer.destination == self.rank:
                held[transfer.unit] = shared.held[transfer.source][transfer.unit]
        units = {unit: held.get(unit, 0) for unit in layout.units(self.rank)}
        assert set(units.values()) <= {given.resume_step - 1}, f"rank {self.rank} would train on old state: {units}"
        self.given_away = {unit: version for unit, version in shared.held[self.rank].items() if unit not in units}
        self.units, self.layout, self.members = units, layout, shared.members
        self.committed, self.status, self.state = given.resume_step - 1, "training", "training"
        self.keep(given.completion)
        self.epoch = given.epoch
        self.must_leave = self.leave_for > self.epoch
        if self.history.num_verdicts:
            assert self.history == given.history, f"rank {self.rank} judged by another history than its peers"
        self.history = given.history
        self.send(Formed(self.report(), 0.01, 0.0, 0))

    def keep(self, completion: Completion | None) -> None:
        place = self.layout.find(self.rank)
        self.completion = completion
        kept = () if completion is None or place is None else completion.kept_by(place[0].replica)
        if kept:
            assert self.contribution is not None, "told to keep what it does not have"
            assert (self.contribution.step, self.contribution.microbatches) == (self.committed + 1, kept)
        else:
            self.contribution = None

    def compute(self, step: int) -> tuple[int, ...]:
        """The rank's part of what its replica has to compute; returns what counts of it, if it is the last stage."""
        place = self.layout.find(self.rank)
        if place is None:
            return ()
        replica, span = place[0].replica, place[0].spans[place[1]]
        microbatches = tuple(self.layout.microbatches_of(replica))
        if self.completion is not None and self.completion.step == step:
            microbatches = self.completion.assigned.get(replica, ())
        known = self.contribution
        if known is None or known.step != step:
            known = Contribution(step, self.history.num_verdicts)
        self.contribution = replace(known, parts=(*known.parts, ComputedPart(microbatches, span)))
        return self.contribution.microbatches if span.end == self.layout.num_layers else ()

    def train(self) -> bool:
        """One move of the step: reduce, get all gradients, contribute, get the totals, apply."""
        shared, step = self.shared, self.committed + 1
        members = set(shared.members)
        if self.must_leave:
            self.leave()
        elif self.committed >= self.world.num_steps:
            self.status = self.state = "finished"
            self.send(Finished())
        elif self.rank not in shared.reduced.setdefault(step, set()):
            shared.computed.setdefault(step, []).append(self.compute(step))
            shared.reduced[step].add(self.rank)
        elif self.ready is None and shared.reduced[step] >= members:
            summed = sorted(index for microbatches in shared.computed[step] for index in microbatches)
            assert summed == list(range(CLUSTER.num_microbatches)), f"step {step} is the sum of {summed}"
            self.ready = ReadyStep(
                step,
                norms=dict.fromkeys(self.units, 0.25),
                stats=totals_of(step).stats if "head" in self.units else None,
                part=PartHealth(0.25),
            )
            self.reduced_in = shared
            shared.contributed.setdefault(step, {})[self.rank] = self.target > self.epoch
        elif self.ready is not None and self.ready.totals is None and self.knows_totals(step, members):
            shared.summed.add(step)
            self.ready = replace(self.ready, totals=totals_of(step))
        elif self.ready is not None and self.ready.totals is not None:
            self.apply(step, self.ready.totals)
            if all(shared.contributed[step][member] for member in members):
                self.leave()
        elif not shared.can_go_on():
            self.give_up()
        else:
            return False
        return True

    def knows_totals(self, step: int, members: set[int]) -> bool:
        shared = self.shared
        return step in shared.summed or (
            self.rank == shared.leader and set(shared.contributed.get(step, {})) >= members
        )

    def apply(self, step: int, totals: StepTotals) -> None:
        assert self.committed == step - 1 and set(self.units.values()) <= {step - 1}
        self.units = dict.fromkeys(self.units, step)
        self.given_away = {}
        self.committed, self.totals, self.ready = step, totals, None
        self.history = after_commit(HealthConfig(), self.history, totals)
        # Gradients of one epoch only: in another they are of other samples' sums, or the same work done again.
        assert self.world.applied.setdefault(step, self.reduced_in) is self.reduced_in, f"step {step} was done twice"

    def commit_late(self, commit: LateCommit | None) -> None:
        if commit is not None and self.ready is not None and self.committed < commit.step:
            assert self.ready.step == commit.step, "told to apply a step whose gradients it does not have"
            self.apply(commit.step, commit.totals)
        self.ready = None


class World:
    """A coordinator, its clock, its connections, and the ranks."""

    def __init__(self, strategy: str, num_steps: int) -> None:
        self.strategy, self.num_steps = strategy, num_steps
        self.now = 0.0
        self.links: list[Link] = []
        self.writers: dict[int, Link] = {}
        self.epochs: dict[tuple[int, int], Epoch] = {}
        self.applied: dict[int, Epoch | None] = {}
        self.exits: dict[int, tuple[int, int]] = {}
        self.news: deque[tuple[int, int, int]] = deque()
        self.coordinator_number = 0
        self.coordinator: Membership | None = None
        self.events: list[tuple[str, dict]] = []
        self.start_coordinator()
        self.ranks = {rank: SimulatedRank(self, rank, 1) for rank in range(CLUSTER.num_ranks)}

    # ---- Effects ----

    def send(self, rank: int, message: FromCoordinator) -> None:
        if rank in self.writers:
            self.writers[rank].down.append(message)

    def tell_snapshots(self, node: int, message: object) -> None:
        raise AssertionError("this job has no snapshots")

    def hang_up(self, rank: int) -> None:
        if rank in self.writers:
            self.cut(self.writers.pop(rank))

    def emit(self, record: Record, *, step: int | None = None) -> None:
        self.events.append((record.KIND, {"step": step, **record.to_fields()}))

    # ---- what can happen ----

    def start_coordinator(self) -> None:
        self.coordinator_number += 1
        self.coordinator = Membership(
            Rules(CLUSTER, find(self.strategy), takeover="direct"),
            self.num_steps,
            self,
            lambda: self.now,
            HEARTBEAT_TIMEOUT_SECONDS,
            predicted_costs=COSTS,
        )
        # Supervisors tell a new coordinator of all whose place nobody has taken yet.
        self.news = deque((rank, attempt, code) for rank, (attempt, code) in sorted(self.exits.items()))

    def kill_coordinator(self) -> None:
        self.coordinator = None
        self.writers.clear()
        self.news.clear()
        for link in list(self.links):
            if link.is_accepted:
                self.cut(link)

    def cut(self, link: Link) -> None:
        link.is_cut = True
        link.up.clear()
        link.down.append(END)

    def kill(self, rank: int) -> None:
        self.end(self.ranks[rank], -9)

    def end(self, rank: SimulatedRank, code: int) -> None:
        rank.is_alive, rank.exit, rank.shared = False, code, None
        rank.link.down.clear()
        if not rank.link.is_cut:
            rank.link.up.append(END)
        self.exits[rank.rank] = (rank.attempt, code)
        if self.coordinator is not None:
            self.news.append((rank.rank, rank.attempt, code))

    def start(self, rank: int) -> None:
        self.exits.pop(rank, None)
        self.ranks[rank] = SimulatedRank(self, rank, self.ranks[rank].attempt + 1)

    def tell_news(self) -> None:
        """A supervisor's report arrives."""
        if self.coordinator is None or not self.news:
            return
        rank, attempt, code = self.news.popleft()
        if code == 0:
            self.coordinator.on_completed()
        self.coordinator.on_lost(rank, "supervisor", attempt)

    def deliver_up(self, link: Link) -> None:
        """The coordinator reads one message."""
        if self.coordinator is None or link.is_cut or not link.up:
            return
        message = link.up.popleft()
        if not link.is_accepted:
            link.is_accepted, link.coordinator = True, self.coordinator_number
            if link.rank in self.writers:
                self.hang_up(link.rank)
            self.writers[link.rank] = link
        is_current = self.writers.get(link.rank) is link
        if message is END:
            link.is_cut = True
            if is_current:
                del self.writers[link.rank]
                self.coordinator.on_lost(link.rank, "connection")
        elif is_current:
            self.act_on(link.rank, message)

    def act_on(self, rank: int, message: FromRank) -> None:
        coordinator = self.coordinator
        coordinator.on_heard(rank)
        match message:
            case Hello():
                coordinator.on_hello(message)
            case Parked():
                coordinator.on_parked(rank, message)
            case Formed():
                coordinator.on_formed(rank, message)
            case Trouble():
                coordinator.on_trouble(rank, message)
            case Finished():
                coordinator.on_finished(rank)

    def deliver_down(self, rank: int) -> bool:
        """A rank reads one message."""
        process = self.ranks[rank]
        if not process.is_alive or process.is_hung or not process.link.down:
            return False
        process.hear(process.link.down.popleft())
        return True

    def pass_time(self, seconds: float) -> None:
        """Time passes; whoever is alive gives signs of life, and the coordinator wakes up when it wanted to."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + HEARTBEAT_SECONDS)
            if seconds >= HEARTBEAT_SECONDS / 2:
                for rank in self.ranks:
                    while self.deliver_down(rank):
                        pass
            if self.coordinator is None:
                continue
            for rank, link in list(self.writers.items()):
                if self.ranks[rank].is_alive and not self.ranks[rank].is_hung and self.ranks[rank].link is link:
                    self.coordinator.on_heard(rank)
            deadline = self.coordinator.next_deadline()
            if deadline is not None and deadline <= self.now:
                # What has arrived comes first.
                for link in list(self.links):
                    while link.up and not link.is_cut:
                        self.deliver_up(link)
                self.coordinator.tick()

    # ---- what must hold ----

    def can_form(self, epoch: Epoch) -> bool:
        """Whether those who are still missing in an epoch can come to it."""
        if epoch.coordinator != self.coordinator_number or self.coordinator is None:
            return False
        for member in epoch.members:
            process = self.ranks[member]
            has_left = member in epoch.held and process.shared is not epoch
            if not process.is_alive or process.is_hung or has_left or process.target > process.epoch != 0:
                return False
        return True

    def can_spare(self, rank: int) -> bool:
        """Whether every unit has a holder other than `rank` that is sure to be counted."""
        others = [r for r in self.ranks.values() if r.rank != rank and r.is_alive and not r.is_hung and r.layout]
        newest = max((process.committed for process in self.ranks.values()), default=0)
        # A sleeper that has woken up may not know yet that it is out.
        members = self.coordinator.members if self.coordinator is not None else frozenset(self.ranks)
        counted = [r for r in others if not r.is_evicted and r.rank in members and not (r.link and r.link.is_cut)]
        held = {unit for process in counted for unit in process.units}
        if not self.is_being_committed():
            held |= {unit for process in others for unit in process.given_away if process.committed == newest}
        started = any(process.layout for process in self.ranks.values()) or newest
        if not started:
            # There is no state yet, but somebody must be left to begin with.
            return any(r.is_alive and not r.is_hung for r in self.ranks.values() if r.rank != rank)
        return held >= set(layout_of(self.strategy, CLUSTER, range(CLUSTER.num_ranks)).holders())

    def is_being_committed(self) -> bool:
        """Whether all who are in the step in flight may have its gradients: then nobody needs what was given away."""
        ready = [process.ready is not None for process in self.ranks.values() if process.is_alive and process.layout]
        return all(ready)

    # ---- the end ----

    def settle(self, rounds: int = 2000) -> None:
        """Nothing more goes wrong: everybody does what there is to do until the job has ended."""
        if self.coordinator is None:
            self.start_coordinator()
        for process in self.ranks.values():
            process.is_hung = False
        for _ in range(rounds):
            self.links = [link for link in self.links if not link.is_cut or link.down]
            while self.news:
                self.tell_news()
            for link in list(self.links):
                while link.up and not link.is_cut:
                    self.deliver_up(link)
            for rank, process in self.ranks.items():
                while self.deliver_down(rank):
                    pass
                if process.is_alive:
                    process.act()
            if self.coordinator.stage is Stage.ENDED and not any(p.is_alive for p in self.ranks.values()):
                return
            self.pass_time(0.01)
        raise AssertionError(f"does not come to an end: {self.describe()}")

    def describe(self) -> str:
        ranks = [
            f"{p.rank}: {p.state} {p.status} epoch {p.epoch} target {p.target} committed {p.committed}"
            for p in self.ranks.values()
            if p.is_alive
        ]
        coordinator = self.coordinator
        return f"{coordinator.stage} epoch {coordinator.epoch} target {coordinator.target}; {'; '.join(ranks)}"
