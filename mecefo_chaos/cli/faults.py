"""`chaos faults`: what can be broken, how really, and with which parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from chaos.errors import UsageError, nearest, shown
from chaos.host.terminal import beside, text_columns
from mecefo_chaos.cli.shared import completing
from mecefo_chaos.cli.shared.options import JSON_OPTION
from mecefo_chaos.cli.shared.output import echo, print_as_is, print_json, print_text

if TYPE_CHECKING:
    from chaos.faults.base import Fault

# The table has a line for each fault in so many columns; in fewer, two.
_TABLE_COLUMNS = 80
# Folder of `chaos.faults` -> heading of the table.
_FAMILIES = {
    "process": "Processes and nodes",
    "network": "Network",
    "storage": "Checkpoints and snapshots",
    "device": "GPUs and tensors",
}
_PLUGINS = "Plug-ins"
# Words of `chaos.plan.needs` -> word in the table, and what it means.
_NEEDS = {
    "links": ("links", "a network for each rank: as root, or in containers"),
    "checkpoints": ("checkpoints", "a job that writes checkpoints"),
    "checkpoint-phase": ("checkpoints", "a job that writes checkpoints"),
    "snapshots": ("snapshots", "the built-in job with snapshots in the nodes' memory"),
    "own-runtime": ("built-in", "the built-in job"),
    "data-workers": ("workers", "your own job (-- COMMAND), with DataLoader workers"),
    "lookups": ("lookups", "your own job (-- COMMAND) that looks names up"),
    "cuda": ("CUDA", "ranks that run on GPUs"),
    "root": ("root", "root's rights"),
}


@click.command()
@click.argument("kind", required=False, shell_complete=completing.ONLY_KINDS)
@JSON_OPTION
def faults(kind: str | None, as_json: bool) -> int:
    """List the faults, by family; or all about one KIND: its parameters, what it needs, and how it is undone.

    Fidelity: `real` is the failure itself, `shaped` an imitation (a delay, less bandwidth), `telemetry` only what
    monitoring sees.
    """
    from chaos.experiment.sources import of_broken_plugins
    from chaos.faults import broken_plugins, registry

    known = registry()
    if kind is not None and kind not in known:
        missing = f"there is no fault {shown(kind)}: `chaos faults` lists them{of_broken_plugins()}"
        raise UsageError(missing, suggestion=nearest(kind, known))
    rows = [describe(fault) for name, fault in known.items() if kind in (None, name)]
    for plugin, reason in broken_plugins().items():
        echo(f"chaos: the plug-in {plugin} {reason}; its faults are left out")
    if as_json:
        print_json(rows)
        return 0
    if kind is None:
        print_as_is(_table(known, text_columns()))
    else:
        print_text(_text(rows[0]))
    return 0


def _table(known: Mapping[str, type[Fault[Any]]], width: int) -> str:
    """All kinds by family: a line each in 80 columns or more, else two."""
    is_narrow = width < _TABLE_COLUMNS
    lines = [f"  {'KIND':<25}{'FIDELITY':<11}NEEDS", "    WHAT IT DOES"]
    if not is_narrow:
        lines = [f"  {'KIND':<25}{'FIDELITY':<11}{'NEEDS':<13}WHAT IT DOES"]
    families: dict[str, list[type[Fault[Any]]]] = {heading: [] for heading in (*_FAMILIES.values(), _PLUGINS)}
    for fault in known.values():
        *_, folder = fault.__module__.removeprefix("chaos.faults.").split(".")[:-1] or [""]
        families[_FAMILIES.get(folder, _PLUGINS)].append(fault)
    for heading, members in families.items():
        lines += ["", heading] if members else []
        for fault in members:
            needs = ", ".join(dict.fromkeys(_NEEDS.get(need, (need, ""))[0] for need in _shown_needs(fault)))
            head, brief = f"  {fault.kind:<25}{fault.fidelity:<11}{needs or '-':<13}", _brief(fault)
            lines += [head.rstrip(), f"    {brief}"] if is_narrow else [f"{head}{brief}".rstrip()]
    used = dict.fromkeys(_NEEDS[need] for fault in known.values() for need in _shown_needs(fault) if need in _NEEDS)
    lines += ["", "Needs:"]
    lines += [line for word, meaning in used for line in beside(f"  {word}", meaning, 27, width)]
    return "\n".join([*lines, "", "`chaos faults KIND` shows one with its parameters."])


def _shown_needs(fault: type[Fault[Any]]) -> tuple[str, ...]:
    """Without what another one of them implies."""
    return tuple(need for need in fault.needs if need != "own-runtime" or "snapshots" not in fault.needs)


def _brief(fault: type[Fault[Any]]) -> str:
    from chaos.faults.base import MAX_BRIEF

    text = fault.brief or _summary(fault)
    return text if len(text) <= MAX_BRIEF else f"{text[: MAX_BRIEF - 3].rstrip()}..."


def _summary(fault: type[Fault[Any]]) -> str:
    return (fault.__doc__ or "").strip().partition("\n")[0]


def describe(fault: type[Fault[Any]]) -> dict[str, Any]:
    """What there is to be said of a kind of fault, as plain JSON values."""
    # With defaults as a user would write them: 512MiB, not bytes.
    schema = fault.Parameters.model_json_schema(mode="serialization")
    return {
        "kind": fault.kind,
        "family": fault.family or fault.__module__.rpartition(".")[2],
        "summary": _summary(fault),
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


def _text(row: dict[str, Any]) -> str:
    needs = ", ".join(row["needs"]) or "nothing"
    lines = [
        row["kind"],
        f"    {row['summary']}",
        f"    fidelity: {row['fidelity']}   acts on: {row['scope']}   needs: {needs}   undo: {row['undo']}",
    ]
    if row["lifetime"] is not None:
        lines.append(f"    duration: {row['lifetime']}, unless --for says otherwise")
    for name, parameter in row["parameters"].items():
        default = "required" if parameter["required"] else f"default {default_text(parameter['default'])}"
        about = f": {parameter['description']}" if parameter["description"] else ""
        lines.append(f"    {name} ({parameter['accepts']}; {default}){about}")
    return "\n".join(lines)


def default_text(value: object) -> str:
    """A default as a user would write it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
