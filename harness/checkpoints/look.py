"""A look at all checkpoints of a job that are still there: which of them could be loaded now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.checkpoints.findings import (
    ELSEWHERE,
    GONE,
    LOAD_FAILED,
    MISSING,
    MIXED,
    NO_PATH,
    NOT_FINITE,
    OVERWRITTEN,
    TOO_MANY_BYTES,
    TOO_SHORT,
    UNFINISHED,
    Damage,
)
from harness.checkpoints.finite import Values
from harness.checkpoints.saves import Located
from harness.checkpoints.whole import Budget, Wholeness, check


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the checkpoint of `step`; None: not known, and `unchecked` has the reasons.

    `found`: `there`, `partly` (some of its files), `gone`, `overwritten`, `elsewhere` (not on this machine), `unknown`.
    `is_finished`: its save was seen to end.
    """

    step: int
    path: Path | None
    found: str
    is_finished: bool
    whole: bool | None = None
    readable: bool | None = None
    finite: bool | None = None
    damage: tuple[Damage, ...] = ()
    unchecked: tuple[str, ...] = ()
    num_files: int = 0
    num_bytes: int = 0
    seconds: float = 0.0


def look_at(located: Located, budget: Budget, *, is_outside_only: str | None = None) -> Health:
    """Whether it is whole. `is_outside_only` is why its values are not looked at, if they are not to be."""
    began = time.monotonic()
    saved, path = located.saved, located.path
    health = Health(saved.step, path, _found(located), saved.is_finished)
    if not located.places:
        why = {"gone": GONE, "overwritten": OVERWRITTEN, "unknown": NO_PATH}.get(health.found, ELSEWHERE)
        return replace(health, unchecked=(why,))
    found = Wholeness()
    for place in sorted(set(located.places.values())):
        _add(found, check(place, budget, (place,)), place, path)
    _compare_sizes(located, found, path)
    found.damage += [Damage(MISSING, _name(one, path)) for one in (*located.missing, *located.gone)]
    found.damage += [Damage(MIXED, _name(one, path)) for one in (*located.mixed, *located.overwritten)]
    if not saved.is_finished and not located.is_compared and not found.damage:
        found.unchecked.add(UNFINISHED)
    unchecked = set(found.unchecked)
    if is_outside_only is not None and not found.damage:
        unchecked.add(is_outside_only)
    return replace(
        health,
        whole=found.is_whole,
        damage=tuple(dict.fromkeys(found.damage)),
        unchecked=tuple(sorted(unchecked)),
        num_files=found.num_files,
        num_bytes=found.num_bytes,
        seconds=time.monotonic() - began,
    )


def with_values(health: Health, seen: Sequence[Values], seconds: float) -> Health:
    """The same with what was `seen` of the values of its files, which took so long."""
    damage = tuple(one for values in seen for one in values.damage)
    unchecked = {values.unchecked for values in seen if values.unchecked is not None}
    has_failed = any(one.code == LOAD_FAILED for one in damage)
    is_seen = not unchecked and any(values.num_read for values in seen)
    is_finite = None if has_failed or not is_seen else True
    return replace(
        health,
        readable=False if has_failed else True if is_seen else None,
        finite=False if any(one.code == NOT_FINITE for one in damage) else is_finite,
        damage=(*health.damage, *damage),
        unchecked=tuple(sorted({*health.unchecked, *unchecked})),
        seconds=health.seconds + seconds,
    )


def _found(located: Located) -> str:
    if not (located.saved.files or located.saved.open_paths):
        return "unknown"
    if located.is_elsewhere:
        return "elsewhere"
    if located.places:
        return "partly" if located.gone or located.overwritten else "there"
    return "overwritten" if located.overwritten else "gone"


def _add(found: Wholeness, part: Wholeness, place: Path, root: Path | None) -> None:
    inside = "" if root is None or place == root else _name(place, root)
    is_folder = place.is_dir()
    found.damage += [
        replace(one, file=f"{inside}/{one.file}" if is_folder and inside else inside or one.file) for one in part.damage
    ]
    found.unchecked |= part.unchecked
    found.num_files += part.num_files
    found.num_bytes += part.num_bytes
    found.num_checked += part.num_checked


def _compare_sizes(located: Located, found: Wholeness, root: Path | None) -> None:
    """With those that the files had when their saves returned."""
    sizes = {
        located.places[path]: file.num_bytes for path, file in located.saved.files.items() if path in located.places
    }
    for place, expected in sizes.items():
        if expected is None or not place.is_file():
            continue
        num_bytes, name = place.stat().st_size, _name(place, root)
        if num_bytes >= expected:
            # A file that a script opened itself may have been written to its end later.
            continue
        others = [one for one in found.damage if one.file != name]
        found.damage = [*others, Damage(TOO_SHORT, name, num_bytes, expected)]


def _name(path: Path, root: Path | None) -> str:
    return str(path.relative_to(root)) if root is not None and root != path and path.is_relative_to(root) else path.name


def pass_by(located: Located) -> Health:
    """One that was not looked at, because the limit of bytes was reached."""
    return Health(
        located.saved.step, located.path, _found(located), located.saved.is_finished, unchecked=(TOO_MANY_BYTES,)
    )
