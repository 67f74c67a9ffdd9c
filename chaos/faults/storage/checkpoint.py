"""The newest checkpoint of the job, damaged in one of the ways in which storage damages files.

Affected is the newest one of which every byte is as it was written. Which unit, file, byte and bit, is drawn from the
experiment's seed. Seen is what matters of it: the runtime's own reader, which took it for whole before, refuses it by
the name of the file. The affected file is kept in the run's folder and put back at the end.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, EnvironmentFailure, HealError, InjectionError, TargetNotFound
from chaos.faults.base import Act, Fault, FaultContext, Fidelity, NoParameters
from chaos.host.kept_file import KeptFile, describe, keep, put_back
from chaos.host.undo_record import UndoRecord
from chaos.spec.target import ResolvedTarget, Scope
from mecefo_runtime.checkpoint.folder import CheckpointFolder, complete_folders
from mecefo_runtime.checkpoint.manifest import CheckpointCorrupt, CheckpointError

KEPT_FOLDER = "kept"
_METADATA = ".metadata"


class UnitParameters(BaseModel):
    """Which of the checkpoint's units is affected."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: str | None = Field(default=None, description="embedding, layer.3 or head; drawn if not said")


class TruncateParameters(UnitParameters):
    """Which file is affected, and how much of it is left."""

    keep_ratio: float = Field(default=0.5, ge=0, lt=1, description="the share of its bytes that is left")


ParametersT = TypeVar("ParametersT", bound=BaseModel)


class _CheckpointFault(Fault[ParametersT]):
    """Damages the newest whole checkpoint; it stays so until the end of its lifetime."""

    scope: ClassVar[Scope] = "checkpoint"
    fidelity: ClassVar[Fidelity] = "real"
    needs: ClassVar[tuple[str, ...]] = ("checkpoints",)
    has_lifetime: ClassVar[bool] = True
    # Every byte of it is read again.
    verify_timeout_seconds: ClassVar[float] = 120.0

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Let the runtime's reader check the checkpoint: it must refuse it, for what was done to it."""
        record = CheckpointRecord.from_json(act.undo_record)
        affected, checkpoint = Path(record.struck), Path(record.checkpoint)
        try:
            refusal = await asyncio.wait_for(asyncio.to_thread(_refusal, checkpoint), timeout_seconds)
        except TimeoutError:
            raise EffectNotSeen(f"the reader was not through with {checkpoint} in {timeout_seconds:g} s") from None
        if refusal is None:
            raise EffectNotSeen(f"the runtime's reader still takes {checkpoint} for whole: {record.num_files} files")
        if affected != refusal.path and affected not in refusal.path.parents:
            raise EffectNotSeen(f"the runtime's reader refuses {checkpoint} for something else: {refusal}")
        before = f"all {record.num_files} files were whole before"
        return {
            "summary": f"{record.what}; {before}, now the runtime's reader refuses: {refusal}",
            "checkpoint": str(checkpoint),
            "step": record.step,
            "struck": str(affected),
            "refused": str(refusal),
            **record.details,
        }


def newest_whole(context: FaultContext) -> CheckpointFolder:
    """The newest checkpoint of which every byte is as it was written.

    Raises:
        chaos.errors.TargetNotFound: there is none; the message says whether there is none yet, or none that is whole.
    """
    root = context.checkpoint_folder
    if root is None:
        raise TargetNotFound("the job writes no checkpoints: give it --checkpoint-every 20")
    damaged: list[str] = []
    try:
        for checkpoint in complete_folders(root):
            try:
                checkpoint.verify()
            except CheckpointCorrupt as error:
                damaged.append(str(error))
            else:
                return checkpoint
    except OSError as error:
        raise EnvironmentFailure(f"cannot read the checkpoints in {root}: {error.strerror}") from error
    if damaged:
        raise TargetNotFound(f"no checkpoint in {root} is whole: {'; '.join(damaged)}")
    raise TargetNotFound(
        f"there is no complete checkpoint in {root} yet: choose a step some way after the first that writes one"
    )


def _refusal(folder: Path) -> CheckpointCorrupt | None:
    """What the runtime's reader says against the checkpoint in `folder`, None when it takes it."""
    try:
        CheckpointFolder.open(folder).verify()
    except CheckpointCorrupt as error:
        return error
    except CheckpointError:
        return None
    return None


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord(UndoRecord):
    """What is affected (`struck`) of which checkpoint, in words (`what`) and in figures (`details`)."""

    struck: str
    checkpoint: str
    step: int
    num_files: int
    what: str
    details: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class DamagedFile(CheckpointRecord, KeptFile):
    """A file of a unit that is damaged in its place and kept elsewhere."""


@dataclass(frozen=True, kw_only=True)
class HiddenFolder(CheckpointRecord):
    """A checkpoint's `folder` that was moved aside, and where it is `hidden`."""

    folder: str
    hidden: str


FileParametersT = TypeVar("FileParametersT", bound=UnitParameters)


class _FileFault(_CheckpointFault[FileParametersT]):
    """Damages one data file of a unit."""

    undo_summary: ClassVar[str] = "the file is put back from a copy in the run's folder, while its checkpoint is there"
    Record: ClassVar[type[UndoRecord]] = DamagedFile

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Draw the file among the data files of the newest whole checkpoint, by their sizes."""
        checkpoint = newest_whole(context)
        candidates = [
            (unit, name, file)
            for unit, manifest in checkpoint.manifests.items()
            for name, file in sorted(manifest.files.items())
            if name != _METADATA and self.parameters.unit in (None, unit)
        ]
        if not candidates:
            units = ", ".join(checkpoint.manifests)
            raise TargetNotFound(f"{checkpoint.path} has no unit {self.parameters.unit}: it has {units}")
        ends = list(accumulate(file.num_bytes for _, _, file in candidates))
        unit, name, file = candidates[bisect_right(ends, self.rng.random() * ends[-1])]
        kept = context.run_folder / KEPT_FOLDER / f"{checkpoint.path.name}-{unit}-{name}-{uuid.uuid4().hex[:8]}"
        try:
            described = describe(checkpoint.path / unit, name, file, kept)
        except OSError as error:
            raise TargetNotFound(f"{checkpoint.path} was removed by the job just now: {error.strerror}") from error
        details = self._draw(file.num_bytes)
        record = DamagedFile(
            **described.to_json(),
            struck=str(checkpoint.path / unit / name),
            checkpoint=str(checkpoint.path),
            step=checkpoint.step,
            num_files=sum(len(manifest.files) + 1 for manifest in checkpoint.manifests.values()),
            what=f"checkpoint of step {checkpoint.step}: {self._describe(f'{unit}/{name}', details)}",
            details=details,
        )
        return Act(undo_record=record.to_json())

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Keep a copy, then damage the file in its place, durably."""
        record = DamagedFile.from_json(act.undo_record)
        try:
            await asyncio.to_thread(keep, record)
            self._damage(Path(record.struck), record.details)
        except FileNotFoundError as error:
            raise TargetNotFound(f"{record.struck} was removed by the job just now") from error
        except OSError as error:
            raise InjectionError(f"cannot damage {record.struck}: {error.strerror}") from error

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Put the file back, unless the job has removed or replaced its checkpoint meanwhile."""
        return put_back(DamagedFile.from_json(record)) if record else {"undone": "there was nothing"}

    @abstractmethod
    def _draw(self, num_bytes: int) -> dict[str, Any]:
        """What exactly is to be done to a file of so many bytes."""

    @abstractmethod
    def _describe(self, file: str, details: Mapping[str, Any]) -> str:
        """The same in words."""

    @abstractmethod
    def _damage(self, path: Path, details: Mapping[str, Any]) -> None:
        """Do it, and sync."""


class TruncateCheckpoint(_FileFault[TruncateParameters]):
    """Cuts a data file of the newest checkpoint short, as a full disk or a lost write does."""

    kind: ClassVar[str] = "truncate-checkpoint"
    Parameters: ClassVar[type[BaseModel]] = TruncateParameters

    def _draw(self, num_bytes: int) -> dict[str, Any]:
        return {"num_bytes_before": num_bytes, "num_bytes_after": int(num_bytes * self.parameters.keep_ratio)}

    def _describe(self, file: str, details: Mapping[str, Any]) -> str:
        return f"{file} cut from {details['num_bytes_before']} to {details['num_bytes_after']} bytes"

    def _damage(self, path: Path, details: Mapping[str, Any]) -> None:
        with path.open("r+b") as file:
            file.truncate(details["num_bytes_after"])
            os.fsync(file.fileno())


class FlipCheckpointBit(_FileFault[UnitParameters]):
    """Flips one bit in a data file of the newest checkpoint; its size stays what it was."""

    kind: ClassVar[str] = "flip-checkpoint-bit"
    Parameters: ClassVar[type[BaseModel]] = UnitParameters

    def _draw(self, num_bytes: int) -> dict[str, Any]:
        return {"offset": int(self.rng.random() * num_bytes), "bit": int(self.rng.random() * 8)}

    def _describe(self, file: str, details: Mapping[str, Any]) -> str:
        return f"bit {details['bit']} of byte {details['offset']} of {file} flipped"

    def _damage(self, path: Path, details: Mapping[str, Any]) -> None:
        with path.open("r+b") as file:
            file.seek(details["offset"])
            (byte,) = file.read(1)
            file.seek(details["offset"])
            file.write(bytes([byte ^ (1 << details["bit"])]))
            file.flush()
            os.fsync(file.fileno())


class RemoveCheckpointShard(_FileFault[UnitParameters]):
    """Removes a data file of the newest checkpoint: one unit of the model is not there any more."""

    kind: ClassVar[str] = "remove-checkpoint-shard"
    Parameters: ClassVar[type[BaseModel]] = UnitParameters

    def _draw(self, num_bytes: int) -> dict[str, Any]:
        return {"num_bytes_before": num_bytes}

    def _describe(self, file: str, details: Mapping[str, Any]) -> str:
        return f"{file} removed, {details['num_bytes_before']} bytes"

    def _damage(self, path: Path, details: Mapping[str, Any]) -> None:
        path.unlink()
        _sync_folder(path.parent)


class HideCheckpoint(_CheckpointFault[NoParameters]):
    """Makes the newest checkpoint unreadable, for root too: its folder becomes a link to itself (ELOOP)."""

    # Permissions would not do: root, as whom jobs run in containers, reads whatever they forbid.
    kind: ClassVar[str] = "hide-checkpoint"
    undo_summary: ClassVar[str] = "the folder is put back in its place"
    Record: ClassVar[type[UndoRecord]] = HiddenFolder

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """The folder of the newest whole checkpoint."""
        checkpoint = newest_whole(context)
        path = checkpoint.path.resolve()
        record = HiddenFolder(
            struck=str(checkpoint.path),
            checkpoint=str(checkpoint.path),
            step=checkpoint.step,
            num_files=sum(len(manifest.files) + 1 for manifest in checkpoint.manifests.values()),
            what=f"checkpoint of step {checkpoint.step}: its folder made a link to itself",
            details={},
            folder=str(path),
            # Beside it: a rename never copies, and cannot be seen half done.
            hidden=str(path.with_name(f".hidden-{path.name}-{uuid.uuid4().hex[:8]}")),
        )
        return Act(undo_record=record.to_json())

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Move the folder aside, and leave the link in its place."""
        record = HiddenFolder.from_json(act.undo_record)
        folder = Path(record.folder)
        try:
            folder.rename(record.hidden)
            folder.symlink_to(folder.name)
            _sync_folder(folder.parent)
        except FileNotFoundError as error:
            raise TargetNotFound(f"{folder} was removed by the job just now") from error
        except OSError as error:
            raise InjectionError(f"cannot hide {folder}: {error.strerror}") from error

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Put the folder back in its place."""
        if not record:
            return {"undone": "there was nothing"}
        known = HiddenFolder.from_json(record)
        folder, hidden = Path(known.folder), Path(known.hidden)
        try:
            if not hidden.exists():
                return {"undone": "in its place" if folder.exists() else "not there any more", "folder": str(folder)}
            if folder.is_symlink() and folder.readlink() == Path(folder.name):
                folder.unlink()
            if os.path.lexists(folder):
                raise HealError(f"{folder} is something else now: the checkpoint that was there is {hidden}")
            hidden.rename(folder)
            _sync_folder(folder.parent)
        except OSError as error:
            raise HealError(f"cannot put {hidden} back as {folder}: {error.strerror}") from error
        return {"undone": "in its place", "folder": str(folder)}


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
