"""Frozen dataclasses as JSON values and back: the one codec of the project, with the standard library only.

Supported are numbers (NaN and infinities too, as `json` writes them), strings, booleans, None, paths, times,
enumerations, literals, tuples, sequences, frozen sets, mappings whose keys are numbers or strings, and dataclasses of
such.

There are two modes of reading, both checked by the annotations. Strict is for what the same version wrote: each value
has exactly its type, and an unknown key is an error. Lenient is for stored files, which another version may have
written: unknown keys are dropped, null is the default of a field that cannot be None, a whole number may be written as
a float, and a literal may be a word that this version does not have. A missing key has the field's default in both.

A class whose JSON differs from the list of its fields declares it, for the writer and the reader alike:

- `MAY_HAVE_MORE = True`: unknown keys are dropped in strict mode, too.
- `LEAVES_OUT_DEFAULTS = True`: a field that has its default is not written.
- `ALSO_WRITTEN = {"key": "name"}`: properties that are written after the fields, and ignored when it is read.
- `FINITE_ONLY = True`: NaN and infinities are written as null, inside it too.
- `STORED_FORMAT = "name-1"`: written first, as `format`; an object without it is refused.
- `from_older(raw)`, a class method: the object of an earlier version in today's form; it may not change its argument.
- `to_dict()` and `from_dict(raw)`, of a class that is no dataclass, such as a reason: its own form.
- metadata of a field: `called(key)`, `LEFT_OUT`, `NOT_WRITTEN`, `FLAT`, `AS_LIST`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache, partial
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[Any], Any]

# More than an experiment, a layout or the evidence of a fault needs.
MAX_DEPTH = 64
# Process numbers, steps and sizes in bytes.
MAX_WHOLE = 1 << 63
_CONTAINERS = (dict, list)

LEFT_OUT: Mapping[str, Any] = {"is_left_out": True}
"""Metadata of a field that is not written while it has its default."""
NOT_WRITTEN: Mapping[str, Any] = {"is_not_written": True}
"""Metadata of a field that has no place in JSON: a class with one can be read only where the field has a default."""
FLAT: Mapping[str, Any] = {"is_flat": True}
"""Metadata of a field whose dataclass (a mapping, where it is only written) stands as keys of the outer object."""
AS_LIST: Mapping[str, Any] = {"is_list": True}
"""Metadata of a field whose dataclass is written as the list of its values."""


def called(key: str) -> dict[str, Any]:
    """Metadata of a field that is written under another key than its name."""
    return {"key": key}


class JsonTypeError(ValueError):
    """A JSON value is not of the type that is expected; the text says where and what."""


class FormatError(JsonTypeError):
    """A stored object has another `format` than its class."""


# ---- text that another program may have written ----


def loads(text: str | bytes) -> Any:
    """The JSON value of `text`, which cannot break down the code that walks through it.

    `json.loads` raises RecursionError for a text that is nested deep enough, and accepts one that is a little less
    deep: a recursive function breaks down on that.

    Raises:
        ValueError: it is no JSON, has a whole number of thousands of digits, or is nested deeper than `MAX_DEPTH`.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    num_opened = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    if num_opened > MAX_DEPTH and _is_deep(value):
        raise ValueError("nested too deep")
    return value


def whole(value: object, bound: int = MAX_WHOLE) -> int:
    """`value`, which must be a whole number from -`bound` to `bound`.

    Raises:
        ValueError: it is none.
    """
    # True is none.
    if type(value) is int and -bound <= value <= bound:
        return value
    raise ValueError(f"a whole number is expected, not {type(value).__name__}")


def _is_deep(value: Any) -> bool:
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH):
        level = [
            part for one in level for part in (one.values() if type(one) is dict else one) if type(part) in _CONTAINERS
        ]
        if not level:
            return False
    return True


# ---- writing ----


def to_json(value: Any) -> Any:
    """`value` as what `json.dumps` takes."""
    return value if type(value) in ATOMS else _writer_of(type(value))(value)


ATOMS = frozenset({NoneType, bool, int, float, str})
"""The types whose values are JSON as they are."""


def _same(value: Any) -> Any:
    return value


def _list_of(values: Iterable[Any]) -> list[Any]:
    return [value if type(value) in ATOMS else _writer_of(type(value))(value) for value in values]


def _writer(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, bool | int | float | str | NoneType):
        return _same
    if is_dataclass(kind):
        return _dataclass_writer(kind)
    if hasattr(kind, "to_dict"):
        return lambda value: value.to_dict()
    if issubclass(kind, Mapping):
        return lambda value: {
            str(key): item if type(item) in ATOMS else _writer_of(type(item))(item) for key, item in value.items()
        }
    if issubclass(kind, set | frozenset):
        return lambda value: _list_of(sorted(value))
    if issubclass(kind, tuple | list):
        return _list_of
    if issubclass(kind, PurePath):
        return str
    if issubclass(kind, datetime):
        return datetime.isoformat
    raise TypeError(f"{kind.__name__} has no form in JSON")


# `cache` takes any hashable, which a type is: mypy does not see that of a `type[Any]`.
_writer_of: Callable[[Any], Callable[[Any], Any]] = cache(_writer)


def _dataclass_writer(kind: Any) -> Callable[[Any], Any]:
    members = _members(kind)
    also: Mapping[str, str] = getattr(kind, "ALSO_WRITTEN", {})
    head = {"format": kind.STORED_FORMAT} if hasattr(kind, "STORED_FORMAT") else {}
    if not also and not head and all(member.is_plain for member in members):
        names = [(member.name, member.key) for member in members]

        def write(value: Any) -> Any:
            return {key: _writer_of(type(item := getattr(value, name)))(item) for name, key in names}
    else:

        def write(value: Any) -> Any:
            written: dict[str, Any] = {**head}
            for member in members:
                item = getattr(value, member.name)
                if member.is_not_written or (member.is_left_out and item == member.default):
                    continue
                if member.is_flat:
                    written |= to_json(item)
                elif member.is_list:
                    written[member.key] = None if item is None else to_list(item)
                else:
                    written[member.key] = to_json(item)
            return written | {key: to_json(getattr(value, name)) for key, name in also.items()}

    return (lambda value: finite(write(value))) if getattr(kind, "FINITE_ONLY", False) else write


def to_list(value: Any) -> list[Any]:
    """The fields of a dataclass as a list of JSON values."""
    return [to_json(getattr(value, field.name)) for field in fields(value)]


def finite(value: Any) -> Any:
    """A JSON value with null in the place of NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


# ---- reading ----


def from_json(kind: type[T], raw: object, *, lenient: bool = False) -> T:
    """Read what `to_json` wrote of a `kind`.

    Raises:
        JsonTypeError: it is something else.
    """
    value: T = reader(kind, lenient=lenient)(raw)
    return value


def from_list(kind: type[T], raw: object) -> T:
    """Read what `to_list` wrote of a `kind`.

    Raises:
        JsonTypeError: it is something else.
    """
    value: T = _list_reader(kind, lenient=False)(raw)
    return value


def reader(kind: Any, *, lenient: bool = False) -> Reader:
    """The function that reads a `kind`; it raises JsonTypeError for anything else."""
    return _reader(cast(Hashable, kind), lenient)


@cache
def _reader(kind: Any, lenient: bool) -> Reader:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return _same
    if kind in (bool, int, str, float, NoneType):
        return _LENIENT[kind] if lenient else partial(_plain, kind)
    if origin in (Union, UnionType):
        return _union(arguments, lenient)
    if origin is Literal:
        return _literal(arguments, lenient)
    if origin is Sequence:
        return _sequence(tuple, (*arguments, Ellipsis), lenient)
    if origin in (tuple, frozenset, list):
        return _sequence(origin, arguments, lenient)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(arguments[0], arguments[1], lenient)
    if not isinstance(kind, type):
        raise TypeError(f"{kind} cannot be read from JSON")
    if issubclass(kind, Enum):
        return lambda raw: _enumeration(kind, raw)
    if is_dataclass(kind):
        return _dataclass_reader(kind, lenient)
    if hasattr(kind, "from_dict"):
        return lambda raw: _own_form(kind, raw)
    if issubclass(kind, PurePath):
        return _path
    if issubclass(kind, datetime):
        return _time
    raise TypeError(f"{kind} cannot be read from JSON")


def _refuse(expected: str, raw: object) -> Any:
    raise JsonTypeError(f"{expected} is expected, not {str(raw)[:80]!r}")


def _plain(kind: type, raw: object) -> object:
    if kind is float and type(raw) is int:
        return float(raw)
    # Not by isinstance: True is an int.
    return raw if type(raw) is kind else _refuse(kind.__name__, raw)


def _number(raw: Any) -> float:
    # A subclass, such as a time of another clock, stays what it is.
    return raw if isinstance(raw, float) else float(raw) if isinstance(raw, int) else _refuse("float", raw)


def _whole(raw: Any) -> int:
    if not isinstance(raw, int | float) or not math.isfinite(raw) or abs(raw) > MAX_WHOLE:
        return cast(int, _refuse("int", raw))
    return raw if isinstance(raw, int) and type(raw) is not bool else int(raw)


def _text(raw: Any) -> str:
    return str(_refuse("str", raw) if raw is None or isinstance(raw, Mapping | list | tuple) else raw)


_LENIENT: Mapping[Any, Reader] = {
    int: _whole,
    float: _number,
    str: _text,
    bool: bool,
    NoneType: lambda raw: _plain(NoneType, raw),
}


def _enumeration(kind: type[Enum], raw: object) -> Enum:
    for member in kind:
        if type(raw) is type(member.value) and raw == member.value:
            return member
    raise JsonTypeError(f"{kind.__name__} is expected, not {str(raw)[:80]!r}")


def _literal(words: tuple[Any, ...], lenient: bool) -> Reader:
    kinds = {type(word) for word in words}

    def is_one(raw: object) -> bool:
        return type(raw) in kinds if lenient else any(type(raw) is type(word) and raw == word for word in words)

    return lambda raw: raw if is_one(raw) else _refuse(f"one of {words}", raw)


def _own_form(kind: Any, raw: Any) -> object:
    if not isinstance(raw, Mapping):
        return _refuse(kind.__name__, raw)
    try:
        return kind.from_dict(raw)
    except ValueError as error:
        raise JsonTypeError(str(error)) from error


def _path(raw: object) -> Path:
    if not isinstance(raw, str) or "\0" in raw:
        return cast(Path, _refuse("a path", raw))
    return Path(raw)


def _time(raw: object) -> datetime:
    try:
        return datetime.fromisoformat(_plain(str, raw))  # type: ignore[arg-type]
    except ValueError:
        return cast(datetime, _refuse("a time", raw))


def _union(kinds: tuple[Any, ...], lenient: bool) -> Reader:
    readers = [_reader(kind, lenient) for kind in kinds if kind is not NoneType]
    is_optional = NoneType in kinds
    if len(readers) == 1 and is_optional:
        only = readers[0]
        return lambda raw: None if raw is None else only(raw)
    # A lenient reader takes more than its own type: a value that is exactly of one of the types is read as that.
    exact = {kind: _reader(kind, False) for kind in kinds if lenient and kind in (bool, int, float, str)}
    *first, last = readers

    def read(raw: object) -> object:
        if raw is None and is_optional:
            return None
        if exact and (own := exact.get(type(raw))) is not None:
            return own(raw)
        # An error that this frame kept would keep all frames above it, and what they hold, until garbage is collected.
        for reader_of_kind in first:
            with suppress(JsonTypeError):
                return reader_of_kind(raw)
        return last(raw)

    return read


def _sequence(origin: Any, arguments: tuple[Any, ...], lenient: bool) -> Reader:
    # An event that was not stored yet has sequences of the emitter's own kinds.
    kinds: Any = list | tuple | set | frozenset if lenient else list

    def items(raw: Any) -> Any:
        if lenient and raw is None:
            return ()
        return raw if isinstance(raw, kinds) else _refuse("a list", raw)

    if origin is tuple and arguments[-1] is not Ellipsis:
        readers = [_reader(argument, lenient) for argument in arguments]

        def read_fixed(raw: object) -> object:
            if not isinstance(raw, kinds) or len(raw) != len(readers):
                return _refuse(f"a list of {len(readers)}", raw)
            return tuple(part(item) for part, item in zip(readers, raw, strict=True))

        return read_fixed
    part = _reader(arguments[0], lenient)
    return lambda raw: origin([part(item) for item in items(raw)])


def _mapping(key_kind: Any, value_kind: Any, lenient: bool) -> Reader:
    part = _reader(value_kind, lenient)
    kinds: Any = Mapping if lenient else dict

    def read_key(key: Any) -> object:
        if key_kind is str:
            return str(key)
        return int(key) if isinstance(key, int) or key.isdecimal() else _refuse("a number as key", key)

    def read(raw: Any) -> object:
        if not isinstance(raw, kinds):
            return _refuse("an object", raw)
        return {read_key(key): part(value) for key, value in raw.items()}

    return read


# ---- dataclasses ----


@dataclass(frozen=True, slots=True)
class _Member:
    """How one field of a dataclass is written and read. `default` is MISSING for a required field."""

    name: str
    key: str
    hint: Any
    default: Any
    is_required: bool
    is_left_out: bool
    is_not_written: bool
    is_flat: bool
    is_list: bool

    @property
    def is_plain(self) -> bool:
        return not (self.is_left_out or self.is_not_written or self.is_flat or self.is_list)

    def reader(self, lenient: bool) -> Reader:
        return _list_reader(self.hint, lenient) if self.is_list else _reader(self.hint, lenient)

    @property
    def can_be_none(self) -> bool:
        return self.hint is Any or NoneType in get_args(self.hint)


@cache
def _members(kind: Any) -> tuple[_Member, ...]:
    hints = get_type_hints(kind)
    leaves_out = getattr(kind, "LEAVES_OUT_DEFAULTS", False)
    return tuple(
        _Member(
            field.name,
            field.metadata.get("key", field.name),
            hints[field.name],
            _default(field),
            is_required=field.default is MISSING and field.default_factory is MISSING,
            is_left_out=leaves_out or "is_left_out" in field.metadata,
            is_not_written="is_not_written" in field.metadata,
            is_flat="is_flat" in field.metadata,
            is_list="is_list" in field.metadata,
        )
        for field in fields(kind)
    )


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _list_reader(hint: Any, lenient: bool) -> Reader:
    """A dataclass, or None where the hint has that, from the list of its values."""
    kinds = get_args(hint) or (hint,)
    (kind,) = (one for one in kinds if one is not NoneType)
    part, members = _dataclass_reader(kind, lenient), _members(kind)

    def read(raw: object) -> object:
        if raw is None and NoneType in kinds:
            return None
        if not isinstance(raw, list) or len(raw) != len(members):
            return _refuse(f"a list of {len(members)}", raw)
        return part({member.key: item for member, item in zip(members, raw, strict=True)})

    return read


def _dataclass_reader(kind: Any, lenient: bool) -> Reader:
    members = _members(kind)
    flat = [(member, {part.key for part in _members(member.hint)}) for member in members if member.is_flat]
    own = {
        member.key: (member.name, member.reader(lenient))
        for member in members
        if not (member.is_flat or member.is_not_written)
    }
    required = {member.key for member in members if member.is_required and member.key in own}
    known = own.keys() | set(getattr(kind, "ALSO_WRITTEN", ())) | {key for _, keys in flat for key in keys}
    may_have_more = lenient or getattr(kind, "MAY_HAVE_MORE", False)
    null_is_default = {member.key for member in members if lenient and not (member.is_required or member.can_be_none)}
    kinds: Any = Mapping if lenient else dict
    prepare = _preparation(kind)

    def read(raw: Any) -> object:
        if not isinstance(raw, kinds):
            return _refuse(kind.__name__, raw)
        if prepare is not None:
            raw = prepare(raw)
        keys = raw.keys()
        if not (may_have_more or keys <= known):
            raise JsonTypeError(f"{kind.__name__} has no {sorted(keys - known)}")
        if not required <= keys:
            raise JsonTypeError(f"{kind.__name__} lacks {sorted(required - keys)}")
        values = {}
        for key, item in raw.items():
            if (member := own.get(key)) is None or (item is None and key in null_is_default):
                continue
            name, read_member = member
            try:
                values[name] = read_member(item)
            except JsonTypeError as error:
                raise JsonTypeError(f"{kind.__name__}.{name}: {error}") from error
        for outer, parts in flat:
            values[outer.name] = _reader(outer.hint, lenient)({key: raw[key] for key in parts if key in raw})
        try:
            return kind(**values)
        except ValueError as error:
            raise JsonTypeError(f"{kind.__name__}: {error}") from error

    return read


def _preparation(kind: Any) -> Callable[[Mapping[str, Any]], Mapping[str, Any]] | None:
    """What is done to an object of `kind` before it is read: its format is checked, and older forms are translated."""
    stored_format, from_older = getattr(kind, "STORED_FORMAT", None), getattr(kind, "from_older", None)
    if stored_format is None and from_older is None:
        return None

    def prepare(raw: Mapping[str, Any]) -> Mapping[str, Any]:
        if stored_format is not None:
            if raw.get("format") != stored_format:
                raise FormatError(f'its format is {str(raw.get("format"))[:40]!r}, not "{stored_format}"')
            raw = {key: item for key, item in raw.items() if key != "format"}
        if from_older is None:
            return raw
        try:
            older: Mapping[str, Any] = from_older(raw)
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            raise JsonTypeError(f"{kind.__name__}: {error}") from error
        return older

    return prepare
