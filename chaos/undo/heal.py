"""Undoes what a run left behind, from its ledger alone: for the watchdog, for `chaos heal`, and before a new run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from chaos.errors import ChaosError, HealError, reason_of_error
from chaos.faults import registry
from chaos.faults.base import Fault
from chaos.host import containers
from chaos.host.run_processes import RunProcess, end_processes, kill_processes, processes_of
from chaos.undo import residue, run_registry
from chaos.undo.belief import allowed_folders, doubt, doubt_of_age, is_before_restart, refuse_elsewhere
from chaos.undo.bounds import changed_paths, check_paths, pids, without_processes
from chaos.undo.ledger import Author, Contents, Entry, Ledger, read_ledger
from chaos.undo.residue.base import AuditScope
from chaos.undo.run_registry import OpenRun
from mecefo_runtime.system.json_values import called
from mecefo_runtime.system.reason import Reason

# A watchdog that is at work is given so long before a new run is refused.
WATCHDOG_PATIENCE_SECONDS = 15.0
_WATCHDOG_POLL_SECONDS = 0.1

Faults = Mapping[str, type[Fault[Any]]]


@dataclass(slots=True)
class Undoing:
    """What came of undoing what is pending.

    Of each `{incident, fault, evidence}`, or `{incident, fault, reason, why}`: the sentence, and its code with fields.
    """

    undone: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Healed:
    """What `chaos heal` did about one run, or would do: then `undone` and `ended` are what there is to do."""

    ALSO_WRITTEN: ClassVar[Mapping[str, str]] = {"clean": "is_clean"}

    run: str
    folder: str
    undone: tuple[Mapping[str, Any], ...] = ()
    failed: tuple[Mapping[str, Any], ...] = ()
    ended: tuple[Mapping[str, Any], ...] = field(default=(), metadata=called("processes_ended"))
    removed: tuple[str, ...] = ()
    left: tuple[Mapping[str, str], ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing of the run is left, as far as can be known."""
        return not (self.failed or self.left or self.problems)


def undo_pending(
    run: OpenRun,
    by: Author,
    *,
    lapse: bool = False,
    faults: Faults | None = None,
    is_confirmed: bool = False,
    is_by_hand: bool = False,
    ledger: Ledger | None = None,
) -> Undoing:
    """Undo every pending entry of the run's ledger, the newest first; see `Ledger.undo` for `lapse`.

    Nothing is undone of a ledger that is not believed, nor what an entry says of files that are none of the job's.
    `is_confirmed`: the user has looked at its entries. `is_by_hand`: the user has undone what cannot be undone here, so
    that its entries are closed. `ledger` is a ledger that is open already.

    Raises:
        EnvironmentFailure: the ledger cannot be opened for writing.
        HealError: it is not believed.
    """
    found = Undoing()
    if not (read_ledger(run.ledger) if ledger is None else ledger.read()).pending:
        return found
    run = _as_registered(run, by)
    kinds = registry() if faults is None else faults
    with Ledger(run.ledger, run.run, by, must_exist=True) if ledger is None else nullcontext(ledger) as opened:
        # From the file that is open: another one may be in its place by now.
        contents = replace(opened.read(), folder=read_ledger(run.ledger).folder)
        refuse_if_doubtful(run, contents, is_confirmed=is_confirmed, is_own=by != "heal")
        folders = allowed_folders(run, contents)
        for entry in reversed(contents.pending):
            name = {"incident": entry.incident, "fault": entry.fault}
            try:
                undo = _undo_of(run, entry, kinds, folders)
                evidence = opened.undo(entry.incident, entry.fault, entry.record, undo, lapse=lapse)
            except ChaosError as error:
                if is_by_hand and not _is_of_another(run, entry):
                    evidence = opened.undo(entry.incident, entry.fault, entry.record, lambda _: {"undone": "by hand"})
                    found.undone.append({**name, "evidence": evidence})
                    continue
                record = {"record": entry.record}
                found.failed.append({**name, "reason": str(error), "why": reason_of_error(error), **record})
            else:
                found.undone.append({**name, "evidence": evidence})
    return found


def _is_of_another(run: OpenRun, entry: Entry) -> bool:
    """Whether an entry is of another run, or of another host: it is closed there."""
    try:
        _refuse_of_another(run, entry)
    except ChaosError:
        return True
    return False


def _refuse_of_another(run: OpenRun, entry: Entry) -> None:
    """Refuse an entry of another run, or of another host.

    Raises:
        HealError: it is one.
    """
    if entry.run not in ("", run.run):
        raise HealError(Reason("entry_of_another_run", run=entry.run))
    refuse_elsewhere(run, entry)


def refuse_if_doubtful(run: OpenRun, contents: Contents, *, is_confirmed: bool = False, is_own: bool = False) -> None:
    """Refuse a ledger that is not believed; see `doubt`.

    Raises:
        HealError: it is not; the message says what to do.
    """
    found = doubt(run, contents, is_registered=is_registered(run), is_own=is_own)
    if found is not None and not (is_confirmed and found.may_be_confirmed):
        raise HealError(Reason("ledger_not_believed", doubt=found.code, because=found.text, advice=found.command))


def is_registered(run: OpenRun) -> bool:
    """Whether this user has registered it on this host."""
    known = run_registry.find(run.run, run.place.host_boot)
    return known is not None and known.ledger == run.ledger


def _as_registered(run: OpenRun, by: Author) -> OpenRun:
    """With the folders that are registered by now: the watchdog knows those of its start."""
    known = run_registry.find(run.run, run.place.host_boot) if by == "watchdog" else None
    return run if known is None or known.folders is None else replace(run, folders=known.folders)


def _undo_of(
    run: OpenRun, entry: Entry, kinds: Faults, folders: Sequence[Path] | None
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """How the entry is undone.

    Raises:
        HealError: it cannot be, or may not be.
    """
    if entry.fault not in kinds:
        raise HealError(Reason("undo_not_installed", fault=entry.fault))
    _refuse_of_another(run, entry)
    kind = kinds[entry.fault]
    paths = changed_paths(kind, entry.record)
    check_paths(paths, folders)
    if not is_before_restart(run, entry):
        return kind.undo
    if not paths:
        return lambda _: {"undone": "ended when the host was started again"}
    return lambda record: kind.undo(without_processes(record))


def heal(
    run: OpenRun,
    by: Author = "heal",
    faults: Faults | None = None,
    *,
    is_confirmed: bool = False,
    is_by_hand: bool = False,
) -> Healed:
    """End the processes of a run whose tool is dead, undo all that is pending, and look whether anything is left.

    Of a run that keeps its processes only the user ends them.

    Forgets the run when nothing is, and it had no other hosts; of a ledger that somebody removed nothing can be undone.
    The caller has made sure that its owner is dead. See `undo_pending` for `is_confirmed` and `is_by_hand`.

    Raises:
        EnvironmentFailure: the ledger cannot be opened for writing.
        HealError: the ledger is not believed, or the run is of another host; nothing was done.
    """
    refuse_elsewhere(run)
    if by != "watchdog":
        refuse_if_doubtful(run, read_ledger(run.ledger), is_confirmed=is_confirmed)
    # Killed first, so that none does again what is undone now. Most have ended by the time that the undo is through.
    scope = replace(audit_scope(run), keeps_processes=run.keeps_processes and by != "heal")
    ends_processes = not run.is_before_restart() and not scope.keeps_processes
    killed = kill_processes(run.run) if ends_processes else ()
    undoing = undo_pending(run, by, faults=faults, is_confirmed=is_confirmed, is_by_hand=is_by_hand)
    ended = {one.process: one for one in (*killed, *(end_processes(run.run) if ends_processes else ()))}
    removed: list[str] = []
    if run.engine is not None:
        # What is still there, or that nobody can know, is what the search for what is left tells.
        with suppress(ChaosError), containers.engine(run.engine) as client:
            settle_seconds = containers.SETTLE_SECONDS if by == "watchdog" else 0.0
            removed = containers.remove(client, run.run, settle_seconds=settle_seconds)
    healed = Healed(
        run.run,
        str(run.folder),
        tuple(undoing.undone),
        tuple(undoing.failed),
        tuple(one.to_dict() for one in ended.values()),
        tuple(removed),
        tuple(residue.left_behind({}, residue.look(scope))),
        read_ledger(run.ledger).problems,
    )
    known = run_registry.find(run.run, run.place.host_boot)
    if healed.is_clean and (known is None or not known.hosts):
        run_registry.forget(run.run, run.place.host_boot)
    return healed


def preview(run: OpenRun) -> Healed:
    """What `heal` would do, nothing being changed; of a doubtful ledger also what the user has to confirm."""
    contents = read_ledger(run.ledger)
    kinds, folders = registry(), allowed_folders(run, contents)
    would: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for entry in _to_undo(contents):
        told = {"incident": entry.incident, "fault": entry.fault}
        try:
            _undo_of(run, entry, kinds, folders)
            paths = changed_paths(kinds.get(entry.fault), entry.record)
        except ChaosError as error:
            failed.append({**told, "reason": str(error)})
        else:
            would.append({**told, "record": entry.record, "paths": list(paths), "pids": list(pids(entry.record))})
    removed, violation = _in_engine(run)
    found = doubt(run, contents, is_registered=is_registered(run)) or doubt_of_age(run, contents)
    return Healed(
        run.run,
        str(run.folder),
        undone=tuple(would),
        failed=tuple(failed),
        ended=tuple(one.to_dict() for one in _processes_of(run)),
        removed=removed,
        left=() if violation is None else ({"kind": "Docker", "what": f"engine: {violation}"},),
        problems=(*contents.problems, *(() if found is None else (str(found),))),
    )


def unclean(run: OpenRun) -> str | None:
    """What is left of a run whose tool is dead, in a phrase; None when nothing is."""
    contents = read_ledger(run.ledger)
    found = [f"incident {entry.incident} ({entry.fault}) is not undone" for entry in _to_undo(contents)]
    found += contents.problems
    if (why := doubt(run, contents, is_registered=is_registered(run))) is not None:
        # What it says of what is undone is not believed either.
        found.append(why.text)
    if run.watchdog is not None and not os.path.lexists(run.ledger):
        found.append("its ledger is missing, so this is not known")
    if processes := _processes_of(run):
        found.append(f"{len(processes)} of its processes still run")
    if run.hosts:
        found.append(f"what is left on {', '.join(run.hosts)} is not known")
    parts, violation = _in_engine(run)
    found += [*parts, *([] if violation is None else [violation])]
    return "; ".join(found) or None


def refuse_if_unclean() -> None:
    """Before a new run: an earlier one that left something behind comes first. Forgets those that left nothing.

    Raises:
        HealError: there is one, and `chaos heal` is what to do about it.
    """
    deadline = time.monotonic() + WATCHDOG_PATIENCE_SECONDS
    for entry in run_registry.registered():
        run = entry.run
        if run is None:
            raise HealError(Reason("registry_entry_unreadable", path=entry.path))
        if run.is_elsewhere() or run.is_owned():
            continue
        while (reason := unclean(run)) and run.is_watched() and time.monotonic() < deadline:
            time.sleep(_WATCHDOG_POLL_SECONDS)
        if reason is not None:
            raise HealError(Reason("earlier_run_unclean", folder=run.folder, left=reason))
        run_registry.forget(run.run, run.place.host_boot)


def audit_scope(run: OpenRun) -> AuditScope:
    """Where to look for what the run left behind."""
    return AuditScope(run.run, (run.folder,), run.ledger, run.engine)


def _processes_of(run: OpenRun) -> tuple[RunProcess, ...]:
    """What still runs of it; after a restart of the host nothing does."""
    return () if run.is_before_restart() else processes_of(run.run)


def _in_engine(run: OpenRun) -> tuple[tuple[str, ...], str | None]:
    """What the run has in a Docker engine, and what keeps one from knowing."""
    if run.engine is None:
        return (), None
    try:
        with containers.engine(run.engine) as client:
            return tuple(containers.describe(client, run.run)), None
    except ChaosError as error:
        return (), f"it may have containers left: {error}"


def _to_undo(contents: Contents) -> list[Entry]:
    """The pending entries with something to undo: a kill that was cut off has left nothing."""
    kinds = registry()
    return [entry for entry in contents.pending if entry.fault not in kinds or kinds[entry.fault].has_undo]
