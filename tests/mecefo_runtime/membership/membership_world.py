"""The coordinator's state machine with ranks that obey it at once; every message can be looked at, or made by hand."""

from __future__ import annotations

from collections.abc import Collection

from mecefo_runtime.checkpoint.durable import Durable
from mecefo_runtime.comm.messages import (
    Evicted,
    Form,
    Formed,
    FromCoordinator,
    Hello,
    Join,
    Parked,
    RankReport,
    RankStatus,
    Received,
    Regroup,
)
from mecefo_runtime.job.background import Background
from mecefo_runtime.job.config import QUALITIES
from mecefo_runtime.job.contribution import Completion, ComputedPart, Contribution
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Cluster, Layout
from mecefo_runtime.job.state_source import kind_of
from mecefo_runtime.job.step_report import PartHealth, ReadyStep, StepStats, StepTotals
from mecefo_runtime.membership.membership import Membership
from mecefo_runtime.planners import find, stops_on_loss
from mecefo_runtime.recovery.places import filling_places
from mecefo_runtime.recovery.regroup import Rules
from mecefo_runtime.snapshots.messages import ToSnapshotProcess
from mecefo_runtime.system.job_records import RatingsAgreed
from mecefo_runtime.system.record import Record
from tests.planning import COSTS

CLUSTER = Cluster(nodes=4, gpus_per_node=2, data_parallel=4, pipeline=2, num_layers=4, num_microbatches=16)
TOTALS = StepTotals(1.0, StepStats(1.0, 1, 1, 1))


class SimulatedRank:
    """What a rank would report; `phase_of_step` is how far it is in the step after `committed`."""

    def __init__(self, rank: int, attempt: int = 1) -> None:
        self.rank, self.attempt = rank, attempt
        self.committed = 0
        self.epoch = self.target = 0
        self.ready: int | None = None
        self.has_totals = False
        self.norm = 0.25
        self.layout: Layout | None = None
        self.units: tuple[str, ...] = ()
        self.distrusted: tuple[str, ...] = ()
        self.background = Background()
        self.lineage = ""
        self.members: tuple[int, ...] = ()
        self.status: RankStatus = "fresh"
        # What it has computed of the step after `committed`.
        self.contribution: Contribution | None = None

    def compute(self, *microbatches: int, num_verdicts: int = 0) -> None:
        """It has the gradients of these, in the layers that it holds."""
        assert self.layout is not None
        place = self.layout.find(self.rank)
        assert place is not None
        part = ComputedPart(microbatches, place[0].spans[place[1]])
        self.contribution = Contribution(self.committed + 1, num_verdicts, (part,))

    def hello(self) -> Hello:
        return Hello(self.rank, self.attempt, f"127.0.0.1:{self.rank}", self.report(), self.target)

    def report(self) -> RankReport:
        ready = None
        if self.ready is not None:
            ready = ReadyStep(
                self.ready,
                norms=dict.fromkeys(self.units, self.norm),
                stats=TOTALS.stats if "head" in self.units else None,
                part=PartHealth(self.norm, differs=bool(self.distrusted)),
                totals=TOTALS if self.has_totals else None,
            )
        return RankReport(
            status=self.status,
            epoch=self.epoch,
            committed_step=self.committed,
            totals=TOTALS if self.committed else None,
            ready=ready,
            contribution=self.contribution,
            holdings=tuple(unit for unit in self.units if unit not in self.missing()),
            distrusted=self.distrusted,
            lineage=self.lineage,
            members=self.members,
            layout=self.layout,
        )

    def keep(self, completion: Completion | None) -> None:
        """Of what it has computed, what counts; it must have that."""
        place = None if self.layout is None else self.layout.find(self.rank)
        kept = () if completion is None or place is None else completion.kept_by(place[0].replica)
        if not kept:
            self.contribution = None
            return
        assert completion is not None and self.contribution is not None, "told to keep what it does not have"
        assert (self.contribution.step, self.contribution.microbatches) == (completion.step, kept)

    def missing(self) -> set[str]:
        """What it was told to fetch and cannot have yet, and what it does not trust."""
        awaited = {s.unit for s in self.background.of(self.rank) if s.source is not None and s.step > self.committed}
        return awaited | set(self.distrusted)


def received_by(rank: int, form: Form) -> tuple[Received, ...]:
    """A byte for each piece that it is told to get."""
    kinds = [kind_of(piece.source) for piece in form.pieces if piece.destination == rank]
    return tuple(Received(kind, kinds.count(kind), kinds.count(kind), 0.5) for kind in sorted(set(kinds)))


class World:
    """A coordinator, its clock, and the ranks that obey it."""

    def __init__(
        self,
        strategy: str = "ndb",
        steps: int = 100,
        *,
        takeover: str = "direct",
        checkpoints: tuple[Durable, ...] = (),
        must_resume: bool = False,
        max_fruitless_restarts: int = 100,
        evicts_corrupt: bool = False,
        rating_origin: RatingsAgreed | None = None,
        has_snapshots: bool = False,
        protects_snapshots: bool = False,
        cluster: Cluster = CLUSTER,
        quality: str = "speed",
        other_quality: str | None = None,
    ) -> None:
        self.cluster = cluster
        self.quality, self.other_quality = QUALITIES[quality], other_quality
        self.has_snapshots, self.protects_snapshots = has_snapshots, protects_snapshots
        self.told_snapshots: list[tuple[int, ToSnapshotProcess]] = []
        self.rating_origin = rating_origin
        # What the ranks agree on where ratings lack something.
        self.agreed: Costs | None = None
        self.max_fruitless_restarts, self.evicts_corrupt = max_fruitless_restarts, evicts_corrupt
        self.takeover, self.checkpoints, self.must_resume = takeover, checkpoints, must_resume
        self.now = 0.0
        self.sent: list[tuple[int, FromCoordinator]] = []
        self.hung_up: list[int] = []
        self.forms: list[Form] = []
        self.events: list[tuple[str, dict]] = []
        self.ranks = {rank: SimulatedRank(rank) for rank in range(cluster.num_ranks)}
        self.strategy, self.steps = strategy, steps
        self.coordinator = self.new_coordinator()

    def new_coordinator(self, begun_epoch: int = 0) -> Membership:
        rules = Rules(
            self.cluster,
            filling_places(find(self.strategy)),
            takeover=self.takeover,
            degraded_share_limit=self.quality.degraded_share_limit,
            projected_share_limit=self.quality.projected_share_limit,
            other_quality=self.other_quality,
            newest_checkpoint=lambda refused: self._newest_checkpoint(refused),
            stops_on_loss=stops_on_loss(self.strategy),
            max_fruitless_restarts=self.max_fruitless_restarts,
            evicts_corrupt=self.evicts_corrupt,
            rating_origin=self.rating_origin,
            has_checkpoints=bool(self.checkpoints),
            has_snapshots=self.has_snapshots,
            protects_snapshots=self.protects_snapshots,
        )
        return Membership(
            rules,
            self.steps,
            self,
            lambda: self.now,
            2.0,
            predicted_costs=COSTS,
            must_resume=self.must_resume,
            begun_epoch=begun_epoch,
        )

    def _newest_checkpoint(self, refused: Collection[object]) -> Durable | None:
        return next((one for one in self.checkpoints if (one.version, one.source) not in refused), None)

    def send(self, rank: int, message: FromCoordinator) -> None:
        self.sent.append((rank, message))

    def tell_snapshots(self, node: int, message: ToSnapshotProcess) -> None:
        self.told_snapshots.append((node, message))

    def hang_up(self, rank: int) -> None:
        self.hung_up.append(rank)

    def emit(self, record: Record, *, step: int | None = None) -> None:
        self.events.append((record.KIND, {"step": step, **record.to_fields()}))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def last(self, kind: str) -> dict:
        return next(fields for name, fields in reversed(self.events) if name == kind)

    def start(self) -> None:
        for rank in self.ranks.values():
            self.coordinator.on_hello(rank.hello())
        self.obey()

    def obey(self) -> None:
        """Let every living rank do what it was last told, until nothing is left to do."""
        while self.sent:
            number, message = self.sent.pop(0)
            rank = self.ranks.get(number)
            if rank is None:
                continue
            match message:
                case Regroup() | Join():
                    rank.status, rank.target = "parked", message.epoch
                    self.coordinator.on_parked(number, Parked(message.epoch, rank.report()))
                case Form():
                    commit = message.commit
                    if commit is not None and rank.committed < commit.step and rank.layout is not None:
                        assert rank.ready == commit.step, "told to apply a step whose gradients it does not have"
                        rank.committed = commit.step
                    if rank.layout is not None and message.returns_to is None:
                        assert rank.committed == message.resume_step - 1, "a step was lost or repeated after its commit"
                    rank.layout = message.layout
                    rank.background = message.background
                    rank.units, rank.distrusted = rank.background.units(rank.layout, number), ()
                    rank.lineage = message.lineage
                    rank.members = message.members
                    rank.epoch = rank.target = message.epoch
                    rank.committed, rank.ready, rank.has_totals = message.resume_step - 1, None, False
                    rank.status = "training"
                    rank.keep(message.completion)
                    is_whole = message.ratings is None or message.ratings.commit_seconds is not None
                    agreed = None if is_whole else self.agreed
                    formed = Formed(rank.report(), 0.01, 0.0, 0, received_by(number, message), ratings=agreed)
                    self.forms.append(message)
                    self.coordinator.on_formed(number, formed)
                case Evicted():
                    fresh = self.ranks[number] = SimulatedRank(number, rank.attempt)
                    self.coordinator.on_hello(fresh.hello())

    def kill(self, *ranks: int, how: str = "supervisor") -> None:
        for rank in ranks:
            del self.ranks[rank]
            self.coordinator.on_lost(rank, how)
        self.pass_time(0.2)

    def pass_time(self, seconds: float) -> None:
        """Time passes, and every living rank gives signs of life."""
        for _ in range(round(seconds / 0.05)):
            self.now += 0.05
            for rank in self.ranks:
                self.coordinator.on_heard(rank)
            self.coordinator.tick()
        self.obey()

    def commit(self, step: int) -> None:
        for rank in self.ranks.values():
            rank.committed = step
        leader = self.ranks[min(self.ranks)]
        self.coordinator.on_committed(step)
        if leader.background and leader.background.last_step <= step:
            self.coordinator.on_background_done(leader.epoch)
            self.obey()
