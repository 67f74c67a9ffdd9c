"""Files that are none: named pipes to which nobody writes, a file where a folder must be, a home that there is not.

Nothing may wait for ever for the other end of a pipe.
"""

import os
import signal
from pathlib import Path

import pytest

from chaos.undo.run_registry import STATE_VARIABLE
from harness.store.runs import list_runs

pytestmark = pytest.mark.unit

# So long nothing here takes: what waits for a pipe's other end fails, and does not stop all tests.
TIMEOUT_SECONDS = 120

FILE = "name: x\nfaults: [{kind: kill-node, at: {step: 5}}]\n"
KILL = ("plan", "kill-node", "--at", "step=5")
CHECKPOINTS = ("--checkpoint-every", "2", "--checkpoint-folder")


@pytest.fixture(autouse=True)
def no_endless_wait():
    def stop(*_):
        raise AssertionError("it waits for the other end of a pipe")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(TIMEOUT_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pipe():
    os.mkfifo("pipe.yaml")
    return Path("pipe.yaml")


@pytest.mark.parametrize(
    "command",
    [
        ("plan",),
        ("run", "--dry-run"),
        ("validate",),
        ("forecast",),
        ("compare", "--strategies", "mecefo,ndb"),
        ("paper", "mecefo", "--convergence"),
    ],
    ids=" ".join,
)
def test_pipe_without_a_writer(pipe, chaos, command):
    code, out, err = chaos(*command, pipe)
    assert code == 4
    assert "a pipe that nobody writes to" in out + err


def test_output_to_a_pipe_that_nobody_reads(pipe, chaos, monkeypatch):
    monkeypatch.setattr("chaos.user_files.MAX_WAIT_FOR_READER_SECONDS", 0.0)
    code, _, err = chaos("init", *KILL[1:], "--output", pipe, "--force")
    assert code == 3
    assert "pipe.yaml cannot be written: a pipe that nobody reads" in err


@pytest.mark.parametrize("command", ["report", "replay", "serve", "shrink"])
def test_pipe_is_no_run(pipe, chaos, command):
    code, _, err = chaos(command, pipe)
    assert code == 4
    assert "is not a run" in err


def test_pipe_says_so(pipe, chaos):
    code, _, err = chaos("plan", "./pipe.yaml")
    assert code == 4
    assert "cannot read the file: a pipe that nobody writes to" in err


def test_pipe_that_was_written_to_is_read(pipe, chaos):
    """As a shell's `<(...)`."""
    # Keeps the pipe open for its writer.
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    pipe.write_text(FILE)
    code, out, err = chaos("plan", f"./{pipe}")
    os.close(reader)
    assert code == 0, err
    assert "kill-node" in out


def test_devices_and_traces_that_are_pipes(pipe, chaos):
    code, _, err = chaos(*KILL, "--device-model", f"./{pipe}")
    assert code == 4
    assert "a pipe that nobody writes to" in err


def test_pipes_in_the_folder_of_runs(chaos):
    folder = Path("runs", "job", "20260101T000000Z")
    folder.mkdir(parents=True)
    for name in ("events.jsonl", "summary.json"):
        os.mkfifo(folder / name)
    assert [entry.verdict for entry in list_runs(Path("runs"))] == ["unreadable"]
    assert chaos("runs", "--out", "runs")[0] == 0
    assert chaos("report", "job", "--out", "runs")[0] == 4


def test_pipes_in_the_folder_of_states(chaos, monkeypatch, tmp_path):
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    (tmp_path / "state").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "state" / "a-run.json")
    code, out, err = chaos("heal")
    assert code == 6
    assert "a-run.json" in out + err


def test_names_that_would_reorder_the_line(chaos, monkeypatch, tmp_path):
    name = "lmay.\u202e\x1b[31m.yaml"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step"))
    for arguments in (("plan", f"./{name}"), ("validate", name), ("report", name), ("runs", "--out", name)):
        _, out, err = chaos(*arguments)
        assert not {"\u202e", "\x1b"} & set(out + err)
        assert r"\u202e\x1b[31m" in out + err
    assert not {"\u202e", "\x1b"} & set(Path("step").read_text())


def test_error_before_the_run_in_junit(chaos):
    chaos("run", "./a\u202e\x1b.yaml", "--junit", "junit.xml")
    assert "\u202e" not in Path("junit.xml").read_text()


@pytest.mark.parametrize("option", ["--data", "--device-model"])
def test_home_that_there_is_not(chaos, option):
    code, _, err = chaos(*KILL, option, "~nobody9/x.json")
    assert code == 4
    assert option in err
    assert "~nobody9" in err


@pytest.mark.parametrize("place", ["there", "there/below", "pipe"])
@pytest.mark.parametrize("job", [(), ("--", "python3", "train.py")], ids=["our-job", "command"])
def test_checkpoint_folder_that_is_none(chaos, place, job):
    Path("there").touch()
    Path("train.py").touch()
    os.mkfifo("pipe")
    options = CHECKPOINTS if not job else CHECKPOINTS[2:]
    code, _, err = chaos(*KILL[:1], "kill-process", *KILL[2:], *options, place, *job)
    assert code == 4
    assert "--checkpoint-folder: " in err
    assert f"{place.partition('/')[0]} is not a folder" in err


def test_checkpoint_to_resume_from_that_is_none(chaos):
    Path("there").touch()
    Path("x.yaml").write_text(f"job: {{checkpoint: {{every_steps: 2, folder: there, resume: true}}}}\n{FILE}")
    code, _, err = chaos("plan", "x.yaml")
    assert code == 4
    assert "x.yaml:1: job.checkpoint.folder: there is not a folder" in err


@pytest.mark.parametrize("place", ["new", "new/below", "."])
def test_checkpoint_folder_that_can_be_made(chaos, place):
    assert chaos(*KILL, *CHECKPOINTS, place)[0] == 0
