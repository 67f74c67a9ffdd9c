"""Events as typed records: one class for each kind, which is emitted and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast, get_type_hints

from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import ATOMS, Reader, reader, to_json

T = TypeVar("T")
if TYPE_CHECKING:
    from typing import Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[T], T]:
        """Nothing: it is for type checkers, and not in Python 3.10, which a rank of a user's script may run."""
        return lambda record: record


class Declared(NamedTuple):
    """How a field is declared: its name in the log, its default, and whether it is left out where it has that."""

    key: str = ""
    default: Any = MISSING
    is_omitted: bool = False


def called(key: str) -> Any:
    """A field of a record whose name in the log is one of the header's; it has no default."""
    return Declared(key=key)


def omitted_if(default: T) -> T:
    """A field with this default that is not written where it has it, even if it is given."""
    return cast(T, Declared(default=default, is_omitted=True))


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(called,))
class Record:
    """An event with its fields by name and type; one of an unknown kind is just this.

    A subclass declares the fields of its `kind` as a dataclass does, and takes them by keyword. The log gets the fields
    that were given, null included, and no others. A field that a log lacks has its default, so that older logs can be
    read; unknown fields of newer logs are ignored.

    The reader of a log also sets the attributes of `mecefo_runtime.system.events.Event`. A record that is made to be
    emitted has none of them: the emitter knows them.

    The reference of events is made of the classes: the docstring says when the event comes, the string below a field
    what the field is. `manual.events` reads these strings in the source.

    Records are not dataclasses, because creating a dataclass takes a millisecond. There are more than fifty kinds, and
    every process of a run imports some of them.
    """

    KIND: ClassVar[str] = ""
    EMITTED_BY: ClassVar[str] = ""
    FIELDS: ClassVar[Mapping[str, Declared]] = {}
    REQUIRED: ClassVar[frozenset[str]] = frozenset()
    _OMITTED: ClassVar[tuple[tuple[str, Any], ...]] = ()
    _CALLED: ClassVar[tuple[tuple[str, str], ...]] = ()

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

    def __init_subclass__(cls, *, kind: str = "", emitted_by: str = "") -> None:
        cls.KIND, cls.EMITTED_BY = kind, emitted_by
        own = {name: cls.__dict__.get(name, MISSING) for name in cls.__annotations__}
        declared = {name: one if isinstance(one, Declared) else Declared(default=one) for name, one in own.items()}
        for name, one in declared.items():
            # What is not given is looked up in the class.
            if one.default is not MISSING:
                setattr(cls, name, one.default)
            elif name in cls.__dict__:
                delattr(cls, name)
        cls.FIELDS = {**cls.FIELDS, **declared}
        cls.REQUIRED = frozenset(name for name, one in cls.FIELDS.items() if one.default is MISSING)
        cls._OMITTED = tuple((name, one.default) for name, one in cls.FIELDS.items() if one.is_omitted)
        cls._CALLED = tuple((name, one.key) for name, one in cls.FIELDS.items() if one.key)

    def __init__(self, **given: Any) -> None:
        if not given.keys() <= self.FIELDS.keys() or (self.REQUIRED and not given.keys() >= self.REQUIRED):
            unknown, missing = given.keys() - self.FIELDS.keys(), self.REQUIRED - given.keys()
            raise TypeError(f"{type(self).__name__} has no {sorted(unknown)}, and lacks {sorted(missing)}")
        self.__dict__.update(given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == other._values()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"

    def _values(self) -> list[Any]:
        said = vars(self)
        return [*(said.get(name) for name in HEADER), *(getattr(self, name) for name in self.FIELDS)]

    def given(self) -> dict[str, Any]:
        """The fields that were given, by name."""
        return {name: value for name, value in vars(self).items() if name in self.FIELDS}

    def to_fields(self) -> dict[str, Any]:
        """The fields of the event: those that were given, as plain JSON values."""
        given = self.__dict__ if "kind" not in self.__dict__ else self.given()
        told = {name: value if type(value) in ATOMS else to_json(value) for name, value in given.items()}
        for name, default in self._OMITTED:
            if name in given and given[name] == default:
                del told[name]
        for name, key in self._CALLED:
            told[key] = told.pop(name)
        return told

    @classmethod
    def of(cls, event: Event) -> Self:
        """The record of `event`.

        Raises:
            ValueError: a field that has no default is missing, or one is not what it should be.
        """
        record, said, put = cls.__new__(cls), event.fields, object.__setattr__
        for name, key, convert, has_default in _readers(cls):
            value = said.get(key, MISSING)
            if value is not MISSING:
                try:
                    put(record, name, convert(value))
                except (TypeError, ValueError, OverflowError) as error:
                    raise ValueError(f"{event.kind}: {key} is {value!r}") from error
            elif not has_default:
                raise ValueError(f"{event.kind}: {key} is missing")
        put(record, "kind", event.kind)
        put(record, "source", event.source)
        put(record, "time_seconds", event.time_seconds)
        put(record, "monotonic_seconds", event.monotonic_seconds)
        put(record, "pid", event.pid)
        put(record, "attempt", event.attempt)
        put(record, "job", event.job)
        put(record, "rank", event.rank)
        put(record, "node", event.node)
        put(record, "step", event.step)
        return record


HEADER = tuple(name for name in Record.__annotations__ if name.islower())
"""What every event has, by the names of its attributes."""


def keys_of(record: type[Record]) -> tuple[str, ...]:
    """The names that the fields of `record` have in the log, without the header's."""
    return tuple(key for _, key, _, _ in _readers(record))


Readers = tuple[tuple[str, str, Reader, bool], ...]
_KNOWN: dict[type[Any], Readers] = {}


def _readers(record: type[Record]) -> Readers:
    """(attribute, key in the log, how to read its value, whether it may be missing) of each field."""
    known = _KNOWN.get(record)
    if known is None:
        hints = get_type_hints(record)
        known = _KNOWN[record] = tuple(
            (name, one.key or name, reader(hints[name], lenient=True), one.default is not MISSING)
            for name, one in record.FIELDS.items()
        )
    return known
