"""How our modules are started in a container: by the image's Python, whatever else is on its path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import harness
from harness.backends.docker.image import python_command, source_digest

pytestmark = pytest.mark.unit

ROOT = Path(harness.__file__).parents[1]


@pytest.mark.parametrize("place", ["current folder", "PYTHONPATH"])
def test_other_packages_of_our_names_are_not_taken(tmp_path, place):
    for name in ("chaos", "harness", "mecefo_runtime"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('of another project')\n")
    others = [str(tmp_path)] if place == "PYTHONPATH" else []
    _, *words = python_command("harness.backends.docker.image", source_digest())
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*others, str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_another_digest_is_refused(tmp_path):
    _, *words = python_command("harness.backends.docker.image", "another")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 1
