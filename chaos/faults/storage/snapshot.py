"""Bits of a snapshot in a node's memory, flipped as the memory itself does it: where a restore would read them.

The memory is a file without a name (memfd) of the node's snapshot process, which says where in it the parts of its
newest snapshot lie; it is written through /proc, and the process does not help. Which part, byte and bit is drawn from
the experiment's seed. Seen is what matters of it: the process, asked for that part, refuses it by its checksum.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, HealError, InjectionError, TargetNotFound
from chaos.faults.base import Act, Fault, FaultContext, Fidelity, OwnedProcess
from chaos.host.undo_record import UndoRecord
from chaos.language.target import ResolvedTarget, Scope
from mecefo_runtime.snapshots.refusal import DAMAGED
from mecefo_runtime.snapshots.region import MEMORY_NAME, SEQUENCE
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

NEWEST = "chaos.in_process.snapshot_agent:NewestSnapshot"
PART = "chaos.in_process.snapshot_agent:AskForPart"


class FlipParameters(BaseModel):
    """Which part of the snapshot, and how much of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: str | None = Field(default=None, description="embedding, layer.3 or head; default: drawn by the seed")
    bits: int = Field(default=1, ge=1, le=64, description="number of bits to flip, all in one part")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlippedBit(UndoRecord):
    """Bit `bit` of byte `offset` of a file, which was `before`."""

    offset: int
    bit: int
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlippedPart(UndoRecord):
    """Bits of a part of the snapshot of `step`, in the file `descriptor` of `node`'s snapshot process.

    It is that snapshot as long as the number at byte `sequence_offset` of the file is `sequence`.
    """

    node: int
    pid: int
    start_ticks: int
    descriptor: int
    sequence: int
    sequence_offset: int
    step: int
    lineage: str
    is_agreed: bool
    rank: int
    unit: str
    share: tuple[int, int]
    bits: tuple[FlippedBit, ...]

    @property
    def process(self) -> ProcessId:
        """Whose memory it is."""
        return ProcessId(self.pid, self.start_ticks)

    def __str__(self) -> str:
        index, of = self.share
        agreed = "on which all ranks have agreed" if self.is_agreed else "on which not all ranks have agreed yet"
        bits = ", ".join(f"bit {one.bit} of byte {one.offset}" for one in self.bits)
        return (
            f"node {self.node}'s snapshot of step {self.step}, {agreed}: {bits} flipped in "
            f"share {index + 1} of {of} of {self.unit}, from rank {self.rank}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlippedMemory(UndoRecord):
    """All that were flipped."""

    parts: tuple[FlippedPart, ...] = ()

    def changed_paths(self) -> tuple[str, ...] | None:
        """Memory has no path."""
        return ()


class FlipSnapshotBit(Fault[FlipParameters]):
    """Flips bits in the newest snapshot in a node's memory; the next snapshot there writes over them."""

    kind: ClassVar[str] = "flip-snapshot-bit"
    brief: ClassVar[str] = "flip bits of a snapshot"
    scope: ClassVar[Scope] = "node"
    fidelity: ClassVar[Fidelity] = "real"
    needs: ClassVar[tuple[str, ...]] = ("own-runtime", "snapshots")
    has_lifetime: ClassVar[bool] = True
    is_latent: ClassVar[bool] = True
    # Ranks that are held do not begin a snapshot in the very buffer.
    acts_inside: ClassVar[bool] = True
    undo_summary: ClassVar[str] = "the bits are flipped back, unless the next snapshot has begun there"
    Parameters: ClassVar[type[BaseModel]] = FlipParameters
    Record: ClassVar[type[UndoRecord]] = FlippedMemory

    def __init__(self, parameters: FlipParameters) -> None:
        super().__init__(parameters)
        self._newest: dict[int, Mapping[str, Any]] = {}

    async def look(self, target: ResolvedTarget, context: FaultContext) -> None:
        """Ask the nodes' processes what they have, and where."""
        self._newest = {node: await context.inside.ask(node, NEWEST, {}) for node in target.nodes}

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Draw the part by its size, and the bits in it."""
        owned = {one.node: one for one in context.processes.node_processes(target.nodes) if one.role == "snapshots"}
        missing = sorted(set(target.nodes) - set(owned))
        if missing or not owned:
            node = missing[0] if missing else None
            raise TargetNotFound(Reason("no_snapshot_process", target=target, node=node))
        parts = [self._draw(node, owned[node], self._newest[node]) for node in target.nodes]
        return Act(tuple(owned[node] for node in target.nodes), FlippedMemory(parts=tuple(parts)).to_json())

    def _draw(self, node: int, owned: OwnedProcess, newest: Mapping[str, Any]) -> FlippedPart:
        if not newest["parts"]:
            raise TargetNotFound(Reason("no_complete_snapshot", node=node))
        wanted = [
            part for part in newest["parts"] if part["num_bytes"] and self.parameters.unit in (None, part["unit"])
        ]
        if not wanted:
            raise TargetNotFound(Reason("unit_not_kept", node=node, unit=self.parameters.unit))
        ends = list(accumulate(part["num_bytes"] for part in wanted))
        # By random() alone, of all methods the one that gives the same numbers in every version of Python.
        part = wanted[bisect_right(ends, self.rng.random() * ends[-1])]
        places: set[int] = set()
        while len(places) < min(self.parameters.bits, 8 * part["num_bytes"]):
            places.add(int(self.rng.random() * 8 * part["num_bytes"]))
        with _memory(owned.process, part["descriptor"], f"the memory of {owned}") as memory:
            bits = tuple(
                FlippedBit(offset=offset, bit=place % 8, before=os.pread(memory, 1, offset)[0])
                for place in sorted(places)
                for offset in (part["offset"] + place // 8,)
            )
        known = {key: part[key] for key in ("descriptor", "sequence", "sequence_offset", "rank", "unit")}
        return FlippedPart(
            node=node,
            pid=owned.process.pid,
            start_ticks=owned.process.start_ticks,
            step=newest["step"],
            lineage=newest["lineage"],
            is_agreed=newest["is_agreed"],
            share=tuple(part["share"]),
            bits=bits,
            **known,
        )

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Flip them, where the snapshot still is."""
        for part in FlippedMemory.from_json(act.undo_record).parts:
            with _memory(part.process, part.descriptor, f"the memory of node {part.node}'s snapshot process") as memory:
                if not _stands(memory, part):
                    raise InjectionError(Reason("snapshot_begun_again", node=part.node, step=part.step))
                _write(memory, part.bits, is_flipped=True)

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Read the bits back, and ask the process for the part: it must refuse it by its checksum."""
        seen, said = [], []
        for part in FlippedMemory.from_json(act.undo_record).parts:
            with _memory(part.process, part.descriptor, f"the memory of node {part.node}'s snapshot process") as memory:
                is_changed, is_there = _are(memory, part.bits, is_flipped=True), _stands(memory, part)
            if not is_there:
                raise EffectNotSeen(Reason("snapshot_overwritten", part=part))
            if not is_changed:
                raise EffectNotSeen(Reason("bits_unchanged", part=part))
            wanted = {"step": part.step, "lineage": part.lineage, "unit": part.unit, "share": list(part.share)}
            answer = await context.inside.ask(part.node, PART, wanted)
            refused = answer["refused"]
            if answer["code"] != DAMAGED:
                raise EffectNotSeen(Reason("part_delivered", part=part, refusal=refused))
            seen.append({**part.to_json(), "still_there": is_there, "refused": refused})
            said.append(f"{part}; refused: {refused}")
        return {"summary": "; ".join(said), "parts": seen}

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Flip back what is still there."""
        parts = FlippedMemory.from_json(record).parts if record else ()
        ends = {f"node {part.node}": _flip_back(part) for part in parts}
        if not ends:
            return {"undone": "there was nothing to undo"}
        return {"undone": "; ".join(f"{node}: {how}" for node, how in ends.items())}


def _flip_back(part: FlippedPart) -> str:
    if not part.process.is_running():
        return "ended with its process"
    try:
        with _memory(part.process, part.descriptor, f"the memory of node {part.node}'s snapshot process") as memory:
            if not _stands(memory, part):
                return f"the snapshot of step {part.step} was written over since"
            _write(memory, part.bits, is_flipped=False)
            if not _stands(memory, part):
                raise HealError(Reason("snapshot_begun_meanwhile", node=part.node))
            if not _are(memory, part.bits, is_flipped=False):
                raise HealError(Reason("bits_still_flipped", node=part.node))
    except TargetNotFound:
        return "ended with its memory"
    except InjectionError as error:
        raise HealError(error.why) from error
    return f"flipped back: the snapshot of step {part.step} was still there"


@contextmanager
def _memory(process: ProcessId, descriptor: int, what: str) -> Iterator[int]:
    """The file `descriptor` of another process, which must be the memory of a snapshot process.

    Raises:
        TargetNotFound: it is not there any more.
        InjectionError: it cannot be opened.
    """
    path = Path(f"/proc/{process.local_pid}/fd/{descriptor}")
    try:
        if not process.is_running() or not str(path.readlink()).startswith(f"/memfd:{MEMORY_NAME}"):
            raise TargetNotFound(Reason("memory_gone", what=what))
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise TargetNotFound(Reason("memory_gone", what=what)) from None
    except OSError as error:
        hint = "run chaos as root, or as the user of that process"
        raise InjectionError(Reason("memory_not_opened", what=what, error=error.strerror, hint=hint)) from error
    try:
        # Looked at again through what was opened: the process may have ended, and another have its pid.
        is_memory = str(Path(f"/proc/self/fd/{opened}").readlink()).startswith(f"/memfd:{MEMORY_NAME}")
        if not is_memory or not process.is_running():
            raise TargetNotFound(Reason("memory_gone", what=what))
        yield opened
    finally:
        os.close(opened)


def _stands(memory: int, part: FlippedPart) -> bool:
    """Whether no other snapshot was begun there."""
    read = os.pread(memory, SEQUENCE.size, part.sequence_offset)
    return len(read) == SEQUENCE.size and SEQUENCE.unpack(read)[0] == part.sequence


def _bytes(bits: Sequence[FlippedBit], *, is_flipped: bool) -> dict[int, int]:
    """What each byte is to be: several bits may be of one."""
    found = {one.offset: one.before for one in bits}
    for one in bits if is_flipped else ():
        found[one.offset] ^= 1 << one.bit
    return found


def _write(memory: int, bits: Sequence[FlippedBit], *, is_flipped: bool) -> None:
    for offset, value in _bytes(bits, is_flipped=is_flipped).items():
        os.pwrite(memory, bytes([value]), offset)


def _are(memory: int, bits: Sequence[FlippedBit], *, is_flipped: bool) -> bool:
    return all(
        os.pread(memory, 1, offset) == bytes([value]) for offset, value in _bytes(bits, is_flipped=is_flipped).items()
    )
