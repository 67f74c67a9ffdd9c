"""The interfaces of a backend: how it is found and examined, and how it starts, repairs and stops the nodes of jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from chaos.errors import EnvironmentFailure
from chaos.experiment.backends import BackendDescription
from chaos.experiment.command_job import CommandConfig
from chaos.experiment.experiment import Experiment
from chaos.faults.base import FaultContext, LinkHost, NodeHosts, OwnedProcess, ProcessHost
from chaos.injection.executor import FaultExecutor
from chaos.undo.guard import Farewell
from harness.analysis.command.unseen import Unseen
from harness.doctor.finding import Finding
from harness.network.machine import wants_networks
from harness.node.node import Node, ThisMachine
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event

if TYPE_CHECKING:
    from harness.control.control_server import ControlServer

Outcome = Literal["completed", "failed", "stopped"]
# What is run: a job of our runtime, or somebody else's command.
AnyConfig = JobConfig | CommandConfig


class RunningJob(ProcessHost, Protocol):
    """A running job; process faults ask it for their targets."""

    name: str

    @property
    def links(self) -> LinkHost | None:
        """The link host of its network; None where links cannot be changed."""
        ...

    async def start(self) -> None:
        """Start coordinator and nodes; events go to the control server."""

    def note(self, event: Event) -> None:
        """Learn from an event which processes there are."""

    async def ended(self) -> Outcome:
        """Wait until the job has completed or cannot continue."""

    def repair_node(self, node: int) -> None:
        """Start a node again, with all of its ranks. Does nothing while the node is up."""

    def repair_rank(self, rank: int) -> None:
        """Start a rank again on its node. Does nothing while it runs."""

    def why_unseen(self) -> Unseen | None:
        """Why no step may have been seen within its start-up time; None: its logs say it."""

    def cannot_begin(self) -> bool:
        """Whether it has committed no step, and nobody is left who could; a repair may still bring somebody."""

    def give_up(self) -> None:
        """Mark the job as failed."""

    async def stop(self) -> None:
        """End every process of the job; none is running when this returns."""

    def leftovers(self) -> tuple[OwnedProcess, ...]:
        """The processes of the job that still run."""


class HostExecutor(FaultExecutor, Protocol):
    """Acts on another host, for as long as the backend of a run is open.

    `on_lapse` hears, in a sentence, that its watchdog has undone something because nobody was heard for too long.
    """

    on_lapse: Callable[[str], None] | None

    def attend(self, context: FaultContext) -> None:
        """A job is about to start, on which faults act through `context`."""
        ...

    async def close(self) -> Farewell:
        """The run is over, and its jobs are stopped: undo what is pending there, and look what is left."""
        ...


class Backend(Protocol):
    """A way to run nodes."""

    @property
    def executors(self) -> Sequence[HostExecutor]:
        """After `open`: those of the hosts of its nodes, but for this host. Each has the name of its host."""
        ...

    def host_of(self, node: int) -> str | None:
        """The name of the host that a node is on; None: this host."""
        ...

    @property
    def hosts(self) -> NodeHosts | None:
        """What is known of the hosts of its nodes; None: they are none, but on this one."""
        ...

    @property
    def reach(self) -> tuple[Sequence[str], str] | None:
        """The hosts with executors, and how they are reached (see `chaos.undo.run_registry.OpenRun`); None: none."""
        ...

    @property
    def may_outlive(self) -> bool:
        """Whether its processes may go on when this process is killed."""
        ...

    @property
    def can_run_beside(self) -> bool:
        """Whether a second job shares nothing with the first that a fault of the first can break."""
        ...

    @property
    def jobs(self) -> Sequence[RunningJob]:
        """All prepared jobs."""
        ...

    async def open(self) -> None:
        """Get ready.

        Raises:
            chaos.errors.EnvironmentFailure: something that is needed is missing.
        """

    async def prepare_job(self, name: str, job: AnyConfig, *, with_agents: bool) -> RunningJob:
        """Prepare a job without starting it, so that the injector can get ready first."""

    async def close(self) -> None:
        """Release everything."""


class OnThisHost:
    """What a backend says of hosts whose nodes are all on this one."""

    @property
    def executors(self) -> Sequence[HostExecutor]:
        """See `Backend`."""
        return ()

    def host_of(self, node: int) -> str | None:
        """See `Backend`."""
        return None

    @property
    def hosts(self) -> NodeHosts | None:
        """See `Backend`."""
        return None

    @property
    def reach(self) -> tuple[Sequence[str], str] | None:
        """See `Backend`."""
        return None


@dataclass(frozen=True, slots=True)
class BackendSetup:
    """What a run in `folder` gives its backend; `needs` are those of each of its incidents' faults.

    `engine` is what `BackendKind.require` returned. `ranks_metrics` is where the main job's ranks are to serve their
    metrics (`exporter`), if at all.
    """

    experiment: Experiment
    job: AnyConfig
    needs: Sequence[tuple[str, ...]]
    folder: Path
    logs: Path
    control: ControlServer
    token: str
    emitter: Emitter
    engine: str | None = None
    ranks_metrics: str = ""

    @property
    def has_links(self) -> bool:
        """Whether its faults change links between ranks."""
        return wants_networks(self.experiment, self.needs)

    @property
    def settings(self) -> Any:
        """The settings of the backend, of the type that its description names."""
        return self.experiment.node_settings


class BackendKind(BackendDescription, ABC):
    """A backend that is installed: its description, its requirements, and how the backend of a run is made.

    The module of a derived class imports what takes long inside of its methods.
    """

    def machine(self) -> Node:
        """The machine on which its nodes run."""
        return ThisMachine()

    def findings(self, settings: Any) -> Iterator[Finding]:
        """The checks of what this backend needs in addition to every run's needs, for `chaos doctor`."""
        return iter(())

    def require(self, experiment: Experiment, stream: TextIO) -> str | None:
        """Before anything of a run is made: check what it needs, with progress on `stream`.

        Returns the address of the Docker engine in which the run will have containers; None: it will have none.

        Raises:
            chaos.errors.EnvironmentFailure: something is missing.
        """
        return None

    @abstractmethod
    def backend(self, run: BackendSetup) -> Backend:
        """The backend of a run."""


def kind_of(backend: BackendDescription) -> BackendKind:
    """The backend that can be run.

    Raises:
        chaos.errors.EnvironmentFailure: it is no more than a description.
    """
    if not isinstance(backend, BackendKind):
        where = f"{type(backend).__module__}:{type(backend).__name__}"
        raise EnvironmentFailure(f"the backend {backend.name} cannot run jobs: derive {where} from BackendKind")
    return backend


def checkpoint_folders(job: AnyConfig) -> tuple[Path, ...]:
    """Where the job writes its checkpoints, if it writes any."""
    if job.traits.keeps_own_checkpoints or job.checkpoint is None:
        return ()
    return (Path(job.checkpoint.folder),)
