"""What a fault is: it names what it will touch, does one thing to it, and proves that it happened.

A new fault is one file in this folder with one class per kind. The injector calls, in this order: `prepare` (resolve,
check that it is ours, say how to undo), then writes and syncs the undo record, `apply`, `verify`, and at the end of
its lifetime `undo`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from chaos.target import ResolvedTarget
from mecefo_runtime.process import ProcessId

Fidelity = Literal["real", "shaped", "telemetry"]
Scope = Literal["node", "rank"]


class NoParameters(BaseModel):
    """A fault that takes none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ParametersT = TypeVar("ParametersT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class OwnedProcess:
    """A process that this run started: its role, where it runs, and which it is."""

    role: Literal["rank", "supervisor", "coordinator"]
    process: ProcessId
    rank: int | None = None
    node: int | None = None

    def __str__(self) -> str:
        name = {"rank": f"rank {self.rank}", "supervisor": f"supervisor of node {self.node}"}.get(self.role, self.role)
        return f"{name} (pid {self.process.pid})"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "role": self.role,
            "rank": self.rank,
            "node": self.node,
            "pid": self.process.pid,
            "start_ticks": self.process.start_ticks,
        }


class ProcessHost(Protocol):
    """The ability that process faults need: to be told which processes of the run make up a target.

    All that is returned was started by this run and was alive when it was last heard of.
    """

    def rank_processes(self, ranks: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The processes of `ranks`."""
        ...

    def node_processes(self, nodes: tuple[int, ...]) -> tuple[OwnedProcess, ...]:
        """The supervisors and ranks of `nodes`."""
        ...

    def coordinator_process(self) -> OwnedProcess | None:
        """The coordinator, None while there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Act:
    """One fault made concrete: what it touches, and the record from which alone it can be undone."""

    processes: tuple[OwnedProcess, ...]
    undo_record: Mapping[str, Any] = field(default_factory=dict)


class Fault(ABC, Generic[ParametersT]):
    """One kind of fault with its parameters."""

    kind: ClassVar[str]
    scope: ClassVar[Scope]
    fidelity: ClassVar[Fidelity]
    needs: ClassVar[tuple[str, ...]] = ()
    undo_summary: ClassVar[str]
    # Whether the ranks that it strikes are gone until they are repaired.
    is_loss: ClassVar[bool] = False
    Parameters: ClassVar[type[BaseModel]] = NoParameters

    def __init__(self, parameters: ParametersT) -> None:
        self.parameters = parameters

    @abstractmethod
    def prepare(self, target: ResolvedTarget, host: ProcessHost) -> Act:
        """Resolve the target and check that it is ours. Nothing is changed.

        Raises:
            chaos.errors.TargetNotFound: nothing of it is there any more.
            chaos.errors.NotOurs: what is there was not started by this run.
        """

    @abstractmethod
    def apply(self, act: Act) -> None:
        """Do it."""

    @abstractmethod
    async def verify(self, act: Act, timeout_seconds: float) -> dict[str, Any]:
        """Wait until the effect is seen; returns the evidence, with a sentence for people under `summary`.

        Raises:
            chaos.errors.EffectNotSeen: it was not, within the time.
        """

    @classmethod
    @abstractmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Undo what `record` describes, however often it is called and whoever calls; returns the evidence.

        Raises:
            chaos.errors.HealError: something of it is still there.
        """
