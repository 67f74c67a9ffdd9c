"""`OUT/prometheus.json`: what Prometheus' file-based service discovery reads, kept up to date by the runs themselves.

One file for all runs in OUT, each with its job and those of its ranks that can be reached. Who wrote an entry stands in
it (labels with two underscores are not stored), so that the entries of runs that were killed go with the next run, or
with `chaos heal`.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from chaos.user_files import read_regular
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.host import this_host
from mecefo_runtime.system.process import ProcessId

TARGETS_FILE = "prometheus.json"
OWNER_LABEL = "__chaos_owner"
# Others hold the lock for less than a millisecond, unless they are stopped or a busy machine has put them aside: then
# this update has to wait, and comes with the next event that finds the lock free. After the last one there is none.
_LOCK_TRIES = 20
_LAST_LOCK_TRIES = 400
_LOCK_TRY_SECONDS = 0.005
_MAX_LABEL_CHARACTERS = 200
_MAX_DIGITS = 20


class Targets:
    """The entries of one run in the file of `out`; nothing that goes wrong with the file fails the run.

    `job_address` is the job's endpoint. `violation` is why the file could not be written the last time, None if it was.
    """

    def __init__(self, out: Path, experiment: str, job_address: str) -> None:
        self.path = out / TARGETS_FILE
        self.violation: str | None = None
        self._is_late = False
        self._experiment = experiment[:_MAX_LABEL_CHARACTERS]
        self._job_address = job_address
        self._owner = owner_of(ProcessId.of(os.getpid()))
        # By rank: (address, node, pid).
        self._ranks: dict[int, tuple[str, int | None, int]] = {}

    def open(self) -> None:
        """List the job."""
        self._write()

    def on_event(self, event: Event) -> None:
        """Ranks come and go."""
        if event.job != MAIN_JOB:
            return
        fields, before = event.fields, dict(self._ranks)
        if event.kind == "rank_started" and event.rank is not None and isinstance(fields.get("metrics"), str):
            self._ranks[event.rank] = (fields["metrics"], event.node, event.pid)
        elif event.kind == "process_exited":
            pid, node = fields.get("exited_pid"), fields.get("exited_node")
            # With its supervisor a node's ranks are gone too.
            is_node = fields.get("role") == "supervisor"
            self._ranks = {
                rank: known
                for rank, known in self._ranks.items()
                if known[2] != pid and not (is_node and known[1] == node)
            }
        elif event.kind == "job_ended":
            self._ranks = {}
        if self._ranks != before:
            self._write()
        elif self._is_late:
            self._write(tries=1)

    def close(self) -> None:
        """Remove this run's entries; a file that is then empty is removed."""
        self._update([], _LAST_LOCK_TRIES)

    def _write(self, tries: int = _LOCK_TRIES) -> None:
        groups = [self._group([reachable(self._job_address)], "job")]
        ranks = [reachable(address) for address, _, _ in self._ranks.values()]
        if ranks:
            groups.append(self._group(sorted(ranks), "rank"))
        self._update(groups, tries)

    def _group(self, targets: Sequence[str], role: str) -> dict[str, Any]:
        labels = {"experiment": self._experiment, "role": role, OWNER_LABEL: self._owner}
        return {"targets": list(targets), "labels": labels}

    def _update(self, own: list[dict[str, Any]], tries: int) -> None:
        self._is_late = False
        try:
            with _locked(self.path.parent, tries):
                others = [group for group in _read(self.path) if _is_of_another(group, self._owner)]
                _write_whole(self.path, [*others, *own])
            self.violation = None
        except OSError as error:
            self._is_late = isinstance(error, BlockingIOError)
            self.violation = f"{self.path} cannot be written: {error.strerror or error}"


def remove_dead(out: Path, *, only_look: bool = False) -> list[str]:
    """Take the entries of dead runs out of the file of `out`, unless `only_look`; returns their addresses.

    Raises:
        OSError: the file cannot be read or written.
    """
    path, here = out / TARGETS_FILE, owner_of(ProcessId.of(os.getpid()))
    if not path.exists():
        return []
    with _locked(out):
        groups = _read(path)
        living = [group for group in groups if _is_of_another(group, here)]
        if len(living) < len(groups) and not only_look:
            _write_whole(path, living)
    return [str(target) for group in groups if group not in living for target in _listed(group["targets"])]


def owner_of(process: ProcessId) -> str:
    """The process, as its entries name it: with its host, PID namespace and boot, of which others may be in OUT too."""
    return f"{process.host.name} {_pid_namespace()} {process.host.boot} {process.pid} {process.start_ticks}"


def _is_of_another(group: Mapping[str, Any], owner: str) -> bool:
    """Whether the entry is another run's that continues, as far as can be seen from here."""
    theirs = group["labels"].get(OWNER_LABEL, "")
    if theirs == owner:
        return False
    place, pid, ticks = theirs.rsplit(" ", 2)
    here = this_host()
    name, namespace, *boot = place.split(" ")
    if (name, namespace) != (here.name, _pid_namespace()):
        return True
    # An earlier version wrote no boot. What was there before this one is gone.
    return boot in ([], [here.boot]) and ProcessId(int(pid), int(ticks)).is_running()


def _pid_namespace() -> str:
    with suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def _write_whole(path: Path, groups: Sequence[Mapping[str, Any]]) -> None:
    """Write the file, which a reader never sees half of; one that would be empty is removed."""
    if not groups:
        path.unlink(missing_ok=True)
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    # A link at that path is not followed.
    partial.unlink(missing_ok=True)
    with partial.open("x", encoding="utf-8") as file:
        file.write(json.dumps(groups, indent=2) + "\n")
    partial.replace(path)


def _listed(targets: object) -> list[object]:
    return targets if isinstance(targets, list) else [targets]


def _read(path: Path) -> list[Mapping[str, Any]]:
    """The entries of the file that a run can have written; of one that is damaged, those that are whole."""
    try:
        groups = json.loads(read_regular(path))
    except (FileNotFoundError, ValueError, RecursionError):
        return []
    return [group for group in groups if _is_group(group)] if isinstance(groups, list) else []


def _is_group(group: object) -> bool:
    if not isinstance(group, dict) or not isinstance(group.get("labels"), dict) or "targets" not in group:
        return False
    *_, pid, ticks = ["", *str(group["labels"].get(OWNER_LABEL, "")).rsplit(" ", 2)]
    return all(number.isascii() and number.isdigit() and len(number) < _MAX_DIGITS for number in (pid, ticks))


def reachable(address: str) -> str:
    """The address under which others reach it: of one that listens everywhere, by this host's name."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in ("0.0.0.0", "[::]") else address


@contextmanager
def _locked(folder: Path, tries: int = _LOCK_TRIES) -> Iterator[None]:
    """While the file is changed. The lock is on the folder: it leaves no file behind.

    Raises:
        OSError: somebody has held it all the time.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for attempt in range(tries):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt + 1 == tries:
                    raise
                time.sleep(_LOCK_TRY_SECONDS)
        yield
    finally:
        os.close(descriptor)
