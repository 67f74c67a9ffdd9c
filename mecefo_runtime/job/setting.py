"""A setting of a job: a dataclass field that also carries its key, text, unit, limits and command-line option.

Everything that shows or reads settings is made of these: the keys of an experiment's `job` and their JSON Schema, the
options of `chaos run` and of a job under torchrun, the names that error messages use, and the reference page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_METADATA = "setting"
REQUIRED = object()
"""In place of a default: the setting has none."""
INLINE = ""
"""As a key: the settings of the field's dataclass are keys of the dataclass that has the field."""
Unit = Literal["", "seconds", "bytes", "path"]
SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
BYTES_PER_UNIT = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """How a command line gives a setting; words that are alternatives are in the `metavar`, in lower case: auto|X."""

    flag: str
    metavar: str | None = None
    help: str = ""
    """In place of the setting's text, as whole sentences; with {words} for the names that a command line knows."""
    in_run: bool = True
    in_torchrun: bool = False

    @property
    def name(self) -> str:
        """The flag as an identifier."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def words(self) -> tuple[str, ...]:
        """The alternatives of the metavar that are written as they stand."""
        return tuple(word for word in (self.metavar or "").split("|") if word.islower() and "=" not in word)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a setting means and may be. A user writes a value with a `unit` as text: 30s, 512MiB."""

    key: str
    text: str
    unit: Unit = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    option: Option | None = None

    def violation(self, value: float) -> str | None:
        """What `value` must be, if it is outside the limits."""
        if self.above is not None and not value > self.above:
            return f"must be greater than {self.above:g}"
        if self.at_least is not None and not value >= self.at_least:
            return f"must be at least {self.at_least:g}"
        if self.at_most is not None and not value <= self.at_most:
            return f"must be at most {self.at_most:g}"
        return None


@dataclass(frozen=True, slots=True)
class Place:
    """A setting within a job: its path of keys, the name and type of its field, and the field's default."""

    path: KeyPath
    setting: Setting
    name: str
    type: Any
    default: Any
    """None where the setting is required."""
    is_required: bool

    @property
    def part(self) -> type | None:
        """The dataclass of the value, which may have settings; None: a plain value."""
        return next((kind for kind in alternatives(self.type) if dataclasses.is_dataclass(kind)), None)


def setting(
    default: Any,
    text: str = "",
    *,
    key: str | None = None,
    unit: Unit = "",
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    option: Option | None = None,
) -> Any:
    """A field of a frozen dataclass that is a setting. `key` is what a user writes, by default the field's name."""
    metadata = {_METADATA: (key, text, unit, at_least, above, at_most, option)}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@cache
def own_places(settings: type) -> tuple[Place, ...]:
    """The settings among the fields of a dataclass, without those within its parts."""
    hints = get_type_hints(settings)
    return tuple(
        Place(
            (key := field.name if given[0] is None else given[0],),
            Setting(key, *given[1:]),
            field.name,
            hints[field.name],
            None if (default := _default_of(field)) is REQUIRED else default,
            default is REQUIRED,
        )
        for field in dataclasses.fields(settings)
        if (given := field.metadata.get(_METADATA)) is not None
    )


def _default_of(field: dataclasses.Field[Any]) -> Any:
    """REQUIRED where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def places(settings: type, path: KeyPath = ()) -> Iterator[Place]:
    """All settings of a dataclass and of its parts, each part before its settings; `path` leads to the dataclass."""
    for place in own_places(settings):
        is_inline = place.setting.key == INLINE
        whole = dataclasses.replace(place, path=path if is_inline else (*path, *place.path))
        if not is_inline:
            yield whole
        if place.part is not None:
            yield from places(place.part, whole.path)


def help_of(place: Place, words: Collection[str] = ()) -> str:
    """The text of a setting's option, as whole sentences with the default; `words` are the names that it may be."""
    option, text = place.setting.option, place.setting.text
    if option is not None and option.help:
        return option.help.replace("{words}", ", ".join(words))
    sentence = f"{text[:1].upper()}{text[1:].replace('; default: ', '. Default: ')}."
    is_plain = isinstance(place.default, int | float | str) and place.default != ""
    return f"{sentence} Default: {place.default}." if is_plain and "Default: " not in sentence else sentence


def default_in_words(settings: type, path: KeyPath) -> str | None:
    """The default in the text of a setting, or else of the part that it belongs to; None: neither has one."""
    texts = {place.path: place.setting.text for place in places(settings)}
    of_setting = (texts[path[:length]].partition("; default: ")[2] for length in range(len(path), 0, -1))
    return next(filter(None, of_setting), None)


def alternatives(kind: Any) -> tuple[Any, ...]:
    """The types of a union; of any other type, the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, type(int | None)) else (kind,)


def check_limits(values: Any) -> None:
    """Check the numbers of a dataclass against the limits of its settings, but not times: tests have short ones.

    Raises:
        ValueError: one is outside.
    """
    kind: type = type(values)
    for place in own_places(kind):
        value = getattr(values, place.name)
        is_checked = isinstance(value, int | float) and place.setting.unit != "seconds"
        if is_checked and (violation := place.setting.violation(value)) is not None:
            raise ValueError(f"{place.name} {violation}, not {value}")


def words_of(kind: Any) -> tuple[str, ...]:
    """The words that a type of literals allows, in order."""
    return tuple(word for part in alternatives(kind) if get_origin(part) is Literal for word in get_args(part))
