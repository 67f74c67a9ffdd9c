"""The store: where runs lie, how a new one gets its folder, and how an old one is found again.

`OUT/<name>/<UTC time>/` holds a run, `OUT/latest` points to the one that was started last. There is no index: the
folders themselves are the list, so nothing can disagree with them. `OUT/compare/<UTC time>/` and
`OUT/repeat/<UTC time>/` hold sets of runs (see `harness.comparison`), which are no runs themselves.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
import secrets
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import psutil

from chaos.errors import EnvironmentFailure, UsageError, shown
from chaos.host.run_files import EVENTS_FILE, SUMMARY_FILE
from chaos.user_files import bounded_lines, open_regular, read_regular
from harness.store.agreement import contradictions_of_files, contradictions_of_start, no_beginning, wrong_number
from harness.store.doubt_reasons import doubt_text
from harness.store.log import BREAKDOWNS
from mecefo_runtime.system.events import MAIN_JOB, Event
from mecefo_runtime.system.host import this_host
from mecefo_runtime.system.json_values import MAX_WHOLE, loads
from mecefo_runtime.system.reason import Reason

SET_FILE = "set.json"
LATEST = "latest"
RUNNING = "running"
CUT_OFF = "cut off"
ENDED = "not judged"
UNREADABLE = "unreadable"
INCONCLUSIVE = "inconclusive"

_STAMP_FORMAT = "%Y%m%dT%H%M%SZ"
_STAMP = re.compile(r"(\d{8}T\d{6}Z)(?:-(\d+))?")
_MAX_NAME_BYTES = 100
# Enough for some hundred events: the last committed step and the end of the run are among them.
_TAIL_BYTES = 128 * 1024


class StoreError(EnvironmentFailure):
    """The store cannot do what was asked; the message says why and what to do about it."""


class RunNotFound(UsageError):
    """No stored run goes by the given reference."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One stored run, as a list of runs shows it.

    `verdict` is the summary's (`inconclusive` where the log is no longer the one that was judged), or one of `running`,
    `cut off` (the tool died before it ended the run), `not judged` (it ended, but has no readable summary) and
    `unreadable`. `steps` counts committed steps, None if unknown. `job` is the command, or the built-in job in short;
    `reason` the first one of the verdict. Both are empty if unknown.
    """

    ALSO_WRITTEN: ClassVar[Mapping[str, str]] = {"reference": "reference"}

    name: str
    started: datetime | None
    verdict: str
    steps: int | None
    fault: str
    path: Path
    job: str = ""
    reason: str = ""

    @property
    def reference(self) -> str:
        """What `find_run` takes to find this run again."""
        return f"{self.name}/{self.path.name}"


def safe_name(name: str) -> str:
    """`name` as one component of a path, on any file system; the same name always gives the same component."""
    safe = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    safe = safe.encode()[:_MAX_NAME_BYTES].decode(errors="ignore").rstrip("-.")
    if not safe:
        return "run"
    return f"run-{safe}" if safe.lower() == LATEST else safe


def new_run_folder(out: Path, name: str, *, now: datetime | None = None) -> Path:
    """Make `OUT/<name>/<UTC time>` and point `OUT/latest` to it. No two callers ever get the same folder.

    Raises:
        StoreError: the folder cannot be made there.
    """
    folder = _new_folder(out / safe_name(name), now)
    _point_latest(out, folder)
    return folder


def new_set_folder(out: Path, kind: str) -> Path:
    """Make `OUT/<kind>/<UTC time>`, with an empty `SET_FILE` in it, which says that it is a set's.

    Raises:
        StoreError: the folder cannot be made there.
    """
    folder = _new_folder(out / kind, None)
    try:
        (folder / SET_FILE).touch()
    except OSError as error:
        raise StoreError(_explain(folder, error)) from error
    return folder


def _new_folder(parent: Path, now: datetime | None) -> Path:
    stamp = (now or datetime.now(UTC)).astimezone(UTC).strftime(_STAMP_FORMAT)
    number = 1
    try:
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
    except (OSError, ValueError) as error:
        raise StoreError(_explain(parent, error)) from error


def find_run(out: Path, reference: str) -> Path:
    """The folder of the run that `reference` names.

    A reference is `latest`, the path of a run's folder or of a file in it, a run's name (the newest of that name), or
    name/time.

    Raises:
        RunNotFound: there is no such run; the message names the nearest ones.
        StoreError: it, or the store, may not be read.
    """
    reference = reference.strip()
    if not reference or "\0" in reference:
        raise RunNotFound(f"{reference!r} names no run: give `latest`, a name, name/time, or a path")
    if reference == LATEST:
        return _latest(out)
    closed: StoreError | None = None
    for path in (Path(reference), out / reference):
        try:
            folder = path.parent if path.is_file() else path
            if (folder / EVENTS_FILE).is_file():
                return folder
        except PermissionError as error:
            closed = StoreError(_explain(path, error, writing=False))
        except OSError:
            continue
    folders = _by_age(out)
    named = [folder for folder in reversed(folders) if safe_name(reference) == folder.parent.name]
    for folder in named:
        try:
            if (folder / EVENTS_FILE).is_file():
                return folder
        except PermissionError as error:
            closed = closed or StoreError(_explain(folder, error, writing=False))
    if closed is not None:
        raise closed
    for folder in (*named, *(path for path in (Path(reference), out / reference) if path in folders)):
        raise RunNotFound(f"{folder} has no event log ({EVENTS_FILE}), so nothing is known about that run")
    raise RunNotFound(_not_found(out, reference, folders))


def list_runs(out: Path) -> list[RunEntry]:
    """All runs in the store, the newest last. A folder that cannot be read is listed as such, never left out.

    Raises:
        StoreError: the store itself cannot be read.
    """
    return [_entry_or_unreadable(folder) for folder in _by_age(out)]


def references(out: Path) -> list[str]:
    """What all runs in the store go by, the newest first; no file of theirs is read.

    Raises:
        StoreError: the store itself cannot be read.
    """
    return [f"{folder.parent.name}/{folder.name}" for folder in reversed(_by_age(out))]


def _by_age(out: Path) -> list[Path]:
    try:
        return sorted(_folders(out), key=_age_key)
    except OSError as error:
        raise StoreError(_explain(out, error, writing=False)) from error


def _folders(out: Path) -> Iterator[Path]:
    """Every folder in the store that is a run's: it has a run's time as its name, or an event log in it."""
    if not out.exists():
        return
    for named in sorted(out.iterdir()):
        if named.name == LATEST or named.name.startswith(".") or not named.is_dir():
            continue
        with contextlib.suppress(PermissionError):
            for folder in sorted(named.iterdir()):
                has_time = _STAMP.fullmatch(folder.name) is not None
                try:
                    is_set = (folder / SET_FILE).is_file()
                    is_run = has_time or (folder / EVENTS_FILE).is_file()
                except PermissionError:  # nobody knows, and it is not left out
                    is_set, is_run = False, has_time
                if folder.is_dir() and is_run and not is_set:
                    yield folder


def _age_key(folder: Path) -> tuple[str, int, str]:
    match = _STAMP.fullmatch(folder.name)
    return (match[1], int(match[2] or 1), folder.parent.name) if match else ("", 0, str(folder))


def _latest(out: Path) -> Path:
    with contextlib.suppress(OSError):
        folder = (out / LATEST).resolve(strict=True)
        if (folder / EVENTS_FILE).is_file():
            return folder
    # No link: the file system has none, or the run it pointed to was deleted, or never came to write a line.
    for folder in reversed(_by_age(out)):
        with contextlib.suppress(PermissionError):
            if (folder / EVENTS_FILE).is_file():
                return folder
    raise RunNotFound(_not_found(out, LATEST, []))


def _point_latest(out: Path, folder: Path) -> None:
    temporary = out / f".{LATEST}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        temporary.symlink_to(folder.relative_to(out), target_is_directory=True)
        temporary.replace(out / LATEST)
    except OSError:
        # A convenience only: not every file system has links, and `find_run` knows the newest run without one.
        with contextlib.suppress(OSError):
            temporary.unlink()


def _not_found(out: Path, reference: str, folders: list[Path]) -> str:
    with contextlib.suppress(OSError, ValueError):
        if Path(reference).exists():
            return f"{reference!r} exists, but is not a run: a run is a folder with an events.jsonl"
    if not folders:
        return (
            f"there is no run {reference!r}: {out} holds no runs yet. `chaos run kill-node --at step=100` creates one"
        )
    newest_first = [f"{folder.parent.name}/{folder.name}" for folder in reversed(folders)]
    names = list(dict.fromkeys(folder.parent.name for folder in reversed(folders)))
    nearest = difflib.get_close_matches(reference, [*names, *newest_first], n=3, cutoff=0.5) or newest_first[:3]
    return f"there is no run {reference!r} in {out}. Nearest: {', '.join(nearest)}. `chaos runs` lists all"


def _explain(path: Path, error: OSError | ValueError, *, writing: bool = True) -> str:
    number = error.errno if isinstance(error, OSError) else None
    reason = error.strerror if isinstance(error, OSError) else str(error)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left for a run in {path}: make room, or choose another place with --out DIR"
    elsewhere = "choose another place with --out DIR"
    if isinstance(error, UnicodeEncodeError):
        return f"the locale of this shell cannot write the file name {shown(str(path))}: set LC_ALL=C.UTF-8"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"cannot {'write to' if writing else 'read'} {path} ({reason}): change its permissions, or {elsewhere}"
    if number in (errno.ENOTDIR, errno.EEXIST):
        return f"{path} cannot be a folder, because a file has that name: {elsewhere}"
    return f"cannot use {path} ({reason}): {elsewhere}"


def _entry_or_unreadable(folder: Path) -> RunEntry:
    """One run whose files nobody understands does not keep the others from being listed."""
    try:
        return _entry(folder)
    except BREAKDOWNS:
        return RunEntry(folder.parent.name, None, UNREADABLE, None, "", folder)


def _entry(folder: Path) -> RunEntry:
    summary = _read_summary(folder / SUMMARY_FILE)
    log = _read_log(folder / EVENTS_FILE)
    reason = "" if summary is None else _first_text(summary.get("reasons"))
    if summary is not None and (doubt := next(_doubts(log, summary), None)) is not None:
        verdict, steps, fault, reason = INCONCLUSIVE, log.steps, log.fault, doubt_text(doubt)
    elif summary is not None:
        verdict, steps = str(summary["verdict"]), _whole(summary.get("steps_committed"))
        fault = _count_kinds(summary.get("incidents"), "fault") or log.fault
    else:
        verdict, steps, fault = log.state, log.steps, log.fault
    stamp = _STAMP.fullmatch(folder.name)
    started = log.started
    if stamp:
        with contextlib.suppress(ValueError):
            started = datetime.strptime(stamp[1], _STAMP_FORMAT).replace(tzinfo=UTC)
    return RunEntry(folder.parent.name, started, verdict, steps, fault, folder, log.job, reason)


@dataclass(frozen=True, slots=True)
class _Log:
    """What the two ends of an event log tell."""

    state: str = UNREADABLE
    started: datetime | None = None
    steps: int | None = None
    fault: str = ""
    job: str = ""
    first: Event | None = None
    last: Event | None = None
    num_lines: int = 0
    # Lines that are no JSON objects by their first and last character: all are read only to judge the run.
    has_damage: bool = False


def _doubts(log: _Log, summary: Mapping[str, Any]) -> Iterator[Reason]:
    """Why the stored verdict is not the log's, as far as the two ends of the log tell."""
    if log.has_damage:
        yield Reason("line_unreadable")
    if log.first is None:
        return
    yield from no_beginning(log.first)
    yield from contradictions_of_start(log.first.fields)
    yield from contradictions_of_files(log.first.fields, None, summary)
    yield from wrong_number(log.num_lines, log.last)
    if log.last is None and summary.get("status", CUT_OFF) != CUT_OFF:
        yield Reason("end_missing")


def _read_log(path: Path) -> _Log:
    try:
        with open_regular(path) as file:
            first = _event(file.readline(_TAIL_BYTES))
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            tail = [event for event in map(_event, file.read(_TAIL_BYTES).splitlines()) if event is not None]
            file.seek(0)
            lines = (line or b"too long" for line in bounded_lines(file))
            ends = Counter((line[:1], line.rstrip()[-1:]) for line in lines if not line.isspace())
    except OSError:
        return _Log()
    if first is None:
        return _Log(has_damage=True)
    steps = [e.step for e in tail if e.kind == "step_committed" and e.job == MAIN_JOB and isinstance(e.step, int)]
    last = next((event for event in reversed(tail) if event.kind == "run_ended"), None)
    state = RUNNING if _is_of_here(first) and _is_alive(first.pid, first.time_seconds) else CUT_OFF
    try:
        started = datetime.fromtimestamp(first.time_seconds, UTC)
        experiment = first.fields.get("experiment")
    except (ValueError, OverflowError, OSError, AttributeError):
        return _Log(state=UNREADABLE)
    experiment = experiment if isinstance(experiment, Mapping) else {}
    return _Log(
        state=state if last is None else ENDED,
        started=started,
        steps=max(steps, default=None),
        fault=_count_kinds(experiment.get("faults"), "kind"),
        job=_job_words(experiment.get("job")),
        first=first,
        last=last,
        num_lines=ends.total(),
        has_damage=len(ends) > 1,
    )


def _event(line: bytes) -> Event | None:
    try:
        return Event.from_json(line)
    except ValueError:
        return None


def _is_of_here(first: Event) -> bool:
    """Whether the first event of a run was written on this host since this boot; assumed for older logs."""
    own_host = first.fields.get("own_host")
    return own_host is None or own_host == this_host().to_json()


def _is_alive(pid: int, since_seconds: float) -> bool:
    """Whether the process that wrote at `since_seconds` (Unix time) lives on; a later bearer of its pid does not."""
    try:
        # One second, because a process's start is known to a clock tick and the Unix clock may be stepped a little.
        return pid > 0 and psutil.Process(pid).create_time() <= since_seconds + 1.0
    except (psutil.Error, ValueError, OverflowError):
        return False


def _read_summary(path: Path) -> Mapping[str, Any] | None:
    try:
        summary = loads(read_regular(path))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and isinstance(summary.get("verdict"), str) else None


def _whole(value: object) -> int | None:
    return value if type(value) is int and abs(value) < MAX_WHOLE else None


def _first_text(items: object) -> str:
    return items[0] if isinstance(items, list) and items and isinstance(items[0], str) else ""


def _job_words(job: object) -> str:
    """`torchrun train.py`, or `llama-tiny on 4 nodes x 2 ranks, mecefo`."""
    if not isinstance(job, Mapping):
        return ""
    command = job.get("command")
    if isinstance(command, list):
        return shlex.join(map(str, command))
    model, nodes, ranks, strategy = (job.get(key) for key in ("model", "nodes", "gpus_per_node", "strategy"))
    return "" if model is None else f"{model} on {nodes} nodes x {ranks} ranks, {strategy}"


def _count_kinds(items: object, key: str) -> str:
    """`kill-node`, or `kill-node x2, slow-link`: each kind once, in order of appearance."""
    if not isinstance(items, list):
        return ""
    kinds = [str(item[key]) for item in items if isinstance(item, Mapping) and key in item]
    return ", ".join(f"{kind} x{n}" if (n := kinds.count(kind)) > 1 else kind for kind in dict.fromkeys(kinds))
