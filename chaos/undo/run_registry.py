"""Which runs are under way, or were when their tool died: one small file for each, in a folder of the user's.

The folder is $CHAOS_STATE, else mecefo-chaos in $XDG_STATE_HOME or ~/.local/state, else (where that cannot be written)
mecefo-chaos-UID in the folder for temporary files. A file is there from before the first thing that would have to be
undone until the end of a run that left nothing behind.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.errors import EnvironmentFailure
from chaos.host.inherited import why
from chaos.user_files import read_regular
from mecefo_runtime.system.process import ProcessId

STATE_VARIABLE = "CHAOS_STATE"
_NAME = "mecefo-chaos"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pid means something: a host, since it was started, and a namespace of processes on it."""

    host: str
    boot: str
    pid_namespace: str

    @classmethod
    def here(cls) -> Place:
        """Where this process is."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return cls(socket.gethostname(), boot, str(Path("/proc/self/ns/pid").readlink()))

    def is_elsewhere(self, here: Place) -> bool:
        """Whether its processes cannot be seen from `here`; those of an earlier start of the host are gone."""
        return self.host != here.host or (self.boot == here.boot and self.pid_namespace != here.pid_namespace)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that is under way, or was left so. `run` is its name in the environment of all its processes.

    `engine` is the address of the Docker engine in which it has containers; None: it has none.
    """

    run: str
    folder: Path
    ledger: Path
    place: Place
    chaos: ProcessId
    watchdog: ProcessId | None = None
    engine: str | None = None

    def is_owned(self) -> bool:
        """Whether the `chaos` that runs it is alive."""
        return self._is_alive(self.chaos)

    def is_watched(self) -> bool:
        """Whether its watchdog is alive."""
        return self.watchdog is not None and self._is_alive(self.watchdog)

    def is_elsewhere(self) -> bool:
        """Whether it is another machine's or container's."""
        return self.place.is_elsewhere(Place.here())

    def _is_alive(self, process: ProcessId) -> bool:
        return self.place.boot == Place.here().boot and process.is_running()

    def to_json(self) -> str:
        """As one line of JSON."""
        return json.dumps(
            {
                "run": self.run,
                "folder": str(self.folder),
                "ledger": str(self.ledger),
                "place": [self.place.host, self.place.boot, self.place.pid_namespace],
                "chaos": _process_to_list(self.chaos),
                "watchdog": None if self.watchdog is None else _process_to_list(self.watchdog),
                "engine": self.engine,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> OpenRun:
        """What `to_json` wrote.

        Raises:
            ValueError: it is nothing of the kind.
        """
        try:
            raw = json.loads(text)
            host, boot, pid_namespace = raw["place"]
            return cls(
                str(raw["run"]),
                Path(raw["folder"]),
                Path(raw["ledger"]),
                Place(host, boot, pid_namespace),
                _process_from(raw["chaos"]),
                None if raw["watchdog"] is None else _process_from(raw["watchdog"]),
                None if raw["engine"] is None else str(raw["engine"]),
            )
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
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
    path, partial = folder / f"{run.run}.json", folder / f".{run.run}.{os.getpid()}"
    try:
        with partial.open("w", encoding="utf-8") as file:
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


def forget(run: str) -> None:
    """Nothing of the run is left; that it is not registered is no mistake."""
    for folder in _folders():
        with suppress(OSError):
            (folder / f"{run}.json").unlink()


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
            try:
                changed, text = path.stat().st_mtime, read_regular(path).decode()
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError):
                found.append((0.0, Registered(path, None)))
                continue
            try:
                found.append((changed, Registered(path, OpenRun.from_json(text))))
            except ValueError:
                found.append((changed, Registered(path, None)))
    return tuple(one for _, one in sorted(found, key=lambda pair: (pair[0], str(pair[1].path))))


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
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            reasons.append(f"{folder}: {why(error)}")
    raise EnvironmentFailure(
        f"there is no folder in which to record that a run is active ({'; '.join(reasons)}). "
        f"Choose one with {STATE_VARIABLE}"
    )


def _is_ours(folder: Path) -> bool:
    """Whether nobody else can write to it, who could tell us what to undo."""
    info = folder.stat()
    return info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


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


def _process_from(raw: Any) -> ProcessId:
    pid, start_ticks = raw
    return ProcessId(int(pid), int(start_ticks))
