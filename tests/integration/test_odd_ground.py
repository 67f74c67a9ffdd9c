"""Runs on ground that is not ours: other projects' folders, and environments that lack what every machine has."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.runs import (
    INSTALLED,
    PATIENT,
    REPOSITORY,
    RUN_TIMEOUT_SECONDS,
    SMALL,
    WAIT_TIMEOUT_SECONDS,
    ChaosRun,
    assert_nothing_left,
    environment_of_run,
    event_logs,
    paced,
    read_run,
    run_chaos,
    waiting_at,
)
from tests.integration.test_external import FOLLOWER, TORCHRUN, again_and_again
from tests.stored import unpack_run

pytestmark = pytest.mark.integration

STEPS = "40"
# Of another project: our packages' names, and those of modules that ours import.
PACKAGES = ("harness", "mecefo_runtime", "chaos", "docker", "torch")
MODULES = ("json", "yaml", "typing_extensions", "numpy", "pydantic", "rich", "select", "asyncio")
# What torch needs of it, which imports it, too.
JSON_OF_THE_JOB = """
import sysconfig

NAME = "of the job"
__path__ = [f"{sysconfig.get_path('stdlib')}/json"]
from json.decoder import JSONDecodeError, JSONDecoder
from json.encoder import JSONEncoder

def dumps(*arguments, **options):
    raise RuntimeError("of the job")

dump = load = loads = dumps
"""
TRAINING = """
def check():
    import chaos.agent, harness, json, mecefo_runtime
    assert {module.NAME for module in (chaos, harness, json, mecefo_runtime)} == {"of the job"}

check()
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(24):
    loss = model(torch.ones(2, 4)).mean() ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
check()
dist.destroy_process_group()
"""
EXTERNAL = """
name: own-modules
network: namespaces
faults:
- {kind: slow-link, on: link=0-1, at: {step: 5}, for: 5steps, delay: 20ms}
- {kind: set-nan, on: rank=1, at: {step: 20}}
"""
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


@pytest.mark.nightly
def test_run_from_another_projects_checkout(checkout):
    slow = ("slow-rank", "--on", "rank=1", "--for", "2s")
    run = run_chaos(checkout, *slow, "--at", "step=6", "--steps", STEPS, *SMALL, patch=paced(0.1))
    assert run.summary["verdict"] == "pass", run.stderr
    assert run.summary["incidents"][0]["verified"]


def test_external_job_keeps_its_own_modules(tmp_path):
    """Those of our packages' names, and one of the standard library, in which nobody but the job may look."""
    job = tmp_path / "job"
    for name in ("harness", "chaos", "mecefo_runtime"):
        (job / name).mkdir(parents=True)
        (job / name / "__init__.py").write_text("NAME = 'of the job'\n")
    (job / "chaos" / "agent.py").touch()
    (job / "json.py").write_text(JSON_OF_THE_JOB)
    (job / "train.py").write_text(TRAINING)
    (tmp_path / "x.yaml").write_text(EXTERNAL)
    run = run_chaos(tmp_path, "x.yaml", command=(*TORCHRUN, "--nproc-per-node", "2", "job/train.py"))
    assert run.summary["steps_committed"] == 24, run.stderr
    assert [incident["verified"] for incident in run.summary["incidents"]] == [True, True], run.stderr


def test_run_from_another_projects_checkout_where_a_sitecustomize_prints(checkout):
    """With networks, whose processes tell by their output what they have made."""
    run = run_chaos(
        checkout,
        *("slow-link", "--on", "link=0-2", "-p", "delay=20ms", "--for", "5steps", "--at", "step=6"),
        *("--steps", "14", *SMALL),
        patch=NOISY,
    )
    assert run.summary["verdict"] == "pass", run.stderr
    assert run.summary["incidents"][0]["verified"]


@pytest.mark.parametrize(
    "is_terminal", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["terminal", "pipe"]
)
def test_run_whose_messages_nobody_reads_any_more(tmp_path, monkeypatch, is_terminal):
    # The live view redraws only what is no dumb terminal.
    monkeypatch.setenv("TERM", "xterm")
    reader, writer = os.openpty() if is_terminal else os.pipe()
    # Of its messages the most come after those that are read: those of the fault, which waits for it, and of the end.
    go = tmp_path / "go"
    arguments = ("kill-process", "--on", "rank=3", "--at", "step=8", "--repair", "none", "--steps", "12", *SMALL)
    with ChaosRun(tmp_path, ["run", *arguments, "--json"], patch=waiting_at({6: go}), stderr=writer) as run:
        os.close(writer)
        run.wait_for("step_committed", step=5)
        os.close(reader)
        go.touch()
        assert run.wait() == 0
        finished = read_run(run.folder, 0)
        assert json.loads(run.stdout) == finished.summary
        assert finished.summary["verdict"] == "pass"
        assert (run.folder / "report.html").is_file()
        assert_nothing_left(run, finished.events)


def test_report_in_a_locale_without_unicode(tmp_path):
    stored = tmp_path / "stored"
    unpack_run("kill-node-with-baseline", stored)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", INSTALLED, "report", str(stored)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, **ascii_only}, timeout=WAIT_TIMEOUT_SECONDS)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"PASS" in done.stdout and done.stdout.isascii()


@pytest.mark.parametrize(
    ("namespaces", "before", "said"),
    [
        (("--pid", "--fork"), "", "of another PID namespace"),
        (("--pid", "--fork", "--mount-proc"), "", ""),
        (("--mount",), "umount -l /proc; ", "is not mounted"),
    ],
    ids=["foreign", "own", "none"],
)
def test_process_table_of_a_namespace(tmp_path, namespaces, before, said):
    """What cannot find its own processes starts none; with a /proc of its own a namespace is as good as any."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", *namespaces, "true"], check=False).returncode:
        pytest.skip("no namespaces can be made here")
    run = ("run", "none", "--steps", "2", "--no-twin", "--nodes", "1", "--gpus-per-node", "1", "--dilation", "off")
    for arguments in [run, ("heal",)]:
        command = [sys.executable, "-c", INSTALLED, *arguments, "--out", str(tmp_path / "out")]
        ended = subprocess.run(
            ["unshare", *namespaces, "sh", "-c", f'{before}exec "$@"', "sh", *command],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "CHAOS_STATE": str(tmp_path / "state")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in ended.stderr, ended.stderr
        assert ended.returncode == (3 if said else 0), ended.stderr
        assert said in ended.stderr
        assert (tmp_path / "out").exists() == (not said), "a run was begun"


# ---- what the kernel does not give ----

# Patches: the command begins with SIGCHLD ignored and with few file descriptors, as from a parent that has it so.
CHILDREN_IGNORED = """
import sys

if sys.orig_argv[1] == "-c":
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
"""
FEW_FILES = """
if sys.orig_argv[1] == "-c":
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""
# The script of a user, which tells what it was started with.
TELLING = """
import resource, signal

print("soft limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
print("children", signal.getsignal(signal.SIGCHLD).name, flush=True)
"""
NO_PROC = ("unshare", "--mount", "--propagation", "private", "sh", "-c", 'umount -l /proc && exec "$@"', "sh")


def within_limit(num_files):
    """The words that start a command with so many file descriptors."""
    return ("sh", "-c", f'ulimit -n {num_files} && exec "$@"', "sh")


def chaos_within(folder, around, *arguments):
    """`chaos ARGUMENTS`, started by the words `around`; its exit code and all that it said. No traceback, no run."""
    done = subprocess.run(
        [*around, sys.executable, "-c", INSTALLED, *arguments],
        cwd=folder,
        env=environment_of_run("odd", folder),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_SECONDS,
        check=False,
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert not event_logs(folder / "out")
    return done.returncode, said


@pytest.mark.parametrize("num_files", [12, 24])
def test_few_file_descriptors(tmp_path, num_files):
    few = within_limit(num_files)
    code, said = chaos_within(tmp_path, few, "run", "kill-process", "--at", "step=6", *SMALL, "--out", "out")
    assert code == 3 and f"limit is {num_files}" in said and "ulimit -n" in said


@pytest.mark.parametrize(
    ("around", "name", "said"),
    [(NO_PROC, "process table", "not mounted"), (within_limit(12), "open files", "may have 12")],
    ids=["no /proc", "12 files"],
)
def test_doctor_knows(tmp_path, around, name, said):
    if subprocess.run([*around, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no such namespace can be made here")
    code, told = chaos_within(tmp_path, around, "doctor", "--out", "out", "--json")
    # On a slow machine a line of progress follows, on standard error.
    document, _ = json.JSONDecoder().raw_decode(told.lstrip())
    (check,) = (one for one in document["checks"] if one["name"] == name)
    assert code == 3 and check["outcome"] != "ok" and said in check["found"]


@pytest.mark.nightly
def test_run_that_has_just_what_it_needs(tmp_path):
    experiment = ("kill-process", "--on", "rank=1", "--at", "step=6", "--steps", "20", "--repair", "5steps", *SMALL)
    said = chaos_within(tmp_path, within_limit(24), "run", *experiment, "--out", "out")[1]
    needed = int(said.rpartition("ulimit -n ")[2].split("`")[0])
    limits = {resource.RLIMIT_NOFILE: needed}
    with ChaosRun(tmp_path / "enough", ["run", *experiment], patch=PATIENT + CHILDREN_IGNORED, limits=limits) as run:
        assert run.wait() == 0, run.stderr
        ended = read_run(run.folder, 0).of("process_exited")
    # Whoever is told of them is stopped itself when the job is over.
    codes = [(one.fields["exited_rank"], one.fields["exit"]) for one in ended if one.fields["role"] == "rank"]
    assert codes[0] == (1, -9) and {code for _, code in codes[1:]} <= {0}
    assert [one.fields["exit"] for one in ended if one.fields["role"] == "coordinator"] == [0]


def test_command_has_its_users_limits_and_its_exit_codes(tmp_path):
    (tmp_path / "train.py").write_text(TELLING + Path(FOLLOWER[1]).read_text())
    command = again_and_again(sys.executable, "train.py", "20")
    run = run_chaos(tmp_path, "kill-process", "--at", "step=8", command=command, patch=CHILDREN_IGNORED + FEW_FILES)
    assert (run.exit_code, run.summary["verdict"]) == (0, "pass"), run.stderr
    assert (run.folder / "logs" / "job.log").read_text().splitlines()[:2] == ["soft limit 20", "children SIG_DFL"]
    (launcher,) = (event for event in run.of("process_exited") if event.fields["role"] == "launcher")
    assert launcher.fields["exit"] == 0
    assert any("SIGCHLD" in event.fields["message"] for event in run.of("warning"))
