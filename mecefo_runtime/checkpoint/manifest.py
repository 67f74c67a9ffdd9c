"""The manifest of a unit on disk, `unit.json`: how it is read and written, and how files are checked against it.

It says which unit of which job and step it is, and the size and CRC-32 of every other file of the unit's folder; a
CRC-32 of its own content closes it. Imports no torch.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mecefo_runtime.job.config import JobConfig, ModelConfig
from mecefo_runtime.system.json_values import from_json, to_json

MANIFEST = "unit.json"
FORMAT = "mecefo-unit"
VERSION = 1
_READ_BYTES = 1 << 20


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used."""


class CheckpointCorrupt(CheckpointError):
    """Something in a checkpoint is damaged or missing: at `path`, `expected` is not what was `found`."""

    def __init__(self, path: Path, expected: str, found: str) -> None:
        super().__init__(f"{path}: expected {expected}, found {found}")
        self.path = path
        self.expected = expected
        self.found = found


class CheckpointMismatch(CheckpointError):
    """The checkpoint is intact, but belongs to another model or other data."""


@dataclass(frozen=True, slots=True)
class DataOrder:
    """What fixes which sample comes when: a step stands for the same samples in every job that has the same.

    `text_crc32` is that of the whole training text.
    """

    seed: int
    samples_per_step: int
    sequence_length: int
    text_crc32: int


@dataclass(frozen=True, slots=True)
class Identity:
    """The model and the data that a checkpoint belongs to.

    `data` is None where no data has been used yet: then any job may continue from it.
    """

    model: ModelConfig
    data: DataOrder | None

    @classmethod
    def of(cls, config: JobConfig, text: bytes) -> Identity:
        """The identity of a job that trains on `text` (see `data.read_corpus`)."""
        order = DataOrder(config.seed, config.samples_per_step, config.sequence_length, zlib.crc32(text))
        return cls(config.model, order)

    def difference(self, other: Identity) -> str | None:
        """Why `other` cannot continue from this checkpoint, as `NAME is X, not Y`; None when it can."""
        ours, theirs = to_json(self), to_json(other)
        for part in ("model", "data"):
            if ours[part] is None or theirs[part] is None:
                continue
            for name, value in ours[part].items():
                if theirs[part][name] != value:
                    return f"{name} is {value}, not {theirs[part][name]}"
        return None


@dataclass(frozen=True, slots=True)
class FileRecord:
    """The expected size and checksum of a file."""

    num_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Stamp:
    """What all units of one checkpoint share.

    `lineage` names one uninterrupted course of training: a job that resumes takes a new one, so that the units which it
    saves never mix with those that it saved before in the same step.
    """

    step: int
    lineage: str
    identity: Identity


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `unit.json`. `state_crc32` is `UnitState.checksum()` of what was saved."""

    unit: str
    stamp: Stamp
    state_crc32: int
    files: Mapping[str, FileRecord]

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(record.num_bytes for record in self.files.values())

    def to_bytes(self) -> bytes:
        """The content of the file, the same bytes for equal manifests."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "unit": self.unit,
            "step": self.stamp.step,
            "lineage": self.stamp.lineage,
            "identity": to_json(self.stamp.identity),
            "state_crc32": self.state_crc32,
            "files": {name: to_json(record) for name, record in sorted(self.files.items())},
        }
        return _closed(content)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a `unit.json`, every byte of which must be as it was written.

        Raises:
            CheckpointCorrupt: it is missing, or it is not.
        """
        expected = "the description of a unit"
        if path.is_fifo():
            # To read it would be to wait for its writer.
            raise CheckpointCorrupt(path, expected, "a pipe")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CheckpointCorrupt(path, expected, words_of(error)) from None
        try:
            raw = json.loads(content)
            raw.pop("crc32")
            if _closed(raw) != content:
                raise CheckpointCorrupt(path, expected, "one that was changed after it was written")
            if (raw["format"], raw["version"]) != (FORMAT, VERSION):
                raise CheckpointCorrupt(path, f"{FORMAT} {VERSION}", f"{raw['format']} {raw['version']}")
            outside = [name for name in raw["files"] if Path(name).name != name or name == ".."]
            if outside:
                raise CheckpointCorrupt(path, "files of its own folder", outside[0])
            return cls(
                unit=raw["unit"],
                stamp=Stamp(raw["step"], raw["lineage"], from_json(Identity, raw["identity"])),
                state_crc32=raw["state_crc32"],
                files={name: from_json(FileRecord, record) for name, record in raw["files"].items()},
            )
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise CheckpointCorrupt(path, expected, f"{len(content)} bytes that are none ({error})") from None


def _closed(content: Mapping[str, Any]) -> bytes:
    """JSON that a CRC-32 of the rest closes."""
    crc32 = zlib.crc32(json.dumps(content).encode())
    return json.dumps({**content, "crc32": crc32}, indent=1).encode() + b"\n"


def words_of(error: OSError) -> str:
    """A description of what was found in place of a readable file."""
    return "nothing" if isinstance(error, FileNotFoundError) else (error.strerror or str(error))


def read_manifest(place: Path, unit: str) -> Manifest:
    """Read the manifest at `place`; of the other files, only the sizes are checked.

    Raises:
        CheckpointCorrupt: the manifest is damaged or of another unit, or a file is missing or has another size.
    """
    manifest = Manifest.read(place / MANIFEST)
    if manifest.unit != unit:
        raise CheckpointCorrupt(place / MANIFEST, f"unit {unit}", f"unit {manifest.unit}")
    for name, record in manifest.files.items():
        try:
            num_bytes = (place / name).stat().st_size
        except OSError as error:
            raise CheckpointCorrupt(place / name, f"{record.num_bytes} bytes", words_of(error)) from None
        _check_size(place / name, record, num_bytes)
    return manifest


def _check_size(path: Path, record: FileRecord, num_bytes: int) -> None:
    if num_bytes != record.num_bytes:
        raise CheckpointCorrupt(path, f"{record.num_bytes} bytes", f"{num_bytes} bytes")


@contextmanager
def verified_files(place: Path, manifest: Manifest) -> Iterator[dict[str, IO[bytes]]]:
    """Open all files of a unit and check sizes and checksums; they stay readable even when the unit is removed.

    Raises:
        CheckpointCorrupt: a file is missing or not what was written.
    """
    with ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        for name, record in manifest.files.items():
            path = place / name
            try:
                file = files[name] = stack.enter_context(path.open("rb"))
                found = measure(file)
            except OSError as error:
                raise CheckpointCorrupt(path, f"{record.num_bytes} bytes", words_of(error)) from None
            _check_size(path, record, found.num_bytes)
            if found.crc32 != record.crc32:
                raise CheckpointCorrupt(path, f"CRC-32 {record.crc32:08x}", f"{found.crc32:08x}")
        yield files


def measure(file: IO[bytes]) -> FileRecord:
    """Size and CRC-32 of what is left to read of `file`."""
    num_bytes = crc32 = 0
    while chunk := file.read(_READ_BYTES):
        num_bytes += len(chunk)
        crc32 = zlib.crc32(chunk, crc32)
    return FileRecord(num_bytes, crc32)
