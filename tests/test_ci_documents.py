"""The pipelines in docs/how-to/ci.md and the tests in docs/how-to/pytest.md: what they run is run."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.judging.gates import Gate
from harness.judging.verdict import EXIT_CODES
from harness.pytest.marked_run import experiment_of, said_by
from harness.report.reproduction import ARTIFACT_VARIABLE
from mecefo_chaos.cli.main import run_cli
from tests.harness.pytest.test_pytest_plugin import PLUGIN

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[1]
CI = (ROOT / "docs/how-to/ci.md").read_text()
PIPELINES = {
    name: yaml.safe_load(text)
    for name, text in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", CI, re.MULTILINE | re.DOTALL)
}
WITH_ACTION = PIPELINES[".github/workflows/resilience.yml"]
GITHUB, GITLAB = PIPELINES[".github/workflows/resilience-plain.yml"], PIPELINES[".gitlab-ci.yml"]
HOOKS = PIPELINES[".pre-commit-config.yaml"]


def steps(pipeline=GITHUB) -> list[dict[str, Any]]:
    (job,) = pipeline["jobs"].values()
    return list(job["steps"])


def lines() -> list[str]:
    """Every line that one of the pipelines runs, with that which the action makes of its inputs."""
    given = steps(WITH_ACTION)[-1]["with"]
    gates = [word for gate in given["gates"].strip().splitlines() for word in ("--gate", gate)]
    words = ["chaos", "run", given["experiment"], *shlex.split(given["arguments"]), *gates]
    of_action = shlex.join([*words, "--", *shlex.split(given["command"])])
    return (
        [step["run"].strip() for step in steps() if "run" in step] + list(GITLAB["kill-a-rank"]["script"]) + [of_action]
    )


def chaos_lines() -> list[str]:
    return [line for line in lines() if line.startswith("chaos ")]


@pytest.mark.unit
@pytest.mark.parametrize("pipeline", [WITH_ACTION, GITHUB], ids=["action", "plain"])
def test_the_github_workflows_are_some(pipeline):
    assert pipeline[True] == ["pull_request"], "`on`, as YAML 1.1 reads it"
    (job,) = pipeline["jobs"].values()
    assert {"runs-on", "timeout-minutes", "steps"} <= job.keys()
    assert all(("uses" in step) != ("run" in step) for step in steps(pipeline))


@pytest.mark.unit
def test_the_plain_workflow_keeps_the_report():
    kept = steps()[-1]
    assert kept["if"] == "always()", "the report of a failed run is the one that is wanted"
    # One folder, so that the artifact has its content, and the step's summary names files in it.
    folder, *excluded = kept["with"]["path"].splitlines()
    assert excluded == [f"!{folder}/latest/**", f"!{folder}/**/checkpoints/**"]
    (job,) = GITHUB["jobs"].values()
    assert (job["env"][ARTIFACT_VARIABLE], kept["with"]["name"]) == (folder, folder)
    (line,) = [step["run"] for step in steps() if "chaos run" in step.get("run", "")]
    assert f"--out {folder} --junit junit.xml" in line


@pytest.mark.unit
def test_the_action_uploads_what_the_summary_of_its_step_names():
    action = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    (run,) = [step for step in action if step.get("id") == "run"]
    assert run["env"][ARTIFACT_VARIABLE] == action[-1]["with"]["name"] == "${{ inputs.artifact-name }}"
    folder, *excluded = action[-1]["with"]["path"].splitlines()
    assert folder == "${{ steps.run.outputs.out }}" and 'echo "out=$out"' in run["run"]
    assert excluded == [f"!{folder}/latest/**", f"!{folder}/**/checkpoints/**"]


@pytest.mark.unit
def test_the_inputs_of_the_action_are_those_in_the_table():
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    table = CI.partition("| input |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == sorted(
        action["inputs"], key=lambda name: table.index(f"| `{name}` |")
    )
    assert steps(WITH_ACTION)[-1]["with"].keys() <= action["inputs"].keys()
    (outputs,) = re.findall(r"^Outputs: (.*)$", CI, re.MULTILINE)
    assert all(f"`{name}`" in outputs for name in action["outputs"])


@pytest.mark.unit
def test_the_hook_is_one_of_ours():
    ours = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (repository,) = HOOKS["repos"]
    assert {hook["id"] for hook in repository["hooks"]} <= {hook["id"] for hook in ours}


@pytest.mark.unit
def test_the_kubernetes_job_gives_no_right_and_its_command_is_accepted(capsys, tmp_path, monkeypatch):
    guide = (ROOT / "docs/how-to/kubernetes.md").read_text()
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"], job["spec"]["backoffLimit"]) == ("batch/v1", "Job", 0)
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert "securityContext" not in container
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    monkeypatch.chdir(tmp_path)
    words = [word.replace("/work/", f"{tmp_path}/") for word in container["command"][1:]]
    assert run_cli([*words, "--dry-run"]) == 0, capsys.readouterr().err


@pytest.mark.unit
def test_the_gitlab_job_is_one():
    job = GITLAB["kill-a-rank"]
    assert job["artifacts"]["when"] == "always"
    assert job["artifacts"]["reports"]["junit"] == "junit.xml"
    # What no rank was started for is an error of the tool, by its code, and may be one of the change.
    assert "allow_failure" not in job


@pytest.mark.unit
def test_they_install_the_package_by_its_name_and_run_nothing_else():
    assert len(chaos_lines()) == 3
    (install,) = set(lines()) - set(chaos_lines())
    assert install.startswith("pip install mecefo-chaos -r requirements.txt ")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "mecefo-chaos"
    (torch,) = [line for line in project["optional-dependencies"]["runtime"] if line.startswith("torch")]
    assert ",".join(sorted(torch.removeprefix("torch").split(","), reverse=True)) in CI


@pytest.mark.unit
@pytest.mark.parametrize("line", chaos_lines())
def test_their_commands_are_accepted(line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    words = shlex.split(line)[1:]
    words.insert(words.index("--"), "--dry-run")
    assert run_cli(words) == 0, capsys.readouterr().err


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
    guide = (ROOT / "docs/how-to/training-scripts.md").read_text()
    (script,) = re.findall(r'^```python title="train.py"\n(.*?)^```$', guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    (job,) = GITHUB["jobs"].values()
    done = subprocess.run(
        [sys.executable, "-m", "mecefo_chaos", *shlex.split(line)[1:]],
        cwd=tmp_path,
        env={
            **os.environ,
            **job["env"],
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
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
    # The gate on steps holds on any machine; that on the time may not on one that is this busy.
    assert done.returncode in (0, 1), done.stderr
    assert "gate 'steps_lost" not in done.stdout
    said = summary.read_text()
    assert said.startswith("### ")
    assert "`steps_lost <= 10`" in said
    assert all(f"::{kind}" not in done.stdout for kind in ("error", "warning"))
    assert ("::error " in done.stderr) == (done.returncode == 1)
    included = [one for one in steps()[-1]["with"]["path"].splitlines() if not one.startswith("!")]
    for pattern in included:
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
