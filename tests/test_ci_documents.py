"""The pipelines in docs/how-to/ci.md and the tests in docs/how-to/pytest.md: what they run is run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaos.cli import run_cli
from harness.judging.gates import Gate
from harness.judging.verdict import EXIT_CODES
from harness.pytest.marked_run import experiment_of, said_by
from tests.harness.pytest.test_pytest_plugin import PLUGIN

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[1]
CI = (ROOT / "docs/how-to/ci.md").read_text()
PIPELINES = {
    name: yaml.safe_load(text)
    for name, text in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", CI, re.MULTILINE | re.DOTALL)
}
GITHUB, GITLAB = PIPELINES[".github/workflows/resilience.yml"], PIPELINES[".gitlab-ci.yml"]


def steps() -> list[dict[str, Any]]:
    (job,) = GITHUB["jobs"].values()
    return list(job["steps"])


def lines() -> list[str]:
    """Every line that one of the pipelines runs."""
    return [step["run"].strip() for step in steps() if "run" in step] + list(GITLAB["kill-a-node"]["script"])


def chaos_lines() -> list[str]:
    return [line for line in lines() if line.startswith("chaos ")]


@pytest.mark.unit
def test_the_github_workflow_is_one():
    assert GITHUB[True] == ["pull_request"], "`on`, as YAML 1.1 reads it"
    (job,) = GITHUB["jobs"].values()
    assert {"runs-on", "timeout-minutes", "steps"} == job.keys()
    assert all(("uses" in step) != ("run" in step) for step in steps())
    kept = steps()[-1]
    assert kept["if"] == "always()", "the report of a failed run is the one that is wanted"
    assert kept["with"]["path"].splitlines() == ["chaos-runs/*/*/report.html", "junit.xml"]


@pytest.mark.unit
def test_the_gitlab_job_is_one():
    job = GITLAB["kill-a-node"]
    assert job["artifacts"]["when"] == "always"
    assert job["artifacts"]["reports"]["junit"] == "junit.xml"
    assert job["allow_failure"]["exit_codes"] == [EXIT_CODES["error"]]


@pytest.mark.unit
def test_they_install_as_the_readme_says_and_run_nothing_else():
    assert len(chaos_lines()) == 2
    assert set(lines()) - set(chaos_lines()) == {"pip install . -c constraints.txt"}
    assert "pip install . -c constraints.txt" in (ROOT / "README.md").read_text()


@pytest.mark.unit
@pytest.mark.parametrize("line", chaos_lines())
def test_their_commands_are_accepted(line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_cli([*shlex.split(line)[1:], "--dry-run"]) == 0, capsys.readouterr().err


@pytest.mark.unit
def test_every_exit_code_is_told():
    told = {int(code): verdict for code, verdict in re.findall(r"^\| (\d) \| (\w+) \|", CI, re.MULTILINE)}
    assert told == {code: verdict for verdict, code in EXIT_CODES.items()} | {4: "usage"}


@pytest.mark.unit
@pytest.mark.parametrize("document", ["reference/experiments", "reference/measuring"])
def test_gates_in_the_documents_are_gates(document):
    text = (ROOT / f"docs/{document}.md").read_text()
    gates = re.findall(r"`([a-z_]+(?: \w+)* (?:[<>]=?|[=!]=) [^`]+)`", text)
    assert gates or document == "reference/measuring"
    for gate in gates:
        Gate.parse(gate)


@pytest.mark.nightly
@pytest.mark.integration
def test_the_github_job_runs_and_leaves_what_it_uploads(tmp_path):
    (line,) = [step["run"].strip() for step in steps() if step.get("run", "").startswith("chaos ")]
    summary = tmp_path / "summary.md"
    summary.touch()
    done = subprocess.run(
        [sys.executable, "-c", "from chaos.cli import main; main()", *shlex.split(line)[1:]],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "CHAOS_STATE": str(tmp_path / "state"),
            "GITHUB_ACTIONS": "true",
            "GITHUB_STEP_SUMMARY": str(summary),
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    # The gate on the loss holds on any machine; those on times may not on one that is this busy.
    assert done.returncode in (0, 1), done.stderr
    assert "gate 'loss_deviation" not in done.stdout
    said = summary.read_text()
    assert said.startswith("### ")
    assert "`loss_deviation < 5%`" in said
    assert all(f"::{kind}" not in done.stdout for kind in ("error", "warning"))
    assert ("::error " in done.stderr) == (done.returncode == 1)
    for pattern in steps()[-1]["with"]["path"].splitlines():
        assert list(tmp_path.glob(pattern)), f"nothing to upload at {pattern}"


@pytest.mark.unit
def test_the_marked_test_in_the_documents_is_collected(pytester):
    (source, *_) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs/how-to/pytest.md").read_text(), re.MULTILINE | re.DOTALL
    )
    pytester.makepyfile(test_it=source)
    (item,), _ = pytester.inline_genitems(*PLUGIN, "test_it.py")
    experiment = experiment_of(item, said_by(item))
    assert (experiment.faults[0].kind, experiment.job.steps, len(experiment.gates)) == ("kill-node", 50, 2)


@pytest.mark.unit
def test_every_option_of_the_plugin_is_documented():
    source = (ROOT / "harness/pytest/plugin.py").read_text()
    text = (ROOT / "docs/how-to/pytest.md").read_text()
    names = re.findall(r'\("([a-z-]+)", "(?:N|NAME)"', source) + re.findall(r'"--resilience-([a-z-]+)"', source)
    assert len(names) >= 9
    assert not [name for name in names if f"--resilience-{name}" not in text]
