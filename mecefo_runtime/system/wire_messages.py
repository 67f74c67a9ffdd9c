"""Messages as frozen dataclasses: on the wire an object with the message's word as `type` and the fields as keys.

What comes in is checked against the class: an unknown type, an unknown key or a value of another type is refused, and
the connection with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

from mecefo_runtime.system.json_values import JsonTypeError, from_json, to_json
from mecefo_runtime.system.wire import Message, WireError

T = TypeVar("T")


class Messages:
    """The messages of one protocol, or of one side of it, by their words; `refusal` begins the error for all else."""

    def __init__(self, kinds: Mapping[str, type[Any]], refusal: str) -> None:
        self._kinds = kinds
        self._words = {kind: word for word, kind in kinds.items()}
        self._refusal = refusal

    def word_of(self, message: object) -> str:
        """The word for a message's kind."""
        return self._words[type(message)]

    def to_wire(self, message: object) -> Message:
        """A message as a JSON object."""
        return {"type": self.word_of(message), **to_json(message)}

    def read(self, raw: object) -> Any:
        """Read any of the messages.

        Raises:
            WireError: it is something else.
        """
        if not isinstance(raw, dict):
            raise WireError(f"{self._refusal}: a JSON object is expected")
        word = raw.get("type")
        kind = self._kinds.get(word) if isinstance(word, str) else None
        if kind is None:
            raise WireError(f"{self._refusal}: type {str(word)[:80]!r}")
        return self.read_as(kind, {key: value for key, value in raw.items() if key != "type"})

    def read_as(self, kind: type[T], values: Message) -> T:
        """Read a message whose kind is known, and which has no `type`.

        Raises:
            WireError: it is something else.
        """
        try:
            return from_json(kind, values)
        except JsonTypeError as error:
            raise WireError(f"{self._refusal}: {error}") from error


def to_wire(message: object) -> Message:
    """A message of a protocol whose words are the names of its classes, as a JSON object."""
    return {"type": type(message).__name__, **to_json(message)}


def reader(union: object) -> Callable[[Message], Any]:
    """A function that reads any of the messages of `union` by the names of their classes; else it raises WireError."""
    return Messages({kind.__name__: kind for kind in get_args(union)}, "not a message of ours").read
