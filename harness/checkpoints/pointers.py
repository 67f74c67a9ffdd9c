"""What says which checkpoint is the newest: a file or link such as `latest`, and the highest number in a name.

Loaders trust one of them. DeepSpeed writes `latest` with the name of a folder, Megatron
`latest_checkpointed_iteration.txt` with a number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_POINTER = re.compile(
    r"(?:latest|last|newest|tracker)(?:[._-]?(?:checkpoint|ckpt|checkpointed_iteration|step))?(?:\.txt)?", re.I
)
_NUMBER = re.compile(r"\d{1,12}")
_MAX_BYTES = 4096
_MAX_ENTRIES = 10_000
HIGHEST = "highest_number"


@dataclass(frozen=True, slots=True)
class Pointer:
    """The file or link `path` `says` a text, that is `target`; None: no entry of its folder is meant.

    `path` is `HIGHEST` in `folder` where the highest number in a name says it.
    """

    folder: Path
    name: str
    says: str
    target: Path | None
    is_there: bool


def read_pointers(folders: Collection[Path], since_seconds: float) -> tuple[Pointer, ...]:
    """Those in `folders` that were written since then (Unix time), and the highest number of each folder."""
    return tuple(pointer for folder in sorted(set(folders)) for pointer in _of_folder(folder, since_seconds))


def _of_folder(folder: Path, since_seconds: float) -> Iterator[Pointer]:
    try:
        entries = sorted(folder.iterdir())[:_MAX_ENTRIES]
    except OSError:
        return
    named = [
        entry
        for entry in entries
        if _POINTER.fullmatch(entry.name) or (entry.is_symlink() and _POINTER.fullmatch(entry.stem))
    ]
    for entry in named:
        with suppress(OSError, ValueError):
            if entry.lstat().st_mtime < since_seconds:
                continue
            if entry.is_symlink():
                text = str(entry.readlink())
                yield Pointer(folder, entry.name, text, folder / text, entry.exists())
            elif entry.is_file() and 0 < entry.stat().st_size <= _MAX_BYTES:
                text = entry.read_text(encoding="utf-8").strip().partition("\n")[0]
                yield _by_text(folder, entry, text, entries)
    numbered = {number: entry for entry in entries if entry not in named and (number := number_of(entry)) is not None}
    if len(numbered) > 1:
        highest = max(numbered)
        yield Pointer(folder, HIGHEST, str(highest), numbered[highest], is_there=True)


def _by_text(folder: Path, entry: Path, text: str, entries: Collection[Path]) -> Pointer:
    if text.isdecimal():
        of_number = [one for one in entries if one != entry and number_of(one) == int(text)]
        if not any(number_of(one) is not None for one in entries if one != entry):
            raise ValueError("no entry has a number")
        return Pointer(folder, entry.name, text, of_number[0] if of_number else None, bool(of_number))
    if not text or "\0" in text or len(text) > 1024 or " " in text:
        raise ValueError("no name")
    target = folder / text
    if not target.exists() and not _looks_like_path(text, entries):
        raise ValueError("no name of an entry")
    return Pointer(folder, entry.name, text, target, target.exists())


def _looks_like_path(text: str, entries: Collection[Path]) -> bool:
    """Whether it is a name as those in the folder are, but for the numbers."""
    shape = _NUMBER.sub("#", Path(text).name)
    return "/" in text or any(_NUMBER.sub("#", entry.name) == shape for entry in entries)


def number_of(path: Path) -> int | None:
    """The last number in the name of a file or folder, its suffix left out."""
    numbers = _NUMBER.findall(path.name if path.is_dir() else path.stem)
    return int(numbers[-1]) if numbers else None
