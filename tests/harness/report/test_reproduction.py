"""The command that repeats a run: here, and on another machine that has the artifact of a CI job."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.experiment.experiment import experiment_hash, to_yaml
from chaos.experiment.reading import from_options
from harness.judging.summary import UNKNOWN, Summary
from harness.report import github, html
from harness.report.reproduction import ARTIFACT_VARIABLE, reproduction
from harness.store.runs import new_run_folder
from tests.harness.report.test_terminal import text
from tests.harness.summaries import summary

pytestmark = pytest.mark.unit

COMMAND = ["torchrun", "--standalone", "train.py"]
ACTION = {"CI": "true", "GITHUB_ACTIONS": "true", ARTIFACT_VARIABLE: "chaos-runs"}


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A CI job: makes the folder of a run of these options in a checkout; returns it with the experiment's hash."""
    checkout = tmp_path / "runner" / "checkout"
    (checkout / "training").mkdir(parents=True)

    def run(out: str, **options: object) -> tuple[Path, str]:
        monkeypatch.chdir(checkout)
        experiment = from_options("kill-process", {"at": "step=5", **options})
        folder = new_run_folder(Path(out), experiment.name)
        (folder / "experiment.yaml").write_text(to_yaml(experiment))
        return folder, experiment_hash(experiment)

    return run


def printed(found: Summary, folder: Path, environment: dict[str, str]) -> tuple[str, str]:
    """(where, command) in the summary of a GitHub step."""
    markdown = github.markdown(found, folder, environment)
    match = re.search(r"To reproduce it, (.*):\n\n```sh\n(.*)\n```\n", markdown)
    assert match is not None, markdown
    return match[1].replace("\\", ""), match[2]


def followed(command: str, started_in: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The hash of the experiment that a printed line runs when it is typed in `started_in`."""
    monkeypatch.chdir(started_in)
    words = shlex.split(command)
    if words[0] == "cd":
        os.chdir(words[1])
        assert words[2] == "&&"
        words = words[3:]
    assert words[:2] == ["chaos", "run"]
    (file,) = words[2:]
    assert not Path(file).is_absolute()
    return experiment_hash(from_options(file, {}))


@pytest.mark.parametrize("out", ["chaos-runs", "/absolute"])
def test_the_line_works_in_the_downloaded_artifact(tmp_path, monkeypatch, job, out):
    out = str(tmp_path / "temp.Xy1") if out == "/absolute" else out
    folder, identity = job(out)
    where, command = printed(summary(), folder, ACTION)
    assert where == "in the downloaded artifact chaos-runs"
    # The artifact has the content of the folder --out; nothing of the runner is left.
    artifact = shutil.copytree(folder.parent.parent, tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "runner")
    assert followed(command, artifact, monkeypatch) == identity


@pytest.mark.parametrize("started_in", [".", "training"])
def test_of_a_command_the_line_works_in_a_checkout_with_the_artifact(tmp_path, monkeypatch, job, started_in):
    folder, identity = job("chaos-runs", command=COMMAND)
    workspace = Path.cwd()
    found = summary(command="torchrun", started_in=str(workspace / started_in))
    where, command = printed(found, folder, {**ACTION, "GITHUB_WORKSPACE": str(workspace)})
    assert where == "in a checkout, with the artifact chaos-runs downloaded into chaos-runs"
    checkout = tmp_path / "clone"
    (checkout / "training").mkdir(parents=True)
    shutil.copytree(folder.parent.parent, checkout / "chaos-runs")
    shutil.rmtree(tmp_path / "runner")
    assert followed(command, checkout, monkeypatch) == identity
    assert Path.cwd() == checkout / started_in


def test_without_the_action_the_folder_is_named(job):
    folder, _ = job("kept")
    assert printed(summary(), folder, {})[0] == "in the downloaded folder kept"
    found = summary(command="torchrun", started_in="/elsewhere")
    where, command = printed(found, folder, {"CI_PROJECT_DIR": str(Path.cwd())})
    assert where == "in a checkout, with the folder kept downloaded into kept"
    assert command == f"chaos run kept/{folder.parent.name}/{folder.name}/experiment.yaml"


@pytest.mark.parametrize("environment", [{}, {"CI": "false"}, ACTION, {"CI": "1"}])
def test_all_reports_of_a_ci_job_name_no_path_of_its_machine(job, environment):
    folder, _ = job("chaos-runs")
    how = reproduction(summary(), folder, environment)
    is_ci = environment.get("CI") in ("true", "1")
    file = f"{folder.parent.name}/{folder.name}/experiment.yaml"
    assert how.command == f"chaos run {'' if is_ci else 'chaos-runs/'}{file}"
    page = html.render(summary(), (), folder=folder, environment=environment)
    assert f"<code>{how.command}</code>" in page and how.where in page.lower()
    shown = text(summary(), folder=folder, environment=environment)
    assert how.command in shown and how.where in " ".join(shown.split())
    assert how.command in github.markdown(summary(), folder, environment) or not how.where


def test_here_a_command_is_repeated_where_it_was_started(tmp_path):
    folder, started_in = Path("/runs/n/1"), tmp_path / "a b"
    assert reproduction(UNKNOWN, folder).command == "chaos run /runs/n/1/experiment.yaml"
    found = replace(UNKNOWN, started_in=str(started_in))
    elsewhere = reproduction(found, folder)
    assert (elsewhere.where, elsewhere.command) == (
        "in a checkout, in the folder in which the command starts",
        "chaos run /runs/n/1/experiment.yaml",
    )
    started_in.mkdir()
    there = reproduction(found, folder)
    assert (there.where, there.command) == ("", f"cd '{started_in}' && chaos run /runs/n/1/experiment.yaml")


def test_a_summary_is_published_with_the_line(tmp_path, job):
    folder, _ = job("chaos-runs")
    step = tmp_path / "summary.md"
    github.publish(summary(), folder, {"GITHUB_STEP_SUMMARY": str(step)}, io.StringIO())
    assert f"\nchaos run {folder.parent.name}/{folder.name}/experiment.yaml\n" in step.read_text()
    assert str(tmp_path) not in step.read_text()
