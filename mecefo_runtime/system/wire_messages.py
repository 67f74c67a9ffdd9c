"""Messages as frozen dataclasses: on the wire an object with the class's name as `type` and the fields as keys.

What comes in is checked against the class: an unknown type, an unknown key or a value of another type is refused, and
the connection with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from mecefo_runtime.system.json_values import JsonTypeError, from_json, to_json
from mecefo_runtime.system.wire import Message, WireError


def to_wire(message: object) -> Message:
    """A message, one of the dataclasses of its protocol, as a JSON object."""
    return {"type": type(message).__name__, **to_json(message)}


def reader(union: object) -> Callable[[Message], Any]:
    """A function that reads any of the messages of `union`; it raises WireError for anything else."""
    kinds = {kind.__name__: kind for kind in get_args(union)}

    def read(raw: Message) -> Any:
        name = raw.get("type")
        kind = kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            raise WireError(f"not a message of ours: type {str(name)[:80]!r}")
        try:
            return from_json(kind, {key: value for key, value in raw.items() if key != "type"})
        except JsonTypeError as error:
            raise WireError(f"not a message of ours: {error}") from error

    return read
