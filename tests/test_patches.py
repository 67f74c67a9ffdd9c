"""The patches that break a run on purpose break what is there: one of a name that is gone would change nothing."""

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.unit

TESTS = Path(__file__).parent
# What every patch that runs in another process begins with: it looks which of ours that is.
MARK = "sys.orig_argv"
# Other files have no patch: they are not parsed.
BEGINNINGS = (MARK, '"""{')


def texts(tree):
    """The string literals; what is filled in is left as a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "_" for part in node.values)


def replaced(patch):
    """The dotted names of ours that it imports, or assigns to; none of what is a part of a patch only."""
    try:
        tree = ast.parse(patch)
    except SyntaxError:
        return
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    targets = [target for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets]
    assigned = [ast.unparse(one) for target in targets for one in getattr(target, "elts", [target])]
    for name in (*imported, *(name for name in assigned if "." in name)):
        first, dot, rest = name.partition(".")
        whole = imported.get(first, first) + dot + rest
        if whole.startswith(("chaos.", "harness.", "mecefo_runtime.")):
            yield whole


def patches():
    for path in sorted(TESTS.rglob("*.py")):
        source = path.read_text()
        if path == Path(__file__) or not any(beginning in source for beginning in BEGINNINGS):
            continue
        for text in texts(ast.parse(source)):
            # One that is put together begins with a text of that kind, by its name, and is indented.
            text = f"if {MARK}:{text[1:]}" if text.startswith("_\n    ") else text
            if MARK in text and "\n" in text:
                yield from replaced(text)


@pytest.mark.parametrize("name", sorted(set(patches())))
def test_what_is_replaced_is_there(name):
    package, *parts = name.split(".")
    found = importlib.import_module(package)
    for part in parts:
        if isinstance(found, ModuleType) and not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        assert hasattr(found, part), f"no {part} in {found}"
        found = getattr(found, part)
