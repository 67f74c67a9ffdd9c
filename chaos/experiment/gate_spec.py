"""A gate as an experiment asks for it: an expression, and whether the run ends as soon as it cannot hold any more.

What an expression means the harness knows (`harness.judging.gates`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from chaos.errors import UsageError, nearest, shown
from chaos.experiment.fields import MAX_TEXT, one_line
from chaos.language.validation_errors import said

_KEYS = ("gate", "abort_on_fail")


@dataclass(frozen=True, slots=True)
class AbortingGate:
    """A gate that ends the run when it is certain to fail; every other gate is just its expression."""

    expression: str

    def __str__(self) -> str:
        return self.expression


AnyGate = str | AbortingGate


def parse(value: object) -> AnyGate:
    """`EXPRESSION`, or `{gate: EXPRESSION, abort_on_fail: true}`.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(value, AbortingGate):
        return value
    if not isinstance(value, Mapping):
        return _expression(value)
    for key in value:
        if key not in _KEYS:
            raise UsageError("unknown key", key=str(key), suggestion=nearest(str(key), _KEYS))
    if "gate" not in value:
        raise UsageError("is missing: say what must hold, such as 'recovery_seconds < 5'", key="gate")
    aborts = value.get("abort_on_fail", False)
    if not isinstance(aborts, bool):
        raise UsageError(f"must be true or false, not {shown(aborts)}", key="abort_on_fail")
    expression = _expression(value["gate"])
    return AbortingGate(expression) if aborts else expression


def aborting(gates: Iterable[object]) -> list[object]:
    """`gates`, as a user wrote them, each with abort_on_fail; what is no gate is left to be refused as such."""
    return [{**gate, "abort_on_fail": True} if isinstance(gate, Mapping) else _with_abort(gate) for gate in gates]


def _with_abort(gate: object) -> object:
    return {"gate": gate, "abort_on_fail": True} if isinstance(gate, str) else gate


def _expression(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"must be text, or a mapping of gate and abort_on_fail, not {shown(value)}")
    if not value:
        raise UsageError("must be a text that is not empty, not ''")
    if len(value) > MAX_TEXT:
        raise UsageError(f"must be at most {MAX_TEXT} characters long, not {shown(value)}")
    return one_line(value)


def _plain(gate: AnyGate) -> Any:
    return {"gate": gate.expression, "abort_on_fail": True} if isinstance(gate, AbortingGate) else gate


_TEXT_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT, "examples": ["recovery_seconds p95 < 5"]}
_SCHEMA = {
    "anyOf": [
        _TEXT_SCHEMA,
        {
            "type": "object",
            "properties": {"gate": _TEXT_SCHEMA, "abort_on_fail": {"type": "boolean", "default": False}},
            "required": ["gate"],
            "additionalProperties": False,
        },
    ]
}
GateText = Annotated[AnyGate, PlainValidator(said(parse)), PlainSerializer(_plain), WithJsonSchema(_SCHEMA)]
