"""A newcomer's ten minutes: docs/tutorials/first-run.md, command by command, as it stands there."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.runs import REPOSITORY
from tests.manual.documents import Document, commands, experiment_files

pytestmark = pytest.mark.nightly

PAGE = Document("docs/tutorials/first-run.md", (REPOSITORY / "docs/tutorials/first-run.md").read_text())
# What is on the page besides: an installation, which .ci/run does, and a script of the reader's own.
NOT_HERE = ("pip", "torchrun")
CHAOS = [sys.executable, "-m", "mecefo_chaos"]


def test_every_command_of_the_page_does_what_the_page_says(tmp_path):
    files = experiment_files(PAGE)
    assert set(files) == {"node-loss.yaml"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "CHAOS_STATE": str(tmp_path / "state"),
        "NO_COLOR": "1",
    }
    said = {}
    for command in commands(PAGE):
        if any(word in NOT_HERE for word in command.words):
            continue
        program = CHAOS if command.words[0] == "chaos" else [command.words[0]]
        done = subprocess.run(
            [*program, *command.words[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        assert done.returncode == command.exit_code, f"{command}\n{done.stdout}\n{done.stderr}"
        said.setdefault(shlex.join(command.words), []).append(done.stdout)
    failed, passed = said["chaos run node-loss.yaml --junit junit.xml"]
    assert "degraded_share == 0" in failed
    assert "FAIL" in failed
    assert "PASS" in passed
    listed = said["chaos runs"][-1]
    assert listed.count("node-loss/") == 2
    assert Path(tmp_path / "junit.xml").read_text().startswith("<?xml")
