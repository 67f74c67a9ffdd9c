"""The ground is taken from under `chaos`: no space, no permission, nobody who listens, no fork server."""

import json
import os
import resource
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from mecefo_runtime.system.process import ProcessId
from tests.integration.runs import (
    PATIENT,
    SMALL,
    ChaosRun,
    assert_nothing_left,
    assert_survived,
    event_logs,
    processes_of_run,
    read_log,
    read_run,
)

pytestmark = pytest.mark.crash

ONE_RANK_EACH = (*SMALL, "--gpus-per-node", "1")
SHORT = ("kill-node", "--at", "step=8", "--on", "node=1", "--repair", "none", "--steps", "16", *ONE_RANK_EACH)
LONG = ("kill-node", "--at", "step=10", "--on", "node=1", "--repair", "5steps", "--steps", "100000", *ONE_RANK_EACH)


def assert_refused(run, *words):
    """Exit code 3, a message with `words` in it, no traceback, and nothing left."""
    assert run.wait() == 3, run.stderr
    assert "Traceback" not in run.stderr, run.stderr
    for word in words:
        assert word in run.stderr
    assert_nothing_left(run)


@pytest.mark.nightly
def test_log_that_cannot_grow(tmp_path):
    with ChaosRun(tmp_path, ["run", *LONG], patch=PATIENT, limits={resource.RLIMIT_FSIZE: 20_000}) as run:
        assert_refused(run, "event log", "--out")
        lines = (run.folder / "events.jsonl").read_bytes().splitlines()
    assert json.loads(lines[0])["kind"] == "run_started"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 32 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.nightly
def test_full_disk_in_the_middle(tmp_path, small_disk):
    with ChaosRun(tmp_path, ["run", *LONG], out=small_disk, patch=PATIENT) as run:
        assert_refused(run, "event log", "--out")
        *whole, last = (run.folder / "events.jsonl").read_bytes().splitlines(keepends=True)
    assert all(json.loads(line) for line in whole)
    assert not last.endswith(b"\n") or json.loads(last)


def test_full_disk_from_the_start(tmp_path, small_disk):
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(bytes(4096))
    with ChaosRun(tmp_path, ["run", *LONG], out=small_disk, patch=PATIENT) as run:
        assert_refused(run, "space")


def test_unwritable_out(tmp_path):
    # Not by permissions, which mean nothing to root: no folder can be made in a file's place.
    (tmp_path / "file").write_text("in the way")
    with ChaosRun(tmp_path / "run", ["run", *SHORT], out=tmp_path / "file" / "out") as run:
        assert_refused(run, "--out")


def test_out_that_root_alone_may_write(tmp_path):
    if os.geteuid() == 0:
        with ChaosRun(tmp_path, ["run", *SHORT], out=Path("/proc/chaos")) as run:
            assert_refused(run, "/proc/chaos", "--out")
    else:
        with ChaosRun(tmp_path, ["run", *SHORT], out=Path("/root/chaos")) as run:
            assert_refused(run, "/root/chaos", "--out")


@pytest.mark.parametrize(
    "form", [pytest.param(["--json"], id="json"), pytest.param([], marks=pytest.mark.nightly, id="report")]
)
def test_nobody_reads_standard_output(tmp_path, form):
    reading, writing = os.pipe()
    os.close(reading)
    with ChaosRun(tmp_path, ["run", *SHORT, *form], stdout=writing, patch=PATIENT) as run:
        os.close(writing)
        exit_code = run.wait()
        assert "Traceback" not in run.stderr, run.stderr
        assert "Exception ignored" not in run.stderr, run.stderr
        finished = read_run(run.folder, exit_code)
        assert_nothing_left(run, finished.events)
    # Whoever stops reading (`chaos run ... | head`) changes nothing about the run.
    assert_survived(finished, 16, at=8, repaired=False)


@pytest.mark.nightly
def test_two_runs_at_once_in_one_place(tmp_path):
    out = tmp_path / "out"
    with (
        ChaosRun(tmp_path / "one", ["run", *SHORT], out=out, patch=PATIENT) as one,
        ChaosRun(tmp_path / "two", ["run", *SHORT, "--seed", "1"], out=out, patch=PATIENT) as two,
    ):
        codes = [one.wait(), two.wait()]
        for run in (one, two):
            assert_nothing_left(run)
    folders = [log.parent for log in event_logs(out)]
    assert len(folders) == 2
    finished = [read_run(folder, code) for folder, code in zip(folders, codes, strict=True)]
    for run in finished:
        assert_survived(run, 16, at=8, repaired=False)
    assert {run.summary["seed"] for run in finished} == {0, 1}
    assert (out / "latest").resolve() in folders


def test_fork_server_killed_while_it_trains(tmp_path):
    with ChaosRun(tmp_path, ["run", *LONG, "--twin"], patch=PATIENT) as run:
        run.wait_for("step_committed", step=3)
        _fork_server(run).signal(signal.SIGKILL)
        events = assert_lost(run)
    assert not any(event.job == "twin" for event in events)


def assert_lost(run):
    """That the command noticed the loss of its fork server, ended at once and says why; returns its log."""
    assert run.wait() == 3, run.stderr
    assert "Traceback" not in run.stderr, run.stderr
    events = read_log(run.folder / "events.jsonl")
    assert_nothing_left(run, events)
    assert (events[-1].kind, events[-1].fields["reason"]) == ("run_ended", "failed")
    assert "fork server ended" in events[-1].fields["message"]
    assert "fork server ended" in " ".join(run.stdout.split())
    return events


def _fork_server(run):
    """The fork server of a run, if it is there: the child of the command that runs its module."""
    for process in processes_of_run(run.mark):
        # It may be gone at any moment: what is looked at before a start comes and goes.
        with suppress(OSError):
            parent = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1]
            command = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
            if int(parent) == run.process.pid and b"harness.backends.forkserver" in command:
                return ProcessId.of(process.pid)
    return None
