"""A name that does not resolve, or late, for one rank: object stores, hubs and loggers that it calls by name.

Within the rank, before Python asks the resolver: no right is needed, and no other process is affected. So the fault is
shaped, and what native code resolves is not reached. It is verified by a lookup of the job's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chaos.errors import EffectNotSeen, UsageError
from chaos.faults._inside import InsideFault
from chaos.faults.base import Act, FaultContext, Fidelity
from chaos.language.quantities import SecondsText
from mecefo_runtime.system.reason import Reason

EFFECT = "chaos.in_process.names:UnresolvedName"
MAX_DELAY_SECONDS = 600.0
_DEFAULT_ERROR = "EAI_AGAIN"


class NameParameters(BaseModel):
    """Which names, and what becomes of their lookups."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        default="*",
        min_length=1,
        description="the name, or a pattern such as *.amazonaws.com, which leaves names of /etc/hosts alone",
    )
    delay: SecondsText | None = Field(
        default=None, description="how long each lookup waits; it then resolves, unless an error is given too"
    )
    error: Literal["EAI_AGAIN", "EAI_NONAME"] | None = Field(
        default=None,
        description="how lookups fail; default: EAI_AGAIN (no server answers), or not at all with a delay",
    )

    @model_validator(mode="after")
    def _fits(self) -> NameParameters:
        if self.delay is not None and self.delay > MAX_DELAY_SECONDS:
            raise UsageError(f"choose at most {MAX_DELAY_SECONDS:g}s: no resolver waits longer", key="delay")
        return self


class UnresolvedName(InsideFault[NameParameters]):
    """Names do not resolve in a rank's Python code, or late."""

    kind: ClassVar[str] = "unresolved-name"
    brief: ClassVar[str] = "fail or delay name lookups"
    fidelity: ClassVar[Fidelity] = "shaped"
    needs: ClassVar[tuple[str, ...]] = ("lookups",)
    undo_summary: ClassVar[str] = "lookups are answered again, also when chaos has ended"
    has_lifetime: ClassVar[bool] = True
    # A job may look names up only when it saves or reports.
    verify_timeout_seconds: ClassVar[float] = 600.0
    Parameters: ClassVar[type[BaseModel]] = NameParameters

    def __init__(self, parameters: NameParameters) -> None:
        super().__init__(parameters)
        self._seen: set[int] = set()

    def _effect(self) -> tuple[str, dict[str, Any]]:
        return EFFECT, {
            "name": self.parameters.name,
            "delay_seconds": self.parameters.delay or 0.0,
            "error": self._error,
        }

    @property
    def _error(self) -> str | None:
        return self.parameters.error or (_DEFAULT_ERROR if self.parameters.delay is None else None)

    async def _judge(self, rank: int, told: Mapping[str, Any]) -> dict[str, Any]:
        if "waited_seconds" not in told or told["error"] != self._error:
            raise EffectNotSeen(Reason("lookup_not_seen", rank=rank, told=dict(told)))
        waited_seconds, asked_seconds = float(told["waited_seconds"]), self.parameters.delay or 0.0
        if waited_seconds < asked_seconds:
            raise EffectNotSeen(
                Reason(
                    "lookup_not_late",
                    name=told["name"],
                    rank=rank,
                    seconds=waited_seconds,
                    asked_seconds=asked_seconds,
                )
            )
        self._seen.add(rank)
        late = f"waited {waited_seconds:.3f} s" if asked_seconds else ""
        failed = f"failed with {told['error']}" if told["error"] else ""
        how = " and ".join(filter(None, (late, failed)))
        return {**told, "summary": f"rank {rank}: {told['call']} of {told['name']} {how}"}

    def why_unseen(self, act: Act, context: FaultContext) -> str | None:
        """No such lookup."""
        idle = [rank for rank in act.ranks if rank not in self._seen]
        if not idle:
            return None
        names = ", ".join(map(str, idle))
        what = "a name" if self.parameters.name == "*" else self.parameters.name
        return (
            f"no lookup of {what} by Python code of rank {names} was seen; what native code resolves "
            "(TCPStore, NCCL, programs of other languages) is not reached"
        )
