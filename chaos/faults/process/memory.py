"""A rank that leaks memory until it is killed at its own memory limit."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, TargetNotFound, UsageError, setting
from chaos.faults._records import ProcessesRecord
from chaos.faults.base import Act, FaultContext, OwnedProcess, RunContext
from chaos.faults.process._processes import Exits, ProcessFault, ending
from chaos.host import memory_limit
from chaos.host.job_step import ends_with_step
from chaos.host.process_table import TABLE_POLL_SECONDS, resident_bytes
from chaos.host.undo_record import UndoRecord
from chaos.language.quantities import BytesText
from chaos.language.sizes import bytes_text
from chaos.language.target import ResolvedTarget, Scope
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

EFFECT = "chaos.in_process.memory:LeakMemory"
# Touching gigabytes takes a while on a busy machine.
LEAK_SECONDS = 60.0
ENDING_SECONDS = 10.0
# A rank answers at its next phase, which may be behind a regroup.
LIFT_SECONDS = 15.0
# Of the limit at least so much must have been seen to be resident.
SEEN_RATIO = 0.5
# The machine must have so much more than the limits of all ranks together.
SPARE_BYTES = 512 * 2**20
# So much more than its limit it leaks at most, should that not end it.
_SPARE_BLOCKS = 2


class LeakParameters(BaseModel):
    """How much it leaks, and what ends it: the out-of-memory killer, for this process alone, or a failed allocation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: BytesText = Field(default=512 * 2**20, description="memory above its present use at which it is ended")
    block: BytesText = Field(default=16 * 2**20, description="size of each allocation")
    by: Literal["auto", "cgroup", "rlimit"] = Field(
        default="auto",
        description="cgroup: the out-of-memory killer; rlimit: its allocations fail; auto: the first that works here",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakRecord(ProcessesRecord):
    """The processes that leak, and the limit of each."""

    limits: tuple[memory_limit.MemoryLimit, ...] = ()


class LeakMemory(ProcessFault[LeakParameters]):
    """A rank leaks memory, block by block, until the out-of-memory killer ends it at a limit of its own.

    Where no control group can be made for it, its allocations fail at the limit instead, and it ends of that.
    """

    kind: ClassVar[str] = "leak-memory"
    brief: ClassVar[str] = "leak until the OOM killer"
    scope: ClassVar[Scope] = "rank"
    is_loss: ClassVar[bool] = True
    acts_inside: ClassVar[bool] = True
    shows_when_released: ClassVar[bool] = True
    verify_timeout_seconds: ClassVar[float] = LEAK_SECONDS
    undo_summary: ClassVar[str] = "removes the control group, or restores the resource limit"
    Record: ClassVar[type[UndoRecord]] = LeakRecord
    Parameters: ClassVar[type[BaseModel]] = LeakParameters

    def __init__(self, parameters: LeakParameters) -> None:
        super().__init__(parameters)
        self._handles: dict[int, int] = {}
        # Resident bytes of each process before it leaks.
        self._first_bytes: dict[ProcessId, int] = {}

    def check(self, target: ResolvedTarget, run: RunContext) -> None:
        """Refuse leaks above the node's own limit, which would take effect first and could end any process."""
        node_bytes = run.node_memory_bytes
        if node_bytes is None:
            return
        for node, num_ranks in Counter(run.cluster.node_of(rank) for rank in target.ranks).items():
            if (wanted_bytes := num_ranks * self.parameters.limit) >= node_bytes:
                raise UsageError(
                    f"{bytes_text(wanted_bytes)} more than {'its rank has' if num_ranks == 1 else 'its ranks have'} "
                    f"cannot be leaked on node {node}, which may use {bytes_text(node_bytes)} in all: choose a smaller "
                    f"limit, or raise {setting(run.node_memory_key)}",
                    key="limit",
                )

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Every rank's process, and how each is to be limited."""
        act = super().prepare(target, context)
        limit_bytes, by = self.parameters.limit, self.parameters.by
        wanted_bytes = SPARE_BYTES + limit_bytes * len(act.processes)
        if (free_bytes := memory_limit.available_bytes()) < wanted_bytes:
            raise TargetNotFound(
                Reason("too_little_memory", free_mib=free_bytes // 2**20, needed_mib=wanted_bytes // 2**20)
            )
        self._check_groups(act.processes)
        # Where the watchdog may end before the group, only who asks for one is told so.
        may_group = by == "cgroup" or (by == "auto" and not ends_with_step())
        try:
            limits = tuple(
                memory_limit.plan(owned.process, limit_bytes, may_group=may_group) for owned in act.processes
            )
        except ProcessLookupError:
            raise TargetNotFound(Reason("just_ended", target=target)) from None
        if by == "cgroup" and any(limit.by != "cgroup" for limit in limits):
            raise TargetNotFound(Reason("no_memory_group"))
        return Act(act.processes, LeakRecord.of(act.processes, limits=limits).to_json())

    def outlives_processes(self, act: Act) -> bool:
        """A control group does; a resource limit ends with its process."""
        return any(limit.by == "cgroup" for limit in LeakRecord.from_json(act.undo_record).limits)

    def _check_groups(self, processes: Iterable[OwnedProcess]) -> None:
        """See that no group around the ranks, such as their container, comes to its own limit before them.

        Raises:
            TargetNotFound: one would.
        """
        room_bytes: dict[str, int] = {}
        inside: Counter[str] = Counter()
        for owned in processes:
            around = memory_limit.room_bytes(owned.process)
            room_bytes.update(around)
            inside.update(around.keys())
        for group, num_ranks in inside.items():
            wanted_bytes = num_ranks * (self.parameters.limit + _SPARE_BLOCKS * self.parameters.block)
            if room_bytes[group] < wanted_bytes:
                raise TargetNotFound(
                    Reason(
                        "too_little_room_in_group",
                        room_mib=max(0, room_bytes[group]) >> 20,
                        group=group,
                        needed_mib=wanted_bytes >> 20,
                    )
                )

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Limit every process, then have it leak from its release on."""
        for limit in LeakRecord.from_json(act.undo_record).limits:
            memory_limit.impose(limit)
        arguments = {
            "block_bytes": self.parameters.block,
            "most_bytes": self.parameters.limit + _SPARE_BLOCKS * self.parameters.block,
        }
        for rank in act.ranks:
            self._handles[rank], _ = await context.inside.begin(rank, EFFECT, arguments)
        # Once they are released, they may grow before anything is read here.
        self._first_bytes = {owned.process: resident_bytes(owned.process) or 0 for owned in act.processes}

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Check that its resident memory grows and that the process ends because of it."""
        began = time.monotonic()
        first = self._first_bytes
        most = dict(first)
        exits = Exits(act.processes, context)
        try:
            while alive := [owned for owned in act.processes if owned.process.is_running()]:
                for owned in alive:
                    most[owned.process] = max(most[owned.process], resident_bytes(owned.process) or 0)
                if time.monotonic() - began > timeout_seconds:
                    grown = ", ".join(f"{o} by {(most[o.process] - first[o.process]) >> 20} MiB" for o in alive)
                    raise EffectNotSeen(Reason("limit_not_reached", seconds=timeout_seconds, grown=grown))
                await asyncio.sleep(TABLE_POLL_SECONDS)
            seconds = time.monotonic() - began
            await exits.wait(ENDING_SECONDS)
            codes = {owned.process: exits.code(owned.process) for owned in act.processes}
        finally:
            await exits.close()
        found, sentences = [], []
        for owned, limit in zip(act.processes, LeakRecord.from_json(act.undo_record).limits, strict=True):
            # The group keeps count itself; a process that is gone is as large as it was last seen to be.
            grown_bytes = memory_limit.peak_bytes(limit) or most[owned.process] - first[owned.process]
            oom_kills = memory_limit.num_oom_kills(limit)
            self._check(str(owned), limit.by, grown_bytes, codes[owned.process], oom_kills)
            how = (
                "ended by the out-of-memory killer of its own control group"
                if limit.by == "cgroup"
                else "ended by a failed allocation at its resource limit (no control group could be made here)"
                if self.parameters.by == "auto"
                else "ended by a failed allocation at its resource limit"
            )
            sentences.append(f"{owned} grew by {grown_bytes >> 20} MiB and was {how}: {ending(codes[owned.process])}")
            found.append({**owned.to_dict(), "exit": codes[owned.process], "grown_bytes": grown_bytes})
            found[-1] |= {"limited_by": limit.by, "oom_kills": oom_kills}
        return {
            "summary": f"limit {bytes_text(self.parameters.limit)} above what it used: {'; '.join(sentences)}",
            "seen_in": "its memory use and its exit",
            "fidelity": "real" if all(item["limited_by"] == "cgroup" for item in found) else "shaped",
            "seconds": round(seconds, 3),
            "processes": found,
        }

    def _check(self, name: str, by: str, grown_bytes: int, code: int | None, oom_kills: int | None) -> None:
        if grown_bytes < SEEN_RATIO * self.parameters.limit:
            raise EffectNotSeen(
                Reason(
                    "grown_too_little",
                    name=name,
                    ending=ending(code),
                    grown_mib=grown_bytes >> 20,
                    limit_mib=self.parameters.limit >> 20,
                )
            )
        if by == "cgroup" and not oom_kills:
            raise EffectNotSeen(Reason("no_out_of_memory_kill", name=name, ending=ending(code)))
        if by == "rlimit" and code in (None, 0):
            raise EffectNotSeen(Reason("not_by_allocation", name=name, ending=ending(code)))

    async def lift(self, act: Act, context: FaultContext) -> None:
        """In a rank that has not ended, release the memory."""
        for rank, handle in self._handles.items():
            await context.inside.lift(rank, handle, LIFT_SECONDS)

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Take the limits away."""
        limits = LeakRecord.from_json(record).limits
        for limit in limits:
            memory_limit.lift(limit)
        return {"undone": "no memory limit is left", "limits": len(limits)}
