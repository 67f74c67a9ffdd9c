"""Faults of a GPU itself. On ranks that train on the CPU there is none, and they are refused before the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen
from chaos.faults._inside import InsideFault
from chaos.faults.base import NoParameters
from chaos.language.trigger import Duration
from mecefo_runtime.system.reason import Reason


class HangParameters(BaseModel):
    """How long the kernel spins: once started, only the end of the process ends it earlier."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float = Field(default=10.0, gt=0, le=600, description="how long the kernels spin, in seconds")


class DeviceAssert(InsideFault[NoParameters]):
    """Fails a device-side assertion: every later CUDA call of the rank raises, and it cannot continue."""

    kind: ClassVar[str] = "device-assert"
    brief: ClassVar[str] = "fail a device-side assertion"
    needs: ClassVar[tuple[str, ...]] = ("cuda",)
    is_loss: ClassVar[bool] = True
    undo_summary: ClassVar[str] = "nothing to undo: the error ends with the process; --repair starts it again"
    has_undo: ClassVar[bool] = False

    def _effect(self) -> tuple[str, dict[str, Any]]:
        return "chaos.in_process.cuda:FailAssertion", {}

    async def _judge(self, rank: int, told: Mapping[str, Any]) -> dict[str, Any]:
        if not told["is_sticky"]:
            raise EffectNotSeen(Reason("cuda_still_works", rank=rank, errors=told["errors"]))
        return {"summary": f"rank {rank}: the assertion failed, and so did the next call: {told['errors'][1]}", **told}


class GpuHang(InsideFault[HangParameters]):
    """Starts kernels that spin for a time on the stream that the rank trains on."""

    kind: ClassVar[str] = "gpu-hang"
    brief: ClassVar[str] = "kernels that spin for a time"
    needs: ClassVar[tuple[str, ...]] = ("cuda",)
    undo_summary: ClassVar[str] = "ends by itself after its seconds, or with the process"
    Parameters: ClassVar[type[BaseModel]] = HangParameters

    def _effect(self) -> tuple[str, dict[str, Any]]:
        return "chaos.in_process.cuda:Spin", self.parameters.model_dump(mode="json")

    async def _judge(self, rank: int, told: Mapping[str, Any]) -> dict[str, Any]:
        watched = f"{told['watched_seconds']:.2g} s"
        if not told["is_busy"]:
            raise EffectNotSeen(Reason("stream_finished", rank=rank, watched=watched))
        summary = f"rank {rank}: its stream did no other work for {watched}, and is blocked for {told['seconds']:g} s"
        return {"summary": summary, **told}


class GpuOom(InsideFault[NoParameters]):
    """Takes all free memory of a rank's GPU, so that its next allocation fails."""

    kind: ClassVar[str] = "gpu-oom"
    brief: ClassVar[str] = "take all free GPU memory"
    needs: ClassVar[tuple[str, ...]] = ("cuda",)
    has_lifetime: ClassVar[bool] = True
    default_lifetime: ClassVar[Duration | None] = Duration(steps=1)
    undo_summary: ClassVar[str] = "frees the memory; it also ends with the process"

    def _effect(self) -> tuple[str, dict[str, Any]]:
        return "chaos.in_process.cuda:FillMemory", {}

    async def _judge(self, rank: int, told: Mapping[str, Any]) -> dict[str, Any]:
        if not told["taken_bytes"] or not told["error"]:
            raise EffectNotSeen(Reason("no_allocation_failed", rank=rank, taken_bytes=told["taken_bytes"]))
        taken = f"{told['taken_bytes'] / 2**30:.1f} GiB"
        return {"summary": f"rank {rank}: {taken} taken, then the next allocation failed: {told['error']}", **told}
