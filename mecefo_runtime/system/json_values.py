"""Frozen dataclasses as JSON values and back, checked by their annotations: what comes in is of the type it claims.

Understood are numbers, strings, booleans, None, enumerations, literals, tuples, frozen sets, mappings whose keys are
numbers or strings, and dataclasses of such. Missing keys take the field's default; unknown keys are refused, since both
ends are of one version, unless the class says `MAY_HAVE_MORE = True`: what is stored may be of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_Reader = Callable[[Any], Any]


class JsonTypeError(ValueError):
    """A JSON value is not of the type that is expected; the text says where and what."""


def to_json(value: Any) -> Any:
    """`value` as what `json.dumps` takes."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return [to_json(item) for item in sorted(value)]
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def from_json(kind: type[T], raw: object) -> T:
    """Read what `to_json` wrote of a `kind`.

    Raises:
        JsonTypeError: it is something else.
    """
    value: T = _reader(cast(Hashable, kind))(raw)
    return value


@cache
def _reader(kind: Any) -> _Reader:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda raw: raw
    if kind in (bool, int, str, float, NoneType):
        return lambda raw: _plain(kind, raw)
    if origin in (Union, UnionType):
        return _union(arguments)
    if origin is Literal:
        return lambda raw: raw if raw in arguments else _refuse(f"one of {arguments}", raw)
    if origin in (tuple, frozenset):
        return _sequence(origin, arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(*arguments)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda raw: _enumeration(kind, raw)
    if is_dataclass(kind):
        return _dataclass(kind)
    raise TypeError(f"{kind} cannot be read from JSON")


def _refuse(expected: str, raw: object) -> Any:
    raise JsonTypeError(f"{expected} is expected, not {str(raw)[:80]!r}")


def _plain(kind: type, raw: object) -> object:
    if kind is float and type(raw) is int:
        return float(raw)
    # Not by isinstance: True is an int.
    return raw if type(raw) is kind else _refuse(kind.__name__, raw)


def _enumeration(kind: type[Enum], raw: object) -> Enum:
    for member in kind:
        if type(raw) is type(member.value) and raw == member.value:
            return member
    raise JsonTypeError(f"{kind.__name__} is expected, not {str(raw)[:80]!r}")


def _union(kinds: tuple[Any, ...]) -> _Reader:
    readers = [_reader(kind) for kind in kinds if kind is not NoneType]
    is_optional = NoneType in kinds

    def read(raw: object) -> object:
        if raw is None and is_optional:
            return None
        error: JsonTypeError | None = None
        for reader in readers:
            try:
                return reader(raw)
            except JsonTypeError as refused:
                error = refused
        raise error or JsonTypeError("no value is possible")

    return read


def _sequence(origin: type, arguments: tuple[Any, ...]) -> _Reader:
    if origin is tuple and arguments[-1] is not Ellipsis:
        readers = [_reader(argument) for argument in arguments]

        def read_fixed(raw: object) -> object:
            if not isinstance(raw, list) or len(raw) != len(readers):
                return _refuse(f"a list of {len(readers)}", raw)
            return tuple(reader(item) for reader, item in zip(readers, raw, strict=True))

        return read_fixed
    reader = _reader(arguments[0])

    def read(raw: object) -> object:
        if not isinstance(raw, list):
            return _refuse("a list", raw)
        return origin(reader(item) for item in raw)

    return read


def _mapping(key_kind: Any, value_kind: Any) -> _Reader:
    reader = _reader(value_kind)

    def read_key(key: str) -> object:
        if key_kind is str:
            return key
        return int(key) if key.isdecimal() else _refuse("a number as key", key)

    def read(raw: object) -> object:
        if not isinstance(raw, dict):
            return _refuse("an object", raw)
        return {read_key(key): reader(value) for key, value in raw.items()}

    return read


def _dataclass(kind: Any) -> _Reader:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    may_have_more = getattr(kind, "MAY_HAVE_MORE", False)
    required = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}

    def read(raw: object) -> object:
        if not isinstance(raw, dict):
            return _refuse(kind.__name__, raw)
        unknown = raw.keys() - readers.keys()
        if unknown and not may_have_more:
            raise JsonTypeError(f"{kind.__name__} has no {sorted(unknown)}")
        if missing := required - raw.keys():
            raise JsonTypeError(f"{kind.__name__} lacks {sorted(missing)}")
        values = {}
        for name, item in raw.items():
            if name in unknown:
                continue
            try:
                values[name] = readers[name](item)
            except JsonTypeError as error:
                raise JsonTypeError(f"{kind.__name__}.{name}: {error}") from error
        try:
            return kind(**values)
        except ValueError as error:
            raise JsonTypeError(f"{kind.__name__}: {error}") from error

    return read
