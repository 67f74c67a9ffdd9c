"""action.yml, the hook for pre-commit and the release workflow: their shell is executed as a runner executes it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chaos.errors import UsageError
from harness.judging.verdict import EXIT_CODES

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = ACTION["runs"]["steps"]
PROGRAMS = Path(sys.executable).parent
# A job that takes steps without torch, whose import takes seconds.
FOLLOWER = ROOT / "tests/integration/follower.py"


class Runner:
    """A GitHub runner for one step: its shell, its variables, and what a step leaves in its files."""

    def __init__(self, folder, *programs):
        self.folder, self.output = folder, folder / "output"
        self.temp, self.workspace = folder / "temp", folder / "workspace"
        self.temp.mkdir()
        self.workspace.mkdir()
        self.path = os.pathsep.join([*map(str, programs), str(PROGRAMS), os.environ["PATH"]])

    def execute(self, name, **given):
        """(exit code, outputs, what it printed) of the step with this name."""
        (step,) = [step for step in STEPS if step.get("name") == name]
        inputs = {key: value.get("default", "") for key, value in ACTION["inputs"].items()} | given
        assert inputs.keys() == ACTION["inputs"].keys(), "an input that there is not"
        assert "${{" not in step["run"], "an input in the text of a script is executed"
        environment = {
            key: inputs[re.fullmatch(r"\$\{\{ inputs\.(\S+) \}\}", text)[1]] for key, text in step["env"].items()
        }
        self.output.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.workspace,
            env={
                **os.environ,
                "PATH": self.path,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                "CHAOS_STATE": str(self.folder / "state"),
                "GITHUB_ACTIONS": "true",
                "GITHUB_ACTION_PATH": "/where/the action is",
                "GITHUB_OUTPUT": str(self.output),
                "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
                "RUNNER_TEMP": str(self.temp),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        outputs = dict(line.split("=", 1) for line in self.output.read_text().splitlines())
        return done.returncode, outputs, done.stdout + done.stderr


@pytest.fixture
def recorder(tmp_path):
    """A folder with programs that write down how they were called: `chaos` exits with the code in `exit-code`."""
    folder = tmp_path / "recorder"
    folder.mkdir()
    (folder / "chaos").write_text(
        f"#!{sys.executable}\nimport json, pathlib, sys\nhere = pathlib.Path(__file__).parent\n"
        "(here / 'words.json').write_text(json.dumps(sys.argv[1:]))\n"
        "sys.exit(int((here / 'exit-code').read_text()))\n"
    )
    (folder / "python").write_text(
        f'#!/bin/sh\n[ "$1" = -m ] || exec {sys.executable} "$@"\n'
        f"exec {sys.executable} -c \"import json, sys; json.dump(sys.argv[2:], open(sys.argv[1], 'w'))\" "
        f'{folder}/words.json "$@"\n'
    )
    (folder / "exit-code").write_text("0")
    for program in ("chaos", "python"):
        (folder / program).chmod(0o755)
    return folder


def words(recorder):
    return json.loads((recorder / "words.json").read_text())


@pytest.mark.unit
def test_inputs_and_outputs_are_described_and_used():
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert used == ACTION["inputs"].keys()
    for entry in (*ACTION["inputs"].values(), *ACTION["outputs"].values()):
        assert entry["description"].endswith(".")
    (run,) = [step for step in STEPS if step.get("id") == "run"]
    assert all(f'echo "{name}=' in run["run"] for name in ACTION["outputs"])
    assert STEPS[-1]["if"].startswith("always()"), "the report of a failed run is the one that is wanted"


@pytest.mark.unit
def test_inputs_arrive_as_they_were_written(tmp_path, recorder):
    code, outputs, said = Runner(tmp_path, recorder).execute(
        "chaos run",
        experiment="chaos/kill one.yaml",
        arguments="--on rank=1 -p 'delay=5 ms' --seed '$(touch harm)'",
        command='torchrun train.py --name "two words"',
        gates="recovery_seconds < 60\n\n  steps_lost == 0\n",
    )
    assert code == 0, said
    before, after = words(recorder)[:-5], words(recorder)[-5:]
    assert after == ["--", "torchrun", "train.py", "--name", "two words"]
    assert before[:8] == ["run", "chaos/kill one.yaml", "--on", "rank=1", "-p", "delay=5 ms", "--seed", "$(touch harm)"]
    assert before[8:-2] == ["--gate", "recovery_seconds < 60", "--gate", "steps_lost == 0"]
    assert before[-2] == "--out"
    assert not list(tmp_path.rglob("harm"))
    assert outputs["verdict"] == "pass"
    assert outputs["summary"] == outputs["folder"] == ""


@pytest.mark.unit
@pytest.mark.parametrize(("verdict", "expected"), [*EXIT_CODES.items(), ("usage", UsageError.exit_code)])
def test_the_step_ends_as_the_run_did(tmp_path, recorder, verdict, expected):
    (recorder / "exit-code").write_text(str(expected))
    code, outputs, said = Runner(tmp_path, recorder).execute("chaos run", experiment="kill-node")
    assert (code, outputs["verdict"], outputs["exit-code"]) == (expected, verdict, str(expected)), said


@pytest.mark.unit
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["/where/the action is[runtime]", "--extra-index-url", ACTION["inputs"]["extra-index-url"]["default"]]),
        ({"version": "0.1.0", "extra-index-url": ""}, ["mecefo-chaos[runtime]==0.1.0"]),
        ({"version": "0.1.0", "extra-index-url": "", "command": "torchrun train.py"}, ["mecefo-chaos==0.1.0"]),
        (
            {
                "version": "git+file:///x@abc",
                "requirements": "-r 'my requirements.txt'",
                "extra-index-url": "",
            },
            ["git+file:///x@abc", "-r", "my requirements.txt"],
        ),
    ],
)
def test_what_is_installed(tmp_path, recorder, given, expected):
    code, _, said = Runner(tmp_path, recorder).execute("Install mecefo-chaos", experiment="kill-node", **given)
    assert code == 0, said
    assert words(recorder) == ["-m", "pip", "install", *expected]


@pytest.mark.external
def test_a_gate_that_fails_fails_the_step_of_a_job_of_ones_own(tmp_path):
    runner = Runner(tmp_path)
    shutil.copy(FOLLOWER, runner.workspace)
    code, outputs, said = runner.execute(
        "chaos run",
        experiment="slow-rank",
        arguments="--at step=10 --for 5steps -p factor=2",
        command="python follower.py 30",
        gates="wall_clock_seconds < 0.001",
    )
    assert code == EXIT_CODES["fail"], said
    assert outputs["verdict"] == "fail"
    assert json.loads(Path(outputs["summary"]).read_text())["exit_code"] == code
    assert (Path(outputs["folder"]) / "report.html").is_file()
    assert "::error" in said
    summary = (tmp_path / "summary.md").read_text()
    assert "wall_clock_seconds < 0.001" in summary
    # The summary's last line repeats the run on another machine: in a checkout that has the artifact.
    assert "in a checkout, with the artifact chaos-runs downloaded into chaos-runs:" in summary.replace("\\", "")
    (line,) = re.findall(r"^```sh\n(.*)\n```$", summary, re.MULTILINE)
    checkout = tmp_path / "elsewhere"
    shutil.copytree(runner.workspace, checkout)
    shutil.copytree(Path(outputs["out"]), checkout / "chaos-runs", ignore=shutil.ignore_patterns("latest"))
    shutil.rmtree(runner.temp)
    shutil.rmtree(runner.workspace)
    environment = {**os.environ, "PATH": runner.path, "CHAOS_STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    again = subprocess.run(
        ["bash", "-c", line], cwd=checkout, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert again.returncode == EXIT_CODES["fail"], again.stdout + again.stderr
    hashes = [json.loads(path.read_text())["experiment_hash"] for path in checkout.glob("*/slow-rank/2*/summary.json")]
    assert len(hashes) == 2 and len(set(hashes)) == 1


@pytest.mark.unit
@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a clone")
def test_the_hook_refuses_a_wrong_file_at_its_line(tmp_path):
    folder = tmp_path / "repository"
    (folder / "chaos").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "chaos/right.yaml").write_text(
        "name: a\nfaults:\n  - {kind: kill-node, at: {step: 5}}\njob: {steps: 40}\n"
    )
    (folder / "other.yaml").write_text("not: ours\n")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "PRE_COMMIT_HOME": str(tmp_path / "pre-commit"),
    }

    def tried():
        subprocess.run(["git", "add", "."], cwd=folder, check=True)
        command = ["pre-commit", "try-repo", str(ROOT), "chaos-validate", "--all-files", "--verbose"]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    done = tried()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "chaos/right.yaml: valid" in done.stdout
    assert "other.yaml" not in done.stdout
    (folder / "chaos/wrong.yaml").write_text("name: a\nfaults:\n  - {kind: kill-nod, at: {step: 5}}\n")
    done = tried()
    assert done.returncode != 0
    assert "chaos/wrong.yaml:3" in done.stdout
    assert "kill-node" in done.stdout


@pytest.mark.unit
def test_a_release_is_checked_before_it_is_published_without_a_token():
    text = (ROOT / ".github/workflows/release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert (jobs["publish"]["needs"], jobs["release"]["needs"]) == ("build", "publish")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "password" not in text and "secrets." not in text
    shell = "\n".join(step.get("run", "") for step in jobs["build"]["steps"])
    assert "twine check --strict dist/*" in shell


@pytest.mark.unit
@pytest.mark.parametrize(("tag", "is_accepted"), [("v0.1.0", True), ("v0.2.0", False)])
def test_a_tag_that_is_not_the_version_is_refused(tmp_path, tag, is_accepted):
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    (check,) = [step["run"] for step in jobs["build"]["steps"] if step.get("name") == "The tag is the version"]
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/mecefo_chaos-0.1.0.tar.gz").touch()
    environment = {**os.environ, "GITHUB_REF_NAME": tag}
    done = subprocess.run(["bash", "-e", "-c", check], cwd=tmp_path, env=environment, check=False)
    assert (done.returncode == 0) is is_accepted


@pytest.mark.unit
def test_every_change_runs_what_contributors_run():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert "pull_request" in workflow[True], "`on`, as YAML 1.1 reads it"
    (job,) = workflow["jobs"].values()
    assert [step["run"].split()[-1] for step in job["steps"] if "run" in step] == [".ci/run"]
