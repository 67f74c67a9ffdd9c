"""What the undo of one record may touch: checked before it begins, and told by `chaos heal --dry-run`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.errors import HealError
from chaos.faults.base import Fault
from chaos.host.undo_record import UndoRecord
from chaos.undo.ledger import paths_in
from mecefo_runtime.system.reason import Reason

# No process has been started before the host was.
_NEVER = -1


def changed_paths(kind: type[Fault[Any]] | None, record: Mapping[str, Any]) -> tuple[str, ...]:
    """The files and folders that the undo may change; of a fault that does not say, all that its record names.

    Raises:
        HealError: the record is none of this fault's.
    """
    of_kind = getattr(kind, "Record", UndoRecord)
    # Faults without anything to undo, and those that were prepared for nothing, have empty ones.
    told = of_kind.from_json(record).changed_paths() if record and of_kind is not UndoRecord else None
    return tuple(dict.fromkeys(paths_in(record) if told is None else told))


def pids(record: Mapping[str, Any]) -> tuple[int, ...]:
    """The processes that the record names, by pid."""
    return tuple(dict.fromkeys(_pids_in(record)))


def check_paths(paths: Sequence[str], folders: Sequence[Path] | None) -> None:
    """See that all `paths` are in `folders` and reached through no link that leads out of them.

    `folders` are resolved; None: they are not known, and whoever heals has said that the record is right.

    Raises:
        HealError: one is not; nothing was done.
    """
    for text in paths:
        path = Path(text)
        if not path.is_absolute() or ".." in path.parts or "\0" in text:
            raise HealError(Reason("not_a_whole_path", path=text))
        if folders is None:
            continue
        is_inside = any(path.is_relative_to(folder) for folder in folders)
        where = Path(os.path.realpath(path.parent)) / path.name
        places = [where, Path(os.path.realpath(where))] if where.is_symlink() else [where]
        if all(any(place.is_relative_to(folder) for folder in folders) for place in places):
            continue
        if is_inside:
            raise HealError(Reason("link_leads_out", path=path, leads_to=places[-1]))
        raise HealError(Reason("not_in_folders_of_job", path=path))


def without_processes(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with no process in it that can be there: after a restart their numbers are those of others."""
    told: dict[str, Any] = _without_processes(record)
    return told


def _without_processes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _NEVER if key == "start_ticks" else _without_processes(part) for key, part in value.items()}
    return [_without_processes(part) for part in value] if isinstance(value, list | tuple) else value


def _pids_in(value: object) -> Iterator[int]:
    if isinstance(value, Mapping):
        if type(value.get("pid")) is int and "start_ticks" in value:
            yield value["pid"]
        for part in value.values():
            yield from _pids_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _pids_in(part)
