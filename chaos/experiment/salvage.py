"""The valid part of an experiment with errors, so that all of its errors can be reported at once."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from chaos.experiment.experiment import Experiment
from chaos.language.validation_errors import said_at
from chaos.language.yaml_lines import KeyPath

_LISTS = ("faults", "gates", "halt")
_INDEXED = re.compile(rf"({'|'.join(_LISTS)})\[([0-9]+)\]")
# What is missing takes with it what it belongs to, and that may be missed in turn.
_MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Salvage:
    """The experiment without what is wrong, and at which index each entry that is left of its lists was said."""

    experiment: Experiment
    indices: Mapping[str, Sequence[int]]

    def said_key(self, key: str) -> str:
        """The key of the user's experiment for a `key` of the one that is left."""
        return _INDEXED.sub(lambda found: f"{found[1]}[{self.indices[found[1]][int(found[2])]}]", key, count=1)


def salvaged(values: Mapping[str, Any], wrong: Collection[KeyPath]) -> Salvage | None:
    """`values` without what stands at the places `wrong`; None when that leaves nothing that could be judged."""
    places = set(wrong)
    for _ in range(_MAX_ROUNDS):
        rest, indices = _without(values, places)
        try:
            return Salvage(Experiment.model_validate(rest), indices)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                where = tuple(said_at(details["loc"]))
                if where[:1] and where[0] in _LISTS and len(where) > 1:
                    where = (where[0], indices[str(where[0])][int(where[1])])
                places |= {where, where[:-1] or where}
    return None


def _without(values: Mapping[str, Any], places: Collection[KeyPath]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    rest = copy.deepcopy(dict(values))
    indices: dict[str, list[int]] = {}
    for name in _LISTS:
        entries = rest.pop(name, None)
        is_list = isinstance(entries, list) and (name,) not in places
        wrong_keys: dict[int | str, set[int | str]] = {}
        for place in places:
            if len(place) > 1 and place[0] == name:
                # An entry that is wrong as a whole is wrong in what it is.
                wrong_keys.setdefault(place[1], set()).update(place[2:3] or ("kind",))
        left = [
            (index, _entry(entry, wrong_keys.get(index, ()))) for index, entry in enumerate(entries if is_list else ())
        ]
        indices[name] = [index for index, entry in left if entry is not None]
        rest[name] = [entry for _, entry in left if entry is not None]
    for place in places:
        inner: Any = rest
        for depth, part in enumerate(place):
            following = inner.get(part) if isinstance(inner, dict) else None
            if depth == len(place) - 1 or not isinstance(following, dict):
                if isinstance(inner, dict) and place[0] not in _LISTS:
                    inner.pop(part, None)
                break
            inner = following
    rest.setdefault("name", "unnamed")
    return rest, indices


def _entry(entry: Any, wrong: Collection[str | int]) -> Any:
    """An entry of a list without its keys that are `wrong`; None when nothing is left that could be judged."""
    if not wrong:
        return entry
    if "kind" in wrong or not isinstance(entry, dict) or "kind" not in entry:
        return None
    rest = {key: value for key, value in entry.items() if key not in wrong}
    return rest if "at" not in wrong else {**rest, "at": "step=1"}
