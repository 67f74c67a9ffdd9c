"""On a machine without an engine all else works, and what is left out says why."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 600.0


@pytest.fixture
def nowhere(tmp_path):
    """An environment whose engine is not there."""
    return {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/docker.sock", "CHAOS_STATE": str(tmp_path / "state")}


def said(words, environment):
    settings = {"env": environment, "cwd": ROOT, "timeout": TIMEOUT_SECONDS, "check": False}
    return subprocess.run(words, capture_output=True, text=True, **settings)


def test_the_doctor_looks_at_all_and_imports_nothing_heavy(nowhere, tmp_path):
    script = (
        "import sys, mecefo_chaos.cli.main\n"
        f"code = mecefo_chaos.cli.main.run_cli(['doctor', '--json', '--out', {str(tmp_path)!r}])\n"
        "print(code, sorted({'torch', 'rich', 'numpy', 'jinja2'} & sys.modules.keys()), file=sys.stderr)\n"
    )
    answer = said([sys.executable, "-c", script], nowhere)
    document = json.loads(answer.stdout)
    checks = {check["name"]: check for check in document["checks"]}
    stopping = [name for name, check in checks.items() if check["outcome"] != "ok" and "local" in check["needed_by"]]
    assert (document["usable"], stopping) == (True, [])
    assert answer.stderr.splitlines()[-1] == "0 []"
    assert checks["torch"]["found"].startswith(torch.__version__)
    assert checks["Docker engine"]["outcome"] == "missing"
    assert "image" not in checks, "nobody can be asked"


def test_tests_of_containers_are_skipped_with_the_reason(nowhere):
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-rs", "-k", "stranger", "tests/docker/test_image.py"]
    answer = said([sys.executable, *words], nowhere)
    assert answer.returncode == 0, answer.stdout
    assert re.search(r"^SKIPPED .*no containers here: Docker engine: there is no unix://", answer.stdout, re.MULTILINE)


def test_ci_goes_on_without_an_engine(nowhere, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "dirname"):
        (programs / name).symlink_to(shutil.which(name))
    answer = said([str(ROOT / ".ci/containers"), str(tmp_path)], {**nowhere, "PATH": str(programs)})
    assert (answer.returncode, answer.stdout) == (0, "no container tests: Docker is not installed\n"), answer.stderr
