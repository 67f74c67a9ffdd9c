"""What an undo is told: frozen dataclasses, of which each fault and each tool that changes the machine has its own.

Their JSON stands in ledgers, which whoever heals may read years later: a key that is written stays readable.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin

from chaos.errors import HealError

LEFT_OUT = {"is_left_out_if_none": True}
"""Metadata of a field that is None, and then not written, where it does not apply."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UndoRecord:
    """One record; its fields are the keys of its JSON, in their order. Subclasses are frozen dataclasses, too."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        known = ((one, getattr(self, one.name)) for one in dataclasses.fields(self))
        return {one.name: _plain(value) for one, value in known if value is not None or one.metadata != LEFT_OUT}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; what another version has beside is left out.

        Raises:
            HealError: it is no such record; the message says what of it cannot be.
        """
        return _record(cls, raw, "")


_RecordT = TypeVar("_RecordT", bound=UndoRecord)


def _plain(value: Any) -> Any:
    if isinstance(value, UndoRecord):
        return value.to_json()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return dict(value) if isinstance(value, Mapping) else value


def _record(kind: type[_RecordT], raw: Any, where: str) -> _RecordT:
    if not isinstance(raw, Mapping):
        raise _junk(where or "it", f"should be a mapping, and is {raw!r}")
    hints, known = typing.get_type_hints(kind), {}
    for one in dataclasses.fields(kind):
        place = f"{where}.{one.name}" if where else one.name
        if one.name in raw:
            known[one.name] = _value(hints[one.name], raw[one.name], place)
        elif one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            raise _junk(place, "is missing")
    return kind(**known)


def _value(kind: Any, raw: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return raw
    if origin in (Union, types.UnionType):
        if raw is None and type(None) in arguments:
            return None
        candidates = [one for one in arguments if one is not type(None)]
        fitting = [one for one in candidates if isinstance(one, type) and type(raw) is one]
        return _value((fitting or candidates)[0], raw, where)
    if origin is Literal:
        return _checked(raw in arguments, raw, where, f"one of {', '.join(map(repr, arguments))}")
    if origin is tuple:
        return _tuple(arguments, raw, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _checked(isinstance(raw, Mapping), raw, where, "a mapping")
    if isinstance(kind, type) and issubclass(kind, UndoRecord):
        return _record(kind, raw, where)
    if kind is float:
        return _checked(isinstance(raw, int | float) and not isinstance(raw, bool), raw, where, "a number")
    names = {int: "an integer", str: "text", bool: "true or false"}
    return _checked(type(raw) is kind, raw, where, names[kind])


def _tuple(kinds: Sequence[Any], raw: Any, where: str) -> tuple[Any, ...]:
    _checked(isinstance(raw, list | tuple), raw, where, "a list")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_value(kinds[0], part, f"{where}[{index}]") for index, part in enumerate(raw))
    _checked(len(raw) == len(kinds), raw, where, f"a list of {len(kinds)}")
    pairs = zip(kinds, raw, strict=True)
    return tuple(_value(kind, part, f"{where}[{index}]") for index, (kind, part) in enumerate(pairs))


def _checked(is_sound: bool, raw: Any, where: str, wanted: str) -> Any:
    if not is_sound:
        raise _junk(where, f"should be {wanted}, and is {raw!r}")
    return raw


def _junk(where: str, what: str) -> HealError:
    return HealError(f"the undo record cannot be understood: {where} {what}")
