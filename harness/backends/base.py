"""The interface of a backend: start, reach, repair and stop nodes, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from chaos.experiment.command_job import CommandConfig
from chaos.faults.base import LinkHost, OwnedProcess, ProcessHost
from harness.analysis.command.unseen import Unseen
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.system.events import Event

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


class Backend(Protocol):
    """A way to run nodes."""

    @property
    def may_outlive(self) -> bool:
        """Whether its processes may go on when this process is killed."""
        ...

    @property
    def has_networks(self) -> bool:
        """Whether they have networks of their own, so that only a Unix socket reaches us whatever becomes of one."""
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
