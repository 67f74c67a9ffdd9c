"""The base package alone: an environment that has no torch, and what its `chaos` does there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

from chaos.host.runtime_extra import INSTALL, PACKAGES, require_runtime, why_not_imported
from mecefo_chaos.cli.main import cli
from tests.external.jobs import SCRIPTS
from tests.sources import ROOT
from tests.stored import unpack_run

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_NAME = re.compile(r"[A-Za-z0-9._-]+")
# Each of them in one process: (arguments, exit code).
WITHOUT_TORCH = [
    (["faults"], 0),
    (["faults", "kill-process"], 0),
    (["gates"], 0),
    (["runs", "--out", "none"], 0),
    (["heal"], 0),
    (["schema"], 0),
    (["completion", "bash"], 0),
    (["plan", "kill-node", "--at", "step=5"], 0),
    (["run", "kill-node", "--at", "step=5", "--dry-run"], 0),
    (["run", "kill-process", "--at", "step=5", "--dry-run", "--", "true"], 0),
    (["init", "kill-process", "--at", "step=5", "--output", "experiment.yaml"], 0),
    (["validate", "experiment.yaml"], 0),
    (["forecast", "--example"], 0),
    (["doctor", "--json"], 0),
    (["report", "STORED"], 0),
    (["compare", "STORED", "STORED"], 0),
    (["serve", "--help"], 0),
    (["replay", "--help"], 0),
    (["shrink", "STORED"], 4),
    (["paper", "--help"], 0),
]
NEED_RUNTIME = [
    ["run", "kill-node", "--at", "step=5"],
    ["run", "--quick"],
    ["compare", "kill-node", "--at", "step=5", "--strategies", "exact,mecefo"],
    ["calibrate", "--out", "table.json"],
    ["forecast", "cluster.yaml"],
    ["paper", "spare"],
    ["paper", "reft"],
]
RUN_ALL = """
import contextlib, io, json, sys
from mecefo_chaos.cli.main import run_cli
told = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_cli(arguments)
    told.append([code, out.getvalue(), err.getvalue()])
json.dump(told, sys.stdout)
"""


def needed(requirements: list[str]) -> dict[str, Distribution]:
    """The installed distributions that `requirements` name, and all that these need without an extra."""
    found: dict[str, Distribution] = {}
    waiting = list(requirements)
    while waiting:
        line = waiting.pop()
        name = re.sub(r"[-_.]+", "-", _NAME.match(line)[0]).lower()
        if name in found or "extra ==" in line or "win32" in line or "python_version <" in line:
            continue
        found[name] = distribution(name)
        waiting += found[name].requires or []
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The Python of an environment with the base package and what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder / "env", symlinks=True, with_pip=False)
    (site,) = (folder / "env/lib").glob("python3*/site-packages")
    for one in needed(PROJECT["dependencies"]).values():
        tops = {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            (site / top).symlink_to(Path(one.locate_file(top)))
    (own,) = [Path(distribution("mecefo-chaos").locate_file(""))]
    (described,) = own.glob("mecefo_chaos-*.dist-info")
    (site / described.name).symlink_to(described)
    (site / "sources.pth").write_text(f"{ROOT}\n")
    return folder / "env/bin/python"


def run_all(base, folder, commands):
    """(exit code, standard output, standard error) of each."""
    done = subprocess.run(
        [base, "-P", "-c", RUN_ALL],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "CHAOS_STATE": str(folder / "state"), "PYTHONPATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.unit
def test_every_command_works_without_torch_or_names_what_to_install(base, tmp_path):
    unpack_run("command-restarted", tmp_path / "stored")
    commands = [["stored" if word == "STORED" else word for word in arguments] for arguments, _ in WITHOUT_TORCH]
    assert {arguments[0] for arguments, _ in WITHOUT_TORCH} | {words[0] for words in NEED_RUNTIME} == set(cli.commands)
    told = run_all(base, tmp_path, [*commands, *NEED_RUNTIME])
    for (_, expected), arguments, (code, out, err) in zip(WITHOUT_TORCH, commands, told, strict=False):
        assert code == expected, (arguments, out, err)
        assert "Traceback" not in err and INSTALL not in err
    (example,) = [out for words, (_, out, _) in zip(commands, told, strict=False) if words == ["forecast", "--example"]]
    (tmp_path / "cluster.yaml").write_text(example)
    (doctor,) = [json.loads(out) for words, (_, out, _) in zip(commands, told, strict=False) if words[0] == "doctor"]
    (torch,) = [check for check in doctor["checks"] if check["name"] == "torch"]
    assert (torch["outcome"], torch["remedy"], torch["needed_by"]) == ("missing", INSTALL, [])
    (tmp_path / "again").mkdir()
    (tmp_path / "again/cluster.yaml").write_text(example)
    for arguments, (code, out, err) in zip(NEED_RUNTIME, run_all(base, tmp_path / "again", NEED_RUNTIME), strict=True):
        assert code == 3, (arguments, out, err)
        assert "Traceback" not in err and INSTALL in err.splitlines()[-1], (arguments, err)
    assert not (tmp_path / "again/chaos-runs").exists(), "something was begun"


@pytest.mark.external
def test_chaos_without_torch_runs_a_script_of_another_environment(base, tmp_path):
    words = ["kill-process", "--at", "step=4", "--on", "rank=1", "--gate", "steps_lost <= 8", "--json", "--"]
    job = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
    ]
    done = subprocess.run(
        [base, "-P", "-m", "mecefo_chaos", "run", *words, *job, str(SCRIPTS / "ddp.py"), "8"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "CHAOS_STATE": str(tmp_path / "state"), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in (tmp_path / "chaos-runs/latest/events.jsonl").read_text().splitlines()]
    seen = {(event["rank"], event["attempt"]) for event in events if event["kind"] == "step_seen"}
    assert seen == {(0, 1), (1, 1), (0, 2), (1, 2)}
    assert json.loads(done.stdout)["incidents"][0]["verified"]


@pytest.mark.unit
def test_the_extra_names_what_the_sentence_names():
    runtime = {_NAME.match(line)[0] for line in PROJECT["optional-dependencies"]["runtime"]}
    assert runtime == {*PACKAGES, "isal"}
    assert not runtime & {_NAME.match(line)[0] for line in PROJECT["dependencies"]}
    assert "mecefo-chaos[runtime]" in PROJECT["optional-dependencies"]["test"]
    assert not needed(PROJECT["dependencies"]).keys() & {"torch", "scipy", "safetensors"}


@pytest.mark.unit
def test_another_missing_module_is_not_the_extra():
    assert why_not_imported(ModuleNotFoundError("No module named 'json5'", name="json5")) is None
    assert why_not_imported(ImportError("torch")) is None
    assert INSTALL in why_not_imported(ModuleNotFoundError("", name="scipy.sparse"))
    require_runtime("the built-in job")
