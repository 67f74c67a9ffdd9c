"""The reference of the command line, from its click commands, and of experiment files, from their JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

from chaos.experiment.backends import backends
from chaos.experiment.fault_spec import FAULT_KEYS
from chaos.experiment.schema import json_schema
from chaos.experiment.terms import terms
from mecefo_chaos.cli.faults import accepts
from mecefo_chaos.cli.main import cli

# Model of the schema, the key under which it stands in a file, and what there is to be said of it.
_SECTIONS = (
    ("Job", "job", "The job, if it is ours."),
    ("Approximation", "job.approximation", ""),
    ("Health", "job.health", ""),
    ("Checkpoint", "job.checkpoint", ""),
    ("Snapshots", "job.snapshots", ""),
    ("HangRuleText", "job.hang_rule, a command's", ""),
    ("CommandJob", "job, of a command", "The job, if it is somebody else's: with `runtime: command`."),
    ("Limits", "limits", ""),
    *((one.Settings.__name__, one.settings_key, "") for one in backends().values() if one.settings_key),
)


def command_line() -> str:
    """The page of all commands with their options."""
    context = click.Context(cli, info_name="chaos")
    head = """\
# Command line

Every command, with every option: for those who look one up. `chaos COMMAND --help` says the same.

`chaos` is installed twice, as `mecefo-chaos` too, since Chaos Toolkit brings a `chaos` of its own.

Results go to standard output, messages and progress to standard error: with `--json` standard output is one document.
Text fits the terminal (`COLUMNS` where it is set, 80 columns without a terminal): a table that is too wide is printed
in parts, each with the columns that name its rows. A command that works for more than two seconds shows on standard
error how far it is: on a terminal in one line, elsewhere with a line after two seconds and then every half minute.
"""
    commands = [cli.commands[name] for name in cli.list_commands(context)]
    return head + "".join(_command(command, context) for command in commands)


def _command(command: click.Command, parent: click.Context) -> str:
    """The section of a command, and those of its subcommands."""
    context = click.Context(command, info_name=command.name, parent=parent)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    rows = [(_names(option), _about(option, context)) for option in options]
    table = _table(("option", "meaning"), rows) if rows else ""
    subcommands = command.commands.values() if isinstance(command, click.Group) else ()
    section = f"\n## {context.command_path}\n\n```text\n{usage}\n```\n\n{_prose(command.help or '')}\n\n{table}"
    return section + "".join(_command(one, context) for one in subcommands)


def _names(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.metavar or _choices(option)}"
    return ", ".join(
        f"`{name}{value if name.startswith('--') else ''}`" for name in (*option.opts, *option.secondary_opts)
    )


def _choices(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.type.name.upper()


def _about(option: click.Option, context: click.Context) -> str:
    default = option.get_default(context) if option.show_default else None
    return _cell(option.help or "") + (f" Default: `{default}`." if default is not None else "")


def _prose(text: str) -> str:
    r"""The text of a command's help: a paragraph that begins with \b alone keeps its lines."""
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        paragraphs.append(f"```text\n{rest}\n```" if first.strip() == "\b" else " ".join(paragraph.split()))
    return "\n\n".join(paragraphs)


def experiment() -> str:
    """The page of all keys of an experiment file."""
    schema = json_schema()
    definitions = schema["$defs"]
    head = """\
# Experiment file: all keys

Every key of an experiment file. [Experiments](experiments.md) explains them with examples.
`chaos schema` prints the JSON Schema of which this page is made: an editor that knows it completes and checks the file.

"""
    parts = [head, _keys(schema, "")]
    for model, where, about in _SECTIONS:
        parts += [
            f"\n## {where}\n\n",
            f"{about}\n\n" if about else "",
            _keys(definitions[model], where.partition(",")[0]),
        ]
    faults = definitions["FaultSpec"]["oneOf"]
    pages = ", ".join(f"[{fault['title']}](faults/{fault['title']}.md)" for fault in faults)
    parts.append(
        "\n## faults\n\nA list; each fault is a mapping. `kind` and one of `at`, `every` and `rate` are needed. "
        f"A kind's own parameters stand beside these keys; its page lists them: {pages}.\n\n"
    )
    said = {key: value for fault in faults for key, value in fault["properties"].items()}
    parts.append(_keys({"properties": {key: said[key] for key in FAULT_KEYS}}, ""))
    return "".join(parts)


def _keys(model: Mapping[str, Any], within: str) -> str:
    """A table of the keys of a model, which stand in the part `within` of a file."""
    rows = []
    for key, field in model["properties"].items():
        needed = key in model.get("required", ())
        default = "needed" if needed else _default(field.get("default"))
        kind = "see `chaos faults`" if key == "kind" else _accepts(field)
        option = terms().get(f"{within}.{key}" if within else key)
        name = "" if option is None else f"`{option}`"
        rows.append((f"`{key}`", _cell(field.get("description", "")), kind, default, name))
    return _table(("key", "meaning", "what it may be", "default", "option"), rows)


def _accepts(field: Mapping[str, Any]) -> str:
    if "$ref" in field or "oneOf" in field or field.get("type") == "object" or _refers(field):
        return "mapping"
    if field.get("type") == "array":
        return "list"
    choices = [choice for choice in field.get("anyOf", (field,)) if choice.get("type") != "null"]
    return " or ".join("mapping" if choice.get("type") == "object" else _cell(_words(choice)) for choice in choices)


def _words(choice: Mapping[str, Any]) -> str:
    if "enum" in choice or "const" in choice:
        return ", ".join(f"`{value}`" for value in choice.get("enum", [choice.get("const")]))
    if choice.get("type") == "string" and choice.get("examples"):
        return "such as " + ", ".join(f"`{example}`" for example in choice["examples"])
    return accepts(dict(choice)).replace("string", "text")


def _refers(field: Mapping[str, Any]) -> bool:
    return any("$ref" in choice for choice in field.get("anyOf", ()))


def _default(value: object) -> str:
    if value is None or isinstance(value, dict | list):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
