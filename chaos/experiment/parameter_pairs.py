"""`-p KEY=VALUE`: what a command line says of a fault's own parameters."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from chaos.errors import UsageError, shown
from chaos.experiment.fault_spec import FAULT_KEYS
from chaos.language.validation_errors import Problems
from chaos.language.yaml_lines import plain

if TYPE_CHECKING:
    from chaos.faults.base import Fault


def named(key: str) -> str:
    """A key as messages show it."""
    return key if key.isidentifier() else shown(key)


def _about_option(key: str, text: str, kind: type[Fault[Any]] | None) -> str:
    """What to write in place of a parameter that has the name of something that is of every fault."""
    if key in ("kind", "draw"):
        return f"{key} is no parameter: leave it out"
    if kind is not None and ((key == "for" and not kind.has_lifetime) or (key == "repair" and not kind.is_loss)):
        return f"{kind.kind} has no {'duration' if key == 'for' else 'repair'}: leave it out"
    if key == "repair":
        return f"with the built-in job write --repair {text}, else leave it out"
    return f"{key} is an option of every fault: write --{key} {text}"


def read_pairs(
    pairs: Collection[str],
    kind: type[Fault[Any]] | None,
    problems: Problems,
    *,
    index: int = 0,
    of_fault: str = "",
) -> dict[str, Any]:
    """The parameters that `pairs` give, each as a file would have it; as text where a fault of `kind` takes only that.

    They are of fault `index`, and `of_fault` marks its options in a message.

    What is no KEY=VALUE, there twice, or of every fault is one of the `problems`. What else is wrong is said when the
    experiment is judged.
    """
    found: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        wrong: str | None = None
        if not key or not equals:
            wrong = "write KEY=VALUE, such as delay=50ms"
        elif key in FAULT_KEYS:
            wrong = _about_option(key, text, kind)
            if kind is not None and kind.Parameters.model_fields:
                wrong += f"; {kind.kind} itself takes {', '.join(kind.Parameters.model_fields)}"
        elif key in texts:
            wrong = f"{key} is given twice"
        else:
            try:
                found[key], texts[key] = plain(text), text
            except UsageError as error:
                wrong = error.message
        if wrong is not None:
            problems.note(("faults", index, key), UsageError(wrong, key=f"--param {shown(pair)}{of_fault}"))
    try:
        if kind is not None:
            kind.Parameters.model_validate(found)
    except ValidationError as error:
        wants_text = {details["loc"][0] for details in error.errors() if details["type"] == "string_type"}
        found.update({key: texts[key] for key in texts if key in wants_text})
    except UsageError:
        pass
    for key, text in texts.items():
        if not text and found[key] is None:
            message = "has no value: write KEY=VALUE, such as delay=50ms"
            problems.note(("faults", index, key), UsageError(message, key=f"--param {named(key)}{of_fault}"))
            del found[key]
    return found
