"""Why something is as it is: a code with fields, and tables that hold the sentence of each code.

Code decides by `Reason.code` and `Reason.fields`. A sentence is made from them where it is shown, and is never read.
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any

SENTENCE = "sentence"
"""The field that holds a sentence as it was written: by a plug-in without a table, or in a log without codes."""


@dataclass(frozen=True, slots=True)
class Made:
    """The text of a code, made `by` a function of its fields; `example` shows it, with the fields in braces."""

    by: Callable[..., str]
    example: str


Text = str | Made
"""How a code reads: a template with the fields by name (`step {step}`), or one that a function makes."""


class Reason:
    """A code with fields, all plain JSON values; a field may be a `Reason` itself. Two with equal values are equal.

    A mapping with a `code` is read as a reason, so that a reason and its JSON have the same fields. A field that is
    None is left out; a number that is not finite is its name, as in `nan`.
    """

    __slots__ = ("code", "fields")

    def __init__(self, code: str, /, **fields: Any) -> None:
        self.code = code
        self.fields: Mapping[str, Any] = {
            name: plain for name, value in fields.items() if (plain := _plain(value)) is not None
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reason) and (self.code, self.fields) == (other.code, other.fields)

    def __hash__(self) -> int:
        return hash((self.code, repr(sorted(self.fields.items()))))

    def __repr__(self) -> str:
        return f"Reason({', '.join([repr(self.code), *(f'{key}={value!r}' for key, value in self.fields.items())])})"

    def get(self, name: str) -> Any:
        """The field of that name; None where it is missing."""
        return self.fields.get(name)

    def with_fields(self, **fields: Any) -> Reason:
        """The same with these fields, which come first."""
        return Reason(self.code, **{**fields, **self.fields, **fields})

    def to_dict(self) -> dict[str, Any]:
        """`{"code": CODE, FIELD: VALUE, ...}`."""
        return {"code": self.code, **{name: _json(value) for name, value in self.fields.items()}}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Reason:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: it has no code.
        """
        if not isinstance(raw.get("code"), str):
            raise ValueError(f"a reason without a code: {raw!r}")
        return cls(raw["code"], **{str(name): value for name, value in raw.items() if name != "code"})


def reason_of(raw: object) -> Reason | None:
    """The reason that a log or a document holds; None where it holds none that can be read."""
    return Reason.from_dict(raw) if isinstance(raw, Mapping) and isinstance(raw.get("code"), str) else None


class Table:
    """The codes of one kind of reason, in the order in which the documentation lists them, and how each reads.

    `others` are tables whose codes belong to the same kind.
    """

    def __init__(self, codes: Mapping[str, Text], *others: Table) -> None:
        self._codes: dict[str, Text] = dict(codes)
        self._fields: dict[str, tuple[str, ...]] = {}
        for other in others:
            self._codes |= other._codes

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __contains__(self, code: object) -> bool:
        return code in self._codes

    def of(self, *codes: str) -> Table:
        """The table of these codes alone."""
        return Table({code: self._codes[code] for code in codes})

    def text(self, reason: Reason) -> str:
        """The sentence: the field `sentence` where there is one, else by the table.

        It is the code in words where the table does not have the code, or the fields are not those of the code: a log
        of another version may have both.
        """
        if isinstance(written := reason.fields.get(SENTENCE), str):
            return written
        text = self._codes.get(reason.code)
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            if isinstance(text, str):
                return text.format(**reason.fields)
            if text is not None:
                names = self.fields_of(reason.code)
                return text.by(**{name: value for name, value in reason.fields.items() if name in names})
        return reason.code.replace("_", " ")

    def fields_of(self, code: str) -> tuple[str, ...]:
        """The fields from which the sentence of `code` is made."""
        if code not in self._fields:
            self._fields[code] = tuple(dict.fromkeys(_names_in(self._codes[code])))
        return self._fields[code]

    def example(self, code: str) -> str:
        """The sentence as the documentation shows it, with the names of fields in braces."""
        text = self._codes[code]
        return text if isinstance(text, str) else text.example


def _names_in(text: Text) -> Iterable[str]:
    if isinstance(text, Made):
        return inspect.signature(text.by).parameters
    return (name for _, name, _, _ in string.Formatter().parse(text) if name)


def _plain(value: Any) -> Any:
    """As JSON would return it."""
    if isinstance(value, Mapping):
        return reason_of(value) or {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not isfinite(value):
        # JSON has no such number: `float("nan")` reads it again.
        return str(value)
    return value if isinstance(value, Reason | str | int | float | bool | None) else str(value)


def _json(value: Any) -> Any:
    if isinstance(value, Reason):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _json(part) for key, part in value.items()}
    return [_json(part) for part in value] if isinstance(value, list) else value
