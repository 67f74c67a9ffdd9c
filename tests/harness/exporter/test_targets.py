"""The file that Prometheus finds its targets in, through the life of a run and beside other runs."""

import fcntl
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from harness.exporter import targets as targets_module
from harness.exporter.targets import OWNER_LABEL, TARGETS_FILE, Targets, owner_of, reachable
from mecefo_runtime.system.events import BASELINE_JOB, Event
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit


def rank_started(rank, port, *, pid=None, job="main"):
    pid = 100 + rank if pid is None else pid
    fields = {"metrics": None if port is None else f"127.0.0.1:{port}"}
    return Event("rank_started", "rank", 0, 0, pid, job=job, rank=rank, node=rank // 2, fields=fields)


def exited(role, **fields):
    return Event("process_exited", "supervisor", 0, 0, 1, fields={"role": role, "exit": -9, **fields})


def listed(out, role):
    groups = json.loads((out / TARGETS_FILE).read_text())
    return sorted(target for group in groups if group["labels"]["role"] == role for target in group["targets"])


@pytest.fixture
def targets(tmp_path):
    targets = Targets(tmp_path, "node-loss", "127.0.0.1:9400")
    targets.open()
    return targets


def test_ranks_come_and_go(tmp_path, targets):
    assert (listed(tmp_path, "job"), listed(tmp_path, "rank")) == (["127.0.0.1:9400"], [])
    for rank in range(4):
        targets.on_event(rank_started(rank, 5000 + rank))
    assert listed(tmp_path, "rank") == [f"127.0.0.1:500{rank}" for rank in range(4)]
    targets.on_event(exited("rank", exited_rank=0, exited_pid=100))
    targets.on_event(exited("supervisor", exited_node=1, exited_pid=77))
    assert listed(tmp_path, "rank") == ["127.0.0.1:5001"]
    targets.on_event(rank_started(2, 6002, pid=200))
    # Word of the death of its predecessor may come later.
    targets.on_event(exited("rank", exited_rank=2, exited_pid=102))
    assert listed(tmp_path, "rank") == ["127.0.0.1:5001", "127.0.0.1:6002"]
    targets.on_event(Event("job_ended", "conductor", 0, 0, 1, fields={"outcome": "completed"}))
    assert (listed(tmp_path, "job"), listed(tmp_path, "rank")) == (["127.0.0.1:9400"], [])
    targets.close()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_is_not_listed(tmp_path, targets):
    targets.on_event(rank_started(0, None))
    targets.on_event(rank_started(1, 5001, job=BASELINE_JOB))
    assert listed(tmp_path, "rank") == []


def test_the_labels_are_few_and_bounded(tmp_path):
    targets = Targets(tmp_path, "x" * 1000, "127.0.0.1:1")
    targets.open()
    (group,) = json.loads((tmp_path / TARGETS_FILE).read_text())
    assert group["labels"].keys() == {"experiment", "role", OWNER_LABEL}
    assert len(group["labels"]["experiment"]) == 200


def test_runs_beside_each_other_share_the_file_and_dead_ones_leave_it(tmp_path, targets):
    alive = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    entries = []
    for pid, ticks, port in (
        (alive.pid, ProcessId.of(alive.pid).start_ticks, 1),
        (alive.pid, 1, 2),  # a recycled pid
        (2**22 + 5, 1, 3),
    ):
        owner = owner_of(ProcessId(pid, ticks))
        labels = {"experiment": "e", "role": "job", OWNER_LABEL: owner}
        entries.append({"targets": [f"127.0.0.1:{port}"], "labels": labels})
    elsewhere = {"experiment": "e", "role": "job", OWNER_LABEL: "another-host pid:[1] 1 1"}
    entries.append({"targets": ["another-host:9400"], "labels": elsewhere})
    (tmp_path / TARGETS_FILE).write_text(json.dumps(entries))
    try:
        targets.on_event(rank_started(0, 5000))
        assert listed(tmp_path, "job") == ["127.0.0.1:1", "127.0.0.1:9400", "another-host:9400"]
    finally:
        alive.communicate(b"\n")
    targets.close()
    assert listed(tmp_path, "job") == ["another-host:9400"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        "[1, {}, []]",
        '[{"targets": 1, "labels": {}}]',
        '[{"labels": {"a": 1}}]',
        "[" * 99999,
    ],
)
def test_a_damaged_file_is_written_anew(tmp_path, text):
    (tmp_path / TARGETS_FILE).write_text(text)
    targets = Targets(tmp_path, "e", "127.0.0.1:9400")
    targets.open()
    assert targets.violation is None
    assert listed(tmp_path, "job") == ["127.0.0.1:9400"]


def test_what_goes_wrong_with_the_file_is_said_and_harms_nobody(tmp_path):
    targets = Targets(tmp_path / "nowhere", "e", "127.0.0.1:9400")
    targets.open()
    assert "cannot be written: No such file" in str(targets.violation)
    targets.on_event(rank_started(0, 5000))
    targets.close()


def test_a_lock_that_is_never_released_does_not_stop_the_run(tmp_path, targets):
    holder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        targets.on_event(rank_started(0, 5000))
        assert targets.violation is not None
    finally:
        os.close(holder)
    targets.on_event(rank_started(1, 5001))
    assert targets.violation is None
    assert listed(tmp_path, "rank") == ["127.0.0.1:5000", "127.0.0.1:5001"]


def test_what_had_to_wait_for_the_lock_comes_with_the_next_event(tmp_path, targets):
    holder = os.open(tmp_path, os.O_RDONLY)
    step = Event("step_committed", "rank", 0, 0, 1, step=1)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        targets.on_event(rank_started(0, 5000))
        targets.on_event(step)
        assert listed(tmp_path, "rank") == [] and targets.violation is not None
    finally:
        os.close(holder)
    targets.on_event(step)
    assert listed(tmp_path, "rank") == ["127.0.0.1:5000"] and targets.violation is None


def test_who_ends_waits_longer_for_the_lock_since_no_event_comes_after(tmp_path, targets, monkeypatch):
    holder = os.open(tmp_path, os.O_RDONLY)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if sum(slept) > 1.0:
            fcntl.flock(holder, fcntl.LOCK_UN)

    monkeypatch.setattr(targets_module, "time", SimpleNamespace(sleep=sleep))
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        targets.close()
    finally:
        os.close(holder)
    assert list(tmp_path.iterdir()) == []


def test_who_listens_everywhere_is_listed_by_name(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "training")
    assert reachable("0.0.0.0:9400") == reachable("[::]:9400") == "training:9400"
    assert reachable("10.0.0.7:9400") == "10.0.0.7:9400"
