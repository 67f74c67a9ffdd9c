"""The disk that the job writes its checkpoints to becomes full: one of the run's own, never a shared one.

Where the checkpoint folder is on a small filesystem of its own, that one is filled; else, with the right to mount, a
small one is put over the folder as long as the fault lasts. Three things are verified: a byte more is refused (ENOSPC),
the job's next checkpoint fails, and the job continues nevertheless.

Over the folder of a script it is a layer: most scripts write a new checkpoint over the old one, whose room a full disk
would give back to them.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import stat
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from chaos.errors import EffectNotSeen, HealError, InjectionError, UsageError, setting
from chaos.faults.base import Act, Fault, FaultContext, Fidelity, RunContext
from chaos.faults.endings import Endings, Recognised, messages_of, raised_to_dict
from chaos.faults.storage._places import checkpoint_folder, is_within, observed_folders, wide_folders
from chaos.host import small_disk
from chaos.host.own_folder import opened, parent_of, status_in
from chaos.host.run_files import KEPT_FOLDER
from chaos.host.undo_record import UndoRecord
from chaos.language.quantities import BytesText
from chaos.language.sizes import bytes_text
from chaos.language.target import ResolvedTarget, Scope
from chaos.refusals import FOLDER_OPTION
from mecefo_runtime.system.command_records import RankRaised
from mecefo_runtime.system.job_records import CheckpointFailed
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import Record

_FILL_BYTES = 1 << 24
_FOLDER_KEY = "job.checkpoint.folder"
_BALLAST = ".ballast-"
# How an exception names a full disk: Python's text of an OSError, and what other libraries take over of it.
_FULL = (f"[Errno {errno.ENOSPC}]", os.strerror(errno.ENOSPC), "ENOSPC")
# Of `torch.save` to a path, whatever went wrong.
_TORCH_WRITER = "PytorchStreamWriter failed writing"


class FillParameters(BaseModel):
    """Which disk is filled: a small one that is put over the folder, unless the folder's own is small."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: BytesText = Field(default=64 * 2**20, description="size of the small disk that is mounted over the folder")
    max_filesystem: BytesText = Field(default=2**30, description="a filesystem up to this size is filled directly")


@dataclass(frozen=True, slots=True, kw_only=True)
class FullDiskRecord(UndoRecord):
    """The file that fills the disk, and the small disk that it is on, if it is one of ours."""

    ballast: str
    disk: small_disk.SmallDisk | None

    @property
    def folder(self) -> Path:
        """The folder whose disk is full."""
        return Path(self.ballast).parent if self.disk is None else Path(self.disk.folder)

    def changed_paths(self) -> tuple[str, ...] | None:
        """The file, the folder under the disk, and the disk's own place."""
        return self.ballast, *(() if self.disk is None else (self.disk.folder, self.disk.place))


class FillDisk(Fault[FillParameters]):
    """Fills the disk of the job's checkpoint folder: its own small one, or one that is put over the folder."""

    kind: ClassVar[str] = "fill-disk"
    brief: ClassVar[str] = "fill the checkpoint disk"
    scope: ClassVar[Scope] = "checkpoint"
    affects: ClassVar[str] = "the disk of the checkpoints"
    fidelity: ClassVar[Fidelity] = "real"
    needs: ClassVar[tuple[str, ...]] = ("checkpoints",)
    undo_summary: ClassVar[str] = (
        "the filler file and the small disk are removed; checkpoints written to it are moved to the folder"
    )
    # The small disk lies over the folder.
    covers: ClassVar[bool] = True
    has_lifetime: ClassVar[bool] = True
    exclusive: ClassVar[str | None] = "how full the disk of the checkpoints is"
    shows_when_released: ClassVar[bool] = True
    # It shows when the next checkpoint is due.
    verify_timeout_seconds: ClassVar[float] = 600.0
    Record: ClassVar[type[UndoRecord]] = FullDiskRecord
    Parameters: ClassVar[type[BaseModel]] = FillParameters

    def __init__(self, parameters: FillParameters) -> None:
        super().__init__(parameters)
        # The last committed step when the disk was full. What was being written then may have failed of the change of
        # the disk under it, not of a full one.
        self._last_step = 0

    def outlives_processes(self, act: Act) -> bool:
        """A mount does; a file is only a file."""
        return FullDiskRecord.from_json(act.undo_record).disk is not None

    def check(self, target: ResolvedTarget, run: RunContext) -> None:
        """Refuse what would fill a disk that is not the run's own."""
        if self._is_small(run.checkpoint_folder):
            return
        if not small_disk.may_mount():
            unnamed = "the folder that the script saves in" if run.keeps_own_checkpoints else "the run's folder"
            raise UsageError(self._violation(run.checkpoint_folder or unnamed, setting(_FOLDER_KEY, "FOLDER")))
        if not run.sees_mounts:
            raise UsageError(
                "containers here do not see the small disk that is put over the checkpoint folder: let them, with "
                "`mount --make-rshared /`, or put the checkpoints on a small filesystem of their own with "
                f"{setting(_FOLDER_KEY)}"
            )

    def prepare(self, target: ResolvedTarget, context: FaultContext) -> Act:
        """See which of the two ways there is."""
        folder = checkpoint_folder(context).resolve()
        token = uuid.uuid4().hex[:12]
        place, disk = folder, None
        if not self._is_small(folder, context.run_folder):
            if not small_disk.may_mount():
                raise InjectionError(self._violation(folder, f"{FOLDER_OPTION} FOLDER"))
            if context.has_foreign_checkpoints:
                _refuse_more_than_checkpoints(folder, context)
            place = (context.run_folder / KEPT_FOLDER / f"disk-{token}").resolve()
            disk = small_disk.SmallDisk(
                name=f"{small_disk.NAME_PREFIX}{token}",
                folder=str(folder),
                place=str(place),
                num_bytes=self.parameters.size,
                is_layer=context.has_foreign_checkpoints,
            )
        return Act(undo_record=FullDiskRecord(ballast=str(place / f"{_BALLAST}{token}"), disk=disk).to_json())

    async def apply(self, act: Act, context: FaultContext) -> None:
        """Put the small disk in place, if there is to be one, and fill it to the last block."""
        record = FullDiskRecord.from_json(act.undo_record)
        fill = functools.partial(_fill, Path(record.ballast), self._limit_bytes(record))
        try:
            if record.disk is None:
                await asyncio.to_thread(fill)
            else:
                # Full before it is over the folder: nothing of the job's gets onto it that would end with it.
                await asyncio.to_thread(small_disk.put_over, record.disk, fill)
            self._last_step = context.watch.last_step
        except OSError as error:
            hint = ""
            if error.errno == errno.ENOSPC and record.disk is not None and not record.disk.is_layer:
                hint = (
                    f": the checkpoints do not fit into size {bytes_text(self.parameters.size)}, give it a larger one"
                )
            raise InjectionError(
                Reason("cannot_fill_disk", folder=record.folder, error=error.strerror, hint=hint)
            ) from error

    async def verify(self, act: Act, context: FaultContext, timeout_seconds: float) -> dict[str, Any]:
        """Try to write one byte more; then wait until a checkpoint of the job fails and a later step is committed."""
        record = FullDiskRecord.from_json(act.undo_record)
        ballast, folder = Path(record.ballast), record.folder
        last_steps: list[int] = []

        def is_failure(record: Record) -> bool:
            if not isinstance(record, CheckpointFailed) or not self._is_of_the_disk(record, folder):
                return False
            # Now: when the task that waits for it continues, the step after it may have been committed.
            last_steps.append(context.watch.last_step)
            return True

        failure = asyncio.create_task(context.watch.wait_for(is_failure, timeout_seconds))
        try:
            refusal = _refusal(folder)
            if refusal != errno.ENOSPC:
                outcome = "succeeded" if refusal is None else f"failed with {errno.errorcode.get(refusal, refusal)}"
                raise EffectNotSeen(Reason("disk_not_full", folder=folder, outcome=outcome))
            failed = await failure
            assert isinstance(failed, CheckpointFailed)
            step = max(failed.step or 0, last_steps[0]) + 1
            await context.watch.wait_for_step(step, timeout_seconds)
            status, ballast_bytes = os.statvfs(folder), ballast.stat().st_size
        except TimeoutError:
            raise EffectNotSeen(Reason("no_save_failed", seconds=timeout_seconds)) from None
        except FileNotFoundError as error:
            # By the watchdog, while this process stood still.
            raise EffectNotSeen(Reason("undone_before_seen", path=error.filename)) from None
        finally:
            failure.cancel()
            with suppress(asyncio.CancelledError, TimeoutError):
                await failure
        total, free = status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail
        return {
            "summary": (
                f"disk of {bytes_text(total)} full, a write of 1 byte fails with ENOSPC; the checkpoint of step "
                f"{failed.step} failed on rank {failed.rank}, and step {step} was committed after it"
            ),
            "total_bytes": total,
            "free_bytes": free,
            "ballast_bytes": ballast_bytes,
            "own_disk": record.disk is not None,
            "checkpoint_failed": {"step": failed.step, "rank": failed.rank, "reason": failed.reason},
            "step_committed_after": step,
        }

    def recognises(self, act: Act, context: FaultContext, endings: Endings) -> Recognised | None:
        """That a rank ended of the full disk: of ENOSPC, or of torch's writer while a byte more is refused."""
        folder = FullDiskRecord.from_json(act.undo_record).folder
        raised = next((one for one in endings.raised if self._names_disk(one, folder)), None)
        unsaved = next((one for one in endings.unsaved if self._names_folder(one, folder)), None)
        ended = None if unsaved is None or unsaved.rank is None else endings.end_of(unsaved.rank)
        if raised is not None:
            of = "" if not raised.step else f" of step {raised.step}"
            evidence: dict[str, Any] = {
                "summary": f"disk full: rank {raised.rank} ended of {raised.exception}: {raised.message}{of}",
                "raised": raised_to_dict(raised),
            }
            return Recognised(evidence, raised.monotonic_seconds)
        if unsaved is None or ended is None or ended.exit == 0:
            return None
        evidence = {
            "summary": f"disk full: the checkpoint of step {unsaved.step} failed on rank {unsaved.rank} "
            f"({unsaved.reason}), which ended",
            "checkpoint_failed": {"step": unsaved.step, "rank": unsaved.rank, "reason": unsaved.reason},
            "exit": ended.exit,
        }
        return Recognised(evidence, unsaved.monotonic_seconds)

    def _names_disk(self, raised: RankRaised, folder: Path) -> bool:
        if raised.is_injected:
            return False
        texts = [message for _, message in messages_of(raised)]
        if any(word in text for text in texts for word in _FULL):
            return True
        # It does not say why (torch 2.13).
        return any(_TORCH_WRITER in text for text in texts) and _refusal(folder) == errno.ENOSPC

    @classmethod
    def undo(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """Remove ballast and small disk, bring what was written to it to the folder, then write a byte there."""
        if not record:
            return {"undone": "there was nothing to undo"}
        known = FullDiskRecord.from_json(record)
        ballast, disk, folder = Path(known.ballast), known.disk, known.folder
        if not ballast.name.startswith(_BALLAST):
            raise HealError(Reason("not_our_ballast", path=ballast))
        if disk is not None and not disk.name.startswith(small_disk.NAME_PREFIX):
            raise HealError(Reason("not_our_disk", name=disk.name))
        returned: list[str] = []
        try:
            if disk is not None and disk.is_layer:
                # First: what the job writes from now on must not go to a layer that ends.
                small_disk.uncover(disk)
            _remove(ballast)
            if disk is not None:
                returned = small_disk.take_away(disk)
            refusal = _refusal_of(folder)
        except OSError as error:
            raise HealError(
                Reason("disk_not_freed", folder=folder, error=error.strerror, path=str(error.filename))
            ) from error
        if refusal == errno.ENOSPC:
            raise HealError(Reason("disk_still_full", folder=folder))
        return {"undone": "a write of 1 byte succeeds again", "folder": str(folder), "returned": returned}

    def why_unseen(self, act: Act, context: FaultContext) -> str | None:
        """Say where the script saved instead, or that it did not."""
        if not context.has_foreign_checkpoints:
            return None
        folder = FullDiskRecord.from_json(act.undo_record).folder
        since = [one for one in context.watch.saves if (one.step or 0) > self._last_step]
        if not since:
            return f"no save was seen after step {self._last_step}, when it was full"
        if elsewhere := [one for one in observed_folders(since) if not is_within(one, folder)]:
            return f"the script saved in {elsewhere[0]}: write {FOLDER_OPTION} {elsewhere[0]}"
        return f"the checkpoint of step {since[0].step} was saved in it"

    def _is_of_the_disk(self, failed: CheckpointFailed, folder: Path) -> bool:
        if failed.was_skipped or (failed.path is not None and not is_within(Path(failed.path), folder)):
            return False
        # What failed of something else is not of the disk; many exceptions do not say of what (torch.save, 2.13).
        return failed.errno == errno.ENOSPC or (failed.errno is None and (failed.step or 0) > self._last_step)

    def _names_folder(self, failed: CheckpointFailed, folder: Path) -> bool:
        return (failed.errno == errno.ENOSPC or failed.path is not None) and self._is_of_the_disk(failed, folder)

    def _is_small(self, folder: Path | None, run_folder: Path | None = None) -> bool:
        """Whether `folder` is on a filesystem that is small, and not one that the machine or the run lives on."""
        if folder is None:
            return False
        # One that the job is yet to make will be where the nearest that is there is.
        folder = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        others = [Path("/"), Path.home(), Path(tempfile.gettempdir()), *([run_folder] if run_folder else [])]
        if any(place.exists() and place.stat().st_dev == folder.stat().st_dev for place in others):
            return False
        status = os.statvfs(folder)
        return status.f_frsize * status.f_blocks <= self.parameters.max_filesystem

    def _limit_bytes(self, record: FullDiskRecord) -> int:
        return self.parameters.size if record.disk is not None else self.parameters.max_filesystem

    def _violation(self, folder: Path | str, naming: str) -> str:
        bound = bytes_text(self.parameters.max_filesystem)
        return (
            f"{folder} is on no filesystem of its own of at most {bound}, and to put a small one over it takes the "
            "right to mount: run as root, or make one (mount -t tmpfs -o size=64m tmpfs FOLDER) and name it with "
            f"{naming}"
        )


def _fill(ballast: Path, limit_bytes: int) -> None:
    """Grow `ballast` until not one more byte has room."""
    written = 0
    chunk_bytes = _FILL_BYTES
    with ballast.open("xb") as file:
        while chunk_bytes:
            if written > limit_bytes:
                raise OSError(errno.EFBIG, f"there is more room than {limit_bytes} bytes", str(ballast))
            try:
                os.posix_fallocate(file.fileno(), written, chunk_bytes)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                chunk_bytes //= 2
            else:
                written += chunk_bytes


def _refuse_more_than_checkpoints(folder: Path, context: FaultContext) -> None:
    """Refuse to put a disk over a folder that holds more than checkpoints, or in which ranks of the script work.

    A process that is in the folder already does not see what is mounted over it.

    Raises:
        InjectionError: it is such a folder.
    """
    cure = "let the script save in a folder of its own, such as checkpoints/"
    for rank, place in _working_folders(context):
        if place.is_relative_to(folder):
            raise InjectionError(Reason("working_folder", folder=folder, rank=rank, cure=cure))
    if folder in wide_folders(context.run_folder):
        raise InjectionError(Reason("wide", folder=folder, cure=cure))


def _working_folders(context: FaultContext) -> Iterator[tuple[int, Path]]:
    """(rank, its working folder) of the ranks whose it is known."""
    ranks = () if context.cluster is None else tuple(range(context.cluster.num_ranks))
    for owned in context.processes.rank_processes(ranks) if ranks else ():
        with suppress(OSError):
            yield owned.rank or 0, Path(f"/proc/{owned.process.local_pid}/cwd").readlink()


def _remove(ballast: Path) -> None:
    with suppress(FileNotFoundError), parent_of(ballast) as (folder, name):
        status = status_in(folder, name)
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise HealError(Reason("not_a_regular_file", path=ballast))
        os.unlink(name, dir_fd=folder)


def _refusal_of(folder: Path) -> int | None:
    """As `_refusal`, of a folder that is reached through no link; None also where it is not there any more."""
    try:
        with opened(folder) as descriptor:
            return _refusal(Path(f"/proc/self/fd/{descriptor}"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _refusal(folder: Path) -> int | None:
    """The errno with which a write of one byte to a new file in `folder` fails; None: it succeeds."""
    probe = folder / f".probe-{uuid.uuid4().hex[:12]}"
    try:
        with probe.open("xb") as file:
            file.write(b"x")
    except OSError as error:
        return error.errno
    finally:
        with suppress(OSError):
            probe.unlink()
    return None
