"""What a device says of itself: error counters in our own records, without any error."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, InjectionError, TargetNotFound
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import Act, Fault, FaultContext, Fidelity
from chaos.host.run_files import EVENTS_FILE
from chaos.host.undo_record import UndoRecord
from chaos.language.target import ResolvedTarget, Scope
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.run_records import Telemetry


class EccParameters(BaseModel):
    """What is reported."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    xid: int = Field(default=48, ge=1, le=999, description="NVIDIA's error number; 48: double-bit ECC error")
    ecc_sbe: int = Field(default=0, ge=0, le=1_000_000, description="number of single-bit ECC errors to add")
    ecc_dbe: int = Field(default=1, ge=0, le=1_000_000, description="number of double-bit ECC errors to add")


class EccTelemetry(Fault[EccParameters]):
    """Reports an XID and ECC errors of a rank's GPU in our records only; the GPU and the job notice nothing."""

    kind: ClassVar[str] = "ecc-telemetry"
    brief: ClassVar[str] = "report XID and ECC errors"
    scope: ClassVar[Scope] = "rank"
    fidelity: ClassVar[Fidelity] = "telemetry"
    undo_summary: ClassVar[str] = "nothing to undo: counters only rise"
    has_undo: ClassVar[bool] = False
    shows_undo: ClassVar[bool] = False
    Record: ClassVar[type[UndoRecord]] = ProcessesRecord
    Parameters: ClassVar[type[BaseModel]] = EccParameters

    def __init__(self, parameters: EccParameters) -> None:
        super().__init__(parameters)
        self._record = uuid.uuid4().hex
        # Where in the log this fault's records can be, in bytes.
        self._log_position = 0

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """The ranks of the target that are there."""
        running = tuple(o for o in context.processes.rank_processes(target.ranks) if o.process.is_running())
        if not running:
            raise TargetNotFound(Reason("no_rank_with_device", target=target))
        return Act(running, ProcessesRecord.of(running).to_json())

    async def apply(self, act: Act, context: FaultContext) -> None:
        """One record for each rank."""
        if context.emit is None:
            raise InjectionError(Reason("no_telemetry"))
        log = context.run_folder / EVENTS_FILE
        self._log_position = log.stat().st_size if log.exists() else 0
        for rank in act.ranks:
            given = self.parameters
            context.emit(
                Telemetry(
                    of_rank=rank, xid=given.xid, ecc_sbe=given.ecc_sbe, ecc_dbe=given.ecc_dbe, record=self._record
                )
            )

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Read the records back from the log: an event is written before its emission returns."""
        seen = set()
        with (context.run_folder / EVENTS_FILE).open("rb") as log:
            log.seek(self._log_position)
            for line in log:
                fields = json.loads(line)["fields"] if self._record.encode() in line else {}
                if fields.get("record") == self._record:
                    seen.add(fields["rank"])
        missing = sorted(set(act.ranks) - seen)
        if missing:
            raise EffectNotSeen(Reason("telemetry_missing", missing=missing))
        counters = self.parameters.model_dump()
        said = ", ".join(f"{name} {value}" for name, value in counters.items())
        ranks = ", ".join(map(str, act.ranks))
        return {
            "summary": f"recorded as telemetry of rank {ranks}: {said}; the device itself was not touched",
            "seen_in": EVENTS_FILE,
            "ranks": list(act.ranks),
            **counters,
        }

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """A counter is not turned back."""
        return {"undone": "nothing to undo", "processes": len(ProcessesRecord.from_json(record).processes)}
