"""The agent inside a rank runs on the Python and the torch of the script: on Python 3.10 and newer."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT, SOURCES
from tests.test_project import is_type_checking, within

OLDEST = (3, 10)
# What a rank begins with: the agent, what it loads by path or by name, and what a script may call.
ENTRIES = [
    name
    for name in SOURCES
    if within(name, "chaos.external", "chaos.in_process", "chaos.agent")
    or name in ("chaos.host.private_names", "chaos.host.join_network")
]
# Beside the standard library. `isal` may be missing.
OF_THE_JOB = {"torch", "isal"}
# In a later standard library only (its documentation: "Added in version 3.11" and later).
LATER_NAMES = {
    "typing": (
        *("Self", "LiteralString", "Never", "NotRequired", "Required", "TypeVarTuple", "Unpack", "assert_never"),
        *("assert_type", "clear_overloads", "dataclass_transform", "get_overloads", "reveal_type", "override"),
        *(
            "TypeAliasType",
            "get_protocol_members",
            "is_protocol",
            "NoDefault",
            "ReadOnly",
            "TypeIs",
            "evaluate_forward_ref",
        ),
    ),
    "enum": ("StrEnum", "ReprEnum", "EnumCheck", "FlagBoundary", "verify", "member", "nonmember", "property"),
    "datetime": ("UTC",),
    "contextlib": ("chdir",),
    "hashlib": ("file_digest",),
    "itertools": ("batched",),
    "operator": ("call", "is_none", "is_not_none"),
    "logging": ("getLevelNamesMapping", "getHandlerByName"),
    "inspect": ("getmembers_static", "markcoroutinefunction", "BufferFlags"),
    "types": ("get_original_bases", "CapsuleType"),
    "math": ("cbrt", "exp2", "sumprod", "fma"),
    "os": ("process_cpu_count"),
    "asyncio": ("timeout", "TaskGroup", "Runner"),
    "copy": ("replace",),
}
LATER_MODULES = {"tomllib", "compression", "annotationlib", "string.templatelib", "concurrent.interpreters"}
LATER_BUILTINS = {"ExceptionGroup", "BaseExceptionGroup", "PythonFinalizationError"}
LATER_METHODS = {"add_note"}
IMPORT_ALL = """
import importlib, json, sys
told = {"imported": [], "without_torch": []}
for name in json.load(sys.stdin):
    try:
        importlib.import_module(name)
        told["imported"].append(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        told["without_torch"].append(name)
print(json.dumps(told))
"""


def tree(name: str) -> ast.Module:
    return ast.parse(SOURCES[name].read_text())


@functools.cache
def closure() -> list[str]:
    """Our modules that a rank may import, by any statement of any of them."""
    found: set[str] = set()
    waiting = list(ENTRIES)
    while waiting:
        name = waiting.pop()
        if name in found or name not in SOURCES:
            continue
        found.add(name)
        parts = name.split(".")
        waiting += [".".join(parts[:count]) for count in range(1, len(parts))]
        waiting += runtime_imports(tree(name))
    return sorted(found)


def statements(node: ast.AST) -> list[ast.AST]:
    """All nodes below, without what only type checkers see."""
    found = []
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            assert isinstance(child, ast.If)
            found += [below for part in child.orelse for below in [part, *statements(part)]]
        else:
            found += [child, *statements(child)]
    return found


def runtime_imports(tree: ast.AST) -> set[str]:
    """The modules that are named in import statements that are executed."""
    found = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in SOURCES else str(node.module) for name in names}
    return found


def too_new(source: str) -> list[str]:
    """What of `source` the oldest Python does not have."""
    try:
        tree = ast.parse(source, feature_version=OLDEST)
    except SyntaxError as error:
        return [f"syntax: {error.msg}"]
    found = []
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{a.name}" for a in node.names if a.name in LATER_NAMES.get(str(node.module), ())]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [f"{node.value.id}.{node.attr}"] if node.attr in LATER_NAMES.get(node.value.id, ()) else []
        elif isinstance(node, ast.Name) and node.id in LATER_BUILTINS:
            found.append(node.id)
        if isinstance(node, ast.Attribute) and node.attr in LATER_METHODS:
            found.append(node.attr)
    return found + sorted(runtime_imports(tree) & LATER_MODULES)


def other_pythons() -> dict[str, Path]:
    """Interpreters of other supported versions on this machine, by version."""
    places = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted(Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv").glob("versions/*/bin"))
    names = {path.resolve(): path for place in places if place.is_dir() for path in place.glob("python3.*")}
    found = {match[1]: path for path in names.values() if (match := re.fullmatch(r"python(3\.\d+)", path.name))}
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {version: path for version, path in found.items() if version != here}


PYTHONS = other_pythons()
SUPPORTED = [version for version in PYTHONS if int(version.split(".")[1]) >= OLDEST[1]]
TOO_OLD = [version for version in PYTHONS if 8 <= int(version.split(".")[1]) < OLDEST[1]]


@pytest.mark.unit
def test_the_closure_is_that_of_a_rank():
    found = closure()
    # Imported within functions too, and none of those that only the tool has.
    assert {"chaos.external.start", "chaos.in_process.slow", "mecefo_runtime.system.record"} <= set(found)
    assert not [name for name in found if within(name, "harness", "mecefo_chaos", "chaos.experiment")]


@pytest.mark.unit
def test_what_a_rank_imports_is_not_newer_than_its_python():
    assert {name: found for name in closure() if (found := too_new(SOURCES[name].read_text()))} == {}


@pytest.mark.unit
def test_a_rank_needs_the_standard_library_and_torch_alone():
    ours = {name.partition(".")[0] for name in SOURCES}
    tops = {name: {one.partition(".")[0] for one in runtime_imports(tree(name))} for name in closure()}
    foreign = {name: found - ours - OF_THE_JOB - sys.stdlib_module_names for name, found in tops.items()}
    assert {name: found for name, found in foreign.items() if found} == {}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from typing import Self\n", ["typing.Self"]),
        ("import typing\nx = typing.Self\n", ["typing.Self"]),
        ("try:\n    pass\nexcept* ValueError:\n    pass\n", ["syntax"]),
        ("import tomllib\n", ["tomllib"]),
        ("raise ExceptionGroup('', [])\n", ["ExceptionGroup"]),
        ("if TYPE_CHECKING:\n    from typing import Self\nelse:\n    from typing import Never\n", ["typing.Never"]),
        ("if TYPE_CHECKING:\n    from typing import Self\n", []),
    ],
)
def test_what_is_newer_is_found(source, found):
    assert [name.partition(":")[0] for name in too_new(source)] == found


@pytest.mark.unit
@pytest.mark.skipif(not SUPPORTED, reason="no Python of another supported version is on this machine")
@pytest.mark.parametrize("version", SUPPORTED)
def test_other_pythons_import_the_agent(version):
    # Its package is a folder of scripts, which Python imports by itself.
    names = [name for name in closure() if not name.startswith("chaos.external.site")]
    done = subprocess.run(
        [PYTHONS[version], "-W", "error", "-c", IMPORT_ALL],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert sorted(told["imported"] + told["without_torch"]) == names
    assert {"chaos.external.report", "chaos.external.uncaught", "chaos.external.identity"} <= set(told["imported"])


@pytest.mark.unit
@pytest.mark.skipif(not TOO_OLD, reason="no Python older than 3.10 is on this machine")
@pytest.mark.parametrize("version", TOO_OLD)
def test_a_python_that_is_too_old_is_named(version, tmp_path):
    (tmp_path / "script.py").write_text("raise ValueError('of the script')\n")
    done = subprocess.run(
        [PYTHONS[version], "script.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(ROOT / "chaos/external/site"),
            "CHAOS_AGENT": f"unix:{tmp_path}/none",
            "CHAOS_RUN": "x",
            "RANK": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        check=False,
    )
    assert done.returncode == 1 and "ValueError: of the script" in done.stderr
    assert f"needs Python 3.10 or newer, and this is {version}" in done.stderr
