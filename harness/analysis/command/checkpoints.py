"""The checkpoints that a command saved: which could be loaded when, and which one each attempt loaded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import PurePath
from typing import Any

from harness.analysis.command.attempts import Attempt, AttemptsOfProcesses
from mecefo_runtime.system.command_records import CheckpointChecked, CheckpointPointed, StateLoaded
from mecefo_runtime.system.job_records import CheckpointWritten
from mecefo_runtime.system.record import Record

HIGHEST_NUMBER = "highest_number"


@dataclass(frozen=True, slots=True)
class CheckpointHealth:
    """The checkpoint of `step` as it was when it was read; None: not known, and `unchecked` has codes for why.

    `usable`: whole, readable and finite. `moment` is when it was read last as far as it was there (`attempt_ended`,
    `job_ended`). With `is_exposed` a loader could have read it: its save was seen to end, it took the place of an
    earlier one, or a pointer names it. Otherwise an interrupted save left it under another name.
    `damaged_by` is the incident that damaged it.
    """

    step: int
    path: str | None
    found: str
    moment: str
    is_finished: bool = True
    is_exposed: bool = True
    whole: bool | None = None
    readable: bool | None = None
    finite: bool | None = None
    usable: bool | None = None
    num_files: int = 0
    num_bytes: int = 0
    damage: tuple[Mapping[str, Any], ...] = ()
    unchecked: tuple[str, ...] = ()
    damaged_by: int | None = None


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """An attempt could not read the checkpoint at `path`, of `step` where that is known."""

    path: str
    step: int | None
    error: str


@dataclass(frozen=True, slots=True)
class AttemptLoad:
    """The checkpoint of `step` at `path` that an attempt loaded; None: it was not seen loading one that the job saved.

    `newest_step` is the newest that had been saved by then. `is_fallback`: it loaded an older one. `failed` are the
    loads before, which raised. `differs`: its ranks loaded the checkpoints of different steps. `damaged_by` is the
    incident that had damaged what it loaded, or failed to load.
    """

    attempt: int
    step: int | None = None
    path: str | None = None
    newest_step: int | None = None
    is_fallback: bool | None = None
    failed: tuple[FailedLoad, ...] = ()
    differs: tuple[int, ...] = ()
    damaged_by: int | None = None


@dataclass(frozen=True, slots=True)
class Damaged:
    """The file or folder `path` was damaged by an incident, from `since` to `until` (CLOCK_MONOTONIC)."""

    incident: int
    path: str
    since: float
    until: float = inf


@dataclass(frozen=True, slots=True)
class Pointer:
    """What names the newest checkpoint, and what that is; `target` and `step` are None where it is none.

    With `is_highest_number` it is the highest number in a name in the folder `path`, where no file says which.
    """

    path: str
    says: str
    target: str | None
    is_there: bool
    step: int | None
    usable: bool | None = None
    is_highest_number: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """All of it; `looks` has, ascending, when checkpoints were read, and the newest that was usable then."""

    saved: int
    health: tuple[CheckpointHealth, ...] = ()
    loads: tuple[AttemptLoad, ...] = ()
    pointers: tuple[Pointer, ...] = ()
    looks: tuple[tuple[float, int | None], ...] = ()
    is_checked: bool = False

    @property
    def unusable(self) -> int | None:
        """How many could have been loaded and were damaged; None: none was read, or one of them could not be."""
        if not self.is_checked:
            return None
        return sum(one.usable is False and one.is_exposed for one in self.health)

    @property
    def fallbacks(self) -> int | None:
        """How many attempts loaded an older one than the newest saved; None: it is not known of any."""
        known = [one.is_fallback for one in self.loads if one.is_fallback is not None]
        return sum(known) if known else None

    @property
    def newest_usable_step(self) -> int | None:
        """The newest that was usable at the end."""
        return self.looks[-1][1] if self.looks else None

    def usable_after(self, seconds: float) -> int | None:
        """The newest that was usable when they were next read after that."""
        index = bisect_right(self.looks, (seconds, inf))
        return self.looks[index][1] if index < len(self.looks) else None


def read_checkpoints(
    main: Sequence[Record],
    written: Sequence[CheckpointWritten],
    attempts: Sequence[Attempt],
    damaged: Sequence[Damaged] = (),
) -> Checkpoints:
    """Of a job; `main` holds its records by time."""
    checks = [one for one in main if isinstance(one, CheckpointChecked)]
    health = _health(checks, {one.incident: one.path for one in damaged})
    pointed = [one for one in main if isinstance(one, CheckpointPointed)]
    pointers = tuple(_pointer(one, health) for one in pointed)
    # Where a file says which is the newest, no loader goes by the numbers.
    told_in = {str(PurePath(one.path).parent) for one in pointers if one.is_there and not one.is_highest_number}
    pointers = tuple(one for one in pointers if not (one.is_highest_number and str(PurePath(one.path)) in told_in))
    named = {pointer.step for pointer in pointers if pointer.step is not None}
    health = [one if one.is_exposed else replace(one, is_exposed=one.step in named) for one in health]
    return Checkpoints(
        saved=len({one.step for one in written if one.step is not None}),
        health=tuple(health),
        loads=tuple(_loads(main, written, checks, attempts, damaged)),
        pointers=pointers,
        looks=tuple(_looks(checks, health)),
        is_checked=any(one.whole is not None or one.damage for one in checks),
    )


# ---- health ----


def _usable(check: CheckpointChecked) -> bool | None:
    answers = (check.whole, check.readable, check.finite)
    return False if False in answers else True if all(answers) else None


def _batches(checks: Iterable[CheckpointChecked]) -> list[list[CheckpointChecked]]:
    """Those that were read at one time, the newest checkpoint first."""
    found: list[list[CheckpointChecked]] = []
    for check in checks:
        is_same = bool(found) and (found[-1][0].moment, found[-1][0].of_attempt) == (check.moment, check.of_attempt)
        if is_same:
            found[-1].append(check)
        else:
            found.append([check])
    return found


def _health(checks: Sequence[CheckpointChecked], damaged: Mapping[int, str]) -> list[CheckpointHealth]:
    """The last that is known of each, by step; damage that was seen once stays, unless it was saved again."""
    found: dict[int, CheckpointHealth] = {}
    for batch in _batches(checks):
        for index, check in enumerate(batch):
            if check.step is None:
                continue
            known = found.get(check.step)
            if (
                known is not None
                and check.found in ("gone", "overwritten")
                and known.found not in ("gone", "overwritten")
            ):
                # What was seen of it when it was there says more.
                found[check.step] = replace(known, found=check.found)
                continue
            exposed = check.is_finished or _replaced_the_one_before(batch[index + 1 :])
            found[check.step] = _one(check, damaged, is_exposed=exposed)
    return [found[step] for step in sorted(found)]


def _replaced_the_one_before(earlier: Sequence[CheckpointChecked]) -> bool:
    """Whether the newest checkpoint before an interrupted save was overwritten by that."""
    before = next((one for one in earlier if one.is_finished), None)
    return before is not None and before.found in ("overwritten", "partly")


def _one(check: CheckpointChecked, damaged: Mapping[int, str], *, is_exposed: bool) -> CheckpointHealth:
    usable = _usable(check)
    by = [incident for incident, path in sorted(damaged.items()) if check.path is not None and _is_in(path, check.path)]
    return CheckpointHealth(
        step=check.step or 0,
        path=check.path,
        found=check.found,
        moment=check.moment,
        is_finished=check.is_finished,
        is_exposed=is_exposed,
        whole=check.whole,
        readable=check.readable,
        finite=check.finite,
        usable=usable,
        num_files=check.num_files,
        num_bytes=check.num_bytes,
        damage=tuple(check.damage),
        unchecked=tuple(check.unchecked),
        damaged_by=by[-1] if by and usable is False else None,
    )


def _is_in(path: str, folder: str) -> bool:
    return path == folder or PurePath(folder) in PurePath(path).parents


def _looks(
    checks: Sequence[CheckpointChecked], health: Sequence[CheckpointHealth]
) -> Iterable[tuple[float, int | None]]:
    """When they were read, and the newest that was whole and, as far as they were read later, had finite values."""
    spoilt = {one.step for one in health if one.whole and (one.readable is False or one.finite is False)}
    for batch in _batches(checks):
        whole = [one.step for one in batch if one.whole and one.step is not None and one.step not in spoilt]
        yield batch[-1].monotonic_seconds, max(whole, default=None)


def _pointer(pointed: CheckpointPointed, health: Sequence[CheckpointHealth]) -> Pointer:
    target = pointed.target
    of_it = [
        one
        for one in health
        if target is not None and one.path is not None and (_is_in(one.path, target) or _is_in(target, one.path))
    ]
    name = pointed.folder if pointed.name == HIGHEST_NUMBER else str(PurePath(pointed.folder) / pointed.name)
    newest = of_it[-1] if of_it else None
    return Pointer(
        path=name,
        is_highest_number=pointed.name == HIGHEST_NUMBER,
        says=pointed.says,
        target=target,
        is_there=pointed.is_there,
        step=None if newest is None else newest.step,
        usable=None if newest is None else newest.usable,
    )


# ---- loads ----


def _loads(
    main: Sequence[Record],
    written: Sequence[CheckpointWritten],
    checks: Sequence[CheckpointChecked],
    attempts: Sequence[Attempt],
    damaged: Sequence[Damaged],
) -> Iterable[AttemptLoad]:
    belongs = AttemptsOfProcesses(main)
    places = _Places(written, checks, damaged)
    by_attempt: dict[int, list[StateLoaded]] = {}
    for record in main:
        if isinstance(record, StateLoaded):
            number = belongs.of(record.pid, record.monotonic_seconds) or record.attempt
            by_attempt.setdefault(number, []).append(record)
    if not by_attempt:
        # The ranks report no loads: an older version, or none of them is observed.
        return
    for attempt in attempts:
        loads = by_attempt.get(attempt.number, [])
        resumed = set(attempt.resumed_after.values())
        found = _of_attempt(attempt.number, loads, places, resumed.pop() if len(resumed) == 1 else None)
        if found is not None and (attempt.number > 1 or found.path is not None or found.failed):
            yield found


def _of_attempt(
    number: int, loads: Sequence[StateLoaded], places: _Places, resumed_after: int | None
) -> AttemptLoad | None:
    """`resumed_after` is the step after which its ranks say that they continue."""
    known = [(load, places.step_of(load)) for load in loads if places.is_of_job(load)]
    ranks = sorted({load.rank for load, _ in known if load.rank is not None})
    own = [(load, step) for load, step in known if not ranks or load.rank == ranks[0]]
    failed = [
        FailedLoad(load.path or "", step, load.error) for load, step in own if load.error is not None and load.path
    ]
    good = [(load, step) for load, step in own if load.error is None]
    until = good[0][0].monotonic_seconds if good else loads[-1].monotonic_seconds if loads else None
    if until is None:
        return None
    newest = places.newest_before(until)
    if not good:
        by = next((places.damaged_by(load) for load, _ in own), None)
        return AttemptLoad(number, newest_step=newest, failed=tuple(failed), damaged_by=by)
    steps = sorted({step for load, step in known if load.error is None and step is not None})
    step = max((step for _, step in good if step is not None), default=resumed_after)
    first = next((load for load, at in good if at == step), good[0][0])
    is_fallback = None if step is None or newest is None else step < newest
    by = next((incident for load, _ in good if (incident := places.damaged_by(load)) is not None), None)
    differs = tuple(steps) if len(steps) > 1 else ()
    return AttemptLoad(number, step, first.path, newest, is_fallback, tuple(failed), differs, by)


class _Places:
    """Which checkpoint is at a path, or was saved as a file that was renamed since, at a given time."""

    def __init__(
        self, written: Sequence[CheckpointWritten], checks: Sequence[CheckpointChecked], damaged: Sequence[Damaged]
    ) -> None:
        self._damaged = damaged
        self._files: dict[tuple[int, int], list[tuple[float, int]]] = {}
        self._paths: dict[str, list[tuple[float, int]]] = {}
        self._folders: set[str] = set()
        # Saved by a version that says how large a file is.
        self._single: set[str] = set()
        self._saves = sorted((one.monotonic_seconds, one.step) for one in written if one.step is not None)
        for record in written:
            at = record.monotonic_seconds, record.step or 0
            for path, device, inode, *more in record.saved:
                self._files.setdefault((device, inode), []).append(at)
                self._paths.setdefault(path, []).append(at)
                self._folders.add(str(PurePath(path).parent))
                if more:
                    self._single.add(path)
        self._checks = [
            (one.monotonic_seconds, one.step, one.path)
            for one in checks
            if one.path is not None and one.step is not None and one.found in ("there", "partly")
        ]
        self._folders |= {str(PurePath(path).parent) for _, _, path in self._checks}

    def is_of_job(self, load: StateLoaded) -> bool:
        """Whether it may be something that the job has saved, and no weights from elsewhere."""
        if load.path is None:
            return False
        if (load.device, load.inode) in self._files or load.path in self._paths:
            return True
        parents = {load.path, *map(str, PurePath(load.path).parents)}
        is_inside = any(path in parents or PurePath(load.path) in PurePath(path).parents for path in self._paths)
        return is_inside or any(path in parents for _, _, path in self._checks)

    def step_of(self, load: StateLoaded) -> int | None:
        """The step of what was loaded."""
        at = load.began_monotonic or load.monotonic_seconds
        path = load.path or ""
        seen = [
            (seconds, step)
            for seconds, step, place in self._checks
            if seconds <= at and (_is_in(path, place) or _is_in(place, path))
        ]
        if seen and (newest := max(seconds for seconds, _ in seen)) >= self._last_save(at):
            # Of several that were read then, the one with the highest number is at that place.
            return max(step for seconds, step in seen if newest - seconds < 1.0)
        of_file = [] if load.device is None or load.inode is None else self._files.get((load.device, load.inode), [])
        if not of_file and path in self._paths and load.inode is not None and self._is_one_file(path):
            # Another file has the name: one that was saved and whose save was not seen to end.
            return None
        for known in (of_file, self._paths.get(path, []), self._inside(path)):
            if (before := [step for seconds, step in known if seconds <= at]) != []:
                return before[-1]
        return None

    def damaged_by(self, load: StateLoaded) -> int | None:
        """The incident that had damaged what was loaded, or was to be."""
        at, path = load.began_monotonic or load.monotonic_seconds, load.path or ""
        for one in self._damaged:
            if not one.since <= at < one.until or not (_is_in(path, one.path) or _is_in(one.path, path)):
                continue
            if not any(one.since < seconds <= at for seconds, _ in self._paths.get(one.path, [])):
                return one.incident
        return None

    def _is_one_file(self, path: str) -> bool:
        return path in self._single

    def newest_before(self, seconds: float) -> int | None:
        """The step that had been saved last by then."""
        before = [step for at, step in self._saves if at <= seconds]
        return before[-1] if before else None

    def _last_save(self, seconds: float) -> float:
        index = bisect_right(self._saves, (seconds, inf))
        return self._saves[index - 1][0] if index else -inf

    def _inside(self, path: str) -> list[tuple[float, int]]:
        return sorted(
            at for saved, known in self._paths.items() if _is_in(saved, path) or _is_in(path, saved) for at in known
        )
