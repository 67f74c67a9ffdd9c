"""Modules of ours under private names, in processes that have others of the same names."""

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.host import private_names

pytestmark = pytest.mark.unit

# As a script's process has it: nothing of ours imported, and its own folder first on the path.
BEGIN = f"""
import sys
from importlib.util import module_from_spec, spec_from_file_location

sys.path.insert(0, "FOLDER")
spec = spec_from_file_location("names", {private_names.__file__!r})
names = module_from_spec(spec)
spec.loader.exec_module(names)
"""


@pytest.fixture
def script(tmp_path):
    """Runs a script after `BEGIN`, in a process without the packages that are installed here."""

    def run(text):
        text = BEGIN.replace("FOLDER", str(tmp_path)) + text
        done = subprocess.run([sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


def own_package(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("NAME = 'own'\n")


def test_nothing_in_the_way(script):
    assert script("print(names.is_needed())") == ["False"]


@pytest.mark.parametrize("name", ["chaos", "mecefo_runtime"])
def test_package_in_the_way(script, tmp_path, name):
    own_package(tmp_path, name)
    assert script("print(names.is_needed())") == ["True"]


def test_folder_in_the_way_that_is_no_package(script, tmp_path):
    """Of experiments, say."""
    (tmp_path / "chaos").mkdir()
    assert script("print(names.is_needed())") == ["True"]


def test_modules_that_are_not_in_the_way(script, tmp_path):
    own_package(tmp_path, "harness")
    (tmp_path / "json").mkdir()
    (tmp_path / "training.py").touch()
    assert script("print(names.is_needed())") == ["False"]


@pytest.mark.parametrize("imported", ["", "import chaos, json\n"], ids=["not imported", "imported"])
def test_ours_and_theirs(script, tmp_path, imported):
    for name in ("chaos", "mecefo_runtime", "json"):
        own_package(tmp_path, name)
    said = script(
        f"""{imported}
wire = names.load("mecefo_runtime.system.wire")
assert names.is_needed()
assert b'"a"' in wire.encode({{"a": 1}}) and wire.json.decoder
assert wire is names.load("mecefo_runtime.system.wire")
process_table = names.load("chaos.host.process_table")
assert process_table.ProcessId is names.load("mecefo_runtime.system.process").ProcessId
import chaos, json, mecefo_runtime
print(chaos.NAME, json.NAME, mecefo_runtime.NAME)
"""
    )
    assert said == ["own"] * 3


def test_what_is_imported_before_the_script_stays_unknown_to_it(script, tmp_path):
    own_package(tmp_path, "json")
    said = script(
        """
path, sys.path[:] = list(sys.path), sys.path[1:]
network = names.load_before_the_script("chaos.host.join_network")
sys.path[:] = path
import json
assert network.json.loads("1") == 1
print(json.NAME, "chaos" in sys.modules)
"""
    )
    assert said == ["own", "False"]


def test_imports_by_name_in_ours(script, tmp_path):
    """As the agent imports what is done in a rank."""
    own_package(tmp_path, "chaos")
    said = script(
        """
names.load("chaos.host")
import importlib, builtins
found = names._BUILTINS["__import__"]("chaos.host.process_table", fromlist=["threads"])
print(found.__name__, names._BUILTINS["__import__"]("chaos.host.process_table").__name__)
"""
    )
    assert said == ["_mecefo_chaos.chaos.host.process_table", "_mecefo_chaos.chaos"]
