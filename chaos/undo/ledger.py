"""The ledger: what was planned to be done and must perhaps be undone, written down and synced before it is done.

One JSON line per change of an entry, each fsynced, so that it survives the death of the tool and of the machine's
power. An entry is `prepared` before the fault is applied, `applied` after, and closed (`struck` in the file) once its
undo was verified. What is not closed is pending: somebody has to undo it from the record alone. `lapsed` is what the
watchdog undid because the injector was silent, and undoes again when it is heard of or dead: it may have acted in
between.

The injector, the watchdog and `chaos heal` may all come to undo: a lock on the file lets them do so one at a time.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import stat
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from chaos.errors import ChaosError, EnvironmentFailure, HealError
from chaos.host.inherited import why
from chaos.host.run_processes import is_name, undoing
from chaos.undo.run_registry import Place, process_from
from chaos.user_files import bounded_lines
from mecefo_runtime.system.host import UNKNOWN_HOST, Host
from mecefo_runtime.system.json_values import loads
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.reason import Reason

Author = Literal["chaos", "watchdog", "heal"]
State = Literal["prepared", "applied", "lapsed", "struck"]
_STATES = ("prepared", "applied", "lapsed", "struck")
# An undo takes milliseconds to seconds: whoever holds the lock for longer is stopped or hangs.
LOCK_TIMEOUT_SECONDS = 15.0
LAPSE_LOCK_TIMEOUT_SECONDS = 2.0
_LOCK_POLL_SECONDS = 0.02
# Others of the group may not write to it, whatever the umask: it tells what is to be undone.
_MODE = 0o644
_TAIL_BYTES = 1 << 16
# More than the author and the time at the end of a line.
_COMPARED_BYTES = 256


@dataclass(frozen=True, slots=True)
class Entry:
    """The newest state of one incident in the ledger.

    `run` and `folder` are those of its run, `owner` is the process that injected it, and `by` who wrote the state.
    `absent` are the paths that the record names and that were not there before the fault. `place` is where it was
    written, `folders` those in which the run may change files, resolved: None where an earlier version wrote it.
    """

    incident: int
    fault: str
    state: str
    record: Mapping[str, Any]
    run: str = field(default="", compare=False)
    folder: str = field(default="", compare=False)
    owner: ProcessId | None = field(default=None, compare=False)
    by: str = field(default="", compare=False)
    absent: tuple[str, ...] = field(default=(), compare=False)
    place: Place | None = field(default=None, compare=False)
    folders: tuple[Path, ...] | None = field(default=None, compare=False)
    time_seconds: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Contents:
    """A ledger as it was read: every incident's newest state, and what of the file could not be understood.

    `file` and `folder` tell of the very file that was read, and of the folder that it is in; None: it is not there.
    """

    entries: tuple[Entry, ...] = ()
    problems: tuple[str, ...] = ()
    file: os.stat_result | None = field(default=None, compare=False)
    folder: os.stat_result | None = field(default=None, compare=False)

    @property
    def folders(self) -> tuple[Path, ...] | None:
        """The folders in which the run may change files, as its ledger has them; None: it does not say."""
        told = [entry.folders for entry in self.entries]
        if not told or None in told:
            return None
        return tuple(dict.fromkeys(folder for folders in told if folders is not None for folder in folders))

    @property
    def pending(self) -> tuple[Entry, ...]:
        """The entries that are not closed."""
        return tuple(entry for entry in self.entries if entry.state != "struck")

    def of(self, incident: int) -> Entry | None:
        """The entry of one incident."""
        return next((entry for entry in self.entries if entry.incident == incident), None)


class Ledger:
    """The ledger of one run, open for writing by `by`; `run` is the run's name in the environment of its processes.

    `folders` are those in which the run may change files, beside its own. `on_folders` hears of all of them, and of
    single files elsewhere, before the record that needs a further one is written. All that is read and written goes to
    the file that was opened at first.
    """

    def __init__(
        self,
        path: Path,
        run: str = "",
        by: Author = "chaos",
        *,
        folders: Iterable[Path] = (),
        on_folders: Callable[[tuple[Path, ...]], None] | None = None,
        must_exist: bool = False,
    ) -> None:
        self._path = path
        self._run = run
        self._by = by
        self._self = ProcessId.of(os.getpid())
        self._place = Place.here()
        self._folders = tuple(dict.fromkeys(one.resolve() for one in (path.parent, *folders)))
        self._on_folders = on_folders
        # The entries in the first `_read_bytes` bytes, which are whole lines.
        self._entries: dict[int, Entry] = {}
        self._read_bytes = 0
        # The end of what was read: each line has its time, so that a file that was written anew has another one there.
        self._read_end = b""
        made = 0 if must_exist else os.O_CREAT
        try:
            self._file = os.fdopen(_open(path, made), "r+b", buffering=0)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot open the undo ledger {path}: {why(error)}; nothing was injected"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def file(self) -> tuple[int, int]:
        """Its device and inode."""
        status = os.fstat(self._file.fileno())
        return status.st_dev, status.st_ino

    def read(self) -> Contents:
        """What stands in the very file that is open here."""
        try:
            return _contents(self._path, os.dup(self._file.fileno()), None)
        except OSError as error:
            return Contents(problems=(f"{self._path} cannot be read: {error.strerror}",))

    def prepare(self, incident: int, fault: str, record: Mapping[str, Any], paths: Iterable[str] | None = None) -> None:
        """On disk when this returns; only then may the fault be applied.

        `paths` are the files that the undo may change; None: any that the record names.

        Raises:
            EnvironmentFailure: it could not be written; do not apply.
        """
        needed = {_resolved(path) for path in (_possible_paths_in(record) if paths is None else paths)}
        if further := sorted(one for one in needed if not any(one.is_relative_to(known) for known in self._folders)):
            self._folders = (*self._folders, *further)
            if self._on_folders is not None:
                self._on_folders(self._folders)
        with self._locked():
            self._write(incident, fault, "prepared", record)

    def applied(self, incident: int, fault: str) -> None:
        """The fault was applied."""
        with self._locked():
            self._write(incident, fault, "applied", {})

    def undo(
        self,
        incident: int,
        fault: str,
        record: Mapping[str, Any],
        undo: Callable[[Mapping[str, Any]], dict[str, Any]],
        *,
        lapse: bool = False,
    ) -> dict[str, Any]:
        """Undo one incident and close its entry, nobody else undoing meanwhile; returns the evidence, with `by`.

        What somebody else has closed is left alone. `lapse`: leave it pending as lapsed, for its injector lives and
        may still act; that injector being silent, perhaps while it holds the lock, the lock is not waited for long.

        Raises:
            HealError: something of it is still there, or the undo broke down; it stays pending.
            EnvironmentFailure: the ledger could not be locked or written; it stays pending.
        """
        timeout_seconds = LAPSE_LOCK_TIMEOUT_SECONDS if lapse else LOCK_TIMEOUT_SECONDS
        with self._locked(timeout_seconds, is_needed=not lapse):
            known = self._newest(incident)
            if known is not None and known.state == "struck":
                return {"undone": "already", "by": known.by}
            try:
                with undoing(self._run):
                    evidence = undo(record)
            except ChaosError:
                raise
            except Exception as error:
                # A mistake of the fault's must not hide that something was left behind.
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{where.filename}:{where.lineno}"
                raise HealError(Reason("undo_broke_down", fault=fault, error=repr(error), place=place)) from error
            if not lapse:
                self._write(incident, fault, "struck", {})
            elif known is not None and self._newest(incident) == known:
                self._write(incident, fault, "lapsed", {})
        if known is not None and known.state == "lapsed":
            return {**evidence, "by": "watchdog", "again_by": self._by}
        return {**evidence, "by": self._by}

    def _newest(self, incident: int) -> Entry | None:
        """The newest state of one incident. Only what was appended since the last call is read."""
        descriptor = self._file.fileno()
        unfinished = None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            num_bytes = len(self._read_end)
            if os.pread(descriptor, num_bytes, self._read_bytes - num_bytes) != self._read_end:
                # Somebody has cut it off, or written it anew.
                self._entries, self._read_bytes, self._read_end = {}, 0, b""
            with os.fdopen(os.dup(descriptor), "rb") as file:
                file.seek(self._read_bytes)
                for line in bounded_lines(file):
                    entry = None if line is None else _parse(line)
                    if line is None or not line.endswith(b"\n"):
                        # It may still be continued, or taken away: it is read again.
                        unfinished = entry
                        continue
                    self._read_bytes = file.tell()
                    self._read_end = line[-_COMPARED_BYTES:]
                    if entry is not None:
                        self._entries[entry.incident] = _continue(self._entries.get(entry.incident), entry)
        except OSError:
            return None
        known = self._entries.get(incident)
        return _continue(known, unfinished) if unfinished is not None and unfinished.incident == incident else known

    @contextmanager
    def _locked(self, timeout_seconds: float = LOCK_TIMEOUT_SECONDS, *, is_needed: bool = True) -> Iterator[None]:
        deadline = time.monotonic() + timeout_seconds
        is_locked = False
        while not is_locked:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = True
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                    raise EnvironmentFailure(f"cannot lock the undo ledger {self._path}: {error.strerror}") from error
                if time.monotonic() >= deadline:
                    if not is_needed:
                        break
                    raise EnvironmentFailure(
                        f"the undo ledger {self._path} has been locked by another process for {timeout_seconds:g} s"
                    ) from None
                time.sleep(_LOCK_POLL_SECONDS)
        try:
            yield
        finally:
            if is_locked:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _write(self, incident: int, fault: str, state: State, record: Mapping[str, Any]) -> None:
        line = {
            "incident": incident,
            "fault": fault,
            "state": state,
            "record": dict(record),
            "run": self._run,
            "by": self._by,
            "pid": self._self.pid,
            "start_ticks": self._self.start_ticks,
            "time": round(time.time(), 6),
        }
        if state == "prepared":
            line |= {"folder": str(self._path.parent.absolute()), "absent": _absent_paths(record)}
            line |= {"place": self._place.to_json(), "folders": [str(one) for one in self._folders]}
        data = json.dumps(line).encode() + b"\n"
        try:
            self._mend_tail()
            size = os.fstat(self._file.fileno()).st_size
            try:
                # What did not fit is written once more: that is what says why it does not.
                while data:
                    data = data[self._file.write(data) :]
            except OSError:
                # What is no file has no length; of half a line `_mend_tail` makes an end.
                with suppress(OSError):
                    os.ftruncate(self._file.fileno(), size)
                raise
            os.fsync(self._file.fileno())
        except OSError as error:
            raise EnvironmentFailure(f"cannot write the undo ledger {self._path}: {why(error)}") from error

    def _mend_tail(self) -> None:
        """End the last line, or take away one that was cut off: it was not synced, so nothing followed from it."""
        descriptor = self._file.fileno()
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return
        try:
            if os.pread(descriptor, 1, status.st_size - 1) == b"\n":
                return
            last = _last_line(descriptor, status.st_size)
        except OSError:
            return
        if _parse(last) is None:
            os.ftruncate(descriptor, status.st_size - len(last))
        else:
            self._file.write(b"\n")


def read_ledger(path: Path) -> Contents:
    """What stands in a ledger; of one that is not there, nothing. A last line that was cut off was never acted on."""
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            reading = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return _contents(path, os.open(path.name or ".", reading, dir_fd=folder), os.fstat(folder))
        finally:
            os.close(folder)
    except FileNotFoundError:
        return Contents()
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
        return Contents(problems=(f"{path} cannot be read: {reason}",))


def _contents(path: Path, descriptor: int, folder: os.stat_result | None) -> Contents:
    """What stands in the open file, which is closed.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    entries: dict[int, Entry] = {}
    problems: list[str] = []
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(number, os.strerror(number) if number == errno.EISDIR else "not a regular file")
    with open(descriptor, "rb") as file:
        file.seek(0)
        for number, line in enumerate(bounded_lines(file), start=1):
            entry = None if line is None else _parse(line)
            if entry is not None:
                entries[entry.incident] = _continue(entries.get(entry.incident), entry)
            elif line is None or (line.endswith(b"\n") and line != b"\n"):
                problems.append(f"{path}:{number} is no entry of a ledger")
    return Contents(tuple(entries.values()), tuple(problems), status, folder)


def _last_line(descriptor: int, size: int) -> bytes:
    """What follows the last end of a line."""
    last = b""
    while size:
        begin = max(0, size - _TAIL_BYTES)
        _, end, tail = os.pread(descriptor, size - begin, begin).rpartition(b"\n")
        last = tail + last
        if end:
            break
        size = begin
    return last


def _open(path: Path, made: int) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | made, _MODE)


def _continue(known: Entry | None, entry: Entry) -> Entry:
    if known is None or entry.state == "prepared":
        return entry
    return Entry(
        entry.incident,
        entry.fault,
        entry.state,
        entry.record or known.record,
        run=known.run or entry.run,
        folder=known.folder,
        owner=known.owner,
        by=entry.by,
        absent=known.absent,
        place=known.place,
        folders=known.folders,
        time_seconds=known.time_seconds,
    )


def _parse(line: bytes) -> Entry | None:
    try:
        raw = loads(line)
        incident, fault, state, record = raw["incident"], raw["fault"], raw["state"], raw["record"]
        is_sound = type(incident) is int and isinstance(fault, str) and isinstance(state, str) and state in _STATES
        run, folder, by = (str(raw.get(key, "")) for key in ("run", "folder", "by"))
        if not is_sound or not isinstance(record, dict) or not (run == "" or is_name(run)):
            return None
        folders, seconds = raw.get("folders"), raw.get("time")
        place = None if raw.get("place") is None else Place.from_json(raw["place"])
        return Entry(
            incident,
            fault,
            state,
            record,
            run=run,
            folder=folder,
            owner=process_from([raw["pid"], raw["start_ticks"]], _host_of(place)) if "pid" in raw else None,
            by=by,
            absent=tuple(path for path in raw.get("absent", ()) if isinstance(path, str)),
            place=place,
            folders=None if folders is None else tuple(Path(os.fspath(one)) for one in folders),
            time_seconds=float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else None,
        )
    except (AttributeError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _host_of(place: Place | None) -> Host:
    """The host of a line; unknown without a place: an older line, or one that follows its `prepared` line."""
    return UNKNOWN_HOST if place is None else place.host_boot


def _resolved(path: str) -> Path:
    """Where the entry itself is, be it a link."""
    return Path(path).parent.resolve() / Path(path).name


def _absent_paths(record: Mapping[str, Any]) -> list[str]:
    """The absolute paths that a record names anywhere and that are not there: what the fault may be about to make."""
    return sorted({path for path in _possible_paths_in(record) if not os.path.lexists(path)})


def paths_in(value: object) -> Iterator[str]:
    """The absolute paths that a record names anywhere, also those that no file can have."""
    if isinstance(value, Mapping):
        for part in value.values():
            yield from paths_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from paths_in(part)
    elif isinstance(value, str) and value.startswith("/"):
        yield value


def _possible_paths_in(record: object) -> Iterator[str]:
    return (path for path in paths_in(record) if "\0" not in path)
