"""YAML as plain values, and the line of every one of them, so that an error can say where it is.

Scalars are read as YAML 1.2 has them (https://yaml.org/spec/1.2.2/#103-core-schema), not as PyYAML's 1.1 does: `on` and
`off` are words and `0100` is a hundred. Whatever a file holds, reading it ends in values or in a UsageError, and soon.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chaos.errors import UsageError, all_of, shown
from chaos.user_files import read_input

# An experiment is a page of text. What is beyond these is a mistake or an attack (deep nesting, exponential aliases).
MAX_BYTES = 128 * 1024
MAX_DEPTH = 20
MAX_VALUES = 20_000

_INT = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", re.IGNORECASE)

KeyPath = tuple[str | int, ...]
Mistake = tuple[KeyPath, UsageError]
"""Where something is wrong, and what."""

_TAG = "tag:yaml.org,2002:"
_CORE_SCHEMA = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
)


@dataclass(frozen=True, slots=True)
class Document:
    """The top-level mapping of a file, and for every key path in it the line (from 1) on which it stands."""

    values: Mapping[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    path: str | None = None


class _Loader(yaml.SafeLoader):
    """Composes nodes with the tags of the core schema, and refuses depth before the composer recurses into it."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """As the base class does, down to the deepest level allowed."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} levels deep", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class Dumper(yaml.SafeDumper):
    """Writes what this module reads: plain `on` and `off`, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always: a value is written where it is used."""
        return True


for _class in (_Loader, Dumper):
    _class.yaml_implicit_resolvers = {}
    for _name, _pattern, _first in _CORE_SCHEMA:
        _class.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"(?:{_pattern})$"), _first)


def read(path: Path, mistakes: list[Mistake] | None = None) -> Document:
    """Read a file; see `parse` for `mistakes`.

    Raises:
        UsageError: there is no such file, it cannot be read, or it is not a YAML mapping that makes sense.
    """
    try:
        content = read_input(path, MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read the file: {reason}", path=str(path)) from error
    return parse(content, str(path), mistakes)


def parse(content: bytes | str, path: str | None = None, mistakes: list[Mistake] | None = None) -> Document:
    """Read the content of a file that is called `path`.

    A single key or scalar that makes no sense is left out and added to `mistakes`, so that the rest can be judged.

    Raises:
        UsageError: it is not a YAML mapping, or it has errors and no `mistakes` list was given: all of them.
    """
    text = _decode(content.encode(errors="surrogatepass") if isinstance(content, str) else content, path)
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(filter(None, (error.problem, error.context)))
        if "character '\\t'" in problem:
            problem = "a tab where only spaces may stand: indent with spaces"
        raise UsageError(f"not YAML: {problem}", path=path, line=mark.line + 1 if mark else None) from error
    except (yaml.YAMLError, ValueError, ArithmeticError) as error:
        # Not only YAMLError: an escape such as "\UFFFFFFFF" makes PyYAML's scanner (6.0.3) fail in chr().
        raise UsageError(f"not YAML: {str(error).splitlines()[0]}", path=path) from error
    if root is None:
        raise UsageError("the file is empty: `chaos schema` says what belongs there", path=path)
    reader = _Reader(path)
    if not isinstance(root, yaml.MappingNode):
        raise reader.refused(root, "an experiment is a mapping: lines of the form `name: my-experiment`")
    document = Document(reader.read(root, ()), reader.lines, path)
    if mistakes is not None:
        mistakes += reader.mistakes
    elif reader.mistakes:
        raise all_of([error for _, error in reader.mistakes])
    return document


def shown_key(key: str) -> str:
    """A key that a user wrote, as a message names it: bare, unless it is long or has something odd in it."""
    quoted = shown(key)
    return key if quoted[1:-1] == key else quoted


def plain(text: str) -> Any:
    """The value that `text` has as a plain scalar of a file: `3` is a number, `on` is text.

    Raises:
        UsageError: it cannot be used in a file.
    """
    return _value_of(_Loader("").resolve(yaml.ScalarNode, text, (True, False)), text)  # type: ignore[no-untyped-call]


def _value_of(tag: str, text: str) -> Any:
    match tag.removeprefix(_TAG):
        case "str" if not any("\ud800" <= character <= "\udfff" for character in text):
            return text
        case "null" if not text or text.lower() in ("~", "null"):
            return None
        case "bool" if text.lower() in ("true", "false"):
            return text.lower() == "true"
        case "int" if _INT.fullmatch(text):
            return int(text)
        case "float" if _FLOAT.fullmatch(text):
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    raise UsageError(f"{shown(text)} cannot be used here: write plain text or a number")


def _decode(content: bytes, path: str | None) -> str:
    if len(content) > MAX_BYTES:
        raise UsageError(f"too large to be an experiment: more than {MAX_BYTES // 1024} KiB", path=path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError("not text: it is not encoded in UTF-8", path=path, line=line) from error


class _Reader:
    """Turns nodes into values and notes their lines."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._num_values = 0
        self._depth = 0
        self.lines: dict[KeyPath, int] = {}
        self.mistakes: list[Mistake] = []
        self._noted: set[str] = set()

    def refused(self, node: yaml.Node, message: str, key: str | None = None) -> UsageError:
        """The error that refuses `node`."""
        named = None if key is None else shown_key(key)
        return UsageError(message, path=self._path, line=node.start_mark.line + 1, key=named)

    def read(self, node: yaml.Node, where: KeyPath) -> Any:
        """The value of `node`, which stands at `where`."""
        # An alias is the very node of its anchor. Reading it again each time is what counts exponential ones, and ends
        # those that contain themselves.
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise self.refused(node, f"more than {MAX_VALUES} values, aliases unfolded")
        if self._depth > MAX_DEPTH:
            raise self.refused(node, f"nested more than {MAX_DEPTH} levels deep")
        self.lines.setdefault(where, node.start_mark.line + 1)
        self._depth += 1
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, where)
            if isinstance(node, yaml.SequenceNode):
                return [self.read(item, (*where, index)) for index, item in enumerate(node.value)]
            assert isinstance(node, yaml.ScalarNode)
            return self._scalar(node, where)
        finally:
            self._depth -= 1

    def _mapping(self, node: yaml.MappingNode, where: KeyPath) -> dict[str, Any]:
        inherited: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                bases = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for base in bases:
                    if not isinstance(base, yaml.MappingNode):
                        raise self.refused(base, "`<<` takes a mapping, or a list of them")
                    inherited = {**self.read(base, where), **inherited}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            try:
                key = _value_of(key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            except UsageError:
                key = None
            if not isinstance(key, str):
                written = key_node.value if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
                self._note((*where, str(written)), self.refused(key_node, f"a key must be text, not {shown(written)}"))
                continue
            place = (*where, key)
            if key in own:
                message = f"duplicate key; the first one is on line {self.lines[place]}"
                self._note(place, self.refused(key_node, message, key))
                continue
            self.lines[place] = key_node.start_mark.line + 1
            own[key] = self.read(value_node, place)
        return {**inherited, **own}

    def _scalar(self, node: yaml.ScalarNode, where: KeyPath) -> Any:
        try:
            return _value_of(node.tag, node.value)
        except UsageError as error:
            self._note(where, self.refused(node, error.message))
            return None

    def _note(self, where: KeyPath, mistake: UsageError) -> None:
        # What an alias or a merge reads again is one mistake.
        if str(mistake) not in self._noted:
            self._noted.add(str(mistake))
            self.mistakes.append((where, mistake))
