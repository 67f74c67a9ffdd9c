"""The script of docs/how-to/training-scripts.md, and the page's first commands, as they stand there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.runs import REPOSITORY
from tests.manual.documents import Document, blocks, commands

pytestmark = pytest.mark.nightly

PAGE = Document(
    "docs/how-to/training-scripts.md",
    (REPOSITORY / "docs/how-to/training-scripts.md").read_text().partition("## What to know")[0],
)
CHAOS = [sys.executable, "-m", "mecefo_chaos"]
TIMEOUT_SECONDS = 900.0
# What the page says that each command tells.
TOLD = {
    "kill-process": ("in 2 attempts", "Steps lost: 4 (recomputed)", "continued from step 31", "kill-process: PASS"),
    "set-nan": (
        "verified: rank 1",
        "-> nan",
        "set-nan: FAIL",
        "training loss is not finite from step 37 on",
    ),
    "slow-checkpoint": ("rank 0 slept 1.", "before checkpoint (median of 1)", "slow-checkpoint: PASS"),
}


def test_the_first_commands_do_what_the_page_says(tmp_path):
    (script,) = (block for block in blocks(PAGE) if block.title == "train.py")
    assert len(script.text.splitlines()) <= 40
    (tmp_path / "train.py").write_text(script.text)
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "CHAOS_STATE": str(tmp_path / "state"),
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = []
    for command in commands(PAGE):
        program, *arguments = command.words
        if program == "export":
            environment |= dict(argument.split("=") for argument in arguments)
            continue
        words = [*CHAOS, *arguments] if program == "chaos" else [str(shutil.which(program)), *arguments]
        run = subprocess.run(
            words,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
        assert run.returncode == command.exit_code, f"{command}\n{run.stdout}\n{run.stderr}"
        if program == "chaos":
            fault = arguments[1]
            # Both, as lines are broken where the terminal ends.
            said = " ".join((run.stdout + run.stderr).split())
            assert [words for words in TOLD[fault] if words not in said] == []
            done.append(fault)
    assert done == list(TOLD)
