"""The messages between ranks, supervisors and the coordinator: one frozen dataclass each (`system.wire_messages`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mecefo_runtime.job.background import Background
from mecefo_runtime.job.contribution import Completion, Contribution
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import Layout, Transfer
from mecefo_runtime.job.protection import SnapshotOffers
from mecefo_runtime.job.share import Share
from mecefo_runtime.job.snapshot_interval import NO_FAILURES, Failures
from mecefo_runtime.job.state_source import Piece, Source, SourceKind, Version, transfers
from mecefo_runtime.job.step_report import NO_HISTORY, HealthHistory, LateCommit, ReadyStep, StepTotals
from mecefo_runtime.system.wire import Message
from mecefo_runtime.system.wire_messages import reader
from mecefo_runtime.system.wire_messages import to_wire as to_wire

RankStatus = Literal["fresh", "forming", "training", "parked", "finished"]


@dataclass(frozen=True, slots=True)
class RankReport:
    """The state that a rank holds; the defaults are those of a rank that has just started.

    `committed_step` is the last one that it applied, with its `totals`; `ready` is one that it could apply. Units in
    `given_away` moved to other ranks in the last regroup, and have no gradients here. `distrusted` ones differ from the
    peers', and count neither as held nor as given away. With a sharded optimizer it has all parameters of its
    `holdings`; `shares` says of which part of each unit it has parameters and moments, and `given_away_shares` of which
    it had before the last regroup.
    """

    status: RankStatus = "fresh"
    epoch: int = 0
    committed_step: int = 0
    totals: StepTotals | None = None
    ready: ReadyStep | None = None
    contribution: Contribution | None = None
    history: HealthHistory = NO_HISTORY
    holdings: tuple[str, ...] = ()
    given_away: tuple[str, ...] = ()
    distrusted: tuple[str, ...] = ()
    shares: Mapping[str, Share] = field(default_factory=dict)
    given_away_shares: Mapping[str, tuple[Share, ...]] = field(default_factory=dict)
    is_background_done: bool = False
    members: tuple[int, ...] = ()
    lineage: str = ""
    layout: Layout | None = None

    @property
    def is_stateless(self) -> bool:
        """Whether it has never been in an epoch."""
        return self.layout is None


# ---- from a rank to the coordinator ----


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank registers. `target` is the newest epoch that it has been called to, `address` is where peers reach it.

    `is_done`: it knows that the job has ended. `is_cut_off`: it was evicted because of its links, and cannot rejoin
    yet. `costs` are what it measured, `nccl_device` is the GPU on which it can use NCCL. `snapshots` are those that a
    starting rank found in the memory of its node.
    """

    rank: int
    attempt: int
    address: str
    report: RankReport
    target: int = 0
    is_done: bool = False
    is_cut_off: bool = False
    costs: Costs | None = None
    nccl_device: str | None = None
    snapshots: SnapshotOffers | None = None


@dataclass(frozen=True, slots=True)
class Alive:
    """A heartbeat."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A rank has left its epoch for `epoch`."""

    epoch: int
    report: RankReport


@dataclass(frozen=True, slots=True)
class Received:
    """How much state a rank received from sources of one `kind`."""

    kind: SourceKind
    num_pieces: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Formed:
    """A rank is in a new epoch, which its `report` names, with its state.

    `bytes_per_second` is what it measured there, `ratings` what all members agreed on where some were still missing.
    `received` says from where its state came, as far as it did not have it.
    """

    report: RankReport
    group_seconds: float
    transfer_seconds: float
    transfer_bytes: int
    received: tuple[Received, ...] = ()
    bytes_per_second: float | None = None
    ratings: Costs | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """A rank has left `epoch` over an error.

    `refused` is a stored source whose state it found to be damaged or gone, `unreachable` are the peers that it cannot
    reach, `damaged` are units that arrived damaged, with the rank that sent each.
    """

    epoch: int
    error: str
    refused: Source | None = None
    unreachable: tuple[int, ...] = ()
    damaged: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PeersLost:
    """A rank, still in `epoch`, cannot reach these peers."""

    epoch: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Probed:
    """The answer to `Probe`: the other ranks that this rank cannot reach."""

    check: int
    unreachable: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CutOff:
    """A rank that was evicted because of its links asks which ranks it must reach before it may rejoin."""


@dataclass(frozen=True, slots=True)
class BackgroundDone:
    """The state that was fetched in the background of `epoch` has arrived."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """A rank's parameters differ from its peers', or are corrupted: it needs theirs."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """The members of `epoch` blame `rank` for steps that cannot be committed."""

    epoch: int
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A step is committed."""

    step: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A rank has committed the last step."""


@dataclass(frozen=True, slots=True)
class Put:
    """A rank publishes `value` (base64) for its peers."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Take:
    """A rank asks for the value of `key`."""

    key: str


FromRank = (
    Hello
    | Alive
    | Parked
    | Formed
    | Trouble
    | PeersLost
    | Probed
    | CutOff
    | BackgroundDone
    | Diverged
    | Unhealthy
    | Committed
    | Finished
    | Put
    | Take
)


# ---- from a supervisor to the coordinator, and to a supervisor from whoever runs the nodes ----


@dataclass(frozen=True, slots=True)
class SupervisorHello:
    """The supervisor of `node` registers."""

    node: int


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank's process has ended."""

    rank: int
    attempt: int
    has_ended_in_order: bool


@dataclass(frozen=True, slots=True)
class NodeLeaving:
    """The supervisor's node has been given notice that it will be preempted."""

    node: int


FromSupervisor = SupervisorHello | RankExited | NodeLeaving


@dataclass(frozen=True, slots=True)
class StartRank:
    """Start a process of a rank of this node, if none runs."""

    rank: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StopNode:
    """Stop the supervisor and the node's ranks."""


ToSupervisor = StartRank | StopNode


# ---- from the coordinator to a rank ----


@dataclass(frozen=True, slots=True)
class Join:
    """Park at the next step boundary for `epoch`."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Regroup:
    """Park for `epoch`: at once, or, who is in no pipeline of those `lost`, when its own is through with a microbatch.

    `lost` are all members of the present epoch that are gone; empty: everybody parks at once.
    """

    epoch: int
    reason: str
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """Form `epoch`, the same for all its members.

    First `commit` is applied by those who have yet to. `pieces` of state move before the epoch begins, `background`
    while it trains; with `returns_to` everybody goes back to that version, and gets all of it. `tells_commits`: the
    leader is to tell the coordinator of every committed step. `history` is what steps are judged by. `ratings` are the
    costs by which all of them pad their compute; None: each by what it takes. `snapshot_processes` are the addresses of
    those that are there, by node. `failures` are what the job has lost so far. `completion`: the first step
    was begun in the epoch before; what counts of it, and who computes the rest.
    """

    epoch: int
    members: tuple[int, ...]
    leader: int
    addresses: Mapping[int, str]
    layout: Layout
    resume_step: int
    device_way: str
    lineage: str
    reason: str
    pieces: tuple[Piece, ...] = ()
    background: Background = field(default_factory=Background)
    commit: LateCommit | None = None
    measure_transfer: bool = False
    tells_commits: bool = False
    returns_to: Version | None = None
    history: HealthHistory = NO_HISTORY
    ratings: Costs | None = None
    snapshot_processes: Mapping[int, str] = field(default_factory=dict)
    failures: Failures = NO_FAILURES
    completion: Completion | None = None

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The pieces that one rank sends another."""
        return transfers(self.pieces)


@dataclass(frozen=True, slots=True)
class Evicted:
    """The rank has no part in `epoch` and starts over.

    `is_cut_off`: because of its links to `cut_off_from`, and not before it can reach the others.
    """

    epoch: int = 0
    is_cut_off: bool = False
    cut_off_from: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """Try to connect to these ranks, and answer with `Probed`."""

    check: int
    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Peers:
    """The ranks that a cut-off rank must reach."""

    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The job is done; `commit` is for ranks that have yet to apply the last step."""

    commit: LateCommit | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """The job is over, or this rank's part in it, for a reason that is not success."""

    reason: str


@dataclass(frozen=True, slots=True)
class Value:
    """The answer to `Take`."""

    key: str
    value: str


FromCoordinator = Join | Regroup | Form | Evicted | Probe | Peers | Goodbye | Stop | Value


# What each of them says, read from JSON; they raise WireError for anything else.
from_rank: Callable[[Message], FromRank] = reader(FromRank)
from_supervisor: Callable[[Message], FromSupervisor] = reader(FromSupervisor)
to_supervisor: Callable[[Message], ToSupervisor] = reader(ToSupervisor)
from_coordinator: Callable[[Message], FromCoordinator] = reader(FromCoordinator)
