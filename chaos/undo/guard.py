"""Ensures that one run leaves nothing behind: its entry in the registry, its ledger, its watchdog, its audit."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chaos.errors import ChaosError
from chaos.host.file_systems import network_file_system
from chaos.host.run_processes import RUN_VARIABLE, end_processes, processes_of
from chaos.undo import residue, run_registry
from chaos.undo.heal import Faults, undo_pending
from chaos.undo.lease import LEASE_SECONDS, Lease
from chaos.undo.ledger import Ledger
from chaos.undo.other_runs import Beacon
from chaos.undo.residue.base import AuditScope
from chaos.undo.run_registry import OpenRun, Place
from mecefo_runtime.system.process import ProcessId

LEDGER_FILE = "ledger.jsonl"
WATCHDOG_LOG = "watchdog.log"


@dataclass(frozen=True, slots=True)
class Farewell:
    """What was found at the end of a run; all empty but `undone` when nothing was left behind.

    `undone` is what could be undone only now, `processes` still run after they were killed.
    """

    undone: tuple[dict[str, Any], ...] = ()
    undo_pending: tuple[int, ...] = ()
    processes: tuple[dict[str, Any], ...] = ()
    left: tuple[dict[str, str], ...] = ()

    @classmethod
    def of_all(cls, farewells: Iterable[Farewell]) -> Farewell:
        """What was found on several hosts."""
        found = tuple(farewells)
        return cls(
            tuple(one for farewell in found for one in farewell.undone),
            tuple(dict.fromkeys(number for farewell in found for number in farewell.undo_pending)),
            tuple(one for farewell in found for one in farewell.processes),
            tuple(one for farewell in found for one in farewell.left),
        )

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left."""
        return not (self.undo_pending or self.processes or self.left)


def _ledger_of(folder: Path, run: str) -> Path:
    """Where the ledger of a run in `folder` is: there, unless locks and syncs do not hold there."""
    if network_file_system(folder) is None:
        return folder / LEDGER_FILE
    return run_registry.writable_folder() / f"{run}.{LEDGER_FILE}"


class Guard:
    """Guards the run in `folder`, whose watchdog logs to `logs`; `folders` are others that it may change.

    `engine` is the address of the Docker engine in which it may have containers. `run` is the run's name in the
    environment of its processes; None: a new one, that no other run has.
    See `OpenRun` for `keeps_processes`, `Lease` for `on_lapse` and `on_loss`.
    """

    def __init__(
        self,
        folder: Path,
        logs: Path,
        *,
        folders: Sequence[Path] = (),
        engine: str | None = None,
        run: str | None = None,
        keeps_processes: bool = False,
        on_lapse: Callable[[str], None],
        on_loss: Callable[[str, bool], None],
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        run = secrets.token_hex(8) if run is None else run
        folder = folder.absolute()
        here, us = Place.here(), ProcessId.of(os.getpid())
        own = tuple(dict.fromkeys(one.resolve() for one in (folder, *folders)))
        ledger = _ledger_of(folder, run)
        self._folder = folder
        self._scope = AuditScope(run, (folder, *folders), ledger, engine)
        self._log = logs / WATCHDOG_LOG
        self._on_lapse = on_lapse
        self._on_loss = on_loss
        self._lease_seconds = lease_seconds
        self._lease: Lease | None = None
        self._beacon: Beacon | None = None
        self._before: residue.Findings | None = None
        self.ledger = Ledger(ledger, run, folders=own, on_folders=self._allow)
        self._run = OpenRun(
            run,
            folder,
            ledger,
            here,
            us,
            engine=engine,
            folders=own,
            ledger_file=self.ledger.file,
            keeps_processes=keeps_processes,
        )

    @property
    def run(self) -> OpenRun:
        """The run as it is registered."""
        return self._run

    def open(self, *, has_watchdog: bool) -> None:
        """Before the first process is started and the first fault is due.

        Raises:
            EnvironmentFailure: the run cannot be registered, or its watchdog not be started.
        """
        run_registry.register(self._run)
        self._beacon = Beacon(self._run.run)
        # For all that this process starts from now on, the helpers of faults included.
        os.environ[RUN_VARIABLE] = self._run.run
        self._before = residue.look(self._scope)
        if has_watchdog:
            self._lease = Lease(self._run, self._log, self._on_lapse, self._lost, self._lease_seconds)
            self._run = self._lease.start()
            run_registry.register(self._run)

    async def ready(self) -> None:
        """Until faults may be injected.

        Raises:
            EnvironmentFailure: the watchdog does not come up.
        """
        if self._lease is not None:
            await self._lease.ready()

    def note_hosts(self, hosts: Sequence[str], reached_by: str) -> None:
        """From now on something of the run may be on other hosts, too; see `OpenRun`.

        Raises:
            EnvironmentFailure: it cannot be registered.
        """
        self._run = replace(self._run, hosts=tuple(hosts), reached_by=reached_by)
        run_registry.register(self._run)

    async def close(self, faults: Faults, *, ends_processes: bool = True, is_clean_elsewhere: bool = True) -> Farewell:
        """After everything was stopped: undo what is pending, end remaining processes, and audit what is left.

        Where it does not end the processes, they are none of what is left: the job goes on. The run stays registered
        unless it is clean here, and `is_clean_elsewhere`, on its other hosts.
        """
        undone: list[dict[str, Any]] = []
        # Where it cannot be written, what is pending stays so, and is said below.
        with suppress(ChaosError):
            undone = undo_pending(self._run, "chaos", faults=faults, ledger=self.ledger).undone
        if os.environ.get(RUN_VARIABLE) == self._run.run:
            del os.environ[RUN_VARIABLE]
        if ends_processes:
            await asyncio.to_thread(end_processes, self._run.run)
        # This run opened the file itself: another one may have its path by now.
        contents = self.ledger.read()
        before = self._before if self._before is not None else {}
        scope = replace(self._scope, keeps_processes=not ends_processes)
        left = residue.left_behind(before, residue.look(scope))
        farewell = Farewell(
            tuple(undone),
            tuple(entry.incident for entry in contents.pending),
            tuple(one.to_dict() for one in processes_of(self._run.run)) if ends_processes else (),
            (*left, *({"kind": "ledger", "what": problem} for problem in contents.problems)),
        )
        self.ledger.__exit__(None, None, None)
        if farewell.is_clean and is_clean_elsewhere:
            run_registry.forget(self._run.run)
            self._bring_ledger()
        if self._beacon is not None:
            self._beacon.close()
        if self._lease is not None:
            await self._lease.end(is_clean=farewell.is_clean)
        return farewell

    def _bring_ledger(self) -> None:
        """Into the run's folder, where it was kept elsewhere: nothing in it is pending any more."""
        if self._run.ledger.parent == self._folder:
            return
        with suppress(OSError):
            (self._folder / LEDGER_FILE).write_bytes(self._run.ledger.read_bytes())
            self._run.ledger.unlink()

    def _allow(self, folders: tuple[Path, ...]) -> None:
        """A fault is about to change files elsewhere: whoever undoes may do so there, too."""
        self._run = replace(self._run, folders=folders)
        run_registry.register(self._run)
        if self._lease is not None:
            self._lease.run = replace(self._lease.run, folders=folders)

    def _lost(self, text: str, is_replaced: bool) -> None:
        if is_replaced and self._lease is not None:
            self._run = replace(self._run, watchdog=self._lease.run.watchdog)
            run_registry.register(self._run)
        self._on_loss(text, is_replaced)
