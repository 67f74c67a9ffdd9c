"""The reference of events: every kind with its fields, from the records' classes and the strings below their fields."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from types import ModuleType, NoneType
from typing import Any, get_args, get_type_hints

from mecefo_runtime.system import command_records, job_records, run_records
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.records import RECORDS

MARK = "<!-- kinds of events -->"
"""Where the page has the kinds."""
_GROUPS: Mapping[str, ModuleType] = {
    "The run and its incidents": run_records,
    "The job": job_records,
    "Your own training script": command_records,
}
_UNITS = {"_seconds": "s", "_monotonic": "s", "_bytes": "bytes", "_ratio": "ratio"}
_TYPES = {
    "int": "whole number",
    "float": "number",
    "str": "text",
    "bool": "true or false",
    "Any": "any",
    "None": "null",
}
_TYPES |= {"Reason": "reason", "PlannedIncident": "object", "Mapping": "object"}


def with_kinds(page: str) -> str:
    """The page with the kinds in the place of the mark."""
    return page.replace(MARK, "\n".join(_sections()))


def texts_of(record: type[Any]) -> dict[str, str]:
    """By field: the string below it in the class, or in the one that it inherits the field from; empty without one."""
    texts: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if base not in (Record, object):
            texts |= _own_texts(base)
    return texts


@cache
def _own_texts(record: type[Any]) -> Mapping[str, str]:
    (node,) = [
        node
        for node in ast.parse(inspect.getsource(sys.modules[record.__module__])).body
        if isinstance(node, ast.ClassDef) and node.name == record.__name__
    ]
    texts = {}
    for statement, following in pairwise([*node.body, ast.Pass()]):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
            case ast.AnnAssign(target=ast.Name(id=name)), _:
                texts[name] = ""
    return texts


def _sections() -> Iterator[str]:
    for heading, module in _GROUPS.items():
        yield f"### {heading}\n"
        for kind, record in RECORDS.items():
            if record.__module__ == module.__name__:
                yield f"#### {kind}\n\n{inspect.getdoc(record)}\n\nEmitted by: {record.EMITTED_BY}.\n"
                yield from _tables(record)


def _tables(record: type[Record]) -> Iterator[str]:
    hints = get_type_hints(record)
    yield _table({declared.key or name: (name, hints[name]) for name, declared in record.FIELDS.items()}, record)
    for name in record.FIELDS:
        for part in get_args(hints[name]):
            if isinstance(part, type) and is_dataclass(part):
                yield f"Each of `{name}`:\n"
                yield _table({key: (key, hint) for key, hint in get_type_hints(part).items()}, part)


def _table(fields: Mapping[str, tuple[str, Any]], record: type[Any]) -> str:
    texts, lines = texts_of(record), ["| field | type | unit | meaning |", "|---|---|---|---|"]
    for key, (name, hint) in fields.items():
        text = texts[name].replace("|", "\\|")
        lines.append(f"| `{key}` | {_type(hint)} | {_unit(name)} | {text} |")
    return "\n".join(lines) + "\n"


def _unit(name: str) -> str:
    return next((unit for end, unit in _UNITS.items() if f"_{name}".endswith(end) and not name.startswith("num_")), "")


def _type(hint: Any) -> str:
    """The type of a field in words: `list of whole number`, `text or null`."""
    arguments = get_args(hint)
    if NoneType in arguments:
        return " or ".join(map(_type, arguments))
    if getattr(hint, "__origin__", None) is tuple:
        is_list = arguments[1:] == (Ellipsis,)
        return f"list of {_type(arguments[0])}" if is_list else f"[{', '.join(map(_type, arguments))}]"
    return _TYPES["None" if hint is NoneType else getattr(hint, "__name__", str(hint))]
