"""One unit on disk: a folder that is a complete torch.distributed.checkpoint (DCP).

The folder is written under a temporary name, with `unit.json` (see `manifest`) as its last file, and then renamed: a
unit is either complete or absent, whenever its writer dies.

Reading runs no code from the folder: DCP's metadata is a pickle, of which only the classes of DCP's own metadata are
accepted, and tensors are read by torch.load with `weights_only`. Both happen after the checksums held.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from mecefo_runtime.checkpoint.manifest import (
    MANIFEST,
    CheckpointCorrupt,
    CheckpointMismatch,
    FileRecord,
    Manifest,
    Stamp,
    measure,
    read_manifest,
    verified_files,
)

_TEMPORARY = ".writing-"
# What DCP's metadata of plain tensors consists of (torch 2.11 to 2.13).
_METADATA_NAMES = frozenset(
    {("torch.distributed.checkpoint.metadata", name) for name in ("Metadata", "TensorStorageMetadata", "StorageMeta")}
    | {("torch.distributed.checkpoint.metadata", name) for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")}
    | {("torch.distributed.checkpoint.metadata", name) for name in ("ChunkStorageMetadata", "MetadataIndex")}
    | {("torch.distributed.checkpoint.filesystem", "_StorageInfo")}
    | {("torch", "Size"), ("torch", "float32"), ("torch.serialization", "_get_layout")}
)


def write_unit(folder: Path, unit: str, stamp: Stamp, tensors: Mapping[str, Tensor], state_crc32: int) -> Manifest:
    """Write one unit durably into `folder`/`unit`; returns its manifest.

    `tensors` must not change meanwhile. A complete unit with the same stamp is kept as it is, because all holders of
    a unit have the same state. Any other is replaced. Several ranks may write the same unit concurrently.

    Raises:
        OSError: disk full, no permission, something in the way. Nothing is left of the attempt.
        RuntimeError: the same, detected by torch.
    """
    place = folder / unit
    existing = _whole(place, unit, stamp)
    if existing is not None:
        return existing
    temporary = folder / f"{_TEMPORARY}{unit}-{uuid.uuid4().hex}"
    try:
        temporary.mkdir(parents=True)
        _write_tensors(temporary, tensors)
        files = {path.name: _record_of(path) for path in temporary.iterdir()}
        manifest = Manifest(unit, stamp, state_crc32, files)
        (temporary / MANIFEST).write_bytes(manifest.to_bytes())
        for path in temporary.iterdir():
            _sync(path)
        _sync(temporary)
        _move_into_place(temporary, place, unit, stamp)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _sync(folder)
    _sync(folder.parent)
    return manifest


def _whole(place: Path, unit: str, stamp: Stamp) -> Manifest | None:
    """The manifest of the unit at `place`, None when there is none with this stamp or its files have other sizes."""
    try:
        manifest = read_manifest(place, unit)
    except CheckpointCorrupt:
        return None
    return manifest if manifest.stamp == stamp else None


def _write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Save with DCP as a job of one process.

    What `torch.distributed.checkpoint.save(no_dist=True)` does, without its warning that there is no process group:
    a thread cannot silence a warning for itself.
    """
    # DCP would sync the files before their last bytes have left Python's buffer (torch 2.13): `write_unit` does it.
    writer = _Writer(folder, sync_files=False)
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(tensors), storage_meta=writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    writer.finish(metadata, [writer.write_data(plan, planner).wait()])


class _Writer(FileSystemWriter):
    """Leaves the folder's path out of the metadata: it is a temporary one, and its pickle differs between Pythons."""

    def storage_meta(self) -> StorageMeta:
        """Nothing but the name of this save."""
        return StorageMeta(save_id=self.save_id)


def _record_of(path: Path) -> FileRecord:
    with path.open("rb") as file:
        return measure(file)


def _move_into_place(temporary: Path, place: Path, unit: str, stamp: Stamp) -> None:
    """Rename `temporary` to `place`, away with what is there unless it is the same already."""
    while True:
        try:
            temporary.rename(place)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if _whole(place, unit, stamp) is not None:
            return
        replaced = temporary.with_name(f"{temporary.name}-replaced")
        with suppress(FileNotFoundError):  # somebody else was faster
            place.rename(replaced)
            shutil.rmtree(replaced, ignore_errors=True)


def _sync(path: Path) -> None:
    """Make a file's content, or a folder's entries, outlive the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_tensors(place: Path, manifest: Manifest, tensors: Mapping[str, Tensor]) -> None:
    """Fill `tensors` with the unit's values at `place`, by name; nothing is changed before all files are verified.

    Raises:
        CheckpointCorrupt: a file is missing or not what was written.
        CheckpointMismatch: the unit has no tensor of that name and shape.
    """
    with verified_files(place, manifest) as files:
        reader = FileSystemReader(place)
        reader.fs = _OpenFiles(place, files)
        metadata = _read_metadata(place / ".metadata", files)
        for name, tensor in tensors.items():
            saved = metadata.state_dict_metadata.get(name)
            shape = tuple(getattr(saved, "size", ())) if saved is not None else None
            if shape != tuple(tensor.shape):
                found = "nothing" if shape is None else f"shape {shape}"
                raise CheckpointMismatch(f"{place}: {name} has shape {tuple(tensor.shape)} here, there {found}")
        planner = DefaultLoadPlanner()
        planner.set_up_planner(dict(tensors), metadata, is_coordinator=True)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        plan = reader.prepare_local_plan(planner.create_local_plan())
        plan = reader.prepare_global_plan(planner.create_global_plan([plan]))[0]
        reader.read_data(planner.finish_plan(plan), planner).wait()


def _read_metadata(path: Path, files: Mapping[str, IO[bytes]]) -> Metadata:
    if path.name not in files:
        raise CheckpointCorrupt(path, "DCP's metadata", "nothing")
    files[path.name].seek(0)
    metadata = _MetadataUnpickler(path, files[path.name]).load()
    if not isinstance(metadata, Metadata):
        raise CheckpointCorrupt(path, "DCP's metadata", type(metadata).__name__)
    return metadata


class _MetadataUnpickler(pickle.Unpickler):
    """Reads the classes that DCP's metadata consists of, and refuses to import anything else."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in _METADATA_NAMES:
            raise CheckpointCorrupt(self._path, "DCP's metadata", f"{module_name}.{global_name}")
        return super().find_class(module_name, global_name)


class _OpenFiles(FileSystem):
    """Lets DCP read from files that are open already, and from no others."""

    def __init__(self, place: Path, files: Mapping[str, IO[bytes]]) -> None:
        self._files = {place / name: file for name, file in files.items()}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """The open file at `path`, from its beginning."""
        file = self._files.get(Path(path))
        if file is None:
            raise CheckpointCorrupt(Path(path), "a file of the unit", f"one that its {MANIFEST} does not name")
        file.seek(0)
        yield cast(io.IOBase, file)
