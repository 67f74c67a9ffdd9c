"""`chaos faults`: what can be broken, how really, and with which parameters."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import click

from chaos.commands.shared.options import JSON_OPTION
from chaos.commands.shared.output import print_json, print_text
from chaos.errors import UsageError, nearest, shown

if TYPE_CHECKING:
    from chaos.faults.base import Fault

_MAX_WIDTH = 100


@click.command()
@click.argument("kind", required=False)
@JSON_OPTION
def faults(kind: str | None, as_json: bool) -> int:
    """List the faults: how real each is, what it needs, how it is undone, and its parameters. KIND: only that one."""
    from chaos.faults import broken_plugins, registry

    known = registry()
    if kind is not None and kind not in known:
        raise UsageError(f"there is no fault {shown(kind)}: `chaos faults` lists them", suggestion=nearest(kind, known))
    rows = [describe(fault) for name, fault in known.items() if kind in (None, name)]
    for plugin, reason in broken_plugins().items():
        click.echo(f"chaos: the plug-in {plugin} {reason}; its faults are left out", err=True)
    if as_json:
        print_json(rows)
        return 0
    print_text("\n\n".join(_text(row, _width()) for row in rows))
    return 0


def _width() -> int | None:
    """Of the terminal, in cells; None where nobody looks at one, and a line stays whole for whatever searches it."""
    return min(_MAX_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def describe(fault: type[Fault[Any]]) -> dict[str, Any]:
    """What there is to be said of a kind of fault, as plain JSON values."""
    # With defaults as a user would write them: 512MiB, not bytes.
    schema = fault.Parameters.model_json_schema(mode="serialization")
    return {
        "kind": fault.kind,
        "family": fault.family or fault.__module__.rpartition(".")[2],
        "summary": (fault.__doc__ or "").strip().splitlines()[0],
        "scope": fault.scope,
        "fidelity": fault.fidelity,
        "needs": list(fault.needs),
        "undo": fault.undo_summary,
        "lifetime": _lifetime(fault),
        "parameters": {
            name: {
                "default": field.get("default"),
                "required": name in schema.get("required", ()),
                "accepts": accepts(field),
                "description": field.get("description", ""),
            }
            for name, field in schema.get("properties", {}).items()
        },
    }


def _lifetime(fault: type[Fault[Any]]) -> str | None:
    if not fault.has_lifetime:
        return None
    return "until the job ends" if fault.default_lifetime is None else str(fault.default_lifetime)


def accepts(field: dict[str, Any]) -> str:
    """What a value may be, in a few words."""
    if "enum" in field:
        return "|".join(map(str, field["enum"]))
    if "const" in field:
        return str(field["const"])
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(accepts(choice) for choice in field["anyOf"] if choice.get("type") != "null"))
    if field.get("type") == "string" and field.get("examples"):
        return f"such as {' or '.join(map(str, field['examples']))}"
    bounds = [
        f"{word} {field[key] if isinstance(field[key], int) else format(field[key], 'g')}"
        for key, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("exclusiveMaximum", "below"),
        )
        if key in field
    ]
    return " ".join([str(field.get("type", "value")), *bounds])


def _text(row: dict[str, Any], width: int | None) -> str:
    needs = ", ".join(row["needs"]) or "nothing"
    lines = [
        row["kind"],
        f"    {row['summary']}",
        f"    fidelity: {row['fidelity']}   acts on: {row['scope']}   needs: {needs}   undo: {row['undo']}",
    ]
    if row["lifetime"] is not None:
        lines.append(f"    goes on: {row['lifetime']}, unless --for says otherwise")
    for name, parameter in row["parameters"].items():
        default = "required" if parameter["required"] else f"default {default_text(parameter['default'])}"
        about = f": {parameter['description']}" if parameter["description"] else ""
        lines.append(f"    {name} ({parameter['accepts']}; {default}){about}")
    if width is None:
        return "\n".join(lines)
    return "\n".join(textwrap.fill(line, max(width, 20), subsequent_indent=" " * 6) for line in lines)


def default_text(value: object) -> str:
    """A default as a user would write it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
