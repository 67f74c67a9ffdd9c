"""`chaos heal`: undo what interrupted runs left behind."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chaos.errors import ChaosError, HealError, UsageError
from harness.analysis.words import count
from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.options import JSON_OPTION, OUT_OPTION
from mecefo_chaos.cli.shared.output import echo, print_json, print_text
from mecefo_runtime.system.json_values import to_json

if TYPE_CHECKING:
    from chaos.undo.heal import Healed
    from chaos.undo.run_registry import OpenRun


@click.command()
@click.argument("reference", metavar="[RUN|PATH]", required=False, shell_complete=completing.RUNS)
@OUT_OPTION
@JSON_OPTION
@click.option("--dry-run", is_flag=True, help="Print what would be undone and ended, without doing it.")
@click.option(
    "--yes", "is_confirmed", is_flag=True, help="Also heal by a ledger of yours that must be looked at first."
)
@click.option(
    "--by-hand", "is_by_hand", is_flag=True, help="Close what cannot be undone here: you have undone it yourself."
)
def heal(reference: str | None, out: Path, as_json: bool, dry_run: bool, is_confirmed: bool, is_by_hand: bool) -> int:
    """Undo what interrupted runs left behind, and end their processes.

    Without RUN: all your runs on this machine whose `chaos` process has died; runs in progress are not touched. RUN
    is `latest`, a name, name/time, or the path of a run or of its ledger. A ledger that others own or may write to is
    not believed.
    """
    from chaos.host.process_table import require_process_table

    require_process_table()
    if is_by_hand and (reference is None or dry_run):
        raise UsageError("--by-hand closes the entries of one run: name it, without --dry-run")
    if reference is None:
        open_runs, unreadable = _open_runs()
    else:
        open_runs, unreadable = [_find(out, reference)], []
    results = [
        result
        for run in open_runs
        for result in (
            *_heal_elsewhere(run, dry_run),
            _heal(run, dry_run, is_confirmed, is_by_hand, may_ask=not as_json),
        )
    ]
    # A run lies in OUT/NAME/TIME; one that its watchdog has healed is known no more, and its OUT is ours then.
    targets = _dead_targets({out.resolve(), *(run.folder.resolve().parent.parent for run in open_runs)}, dry_run)
    if as_json:
        print_json(
            {
                "runs": [to_json(one) for one in results],
                "unreadable": [str(path) for path in unreadable],
                "targets_removed": targets,
            }
        )
    else:
        for one in results:
            print_text(_told(one, dry_run))
        for path in unreadable:
            print_text(f"{path} should name a running run, and cannot be read: look at it, then remove it")
        if targets:
            would = "would be " if dry_run else ""
            print_text(f"{would}removed from prometheus.json: {count(len(targets), 'address')} of dead runs")
        if not results and not unreadable:
            nothing = "nothing else" if targets else "nothing"
            print_text(f"{nothing} to heal: no run of yours has left anything on this machine")
    is_clean = all(one.is_clean for one in results) and not unreadable
    return 0 if is_clean or dry_run else HealError.exit_code


def _open_runs() -> tuple[list[OpenRun], list[Path]]:
    from chaos.undo.run_registry import Place, registered

    entries = registered()
    runs = [entry.run for entry in entries if entry.run is not None]
    for run in runs:
        if run.is_elsewhere():
            echo(f"{run.folder} belongs to {run.place.whose(Place.here())}: run `chaos heal` there")
        elif run.is_owned():
            echo(f"{run.folder} is under way (pid {run.chaos.pid}): left alone")
    dead = [run for run in runs if not run.is_elsewhere() and not run.is_owned()]
    return dead, [entry.path for entry in entries if entry.run is None]


def _find(out: Path, reference: str) -> OpenRun:
    """The run that is meant, be it registered or not; its owner is dead."""
    from chaos.undo.belief import doubt, place_of
    from chaos.undo.guard import LEDGER_FILE
    from chaos.undo.ledger import read_ledger
    from chaos.undo.run_registry import OpenRun, Place, registered
    from harness.store.runs import find_run
    from mecefo_runtime.system.process import ProcessId

    path = Path(reference)
    # The ledger itself may not be a link: it would be somewhere else than its folder says.
    folder = path.parent.resolve() if _is_ledger(path) else find_run(out, reference).resolve()
    known = [entry.run for entry in registered() if entry.run is not None and entry.run.folder.resolve() == folder]
    if known:
        run = known[0]
    else:
        contents = read_ledger(folder / LEDGER_FILE)
        run = OpenRun("", folder, folder / LEDGER_FILE, Place.here(), ProcessId(0, 0))
        if (found := doubt(run, contents, is_registered=False)) is not None:
            raise UsageError(str(found))
        entries = contents.entries
        owner = next((entry.owner for entry in entries if entry.owner is not None), None)
        if owner is None:
            why = "; ".join(contents.problems) or "it has no ledger of injected faults"
            raise UsageError(f"{folder}: {why}: there is nothing to undo")
        run = replace(run, run=entries[0].run, place=place_of(contents), chaos=owner)
    if run.is_elsewhere():
        raise UsageError(f"{folder} belongs to {run.place.whose(Place.here())}: run `chaos heal` there")
    if run.is_owned():
        raise UsageError(f"{folder} is under way (pid {run.chaos.pid}): Ctrl-C there ends it and undoes everything")
    return run


def _is_ledger(path: Path) -> bool:
    from chaos.undo.guard import LEDGER_FILE

    # What is too long to be a file's name is the name of none.
    with suppress(OSError):
        return path.name == LEDGER_FILE and os.path.lexists(path)
    return False


def _heal(run: OpenRun, dry_run: bool, is_confirmed: bool, is_by_hand: bool, *, may_ask: bool) -> Healed:
    from chaos.undo.belief import doubt, doubt_of_age
    from chaos.undo.heal import Healed, heal, is_registered, preview
    from chaos.undo.ledger import read_ledger

    if dry_run:
        return preview(run)
    contents = read_ledger(run.ledger)
    found = doubt(run, contents, is_registered=is_registered(run)) or doubt_of_age(run, contents)
    if found is not None and found.may_be_confirmed and not is_confirmed:
        if not (may_ask and sys.stdin.isatty()):
            return Healed(run.run, str(run.folder), problems=(str(found),))
        print_text(_told(preview(run), dry_run=True))
        is_confirmed = click.confirm(f"{found.text}. Undo all this?", err=True)
        if not is_confirmed:
            return Healed(run.run, str(run.folder), problems=("nothing was undone",))
    try:
        return heal(run, is_confirmed=is_confirmed, is_by_hand=is_by_hand)
    except ChaosError as error:
        # One run that cannot be healed must not keep the others from it.
        return Healed(run.run, str(run.folder), problems=(str(error),))


def _heal_elsewhere(run: OpenRun, dry_run: bool) -> tuple[Healed, ...]:
    """What came of it on the run's other hosts; where one is not clean, the run is one that can be healed again."""
    from chaos.undo.heal import Healed
    from chaos.undo.run_registry import register
    from harness.backends.cluster.healing import heal_hosts

    if not run.hosts:
        return ()
    if dry_run:
        return tuple(Healed(run.run, host, removed=("what it has left there",)) for host in run.hosts)
    healed = heal_hosts(run)
    left = tuple(one.folder for one in healed if not one.is_clean)
    register(replace(run, hosts=left, reached_by=run.reached_by if left else ""))
    return healed


def _dead_targets(folders: Iterable[Path], dry_run: bool) -> list[str]:
    """The addresses that dead runs have left in `prometheus.json` of these folders, removed unless `dry_run`."""
    from harness.exporter.targets import TARGETS_FILE, remove_dead

    found = []
    for folder in sorted(folders):
        if _is_of_others(folder):
            # It is theirs to mend.
            continue
        try:
            found += remove_dead(folder, only_look=dry_run)
        except OSError as error:
            # It does no harm, and is removed with the next run.
            echo(f"{folder / TARGETS_FILE} cannot be mended: {error.strerror or error}")
    return found


def _is_of_others(folder: Path) -> bool:
    with suppress(OSError):
        return folder.stat().st_uid != os.geteuid()
    return False


def _told(healed: Healed, dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    lines = [f"{healed.folder}"]
    for one in healed.undone:
        lines.append(f"  incident {one['incident']} ({one['fault']}): {would}undone{_how(one)}")
        lines += [f"    {path}" for path in one.get("paths", ())]
        lines += [f"    pid {pid}" for pid in one.get("pids", ())]
    for one in healed.failed:
        lines.append(f"  incident {one['incident']} ({one['fault']}) is NOT undone: {one['reason']}")
        if record := one.get("record"):
            lines.append(f"    undo record: {json.dumps(record)}")
    if healed.failed and not dry_run:
        lines.append("  if it stays so, undo it by hand as the record says, then close it:")
        lines.append(f"    chaos heal {shlex.quote(healed.folder)} --by-hand")
    lines += [f"  {would}ended: pid {one['pid']}: {one['command']}" for one in healed.ended]
    lines += [f"  {would}removed: {what}" for what in healed.removed]
    lines += [f"  left behind: {one['kind']} {one['what']}" for one in healed.left]
    lines += [f"  {problem}" for problem in healed.problems]
    if healed.problems and healed.undone and not dry_run:
        lines.append("  what can be read was undone; look at the rest, then remove the ledger and heal again")
    if len(lines) == 1:
        lines.append("  nothing is left")
    return "\n".join(lines)


def _how(one: Any) -> str:
    evidence = one.get("evidence", {})
    said = evidence.get("summary") or evidence.get("undone")
    return f": {said}" if isinstance(said, str) else ""
