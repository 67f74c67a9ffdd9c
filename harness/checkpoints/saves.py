"""The checkpoints that a command's ranks were seen saving, by step, and which of them is where now."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.faults.storage._saved import where_is
from mecefo_runtime.system.command_records import CheckpointBegun
from mecefo_runtime.system.job_records import CheckpointFailed, CheckpointWritten
from mecefo_runtime.system.record import Record

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class SavedFile:
    """One file or folder as it was when its save returned; `path` is its name then."""

    path: Path
    device: int
    inode: int
    num_bytes: int | None = None
    saved_unix_seconds: float | None = None

    def find(self) -> Path | None:
        """Where it is now, also under another name in its folder."""
        return where_is(self.path, self.device, self.inode, self.saved_unix_seconds)


@dataclass(slots=True)
class SavedStep:
    """The saves after `step`: `files` by name, and by rank the saves that have begun and not ended (`open_saves`).

    Of such a save its first file is known, if any, and when it began (Unix time).
    """

    step: int
    files: dict[Path, SavedFile] = field(default_factory=dict)
    open_saves: dict[int | None, tuple[Path | None, float]] = field(default_factory=dict)
    has_ended: bool = False

    @property
    def open_paths(self) -> tuple[Path, ...]:
        """The first files of these saves, as far as they are known."""
        return tuple(path for path, _ in self.open_saves.values() if path is not None)

    @property
    def is_finished(self) -> bool:
        """Whether every save of it that began was seen to end."""
        return self.has_ended and not self.open_saves


class SeenSaves:
    """Fed with the records of a job, in the order in which they come."""

    def __init__(self) -> None:
        self._by_step: dict[int, SavedStep] = {}
        # In the order in which they were saved last.
        self._order: list[int] = []

    def feed(self, record: Record) -> None:
        """Take up a record."""
        if record.step is None:
            return
        if isinstance(record, CheckpointBegun):
            began = None if record.path is None else Path(record.path), record.time_seconds
            self._of(record.step).open_saves[record.rank] = began
        elif isinstance(record, CheckpointWritten):
            saved = self._of(record.step)
            saved.has_ended = True
            saved.open_saves.pop(record.rank, None)
            for path, device, inode, *more in record.saved:
                place = Path(path)
                num_bytes = more[0] if more else None
                saved.files[place] = SavedFile(place, device, inode, num_bytes, record.time_seconds)
        elif isinstance(record, CheckpointFailed) and record.step in self._by_step:
            self._by_step[record.step].open_saves.pop(record.rank, None)

    def _of(self, step: int) -> SavedStep:
        if step in self._order:
            self._order.remove(step)
        self._order.append(step)
        return self._by_step.setdefault(step, SavedStep(step))

    @property
    def newest_first(self) -> tuple[SavedStep, ...]:
        """All of them, the one that was saved last first."""
        return tuple(self._by_step[step] for step in reversed(self._order))

    def folders(self) -> frozenset[Path]:
        """In which folders pointers may be: those of the files, and the ones above them."""
        parents = {path.parent for saved in self._by_step.values() for path in saved.files}
        return frozenset({*parents, *(parent.parent for parent in parents)})


@dataclass(frozen=True, slots=True)
class Located:
    """Where the files of a checkpoint are now.

    `places` by the name of each when it was saved. `overwritten` and `gone`: names that later saves took, and that are
    not there. `is_elsewhere`: their folders are not on this machine. `unwritten`: a save began, and no file of it was
    written. `is_compared`: what an interrupted save lacks is known, by an earlier one (`missing`, `mixed`).
    """

    saved: SavedStep
    places: Mapping[Path, Path]
    overwritten: tuple[Path, ...] = ()
    gone: tuple[Path, ...] = ()
    is_elsewhere: bool = False
    missing: tuple[Path, ...] = ()
    mixed: tuple[Path, ...] = ()
    is_compared: bool = False

    @property
    def path(self) -> Path | None:
        """The one file or folder, or the folder of several."""
        places = sorted(self.places.values())
        if len(places) == 1:
            return places[0]
        if places:
            return places[0].parent if len({place.parent for place in places}) == 1 else places[0]
        names = sorted(self.saved.files)
        return names[0] if names else None


def locate(saves: SeenSaves) -> Iterator[Located]:
    """Where each one is, the newest first: a file belongs to the newest save that wrote it."""
    claimed: set[Path] = set()
    taken: set[tuple[int, int]] = set()
    steps = saves.newest_first
    for index, saved in enumerate(steps):
        places: dict[Path, Path] = {}
        overwritten: list[Path] = []
        gone: list[Path] = []
        for file in saved.files.values():
            key = (file.device, file.inode)
            found = file.find()
            if key in taken or (found is None and file.path in claimed):
                overwritten.append(file.path)
            elif found is None:
                gone.append(file.path)
            else:
                places[file.path] = found
        # Only afterwards: a checkpoint may name a file twice.
        for path, began_seconds in saved.open_saves.values():
            if path is None or path in claimed or path in places:
                continue
            if _was_written_since(path, began_seconds):
                places[path] = path
                gone = [one for one in gone if one != path]
        if saved.open_saves and not places:
            places = _renamed(saved, steps[index + 1 :], taken)
        claimed |= saved.files.keys() | places.keys()
        taken |= {identity for place in places.values() if (identity := _identity(place)) is not None}
        parents = {path.parent for path in (*saved.files, *saved.open_paths)}
        is_elsewhere = not places and bool(parents) and not any(parent.exists() for parent in parents)
        missing: tuple[Path, ...] = ()
        mixed: tuple[Path, ...] = ()
        is_compared = False
        if saved.open_saves and places:
            missing, mixed, is_compared = _compared(saved, places, steps[index + 1 :])
        yield Located(saved, places, tuple(overwritten), tuple(gone), is_elsewhere, missing, mixed, is_compared)


def _renamed(saved: SavedStep, earlier: Sequence[SavedStep], taken: Collection[tuple[int, int]]) -> dict[Path, Path]:
    """The files of an interrupted save that have the names of the checkpoint before by now: their own were others."""
    before = next((one for one in earlier if one.is_finished), None)
    began_seconds = min(seconds for _, seconds in saved.open_saves.values())
    found: dict[Path, Path] = {}
    for file in () if before is None else before.files.values():
        identity = _identity(file.path)
        is_another = identity is not None and identity != (file.device, file.inode) and identity not in taken
        if is_another and _was_written_since(file.path, began_seconds):
            found[file.path] = file.path
    return found


def _was_written_since(path: Path, since_seconds: float) -> bool:
    """Whether something of it was; clocks of file systems are coarse."""
    try:
        files = [path, *path.rglob("*")] if path.is_dir() else [path]
        return any(one.stat().st_mtime >= since_seconds - 0.05 for one in files if not one.is_dir())
    except OSError:
        return False


def _identity(place: Path) -> tuple[int, int] | None:
    try:
        status = place.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _compared(
    saved: SavedStep, places: Mapping[Path, Path], earlier: Iterable[SavedStep]
) -> tuple[tuple[Path, ...], tuple[Path, ...], bool]:
    """What an interrupted save lacks of the files that the one before it consists of."""
    before = next((one for one in earlier if one.is_finished), None)
    if before is None or not all(path.exists() for path in before.files):
        # Files that were renamed say nothing of the names that these would have had.
        return (), (), False
    missing, mixed = [], []
    for path in before.files:
        own = with_number(path, before.step, saved.step)
        if own in places:
            continue
        if own == path:
            mixed.append(path)
        elif not own.exists():
            missing.append(own)
    return tuple(missing), tuple(mixed), True


def with_number(path: Path, step: int, other: int) -> Path:
    """`path` with the number `other` wherever it has `step`, as wide as before."""

    def replaced(match: re.Match[str]) -> str:
        digits = match[0]
        return f"{other:0{len(digits)}d}" if int(digits) == step else digits

    return Path(_NUMBER.sub(replaced, str(path)))
