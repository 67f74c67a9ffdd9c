"""Whether a ledger may be believed: it says what is to be done with the rights of whoever heals.

Believed is what this user has registered on this host, and what lies in a folder and a file of this user's that nobody
else may write to. All of it is looked at by the descriptor from which the ledger was read.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from chaos.errors import HealError
from chaos.undo.ledger import Contents, Entry
from chaos.undo.run_registry import OpenRun, Place
from mecefo_runtime.system.reason import Reason

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# The boot time is known to a second, and the clock may be set a little.
_BOOT_SLACK_SECONDS = 5.0
_UNKNOWN = "unknown"

Code = Literal["foreign", "writable", "linked", "unknown-folders"]


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a ledger is not believed: a code, the words for a user, and whether that user may say that it is right.

    `command` is what to type.
    """

    code: Code
    text: str
    command: str
    may_be_confirmed: bool = False

    def __str__(self) -> str:
        return f"{self.text}: {self.command}"


def doubt(run: OpenRun, contents: Contents, *, is_registered: bool, is_own: bool = False) -> Doubt | None:
    """Why what was read of the run's ledger is not believed; None: it is, or there is nothing to believe.

    `is_own`: who asks is of the run itself, which made the file that it knows.
    """
    file = contents.file
    if file is None:
        return None
    is_same = (file.st_dev, file.st_ino) == run.ledger_file
    if is_own and is_same:
        # Also where the file system gives everybody all rights.
        return None
    # On some network file systems what root writes belongs to nobody: there the file itself tells.
    if file.st_uid != os.geteuid() and not is_same:
        return _foreign(run.ledger, file.st_uid)
    folder = contents.folder
    if not is_registered and folder is not None and folder.st_uid != os.geteuid():
        return _foreign(run.folder, folder.st_uid)
    if file.st_nlink > 1:
        what = f"{run.ledger} has other names (hard links), so others may have put it there"
        return Doubt("linked", what, "look at it, then remove it")
    open_to_others = [run.ledger] if file.st_mode & _OTHERS_WRITE else []
    if not is_registered and folder is not None and folder.st_mode & _OTHERS_WRITE:
        open_to_others.append(run.folder)
    if open_to_others:
        places = " ".join(shlex.quote(str(one)) for one in open_to_others)
        return Doubt(
            "writable",
            f"others may write to {' and '.join(map(str, open_to_others))}: the ledger may be theirs",
            f"look with `{_again(run, '--dry-run')}`, then `chmod go-w {places}` and heal again",
            # The run is known; only what stands in its ledger is not.
            may_be_confirmed=is_registered,
        )
    return None


def doubt_of_age(run: OpenRun, contents: Contents) -> Doubt | None:
    """Of a believed ledger: an earlier version did not note in which folders files may be changed; else None."""
    if allowed_folders(run, contents) is not None or not contents.pending:
        return None
    return Doubt(
        "unknown-folders",
        f"{run.ledger} was written by an earlier version, which did not note which folders are the job's",
        f"look with `{_again(run, '--dry-run')}`, then `{_again(run, '--yes')}`",
        may_be_confirmed=True,
    )


def allowed_folders(run: OpenRun, contents: Contents) -> tuple[Path, ...] | None:
    """The folders in which files may be changed, resolved; None: an earlier version did not note them."""
    told = run.folders if run.folders is not None else contents.folders
    return None if told is None else (run.folder.resolve(), *told)


def is_before_restart(run: OpenRun, entry: Entry) -> bool:
    """Whether the host was started again since the entry was written."""
    return run.is_before_restart() or (entry.place is not None and entry.place.is_earlier_boot(Place.here()))


def refuse_elsewhere(run: OpenRun, entry: Entry | None = None) -> None:
    """Refuse a run, or one entry of its ledger, that only another host (or a container on it) can undo.

    Raises:
        HealError: it belongs to another host, which the message names.
    """
    here = Place.here()
    for place in (run.place, None if entry is None else entry.place):
        if place is not None and place.is_elsewhere(here):
            what = str(run.folder) if entry is None else "the entry"
            raise HealError(Reason("belongs_elsewhere", what=what, owner=place.whose(here)))


def place_of(contents: Contents) -> Place:
    """Where a run that is not registered was; as an earlier version did not note it, here, perhaps before a restart."""
    here = Place.here()
    told = next((entry.place for entry in contents.entries if entry.place is not None), None)
    if told is not None:
        return told
    began = _boot_seconds()
    times = [entry.time_seconds for entry in contents.entries if entry.time_seconds is not None]
    is_before = began is not None and bool(times) and max(times) < began - _BOOT_SLACK_SECONDS
    return replace(here, boot=_UNKNOWN) if is_before else here


def _boot_seconds() -> float | None:
    """When this host was started (Unix time)."""
    try:
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    except OSError:
        return None


def _foreign(path: Path, uid: int) -> Doubt:
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = ""
    whose = user or f"user {uid}"
    heal = f"chaos heal {shlex.quote(str(path.parent if path.name.endswith('.jsonl') else path))}"
    if os.geteuid() != 0:
        command = f"only {whose} can heal it, with `{heal}`"
    elif user:
        command = f"`runuser -u {shlex.quote(user)} -- {heal}`"
    else:
        command = f"`setpriv --reuid={uid} --regid={uid} --clear-groups -- {heal}`"
    return Doubt("foreign", f"{path} belongs to {whose}, who could have it undo whatever you may do", command)


def _again(run: OpenRun, option: str) -> str:
    return f"chaos heal {option} {shlex.quote(str(run.folder))}"
