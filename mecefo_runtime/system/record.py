"""What every event says, and how the fields of an event become those of a typed record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from mecefo_runtime.system.events import Event
from mecefo_runtime.system.strict_json import MAX_WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An event with its fields by name and type; one of an unknown kind is just this.

    A field that the log lacks has its default, so that older logs can be read; what a newer one adds is left out. The
    attributes of every record are those of `mecefo_runtime.system.events.Event`.
    """

    KIND: ClassVar[str] = ""

    kind: str
    source: str
    time_seconds: float
    monotonic_seconds: float
    pid: int
    attempt: int
    job: str
    rank: int | None
    node: int | None
    step: int | None

    @classmethod
    def of(cls, event: Event) -> Self:
        """The record of `event`.

        Raises:
            ValueError: a field that has no default is missing, or one is not what it should be.
        """
        said = event.fields
        own: dict[str, Any] = {}
        for name, key, convert, has_default in _readers(cls):
            value = said.get(key, MISSING)
            if value is not MISSING:
                try:
                    own[name] = convert(value)
                except (TypeError, ValueError, OverflowError) as error:
                    raise ValueError(f"{event.kind}: {key} is {value!r}") from error
            elif not has_default:
                raise ValueError(f"{event.kind}: {key} is missing")
        return cls(
            kind=event.kind,
            source=event.source,
            time_seconds=event.time_seconds,
            monotonic_seconds=event.monotonic_seconds,
            pid=event.pid,
            attempt=event.attempt,
            job=event.job,
            rank=event.rank,
            node=event.node,
            step=event.step,
            **own,
        )


HEADER = frozenset(one.name for one in fields(Record))


def called(key: str) -> Any:
    """A field of a record whose name in the log is one of the header's; it has to be there."""
    return field(metadata={"key": key})


def keys_of(record: type[Record]) -> tuple[str, ...]:
    """The names that the fields of `record` have in the log, without the header's."""
    return tuple(key for _, key, _, _ in _readers(record))


def required_keys_of(record: type[Record]) -> frozenset[str]:
    """Those of them without which an event is not a `record`."""
    return frozenset(key for _, key, _, may_be_missing in _readers(record) if not may_be_missing)


Convert = Callable[[Any], Any]
Readers = tuple[tuple[str, str, Convert, bool], ...]
_KNOWN: dict[type[Any], Readers] = {}


def _readers(record: type[Record]) -> Readers:
    """(attribute, key in the log, how to read its value, whether it may be missing) of each field."""
    known = _KNOWN.get(record)
    if known is not None:
        return known
    hints = get_type_hints(record)
    _KNOWN[record] = tuple(
        (
            one.name,
            one.metadata.get("key", one.name),
            _converter(hints[one.name]),
            one.default is not MISSING or one.default_factory is not MISSING,
        )
        for one in fields(record)
        if one.name not in HEADER
    )
    return _KNOWN[record]


def _converter(hint: Any) -> Convert:
    if hint in _CONVERTERS:
        return _CONVERTERS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType and len(arguments) == 2 and arguments[1] is NoneType:
        inner = _converter(arguments[0])
        return lambda value: None if value is None else inner(value)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        part = _converter(arguments[0])
        return lambda value: tuple(part(one) for one in _listed(value))
    if origin is tuple:
        parts = [_converter(argument) for argument in arguments]
        return lambda value: tuple(one(given) for one, given in zip(parts, _listed(value), strict=True))
    if origin is Mapping:
        key_of, value_of = (_converter(argument) for argument in arguments)
        return lambda value: {key_of(key): value_of(given) for key, given in _mapping(value).items()}
    if isinstance(hint, type) and hasattr(hint, "from_dict"):
        convert: Convert = hint.from_dict
        return lambda value: convert(_mapping(value))
    raise TypeError(f"no field of a record can be {hint}")


def _number(value: Any) -> float:
    """A number; of one that JSON cannot tell, NaN or an infinity, it is read as that."""
    if not isinstance(value, int | float):
        raise TypeError(value)
    return float(value)


def _whole(value: Any) -> int:
    if not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > MAX_WHOLE:
        raise TypeError(value)
    return int(value)


def _listed(value: Any) -> Any:
    if value is None:
        return ()
    if not isinstance(value, list | tuple | set | frozenset):
        raise TypeError(value)
    return value


def _mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(value)
    return value


def _text(value: Any) -> str:
    if isinstance(value, Mapping | list | tuple) or value is None:
        raise TypeError(value)
    return str(value)


_CONVERTERS: Mapping[Any, Convert] = {
    int: _whole,
    float: _number,
    str: _text,
    bool: bool,
    Any: lambda value: value,
}


def read_values(of: type[Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the dataclass `of` as `said` tells them, converted; those that are missing are left out.

    Raises:
        ValueError: one is not what it should be.
    """
    hints = get_type_hints(of)
    return {one.name: _converter(hints[one.name])(said[one.name]) for one in fields(of) if one.name in said}
