"""Finds the messages of the product that name an option, over its syntax trees."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from chaos.experiment.terms import terms
from tests.sources import ROOT, SOURCES, nodes

PACKAGES = ("chaos", "harness", "mecefo_runtime", "mecefo_chaos")
# A field of a template (`mecefo_runtime.system.reason.Table`), escaped.
_HOLE = re.compile(r"\\\{\w[^{}]*\\\}")
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z_-]*|-p(?= ))")
# Texts of help, and names by which a message says where a mistake is.
_NO_ADVICE = ("help", "metavar", "key", "label")
_HELP_CONSTANT = re.compile(r"_?([A-Z]+_)?HELP")
_MIN_WORDS = 3


@dataclass(frozen=True)
class Message:
    """A text that names options, as it stands in the product: `pattern` has a wildcard for each value in it.

    `options` are those that it names itself; one that is put together when the message is made is not among them.
    """

    place: str
    text: str
    pattern: str
    options: frozenset[str]

    def is_in(self, text: str) -> bool:
        """Whether this message, with some values, is part of `text`."""
        return re.search(self.pattern, text, re.DOTALL) is not None


@functools.cache
def messages() -> tuple[Message, ...]:
    """All of them."""
    return tuple(
        message
        for module, path in SOURCES.items()
        if module.split(".")[0] in PACKAGES
        for message in _in(nodes(module), str(path.relative_to(ROOT)))
    )


def in_source(source: str, path: str) -> list[Message]:
    """Those of one file."""
    return list(_in(tuple(ast.walk(ast.parse(source))), path))


def _in(nodes: Sequence[ast.AST], path: str) -> Iterator[Message]:
    ignored = set(_ignored(nodes))
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            # Its constant parts are no texts of their own.
            ignored.update(id(part) for part in node.values)
    for node in nodes:
        if id(node) in ignored:
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            message = _message(f"{path}:{node.lineno}", parts)
            if message is not None:
                yield message


def _ignored(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Nodes that are docstrings, text of help, or the name of a place."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield id(node.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Made":
            # The example of a sentence, for the documentation.
            yield from (id(part) for part in ast.walk(node.args[1]))
        elif isinstance(node, ast.keyword) and node.arg in _NO_ADVICE:
            yield from map(id, ast.walk(node.value))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and _HELP_CONSTANT.fullmatch(one.id) for one in targets):
                yield from map(id, ast.walk(node.value))


def _message(place: str, parts: list[ast.expr]) -> Message | None:
    text, pattern, options = "", "", set()
    names_one = False
    for part in parts:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            pattern += _HOLE.sub(".*?", re.escape(str(part.value)))
            continue
        value = part.value if isinstance(part, ast.FormattedValue) else part
        text += f"{{{ast.unparse(value)}}}"
        pattern += ".*?"
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            names_one |= value.func.id in ("setting", "option_name")
            if value.func.id == "setting" and isinstance(value.args[0], ast.Constant):
                key = str(value.args[0].value)
                options |= {terms()[key]} if key in terms() else set()
    options |= set(_OPTION.findall(text))
    words = re.findall(r"[A-Za-z]{2,}|-p|--[\w-]+|\{.*?\}", text)
    if not (options or names_one) or len(words) < _MIN_WORDS:
        return None
    return Message(place, text, pattern, frozenset(options))
