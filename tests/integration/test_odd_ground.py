"""Runs on ground that is not ours: other projects' folders, and environments that lack what every machine has."""

import sys
from pathlib import Path

import pytest

from tests.integration.runs import SMALL, paced, run_chaos
from tests.integration.test_external import FOLLOWER, again_and_again

pytestmark = pytest.mark.integration

STEPS = "40"
# Of another project: our packages' names, and those of modules that ours import.
PACKAGES = ("harness", "mecefo_runtime", "chaos", "docker", "torch")
MODULES = ("json", "yaml", "typing_extensions", "numpy", "pydantic", "rich", "select", "asyncio")
NOISY = """
import sys

# What `chaos` itself prints is its summary.
if sys.orig_argv[1] != "-c":
    print("welcome to this cluster")
    print("no line end", end="")
"""


@pytest.fixture
def checkout(tmp_path):
    """The folder of another project; each of its modules says what it is when imported."""
    for name in PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('of another project')\n")
    for name in MODULES:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of another project')\n")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("slow-rank", "--on", "rank=1", "--for", "2s"),
        ("slow-link", "--on", "link=0-2", "-p", "delay=20ms", "--for", "5steps"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_run_from_another_projects_checkout(checkout, arguments):
    run = run_chaos(checkout, *arguments, "--at", "step=6", "--steps", STEPS, *SMALL, patch=paced(0.1))
    assert run.summary["verdict"] == "pass", run.stderr
    assert run.summary["incidents"][0]["verified"]


def test_external_job_keeps_its_own_path(tmp_path):
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("NAME = 'of the job'\n")
    (tmp_path / "train.py").write_text(f"import harness; assert harness.NAME\n{Path(FOLLOWER[1]).read_text()}")
    command = again_and_again(sys.executable, "train.py", "20")
    run = run_chaos(tmp_path, "kill-process", "--at", "step=8", command=command)
    assert (run.exit_code, run.summary["verdict"]) == (0, "pass"), run.stderr


def test_sitecustomize_that_prints(tmp_path):
    run = run_chaos(
        tmp_path,
        *("slow-link", "--on", "link=0-2", "-p", "delay=20ms", "--for", "5steps", "--at", "step=6"),
        *("--steps", STEPS, *SMALL),
        patch=NOISY,
    )
    assert run.summary["verdict"] == "pass", run.stderr
