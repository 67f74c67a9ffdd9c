"""Which runs are under way, or were when their tool died: one small file for each, in a folder of the user's.

Hosts may share the folder: the name of a file says the run, and the host and boot on which it is under way.

The folder is $CHAOS_STATE, else mecefo-chaos in $XDG_STATE_HOME or ~/.local/state, else (where that cannot be written)
mecefo-chaos-UID in the folder for temporary files. A file is there from before the first thing that would have to be
undone until the end of a run that left nothing behind.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chaos.errors import EnvironmentFailure
from chaos.host.file_systems import network_file_system
from chaos.host.inherited import why
from chaos.host.run_processes import is_name
from mecefo_runtime.system.host import Host, machine_digest, this_host
from mecefo_runtime.system.json_values import loads
from mecefo_runtime.system.process import ProcessId

STATE_VARIABLE = "CHAOS_STATE"
_NAME = "mecefo-chaos"
_MAX_ENTRY_BYTES = 1 << 20
_BOOT_CHARACTERS = 8
_NOT_IN_FILE_NAMES = re.compile(r"[^0-9A-Za-z_-]")


@dataclass(frozen=True, slots=True)
class Place:
    """The scope of a pid: a host, one boot of it, and a namespace of processes.

    `machine` (`machine_digest`) is equal for all boots of one machine and differs between machines with one name; empty
    in a place that an earlier version wrote, and on a system without such an id.
    """

    host: str
    boot: str
    pid_namespace: str
    machine: str = field(default="", compare=False)

    @classmethod
    def here(cls) -> Place:
        """Where this process is.

        Raises:
            EnvironmentFailure: the boot id of the kernel cannot be read.
        """
        here = this_host()
        if not here.boot:
            raise EnvironmentFailure(
                "the boot id of the kernel cannot be read, so nothing that a run changes could be undone"
            )
        return cls(here.name, here.boot, str(Path("/proc/self/ns/pid").readlink()), machine_digest())

    @classmethod
    def from_json(cls, raw: Any) -> Place:
        """Read a list of the three, or of the four with the machine.

        Raises:
            ValueError: it is none.
        """
        host, boot, pid_namespace, *more = map(_text, _list(raw))
        if len(more) > 1:
            raise ValueError("a place is a list of host, boot, PID namespace and machine")
        return cls(host, boot, pid_namespace, *more)

    def to_json(self) -> list[str]:
        """As such a list."""
        return [self.host, self.boot, self.pid_namespace, *([self.machine] if self.machine else [])]

    @property
    def host_boot(self) -> Host:
        """The host and its boot, without the namespace."""
        return Host(self.host, self.boot)

    def is_elsewhere(self, here: Place) -> bool:
        """Whether its processes cannot be seen from `here`; those of an earlier start of the host are gone."""
        if self.boot == here.boot:
            return self.host != here.host or self.pid_namespace != here.pid_namespace
        return not self.is_earlier_boot(here)

    def is_earlier_boot(self, here: Place) -> bool:
        """Whether it is an earlier boot of the machine of `here`, of which only files are left.

        Two machines may have one name; then their ids differ, where both are known.
        """
        is_same_machine = self.machine == here.machine or not (self.machine and here.machine)
        return self.host == here.host and self.boot != here.boot and is_same_machine

    def whose(self, here: Place) -> str:
        """The owner of a run of this place, as text for a user at `here`."""
        if self.boot != here.boot and self.host == here.host:
            return f"another machine that is called {self.host}"
        return f"{self.host} (or a container on it)"


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that is under way, or was left so. `run` is its name in the environment of all its processes.

    `engine` is the address of the Docker engine in which it has containers; None: it has none. `folders` are those in
    which it may change files, beside its own, resolved; None: of an earlier version, which did not note them.
    `ledger_file` is the ledger's device and inode. `keeps_processes`: the job is not one that this `chaos` has started,
    so that its processes go on where `chaos` dies. `hosts` are the others that it has agents on, which `reached_by`
    reaches: the name of an engine, and for some a job of it (`slurm:1234`).
    """

    run: str
    folder: Path
    ledger: Path
    place: Place
    chaos: ProcessId
    watchdog: ProcessId | None = None
    engine: str | None = None
    folders: tuple[Path, ...] | None = None
    ledger_file: tuple[int, int] | None = None
    keeps_processes: bool = False
    hosts: tuple[str, ...] = ()
    reached_by: str = ""

    def __post_init__(self) -> None:
        # The processes of a run are processes of its place.
        object.__setattr__(self, "chaos", replace(self.chaos, host=self.place.host_boot))
        if self.watchdog is not None:
            object.__setattr__(self, "watchdog", replace(self.watchdog, host=self.place.host_boot))

    def is_before_restart(self) -> bool:
        """Whether the host was started again since: of all that it changed, only files can still be so."""
        return self.place.is_earlier_boot(Place.here())

    def is_owned(self) -> bool:
        """Whether the `chaos` that runs it is alive.

        Raises:
            ForeignProcess: it is elsewhere, so that this cannot be known here.
        """
        return self._is_alive(self.chaos)

    def is_watched(self) -> bool:
        """Whether its watchdog is alive."""
        return self.watchdog is not None and self._is_alive(self.watchdog)

    def is_elsewhere(self) -> bool:
        """Whether it is another machine's or container's."""
        return self.place.is_elsewhere(Place.here())

    def _is_alive(self, process: ProcessId) -> bool:
        return not self.is_before_restart() and process.is_running()

    def to_json(self) -> str:
        """As one line of JSON."""
        return json.dumps(
            {
                "run": self.run,
                "folder": str(self.folder),
                "ledger": str(self.ledger),
                "place": self.place.to_json(),
                "chaos": _process_to_list(self.chaos),
                "watchdog": None if self.watchdog is None else _process_to_list(self.watchdog),
                "engine": self.engine,
                **({} if self.folders is None else {"folders": [str(one) for one in self.folders]}),
                **({} if self.ledger_file is None else {"ledger_file": list(self.ledger_file)}),
                **({"keeps_processes": True} if self.keeps_processes else {}),
                **({"hosts": list(self.hosts), "reached_by": self.reached_by} if self.hosts else {}),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> OpenRun:
        """What `to_json` wrote.

        Raises:
            ValueError: it is nothing of the kind.
        """
        try:
            raw = loads(text)
            folders, ledger_file, engine = raw.get("folders"), raw.get("ledger_file"), raw["engine"]
            run, place = raw["run"], Place.from_json(raw["place"])
            if not isinstance(run, str) or not is_name(run):
                raise ValueError("a run has no such name")
            return cls(
                run,
                _whole_path(raw["folder"]),
                _whole_path(raw["ledger"]),
                place,
                process_from(raw["chaos"], place.host_boot),
                None if raw["watchdog"] is None else process_from(raw["watchdog"], place.host_boot),
                None if engine is None else _text(engine),
                None if folders is None else tuple(_whole_path(one) for one in _list(folders)),
                None if ledger_file is None else _pair(ledger_file),
                raw.get("keeps_processes") is True,
                tuple(map(_text, _list(raw.get("hosts", [])))),
                _text(raw.get("reached_by", "")),
            )
        except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not an open run: {error}") from error


@dataclass(frozen=True, slots=True)
class Registered:
    """One file of the registry; `run` is None where it cannot be read."""

    path: Path
    run: OpenRun | None


def register(run: OpenRun) -> None:
    """Write down that `run` is under way, or what is known of it by now; on disk when this returns.

    Raises:
        EnvironmentFailure: no folder for it can be written to.
    """
    folder = writable_folder()
    path = folder / _file_name(run.run, run.place.host_boot)
    # Hosts may share the folder, and two processes on two of them may have one pid.
    partial = path.with_name(f".{path.stem}.{os.getpid()}")
    try:
        with open(partial, "w", encoding="utf-8", opener=_private) as file:
            file.write(run.to_json() + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise EnvironmentFailure(
            f"cannot record in {folder} that a run is active: {why(error)}. Choose another folder with {STATE_VARIABLE}"
        ) from error


def forget(run: str, host: Host | None = None) -> None:
    """Remove the entry of the run on `host` (default: this host), if there is one. Entries of other hosts stay."""
    where = this_host() if host is None else host
    for folder in _folders():
        with suppress(OSError):
            (folder / _file_name(run, where)).unlink()
        earlier = folder / f"{run}.json"
        # As earlier versions named it.
        with suppress(OSError):
            known = _read(earlier)[1].run
            if known is not None and known.place.host_boot == where:
                earlier.unlink()


def registered() -> tuple[Registered, ...]:
    """Every run that is registered in any of the folders, the oldest first."""
    found: list[tuple[float, Registered]] = []
    for folder in _folders():
        try:
            if not _is_ours(folder):
                continue
            paths = [path for path in folder.iterdir() if path.suffix == ".json"]
        except OSError:
            continue
        for path in paths:
            with suppress(FileNotFoundError):
                found.append(_read(path))
    return tuple(one for _, one in sorted(found, key=lambda pair: (pair[0], str(pair[1].path))))


class RegistryReader:
    """Reads the registry again and again: each file only once while it does not change."""

    def __init__(self) -> None:
        self.here = Place.here()
        self._known: dict[str, tuple[tuple[int, int], OpenRun | None]] = {}

    def runs(self) -> tuple[OpenRun, ...]:
        """The registered runs; those whose files cannot be read are left out."""
        known: dict[str, tuple[tuple[int, int], OpenRun | None]] = {}
        for folder in _folders():
            with suppress(OSError):
                if not _is_ours(folder):
                    continue
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if entry.name.endswith(".json"):
                            self._read(entry, known)
        self._known = known
        return tuple(run for _, run in known.values() if run is not None)

    def _read(self, entry: os.DirEntry[str], known: dict[str, tuple[tuple[int, int], OpenRun | None]]) -> None:
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            version = status.st_ino, status.st_mtime_ns
            earlier = self._known.get(entry.path)
            if earlier is None or earlier[0] != version:
                earlier = version, _read(Path(entry.path))[1].run
            known[entry.path] = earlier


def left_here(run: str) -> tuple[OpenRun, ...]:
    """The entries of the run on this machine: of this boot, and of earlier ones, which nobody owns any more."""
    known = (entry.run for entry in registered() if entry.run is not None and entry.run.run == run)
    return tuple(one for one in known if not one.is_elsewhere())


def find(run: str, host: Host | None = None) -> OpenRun | None:
    """The registered run of that name on `host` (default: this host); None where it is not registered."""
    where = this_host() if host is None else host
    known = (entry.run for entry in registered() if entry.run is not None)
    return next((one for one in known if one.run == run and one.place.host_boot == where), None)


def _read(path: Path) -> tuple[float, Registered]:
    """(when it was changed, the entry); of one that is a link, or somebody else's, nothing is known.

    Raises:
        FileNotFoundError: it is gone.
    """
    try:
        with open(path, "rb", opener=_no_link) as file:
            status = os.fstat(file.fileno())
            # What only we can reach only we can have changed, whatever its permissions.
            is_hidden = not path.parent.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)
            is_ours = _only_ours(status) or (is_hidden and status.st_uid == os.geteuid())
            if not stat.S_ISREG(status.st_mode) or not is_ours:
                return 0.0, Registered(path, None)
            content = file.read(_MAX_ENTRY_BYTES)
        return status.st_mtime, Registered(path, OpenRun.from_json(content.decode()))
    except FileNotFoundError:
        raise
    except (OSError, ValueError):
        return 0.0, Registered(path, None)


def writable_folder() -> Path:
    """The first of the folders that can be made and written to.

    Raises:
        EnvironmentFailure: none can, or the one that CHAOS_STATE names cannot.
    """
    reasons = []
    for folder in _folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(folder):
                reasons.append(f"{folder} belongs to somebody else, or others may write to it")
                continue
            if (network := network_file_system(folder)) is not None:
                reasons.append(f"{folder} is on a network file system ({network}), where locks do not hold")
                continue
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            reasons.append(f"{folder}: {why(error)}")
    raise EnvironmentFailure(
        f"there is no folder in which to record that a run is active ({'; '.join(reasons)}). "
        f"Choose one on a local disk with {STATE_VARIABLE}"
    )


def _is_ours(folder: Path) -> bool:
    """Whether nobody else can write to it, who could tell us what to undo."""
    # Where it is a link, that must be ours as well: whoever made it chose what it leads to.
    return _only_ours(folder.stat()) and folder.lstat().st_uid == os.geteuid()


def _only_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _folders() -> tuple[Path, ...]:
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return (Path(chosen).absolute(),)
    base = os.environ.get("XDG_STATE_HOME", "")
    folders = []
    with suppress(RuntimeError):
        # XDG base directories: a relative path is invalid and ignored.
        state = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
        folders.append(state / _NAME)
    return (*folders, Path(tempfile.gettempdir()) / f"{_NAME}-{os.geteuid()}")


def _process_to_list(process: ProcessId) -> list[int]:
    return [process.pid, process.start_ticks]


def process_from(raw: Any, host: Host) -> ProcessId:
    """Read a list of pid and start time, of a process of `host`.

    Raises:
        ValueError: they are none.
    """
    return ProcessId(*_pair(raw), host)


def _file_name(run: str, host: Host) -> str:
    name, boot = (_NOT_IN_FILE_NAMES.sub("_", part) for part in (host.name, host.boot))
    return f"{run}.{name}.{boot[:_BOOT_CHARACTERS]}.json"


def _pair(raw: Any) -> tuple[int, int]:
    one, other = _list(raw)
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in (one, other)):
        raise ValueError("two whole numbers are expected")
    return one, other


def _list(raw: Any) -> list[Any]:
    if not isinstance(raw, list):
        raise ValueError("a list is expected")
    return raw


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError("a text is expected")
    return raw


def _whole_path(raw: Any) -> Path:
    path = Path(_text(raw))
    if not path.is_absolute() or "\0" in str(path):
        raise ValueError("a whole path is expected")
    return path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
