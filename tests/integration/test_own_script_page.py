"""Ten minutes with a training script of one's own: docs/tutorials/own-script.md, block by block, as it stands there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.runs import REPOSITORY
from tests.manual.documents import Document, blocks, commands

pytestmark = pytest.mark.nightly

PAGE = Document("docs/tutorials/own-script.md", (REPOSITORY / "docs/tutorials/own-script.md").read_text())
CHAOS = [sys.executable, "-m", "mecefo_chaos"]
TIMEOUT_SECONDS = 900.0
# What the page says of each run, in its order.
TOLD = (
    "kill-process: PASS The job completed, but it restarted from scratch: 34 steps recomputed.",
    "gate 'steps_lost <= 10' failed: steps_lost is 34, 24 above the limit",
    "continued from step 31",
    "difference 0.00%",
    "training loss is not finite from step 37 on",
)


def test_every_command_of_the_page_does_what_the_page_says(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "CHAOS_STATE": str(tmp_path / "state"),
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    said = []
    for block in blocks(PAGE):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        for command in (one for one in commands(PAGE) if one.block == block):
            program, *arguments = command.words
            if program == "pip":  # which .ci/run does
                continue
            if program == "export":
                environment |= dict(argument.split("=") for argument in arguments)
                continue
            done = subprocess.run(
                [*(CHAOS if program == "chaos" else [str(shutil.which(program))]), *arguments],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_SECONDS,
            )
            assert done.returncode == command.exit_code, f"{command}\n{done.stdout}\n{done.stderr}"
            if (program, arguments[0]) == ("chaos", "run"):
                said.append(" ".join((done.stdout + done.stderr).split()))
    assert len(said) == len(TOLD)
    assert [words for words, text in zip(TOLD, said, strict=True) if words not in text] == []
    assert "<failure" not in (tmp_path / "junit.xml").read_text()
