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
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from chaos.errors import ChaosError, EnvironmentFailure, HealError
from chaos.host.inherited import why
from chaos.user_files import read_regular
from mecefo_runtime.system.process import ProcessId

Author = Literal["chaos", "watchdog", "heal"]
State = Literal["prepared", "applied", "lapsed", "struck"]
_STATES = ("prepared", "applied", "lapsed", "struck")
# An undo takes milliseconds to seconds: whoever holds the lock for longer is stopped or hangs.
LOCK_TIMEOUT_SECONDS = 15.0
LAPSE_LOCK_TIMEOUT_SECONDS = 2.0
_LOCK_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Entry:
    """The newest state of one incident in the ledger.

    `run` and `folder` are those of its run, `owner` is the process that injected it, and `by` who wrote the state.
    `absent` are the paths that the record names and that were not there before the fault.
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


@dataclass(frozen=True, slots=True)
class Contents:
    """A ledger as it was read: every incident's newest state, and what of the file could not be understood."""

    entries: tuple[Entry, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def pending(self) -> tuple[Entry, ...]:
        """The entries that are not closed."""
        return tuple(entry for entry in self.entries if entry.state != "struck")

    def of(self, incident: int) -> Entry | None:
        """The entry of one incident."""
        return next((entry for entry in self.entries if entry.incident == incident), None)


class Ledger:
    """The ledger of one run, open for writing by `by`; `run` is the run's name in the environment of its processes."""

    def __init__(self, path: Path, run: str = "", by: Author = "chaos") -> None:
        self._path = path
        self._run = run
        self._by = by
        self._self = ProcessId.of(os.getpid())
        try:
            self._file = path.open("ab", buffering=0)
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

    def prepare(self, incident: int, fault: str, record: Mapping[str, Any]) -> None:
        """On disk when this returns; only then may the fault be applied.

        Raises:
            EnvironmentFailure: it could not be written; do not apply.
        """
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
            known = read_ledger(self._path).of(incident)
            if known is not None and known.state == "struck":
                return {"undone": "already", "by": known.by}
            try:
                evidence = undo(record)
            except ChaosError:
                raise
            except Exception as error:
                # A mistake of the fault's must not hide that something was left behind.
                raise HealError(f"the undo of {fault} broke down: {error!r}") from error
            if not lapse:
                self._write(incident, fault, "struck", {})
            elif known is not None and read_ledger(self._path).of(incident) == known:
                self._write(incident, fault, "lapsed", {})
        if known is not None and known.state == "lapsed":
            return {**evidence, "by": "watchdog", "again_by": self._by}
        return {**evidence, "by": self._by}

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
        try:
            data = self._path.read_bytes() if self._path.is_file() else b""
        except OSError:
            return
        if not data or data.endswith(b"\n"):
            return
        _, _, last = data.rpartition(b"\n")
        if _parse(last) is None:
            os.ftruncate(self._file.fileno(), len(data) - len(last))
        else:
            self._file.write(b"\n")


def read_ledger(path: Path) -> Contents:
    """What stands in a ledger; of one that is not there, nothing. A last line that was cut off was never acted on."""
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return Contents()
    except OSError as error:
        return Contents(problems=(f"{path} cannot be read: {error.strerror}",))
    entries: dict[int, Entry] = {}
    problems: list[str] = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        entry = _parse(line)
        if entry is None:
            if number < len(lines):
                problems.append(f"{path}:{number} is no entry of a ledger")
            continue
        entries[entry.incident] = _continue(entries.get(entry.incident), entry)
    return Contents(tuple(entries.values()), tuple(problems))


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
    )


def _parse(line: bytes) -> Entry | None:
    try:
        raw = json.loads(line)
        incident, fault, state, record = raw["incident"], raw["fault"], raw["state"], raw["record"]
        is_sound = isinstance(incident, int) and isinstance(fault, str) and state in _STATES
        if not is_sound or not isinstance(record, dict):
            return None
        owner = ProcessId(int(raw["pid"]), int(raw["start_ticks"])) if "pid" in raw else None
        return Entry(
            incident,
            fault,
            state,
            record,
            run=str(raw.get("run", "")),
            folder=str(raw.get("folder", "")),
            owner=owner,
            by=str(raw.get("by", "")),
            absent=tuple(str(path) for path in raw.get("absent", ())),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _absent_paths(record: Mapping[str, Any]) -> list[str]:
    """The absolute paths that a record names anywhere and that are not there: what the fault may be about to make."""
    return sorted({path for path in _paths_in(record) if not os.path.lexists(path)})


def _paths_in(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for part in value.values():
            yield from _paths_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _paths_in(part)
    elif isinstance(value, str) and value.startswith("/") and "\0" not in value:
        yield value
