"""The checkpoints of a command in words: what is wrong with one, and what an attempt loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from harness.analysis.command.checkpoints import AttemptLoad, CheckpointHealth
from harness.analysis.words import count, name_bytes
from mecefo_runtime.system.reason import Reason

_MAX_ERROR = 200
_UNCHECKED: Mapping[str, str] = {
    "gone": "no longer there",
    "overwritten": "overwritten by a later save",
    "elsewhere": "its folder is not on this machine",
    "unknown": "its file is not known",
    "too_many_bytes": "beyond the limit of bytes that are read",
    "no_time": "beyond the time for reading",
    "unknown_format": "a format that is not known",
    "no_checksums": "saved without checksums",
    "refused": "weights_only does not read it",
    "no_python": "the job's Python could not read it",
    "unfinished": "its save was not seen to end",
    "values_not_read": "values are read when the job has ended",
}


def of_damage(health: CheckpointHealth) -> dict[str, Any]:
    """The fields of a reason that names a damaged checkpoint."""
    return {
        "step": health.step,
        "path": health.path,
        "damage": [dict(one) for one in health.damage],
        "moment": None if health.moment == "job_ended" else health.moment,
        "incident": health.damaged_by,
    }


def damage_text(damage: Sequence[Mapping[str, Any] | Reason], path: str | None = None) -> str:
    """`is not whole: 1,620 of 4,100 bytes`, of its first damage; and how many more there are."""
    if not damage:
        return "cannot be used"
    # A reason has what it holds with a code as reasons.
    first = damage[0].to_dict() if isinstance(damage[0], Reason) else damage[0]
    name = None if path is None else PurePath(path).name
    file = str(first.get("file", ""))
    where = f"{file}: " if file and file != name else ""
    more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
    return f"{_what(first, where)}{more}"


def _what(one: Mapping[str, Any], where: str) -> str:
    code, part, error = one.get("code"), one.get("part"), one.get("error")
    has, of = one.get("num_bytes"), one.get("expected_bytes")
    sizes = "" if not isinstance(has, int) else f"{has:,} bytes"
    if isinstance(has, int) and isinstance(of, int):
        sizes = f"{has:,} of {of:,} bytes"
    match code:
        case "empty":
            return f"is not whole: {where}0 bytes"
        case "no_end":
            return f"is not whole: {where}{sizes}, and its end is missing"
        case "too_short":
            return f"is not whole: {where}{sizes}"
        case "missing":
            return f"is not whole: {one.get('file')} is missing"
        case "bad_checksum":
            return f"is damaged: {where}the checksum of {part or 'a record'} is wrong"
        case "mixed":
            return f"is not whole: {one.get('file')} is of another step"
        case "not_finite":
            return f"is not finite: {where}{count(one.get('count') or 0, 'value')} of {part}"
        case "load_failed":
            return f"cannot be loaded: {where}{error}"
        case _:
            return f"is damaged: {where}{error or code}"


def state_text(health: CheckpointHealth) -> str:
    """`usable`, `not checked: ...`, or what is wrong with it."""
    if health.usable:
        return "usable: whole, readable, finite"
    if health.found in ("gone", "overwritten") and health.usable is None:
        before = "; whole when an attempt had ended" if health.whole else ""
        return f"{_UNCHECKED[health.found]}{before}"
    if health.usable is False:
        by = "" if health.damaged_by is None else f" (by incident {health.damaged_by})"
        left = "" if health.is_exposed else "; left by an interrupted save"
        return f"{damage_text(health.damage, health.path).removeprefix('is ')}{by}{left}"
    why = ", ".join(_UNCHECKED.get(code, code) for code in health.unchecked)
    return f"{'whole; values ' if health.whole else ''}not checked{f': {why}' if why else ''}"


def rows(checkpoints: Sequence[CheckpointHealth], most: int | None = None) -> list[tuple[str, str, str, str]]:
    """(step, path, size, state) of each, the newest first; at most `most` of those that are there."""
    newest_first = sorted(checkpoints, key=lambda one: -one.step)
    if most is not None:
        is_there = [one for one in newest_first if one.found not in ("gone", "overwritten") or one.usable is False]
        newest_first = (is_there or newest_first)[:most]
    return [
        (str(one.step), one.path or "-", name_bytes(one.num_bytes) if one.num_bytes else "-", state_text(one))
        for one in newest_first
    ]


def error_text(error: str) -> str:
    """The first sentence of an exception's text."""
    return error.partition(". ")[0].strip().rstrip(":.")[:_MAX_ERROR]


def shortened(text: str, folder: str | None) -> str:
    """`text` with paths below the folder in which the command was started as relative ones."""
    return text if not folder else text.replace(f"{folder.rstrip('/')}/", "")


def load_text(load: AttemptLoad) -> str:
    """`attempt 2 loaded the checkpoint of step 10 (ckpt/10.pt)`, and what it could not read before."""
    if load.path is None:
        words = f"attempt {load.attempt} loaded no checkpoint"
    else:
        what = "a checkpoint" if load.step is None else f"the checkpoint of step {load.step}"
        words = f"attempt {load.attempt} loaded {what} ({load.path})"
    if load.damaged_by is not None and load.path is not None:
        words += f", damaged by incident {load.damaged_by}"
    if load.is_fallback:
        words += f", an older one than that of step {load.newest_step}"
    if load.failed:
        failed = load.failed[-1]
        of_step = "" if failed.step is None else f", of step {failed.step}"
        words += f": {failed.path}{of_step}, raised {error_text(failed.error)}"
    return words
