"""Whether the files of a checkpoint are whole, with the standard library alone.

`torch.load` reads a flipped bit without a word; the CRC-32 of the zip archive that torch writes does not. safetensors
has no checksum: its header says how long the file is. A folder of `torch.distributed.checkpoint` has a list of its
pieces.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from harness.checkpoints.findings import (
    BAD_CHECKSUM,
    BAD_HEADER,
    BAD_METADATA,
    EMPTY,
    MISSING,
    NO_CHECKSUMS,
    NO_END,
    TOO_MANY_BYTES,
    TOO_SHORT,
    UNKNOWN_FORMAT,
    UNREADABLE,
    Damage,
)
from harness.checkpoints.metadata import read_pieces

METADATA = ".metadata"
_INDEX_SUFFIX = ".index.json"
_ZIP_MAGIC = b"PK\x03\x04"
_WEIGHTS = frozenset({".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".distcp"})
_CHUNK_BYTES = 1 << 20
_MAX_HEADER_BYTES = 100 << 20
_MAX_INDEX_BYTES = 16 << 20
_MAX_FILES = 10_000
_BITS_OF = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16} | {
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "C64": 64,
}


@dataclass(slots=True)
class Budget:
    """The number of bytes that may still be read."""

    num_bytes: int

    def take(self, num_bytes: int) -> bool:
        """Use `num_bytes`, if they are left; returns whether they were."""
        if num_bytes > self.num_bytes:
            return False
        self.num_bytes -= num_bytes
        return True


@dataclass(slots=True)
class Wholeness:
    """The result for a file or folder; `unchecked` has codes for why something is not known."""

    damage: list[Damage] = field(default_factory=list)
    unchecked: set[str] = field(default_factory=set)
    num_files: int = 0
    num_bytes: int = 0
    num_checked: int = 0

    @property
    def is_whole(self) -> bool | None:
        """None: not known, because nothing of it or not all of it could be checked."""
        if self.damage:
            return False
        return True if self.num_checked and not self.unchecked else None


def check(path: Path, budget: Budget, saved: Collection[Path] = ()) -> Wholeness:
    """Check the file or folder at `path`; `saved` are the files of it that a call saved, which cannot be empty."""
    found = Wholeness()
    files = list(_files_of(path))
    is_folder = path.is_dir()
    in_pieces: frozenset[Path] = frozenset()
    for metadata in [file for file in files if file.name == METADATA]:
        in_pieces |= _check_pieces(metadata, _named(metadata, path), budget, found)
    for file in files:
        name = _named(file, path) if is_folder else path.name
        found.num_files += 1
        try:
            found.num_bytes += file.stat().st_size
            if file.name == METADATA or file in in_pieces:
                continue
            if file.name.endswith(_INDEX_SUFFIX):
                _check_index(file, name, found)
            else:
                _check_file(file, name, budget, found, is_saved=file in saved)
        except OSError as error:
            found.damage.append(Damage(UNREADABLE, name, error=error.strerror))
    return found


def _files_of(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for number, file in enumerate(sorted(path.rglob("*"))):
        if number >= _MAX_FILES:
            return
        if file.is_file() or file.is_symlink():
            yield file


def _named(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if root != file else file.name


def _check_file(file: Path, name: str, budget: Budget, found: Wholeness, *, is_saved: bool) -> None:
    num_bytes = file.stat().st_size
    if not num_bytes:
        if is_saved or file.suffix in _WEIGHTS:
            found.damage.append(Damage(EMPTY, name, 0))
        return
    with file.open("rb") as opened:
        magic = opened.read(len(_ZIP_MAGIC))
        opened.seek(0)
        if file.suffix == ".safetensors":
            found.num_checked += 1
            if (damage := check_safetensors(opened, num_bytes, name)) is not None:
                found.damage.append(damage)
        elif magic == _ZIP_MAGIC[: len(magic)]:
            _check_zip(opened, num_bytes, name, budget, found)
        elif is_saved or file.suffix in _WEIGHTS:
            # The format of torch before 1.6, or of another library.
            found.unchecked.add(UNKNOWN_FORMAT)


def _check_zip(opened: IO[bytes], num_bytes: int, name: str, budget: Budget, found: Wholeness) -> None:
    found.num_checked += 1
    if not zipfile.is_zipfile(opened):
        found.damage.append(Damage(NO_END, name, num_bytes))
        return
    try:
        with zipfile.ZipFile(opened) as archive:
            entries = archive.infolist()
            if not any(entry.CRC for entry in entries if entry.file_size):
                # torch.serialization.set_crc32_options(False)
                found.unchecked.add(NO_CHECKSUMS)
                return
            if not budget.take(num_bytes):
                found.unchecked.add(TOO_MANY_BYTES)
                return
            for entry in entries:
                if not _is_intact(archive, entry):
                    found.damage.append(Damage(BAD_CHECKSUM, name, num_bytes, part=entry.filename.partition("/")[2]))
    except (zipfile.BadZipFile, EOFError, NotImplementedError, UnicodeDecodeError, ValueError, struct.error) as error:
        found.damage.append(Damage(BAD_HEADER, name, num_bytes, error=str(error)))


def _is_intact(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(entry) as record:
            while record.read(_CHUNK_BYTES):
                pass
    except Exception:
        # Whatever a damaged entry makes of the reader: another method, a password, a place outside of the file.
        return False
    return True


def check_safetensors(opened: IO[bytes], num_bytes: int, name: str) -> Damage | None:
    """By its header: whether all tensors are in the file, without gaps."""
    raw = opened.read(8)
    if len(raw) < 8:
        return Damage(TOO_SHORT, name, num_bytes, 8)
    (header_bytes,) = struct.unpack("<Q", raw)
    if header_bytes > _MAX_HEADER_BYTES:
        return Damage(BAD_HEADER, name, num_bytes, error=f"a header of {header_bytes} bytes")
    if 8 + header_bytes > num_bytes:
        return Damage(TOO_SHORT, name, num_bytes, 8 + header_bytes)
    try:
        header = json.loads(opened.read(header_bytes))
        ranges = sorted(_range(tensor) for key, tensor in header.items() if key != "__metadata__")
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        return Damage(BAD_HEADER, name, num_bytes, error=f"{type(error).__name__}: {error}")
    reached = 0
    for begin, end in ranges:
        if begin != reached:
            return Damage(BAD_HEADER, name, num_bytes, error=f"a gap at byte {reached}")
        reached = end
    expected = 8 + header_bytes + reached
    if num_bytes < expected:
        return Damage(TOO_SHORT, name, num_bytes, expected)
    return None if num_bytes == expected else Damage(BAD_HEADER, name, num_bytes, expected)


def _range(tensor: Mapping[str, Any]) -> tuple[int, int]:
    """Where a tensor is.

    Raises:
        KeyError, TypeError, ValueError: it has no place, or not the one that its shape needs.
    """
    begin, end = tensor["data_offsets"]
    bits = _BITS_OF.get(tensor["dtype"])
    length = math.prod(int(size) for size in tensor["shape"]) * (bits or 0) // 8
    if begin < 0 or end < begin or (bits is not None and end - begin != length):
        raise ValueError(f"a tensor of {length} bytes at {begin} to {end}")
    return begin, end


def _check_index(file: Path, name: str, found: Wholeness) -> None:
    """The index of a checkpoint in several files (transformers): whether these are there."""
    if file.stat().st_size > _MAX_INDEX_BYTES:
        found.unchecked.add(TOO_MANY_BYTES)
        return
    try:
        weights = json.loads(file.read_bytes())["weight_map"]
        names = sorted(set(weights.values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        found.damage.append(Damage(BAD_HEADER, name, file.stat().st_size, error=f"{type(error).__name__}: {error}"))
        return
    found.num_checked += 1
    _miss((file.parent / other for other in names if isinstance(other, str)), found)


def _miss(files: Iterable[Path], found: Wholeness) -> None:
    found.damage += [Damage(MISSING, file.name) for file in files if not file.exists()]


def _check_pieces(metadata: Path, name: str, budget: Budget, found: Wholeness) -> frozenset[Path]:
    """All pieces that the metadata of a distributed checkpoint names; returns the files that they are in."""
    try:
        pieces = read_pieces(metadata)
    except OSError as error:
        found.damage.append(Damage(UNREADABLE, name, error=error.strerror))
        return frozenset()
    except ValueError as error:
        found.damage.append(Damage(BAD_METADATA, name, metadata.stat().st_size, error=str(error)[:200]))
        return frozenset()
    files: dict[str, int] = {}
    for piece in pieces:
        files[piece.name] = max(files.get(piece.name, 0), piece.offset + piece.length)
    _miss((metadata.parent / one for one in files), found)
    there = {one: end for one, end in files.items() if (metadata.parent / one).exists()}
    found.num_checked += len(there)
    for one, end in there.items():
        file = metadata.parent / one
        try:
            num_bytes = file.stat().st_size
            if num_bytes < end:
                found.damage.append(Damage(TOO_SHORT, one, num_bytes, end))
            elif not budget.take(num_bytes):
                found.unchecked.add(TOO_MANY_BYTES)
            else:
                with file.open("rb") as opened:
                    for piece in (piece for piece in pieces if piece.name == one):
                        _check_piece(opened, piece.offset, piece.length, one, found)
        except OSError as error:
            found.damage.append(Damage(UNREADABLE, one, error=error.strerror))
    return frozenset(metadata.parent / one for one in there)


def _check_piece(opened: IO[bytes], offset: int, length: int, name: str, found: Wholeness) -> None:
    """A piece that `torch.save` wrote has checksums; of another one the length alone is known."""
    opened.seek(offset)
    raw = opened.read(length)
    if not raw.startswith(_ZIP_MAGIC):
        return
    piece = Wholeness()
    _check_zip(io.BytesIO(raw), length, name, Budget(length), piece)
    found.damage += piece.damage
    found.unchecked |= piece.unchecked
