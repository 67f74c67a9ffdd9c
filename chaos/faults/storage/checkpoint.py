"""Damages the newest intact checkpoint of the job in one of the ways in which storage damages files.

Unit, file, byte and bit are drawn from the experiment's seed. Verified is that the runtime's own reader, which accepted
the checkpoint before, refuses it and names the file. That file is kept in the run's folder and put back at the end.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import uuid
import zlib
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, HealError, InjectionError, TargetNotFound
from chaos.faults.base import Act, Fault, FaultContext, Fidelity, NoParameters
from chaos.faults.storage._own import (
    CheckpointRecord,
    DamagedFile,
    DamagedSavedFile,
    HiddenFolder,
    newest_whole,
    refusal_of,
)
from chaos.faults.storage._saved import newest_saved
from chaos.host.kept_file import describe, keep, permissions_of, put_back
from chaos.host.own_folder import parent_of, status_in
from chaos.host.run_files import KEPT_FOLDER
from chaos.host.undo_record import UndoRecord
from chaos.language.target import ResolvedTarget, Scope
from mecefo_runtime.checkpoint.manifest import FileRecord, measure
from mecefo_runtime.system.reason import Reason

_HIDDEN = ".hidden-"
_METADATA = ".metadata"
_CHUNK_BYTES = 1 << 20


class UnitParameters(BaseModel):
    """Which of the checkpoint's units is affected."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: str | None = Field(
        default=None, description="embedding, layer.3 or head; of a script: a file; default: drawn by the seed"
    )


class TruncateParameters(UnitParameters):
    """Which file is affected, and how much of it is left."""

    keep_ratio: float = Field(default=0.5, ge=0, lt=1, description="share of its bytes that remain")


ParametersT = TypeVar("ParametersT", bound=BaseModel)


class _CheckpointFault(Fault[ParametersT]):
    """Damages the newest whole checkpoint; it stays so until the end of its lifetime."""

    scope: ClassVar[Scope] = "checkpoint"
    fidelity: ClassVar[Fidelity] = "real"
    needs: ClassVar[tuple[str, ...]] = ("checkpoints",)
    has_lifetime: ClassVar[bool] = True
    is_latent: ClassVar[bool] = True
    verify_timeout_seconds: ClassVar[float] = 120.0  # every byte is read again

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Let the runtime's reader check the checkpoint: it must refuse it, for what was done to it."""
        record = CheckpointRecord.from_json(act.undo_record)
        affected, checkpoint = Path(record.struck), Path(record.checkpoint)
        if context.has_foreign_checkpoints:
            return {"summary": f"{record.what}; {await asyncio.to_thread(self._seen, act)}", "struck": str(affected)}
        try:
            refusal = await asyncio.wait_for(asyncio.to_thread(refusal_of, checkpoint), timeout_seconds)
        except TimeoutError:
            raise EffectNotSeen(Reason("reader_too_slow", checkpoint=checkpoint, seconds=timeout_seconds)) from None
        if refusal is None:
            raise EffectNotSeen(Reason("still_taken_for_whole", checkpoint=checkpoint, files=record.num_files))
        if affected != refusal.path and affected not in refusal.path.parents:
            raise EffectNotSeen(Reason("refused_for_something_else", checkpoint=checkpoint, refusal=refusal))
        before = f"all {record.num_files} files were whole before"
        return {
            "summary": f"{record.what}; {before}, now the runtime's reader refuses: {refusal}",
            "checkpoint": str(checkpoint),
            "step": record.step,
            "struck": str(affected),
            "refused": str(refusal),
            **record.details,
        }

    @abstractmethod
    def _seen(self, act: Act) -> str:
        """What reading a script's checkpoint again shows of it.

        Raises:
            chaos.errors.EffectNotSeen: it is not as it was made.
        """


FileParametersT = TypeVar("FileParametersT", bound=UnitParameters)


class _FileFault(_CheckpointFault[FileParametersT]):
    """Damages one data file of a unit."""

    undo_summary: ClassVar[str] = "the file is restored from a copy in the run's folder, if its checkpoint still exists"
    Record: ClassVar[type[UndoRecord]] = DamagedFile

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """Draw the file among the data files of the newest whole checkpoint, by their sizes."""
        if context.has_foreign_checkpoints:
            return self._prepare_saved(context)
        checkpoint = newest_whole(context)
        candidates = [
            (unit, name, file)
            for unit, manifest in checkpoint.manifests.items()
            for name, file in sorted(manifest.files.items())
            if name != _METADATA and self.parameters.unit in (None, unit)
        ]
        if not candidates:
            units = ", ".join(checkpoint.manifests)
            raise TargetNotFound(
                Reason("no_such_unit", checkpoint=checkpoint.path, unit=self.parameters.unit, units=units)
            )
        ends = list(accumulate(file.num_bytes for _, _, file in candidates))
        unit, name, file = candidates[bisect_right(ends, self.rng.random() * ends[-1])]
        kept = context.run_folder / KEPT_FOLDER / f"{checkpoint.path.name}-{unit}-{name}-{uuid.uuid4().hex[:8]}"
        try:
            described = describe(checkpoint.path / unit, name, file, kept)
        except OSError as error:
            raise TargetNotFound(Reason("removed_by_job", path=checkpoint.path, error=error.strerror)) from error
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

    def _prepare_saved(self, context: FaultContext) -> Act:
        """The same of what a script saved; `unit` is the name of a file there."""
        saved = newest_saved(context)
        files = [file for file in saved.files if self.parameters.unit in (None, file.name)]
        if not files:
            names = ", ".join(sorted(file.name for file in saved.files))
            raise TargetNotFound(Reason("no_such_file", saved=saved, unit=self.parameters.unit, processes=names))
        ends = list(accumulate(file.stat().st_size for file in files))
        path = files[bisect_right(ends, self.rng.random() * ends[-1])]
        try:
            with path.open("rb") as file:
                whole = measure(file)
            details, mode = self._draw(whole.num_bytes), permissions_of(path)
            damaged = self._damaged(path, details)
        except OSError as error:
            raise TargetNotFound(Reason("removed_by_job", path=path, error=error.strerror)) from error
        record = DamagedSavedFile(
            folder=str(path.parent.resolve()),
            name=path.name,
            num_bytes=whole.num_bytes,
            crc32=whole.crc32,
            unit_crc32=None,
            kept=str((context.run_folder / KEPT_FOLDER / f"{path.name}-{uuid.uuid4().hex[:8]}").resolve()),
            mode=mode,
            damaged_num_bytes=None if damaged is None else damaged.num_bytes,
            damaged_crc32=None if damaged is None else damaged.crc32,
            struck=str(path),
            checkpoint=str(saved.path),
            step=saved.step or 0,
            num_files=len(saved.files),
            what=f"checkpoint {saved}: {self._describe(path.name, details)}",
            details=details,
        )
        return Act(undo_record=record.to_json())

    def _seen(self, act: Act) -> str:
        record = _file_of(act.undo_record)
        assert isinstance(record, DamagedSavedFile)
        path = Path(record.folder, record.name)
        try:
            with path.open("rb") as file:
                found = measure(file)
        except FileNotFoundError:
            if record.damaged is None:
                return "read back: it is not there"
            raise EffectNotSeen(Reason("gone_again", path=path)) from None
        if found != record.damaged:
            raise EffectNotSeen(Reason("rewritten_by_job", path=path))
        return f"read back: {found.num_bytes} bytes, CRC-32 {found.crc32:08x} instead of {record.crc32:08x}"

    def _damaged(self, path: Path, details: Mapping[str, Any]) -> FileRecord | None:
        """What the file is when that is done; None: not there."""
        return None

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Keep a copy, then damage the file in its place, durably."""
        record = _file_of(act.undo_record)
        try:
            await asyncio.to_thread(keep, record)
            self._damage(Path(record.struck), record.details)
        except FileNotFoundError as error:
            raise TargetNotFound(Reason("just_removed_by_job", path=record.struck)) from error
        except OSError as error:
            raise InjectionError(Reason("cannot_damage", path=record.struck, error=error.strerror)) from error

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Put the file back, unless the job has removed or replaced its checkpoint meanwhile."""
        return put_back(_file_of(record)) if record else {"undone": "there was nothing to undo"}

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
    brief: ClassVar[str] = "cut a data file short"
    Parameters: ClassVar[type[BaseModel]] = TruncateParameters

    def _draw(self, num_bytes: int) -> dict[str, Any]:
        return {"num_bytes_before": num_bytes, "num_bytes_after": int(num_bytes * self.parameters.keep_ratio)}

    def _describe(self, file: str, details: Mapping[str, Any]) -> str:
        return f"{file} cut from {details['num_bytes_before']} to {details['num_bytes_after']} bytes"

    def _damaged(self, path: Path, details: Mapping[str, Any]) -> FileRecord:
        with path.open("rb") as file:
            return _measured(file, details["num_bytes_after"])

    def _damage(self, path: Path, details: Mapping[str, Any]) -> None:
        with path.open("r+b") as file:
            file.truncate(details["num_bytes_after"])
            os.fsync(file.fileno())


class FlipCheckpointBit(_FileFault[UnitParameters]):
    """Flips one bit in a data file of the newest checkpoint; its size stays what it was."""

    kind: ClassVar[str] = "flip-checkpoint-bit"
    brief: ClassVar[str] = "flip a bit of a data file"
    Parameters: ClassVar[type[BaseModel]] = UnitParameters

    def _draw(self, num_bytes: int) -> dict[str, Any]:
        return {"offset": int(self.rng.random() * num_bytes), "bit": int(self.rng.random() * 8)}

    def _describe(self, file: str, details: Mapping[str, Any]) -> str:
        return f"bit {details['bit']} of byte {details['offset']} of {file} flipped"

    def _damaged(self, path: Path, details: Mapping[str, Any]) -> FileRecord:
        offset = details["offset"]
        with path.open("rb") as file:
            before = _measured(file, offset)
            flipped = zlib.crc32(bytes([file.read(1)[0] ^ (1 << details["bit"])]), before.crc32)
            rest = _measured(file, path.stat().st_size, flipped)
        return FileRecord(offset + 1 + rest.num_bytes, rest.crc32)

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
    brief: ClassVar[str] = "delete a data file"
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
    brief: ClassVar[str] = "make the newest unreadable"
    undo_summary: ClassVar[str] = "the folder is moved back"
    Record: ClassVar[type[UndoRecord]] = HiddenFolder

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """The folder of the newest whole checkpoint, or the one file that it is."""
        if context.has_foreign_checkpoints:
            saved = newest_saved(context)
            found, step, num_files = saved.path, saved.step or 0, len(saved.files)
            what = f"checkpoint {saved}: made a link to itself"
        else:
            checkpoint = newest_whole(context)
            found, step = checkpoint.path, checkpoint.step
            num_files = sum(len(manifest.files) + 1 for manifest in checkpoint.manifests.values())
            what = f"checkpoint of step {step}: its folder made a link to itself"
        path = found.resolve()
        record = HiddenFolder(
            struck=str(found),
            checkpoint=str(found),
            step=step,
            num_files=num_files,
            what=what,
            details={},
            folder=str(path),
            # Beside it: a rename never copies, and cannot be seen half done.
            hidden=str(path.with_name(f"{_HIDDEN}{path.name}-{uuid.uuid4().hex[:8]}")),
        )
        return Act(undo_record=record.to_json())

    def _seen(self, act: Act) -> str:
        path = Path(HiddenFolder.from_json(act.undo_record).folder)
        try:
            path.stat()
        except OSError as error:
            # A link to itself.
            if error.errno == errno.ELOOP:
                return f"read back: {error.strerror}"
        raise EffectNotSeen(Reason("still_opens", path=path))

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Move the folder aside, and leave the link in its place."""
        record = HiddenFolder.from_json(act.undo_record)
        folder = Path(record.folder)
        try:
            folder.rename(record.hidden)
            folder.symlink_to(folder.name)
            _sync_folder(folder.parent)
        except FileNotFoundError as error:
            raise TargetNotFound(Reason("just_removed_by_job", path=folder)) from error
        except OSError as error:
            raise InjectionError(Reason("cannot_hide", folder=folder, error=error.strerror)) from error

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Put the folder back in its place."""
        if not record:
            return {"undone": "there was nothing to undo"}
        known = HiddenFolder.from_json(record)
        folder, hidden = Path(known.folder), Path(known.hidden)
        if hidden.parent != folder.parent or not hidden.name.startswith(f"{_HIDDEN}{folder.name}"):
            raise HealError(Reason("not_moved_there", path=hidden, folder=folder))
        try:
            with parent_of(folder) as (parent, name):
                outcome = _bring_back(parent, name, hidden.name)
        except FileNotFoundError:
            outcome = "not there any more"
        except OSError as error:
            raise HealError(Reason("folder_not_put_back", kept=hidden, folder=folder, error=error.strerror)) from error
        if outcome is None:
            raise HealError(Reason("place_is_taken", folder=folder, kept=hidden))
        return {"undone": outcome, "folder": str(folder)}


def _bring_back(parent: int, name: str, hidden: str) -> str | None:
    """What came of it; None: something else is in the place."""
    aside, now = status_in(parent, hidden), status_in(parent, name)
    if aside is None:
        return "not there any more" if now is None or stat.S_ISLNK(now.st_mode) else "in its place"
    if now is not None and stat.S_ISLNK(now.st_mode) and os.readlink(name, dir_fd=parent) == name:
        os.unlink(name, dir_fd=parent)
        now = None
    if now is not None and stat.S_ISREG(aside.st_mode):
        # A script's: it would have been overwritten.
        os.unlink(hidden, dir_fd=parent)
        return "the job has written this file since"
    if now is not None:
        return None
    os.rename(hidden, name, src_dir_fd=parent, dst_dir_fd=parent)
    os.fsync(parent)
    return "in its place"


def _file_of(record: Mapping[str, Any]) -> DamagedFile | DamagedSavedFile:
    return (DamagedSavedFile if "damaged_num_bytes" in record else DamagedFile).from_json(record)


def _measured(file: IO[bytes], num_bytes: int, crc32: int = 0) -> FileRecord:
    """Size and CRC-32, following on `crc32`, of at most so many of the next bytes."""
    left = num_bytes
    while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
        left, crc32 = left - len(chunk), zlib.crc32(chunk, crc32)
    return FileRecord(num_bytes - left, crc32)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
