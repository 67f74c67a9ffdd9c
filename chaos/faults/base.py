"""The interface of a fault: it names what it will touch, changes it, and verifies the effect.

A new fault is one file in this folder with one class per kind. The injector calls, in this order: `look` (what only the
run can tell), `prepare` (resolve, check that it is ours, say how to undo), then writes and syncs the undo record,
`apply`, `verify`, and at the end of its lifetime `lift` and `undo`.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict

from chaos.faults.endings import Endings, Recognised
from chaos.faults.watch import Watch
from chaos.host.undo_record import UndoRecord
from chaos.language.target import ResolvedTarget, Scope
from chaos.language.trigger import Duration
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.record import Record

Fidelity = Literal["real", "shaped", "telemetry"]
Role = Literal["rank", "supervisor", "snapshots", "container", "data-worker", "coordinator", "launcher", "child"]
VERIFY_TIMEOUT_SECONDS = 5.0
MAX_BRIEF = 29


class NoParameters(BaseModel):
    """No parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ParametersT = TypeVar("ParametersT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class OwnedProcess:
    """A process that this run started: its role, where it runs, and which it is."""

    role: Role
    process: ProcessId
    rank: int | None = None
    node: int | None = None

    def __str__(self) -> str:
        names = {
            "rank": f"rank {self.rank}",
            "supervisor": f"supervisor of node {self.node}",
            "snapshots": f"snapshot process of node {self.node}",
            "container": f"container of node {self.node}",
            "data-worker": f"DataLoader worker of rank {self.rank}",
            "launcher": "launcher" if self.node is None else f"launcher of node {self.node}",
            "child": "process" if self.rank is None else f"process of rank {self.rank}",
        }
        return f"{names.get(self.role, self.role)} (pid {self.process.pid})"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values; with `host` if it is another host."""
        return {
            "role": self.role,
            "rank": self.rank,
            "node": self.node,
            "pid": self.process.pid,
            "start_ticks": self.process.start_ticks,
            **({} if self.process.is_here else {"host": self.process.host.to_json()}),
        }


class ProcessHost(Protocol):
    """Finds the processes of the run that make up a target.

    All that is returned was started by this run and was alive when it was last heard of.
    """

    def rank_processes(self, ranks: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The processes of `ranks`."""
        ...

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The supervisors and ranks of `nodes`, and the first processes of their containers, where they have some."""
        ...

    def role_processes(self, role: str) -> tuple[OwnedProcess, ...]:
        """The processes that play `role` (see `chaos.language.target.ROLES`) now; none while there is none."""
        ...


@dataclass(frozen=True, slots=True)
class LauncherLeft:
    """A launcher that a fault of some nodes leaves alone: it serves `nodes`, others too."""

    process: ProcessId
    nodes: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {"pid": self.process.pid, "start_ticks": self.process.start_ticks, "nodes": list(self.nodes)}


class NodeHosts(Protocol):
    """The hosts that nodes are, where each node is one."""

    def name_of(self, node: int) -> str:
        """The name of a node's host."""
        ...

    def silent_seconds(self, node: int) -> float | None:
        """For how long nothing has come from the host's agent, which speaks every second; None: it has none."""
        ...

    def processes_on(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The ranks on these hosts, as far as they have reported."""
        ...


@runtime_checkable
class LauncherHost(Protocol):
    """The ability, of a `ProcessHost`, to tell who started the ranks: of a command, whose nodes may share launchers."""

    def launchers_left(self, nodes: tuple[int, ...]) -> tuple[LauncherLeft, ...]:
        """The launchers of ranks of `nodes` that serve other nodes too, so that `node_processes` has them not."""
        ...

    def launcher_of(self, rank: int) -> ProcessId | None:
        """Who started the newest process of `rank`; None where that was no launcher."""
        ...


@runtime_checkable
class CommandHost(Protocol):
    """The ability, of a `ProcessHost`, to list all that a command has started, whatever it is."""

    def command_processes(self) -> tuple[OwnedProcess, ...]:
        """All that runs of the command on this host: its own process, launchers, ranks, and the children of these."""
        ...

    def first_processes(self) -> tuple[OwnedProcess, ...]:
        """The command's own process, on each node of this host: no other process of the run has started it."""
        ...


class InsideHost(Protocol):
    """Acts inside a rank, on its training thread (see `chaos.in_process`)."""

    async def begin(self, rank: int, effect: str, arguments: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Begin `effect` (`module:class`) in a rank that is held; returns (handle, what the effect says it did).

        Raises:
            chaos.errors.InjectionError: the rank is not held or gone, or the effect refused.
        """
        ...

    async def ask(self, node: int, question: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the snapshot process of `node` answers to `question` (`module:class`, an effect that only tells).

        Raises:
            chaos.errors.InjectionError: it is gone, or refuses.
        """
        ...

    async def report(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        """The next thing that the effect reports.

        Raises:
            chaos.errors.EffectNotSeen: nothing within the time, or the rank is gone and will not say more.
        """
        ...

    async def lift(self, rank: int, handle: int, timeout_seconds: float) -> dict[str, Any]:
        """End the effect; returns what it says. Of a rank that is gone, the effect is gone with it: {"gone": True}.

        Raises:
            chaos.errors.HealError: the rank is there and did not say that the effect has ended.
        """
        ...


# An end of a link: a rank, or, by name, `coordinator` or `node-0`, which is where that node's supervisor is.
End = int | str


class LinkHost(Protocol):
    """Changes the network between ranks."""

    def ends(self) -> tuple[End, ...]:
        """The ranks and hosts that have their own network."""
        ...

    def sharing_network(self, rank: int) -> tuple[int, ...]:
        """The ranks that a rule on this one's network affects: more than itself where a node's ranks share one."""
        ...

    def plan_rules(self, links: tuple[tuple[End, End], ...], rule: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The undo records of what `apply_rules` would add: one declarative record for each rule, nothing changed."""
        ...

    async def apply_rules(self, records: list[dict[str, Any]]) -> float:
        """Add the planned rules; returns when the first of them took effect (CLOCK_MONOTONIC, seconds).

        Raises:
            chaos.errors.EnvironmentFailure: one of them could not be added.
        """
        ...

    async def probe(self, link: tuple[End, End], timeout_seconds: float) -> dict[str, Any]:
        """What one packet there and back between the two ranks' hosts does now: {reached, round_trip_seconds}.

        `round_trip_seconds` is None when nothing came back within the time.
        """
        ...

    async def measure_rate(self, link: tuple[End, End], num_bytes: int, timeout_seconds: float) -> float:
        """Bytes per second from the one rank's host to the other's, measured by sending so many; 0.0: none arrived."""
        ...


@runtime_checkable
class ConnectionHost(Protocol):
    """The ability, of a `LinkHost`, to see and to end the TCP connections that go over a link, idle ones too.

    A connection is named once for each end that knows it: `address:port-address:port`, its own place first.
    """

    async def connections(self, link: tuple[End, End], timeout_seconds: float) -> list[str]:
        """Those that are being made, established or being closed now."""
        ...

    async def end_connections(self, link: tuple[End, End], timeout_seconds: float) -> list[str]:
        """End them as a reset does: whoever waits for them or writes to them gets an error; returns which they were.

        Raises:
            chaos.errors.EnvironmentFailure: this kernel cannot do that.
        """
        ...


@runtime_checkable
class EndHost(Protocol):
    """The ability, of a `LinkHost`, to act on connections at one end of a link, which is on this host.

    The host of the other end does the same there. Nothing is sent over a link to probe it: it is seen by what the job
    sends, so that ranks are not held meanwhile, and several probes at a time see the same.
    """

    def ranks_here(self) -> tuple[int, ...]:
        """The ranks of this host."""
        ...

    def links_here(self, links: tuple[tuple[End, End], ...]) -> tuple[tuple[End, End], ...]:
        """Those of `links` with an end on this host, over which a connection of the run goes.

        Raises:
            chaos.errors.InjectionError: one has both ends on this host, or there is no connection on any of them.
        """
        ...

    def describe(self, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Evidence of rules that were applied: `mechanism`, `fidelity`, their numbers, and what escapes them."""
        ...


class Emit(Protocol):
    """Emits an event as the injector."""

    def __call__(self, record: Record, *, step: int | None = None, monotonic_seconds: float | None = None) -> object:
        """See `mecefo_runtime.system.emitter.Emitter.emit`."""
        ...


@dataclass(frozen=True, slots=True)
class RunContext:
    """What is known of a run before it starts.

    `checkpoint_folder` None: in the run's own folder, or no checkpoints; where a script
    `keeps_own_checkpoints`: the user has named none.
    `sees_mounts`: what is mounted on the run's folders when the ranks run already is there for them too.
    `ranks_are_hosts`: the ranks of a node talk over links too, since the node is one in name only.
    `links_are_connections`: links are changed through the run's own TCP connections, without any right.
    `node_memory_bytes`: what all that runs on a node may use together, by the setting `node_memory_key`; None: there is
    no such limit. `nodes_are_hosts`: each node is a host of its own.
    """

    cluster: Cluster
    checkpoint_folder: Path | None = None
    sees_mounts: bool = True
    ranks_are_hosts: bool = False
    node_memory_bytes: int | None = None
    node_memory_key: str = ""
    keeps_own_checkpoints: bool = False
    nodes_are_hosts: bool = False
    links_are_connections: bool = False


@dataclass(frozen=True, slots=True)
class FaultContext:
    """What the run offers to its faults; an ability that its backend lacks is None.

    A fault says in `needs` which of them it cannot do without, so that it is refused before the start.
    """

    processes: ProcessHost
    inside: InsideHost
    watch: Watch
    run_folder: Path
    checkpoint_folder: Path | None = None
    # Whether checkpoints are those of a script, of which this project has no reader.
    has_foreign_checkpoints: bool = False
    links: LinkHost | None = None
    emit: Emit | None = None
    cluster: Cluster | None = None
    hosts: NodeHosts | None = None


@dataclass(frozen=True, slots=True)
class Act:
    """One fault made concrete: what it touches, and the record from which alone it can be undone."""

    processes: tuple[OwnedProcess, ...] = ()
    undo_record: Mapping[str, Any] = field(default_factory=dict)
    links: tuple[tuple[int, int], ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that it touches, ascending."""
        ends = {rank for link in self.links for rank in link}
        return tuple(sorted(ends | {owned.rank for owned in self.processes if owned.rank is not None}))


class Fault(ABC, Generic[ParametersT]):
    """One kind of fault with its parameters. An instance is of one incident, and fires once."""

    kind: ClassVar[str]
    # What it does, in at most `MAX_BRIEF` characters: for the table of `chaos faults`.
    brief: ClassVar[str] = ""
    # What `chaos faults --json` groups kinds by; the name of the class's file where none is given.
    family: ClassVar[str | None] = None
    scope: ClassVar[Scope]
    # What is affected, in words, where the user names no target: a fault of checkpoints has none.
    affects: ClassVar[str] = "the newest checkpoint"
    fidelity: ClassVar[Fidelity]
    # Words of `chaos.plan.needs`.
    needs: ClassVar[tuple[str, ...]] = ()
    undo_summary: ClassVar[str]
    # Whether its record says something that has to be undone, should the injector die.
    has_undo: ClassVar[bool] = True
    shows_undo: ClassVar[bool] = True
    """Whether the evidence of its undo says something; else it ends with the process, or with its hooks."""
    kills: ClassVar[bool] = False
    """Whether it kills its target from outside; another loss ends by what happens in the process."""
    # What `undo` is told: as JSON it is the act's `undo_record`, and what the ledger keeps.
    Record: ClassVar[type[UndoRecord]] = UndoRecord
    # Whether the ranks that it affects are gone until they are repaired.
    is_loss: ClassVar[bool] = False
    # Whether what others did to the same ground cannot be reached while it is active: they are undone after it.
    covers: ClassVar[bool] = False
    # Whether it goes on for a time (`for`), and for how long where the user does not say: None is the job's end.
    has_lifetime: ClassVar[bool] = False
    default_lifetime: ClassVar[Duration | None] = None
    # What of its target it has to itself while it is active, in words: no other fault with the same words may be active
    # there, since the undo of the first would end both. None: several can be told apart.
    exclusive: ClassVar[str | None] = None
    # Whether it acts inside the rank, which must then be held for it, also when it is to come at a time.
    acts_inside: ClassVar[bool] = False
    # Whether the effect shows only when the held ranks continue: they are let go before `verify`.
    shows_when_released: ClassVar[bool] = False
    # Whether it is said before anything is lost, and the job has time to let its ranks go.
    gives_notice: ClassVar[bool] = False
    # Whether it asks processes to end, which they may do in order: a job that leaves as a whole has not died of it.
    asks_to_leave: ClassVar[bool] = False
    # How often the command is started again when it has ended of this fault; None: that is the job's own affair.
    requeue: ClassVar[int | None] = None
    # Whether it damages what is stored: that shows only when something reads it.
    is_latent: ClassVar[bool] = False
    # Whether it acts from where `chaos` runs, on whatever host its target lives.
    acts_at_tool: ClassVar[bool] = False
    # Whether it makes values wrong that other ranks may hold as well.
    changes_values: ClassVar[bool] = False
    verify_timeout_seconds: ClassVar[float] = VERIFY_TIMEOUT_SECONDS
    Parameters: ClassVar[type[BaseModel]] = NoParameters

    def __init__(self, parameters: ParametersT) -> None:
        self.parameters = parameters
        # Of this incident; the injector sets it. All that a fault draws when it fires it draws from this.
        self.seed = 0

    @functools.cached_property
    def rng(self) -> Random:
        """The random generator for draws at injection, the same for every run of an incident."""
        return Random(self.seed)

    def check(self, target: ResolvedTarget, run: RunContext) -> None:
        """Refuse before the start what can be known then to be impossible, beyond `needs`.

        Raises:
            chaos.errors.UsageError: it is; `key` names the parameter that is wrong, where it is one.
        """

    def lasts(self) -> bool:
        """Whether this one goes on for a time; of a kind that can, that may be up to its parameters."""
        return self.has_lifetime

    def outlives_processes(self, act: Act) -> bool:
        """Whether what it changes stays when all processes of the run are gone, such as a mount or a control group."""
        return False

    @classmethod
    def phases_for(cls, parameters: BaseModel) -> tuple[str, ...] | None:
        """The phases of a step at which a fault with such parameters takes effect in this very step; None: all."""
        return None

    @classmethod
    def longest_seconds(cls, parameters: BaseModel) -> float | None:
        """After how long one with such parameters ends by itself, whatever its lifetime; None: it does not."""
        return None

    async def look(self, target: ResolvedTarget, context: FaultContext) -> None:
        """Learn of the run what `prepare` needs to know and cannot wait for. Nothing is changed.

        Raises:
            chaos.errors.InjectionError: whoever knows it is gone.
        """
        return

    @abstractmethod
    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Resolve the target and check that it is ours. Nothing is changed.

        Raises:
            chaos.errors.TargetNotFound: nothing of it is there any more.
            chaos.errors.NotOurs: what is there was not started by this run.
        """

    @abstractmethod
    async def apply(self, act: Act, context: FaultContext) -> float | None:
        """Inject the fault; returns when it took effect (CLOCK_MONOTONIC, seconds), if that was later than the call.

        All measurements start then. Never return a time at which the job may already have noticed.

        Raises:
            chaos.errors.InjectionError: it could not be done.
        """

    @abstractmethod
    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Wait until the effect is seen; returns the evidence, with a sentence for people under `summary`.

        Raises:
            chaos.errors.EffectNotSeen: it was not, within the time.
        """

    def recognises(self, act: Act, context: FaultContext, endings: Endings) -> Recognised | None:
        """Evidence that what ended ranks was this fault, where `verify` has seen no effect; None: it names another.

        Asked when the job, or a rank that the effect was to be seen in, is gone before that came to pass.
        """
        return None

    def why_unseen(self, act: Act, context: FaultContext) -> str | None:
        """Why `verify` has seen no effect, as far as the run shows it, as a part of a sentence; None: unknown."""
        return None

    async def lift(self, act: Act, context: FaultContext) -> float | None:
        """End the effect as far as only the living run can: before `undo`, which works from the record alone.

        What is applied inside a rank is lifted here; without us the rank lifts it when its connection ends. Returns
        when it was active no longer (CLOCK_MONOTONIC seconds), where that was before all checks that follow.
        """
        return None

    @classmethod
    @abstractmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Undo what `record` describes, however often it is called and whoever calls; returns the evidence.

        Raises:
            chaos.errors.HealError: something of it is still there, or the record is none of this fault's.
        """
