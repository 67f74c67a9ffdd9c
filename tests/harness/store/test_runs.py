import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.comparison.stored import find_samples
from harness.store.runs import RunNotFound, StoreError, find_run, list_runs, new_run_folder, safe_name
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import to_json

pytestmark = pytest.mark.unit

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
ONE = datetime(2026, 11, 21, 13, 0, 0, tzinfo=UTC)


def event(kind, *, step=None, pid=1, time_seconds=None, job="main", **fields):
    return Event(
        kind=kind,
        source="conductor",
        time_seconds=time.time() if time_seconds is None else time_seconds,
        monotonic_seconds=1.0,
        pid=pid,
        job=job,
        step=step,
        fields=fields,
    )


def store(out, name="kill-node", *, now=NOON, events=None, summary=None):
    folder = new_run_folder(out, name, now=now)
    log = [event("run_started")] if events is None else events
    (folder / "events.jsonl").write_text("".join(e.to_json() + "\n" for e in log))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


class TestNewRunFolder:
    def test_is_named_by_name_and_utc_time(self, tmp_path):
        folder = new_run_folder(tmp_path / "out", "kill-node", now=NOON)
        assert folder == tmp_path / "out" / "kill-node" / "20261121T120000Z"
        assert folder.is_dir()

    def test_a_second_run_in_the_same_second_gets_a_number(self, tmp_path):
        names = [new_run_folder(tmp_path, "a", now=NOON).name for _ in range(3)]
        assert names == ["20261121T120000Z", "20261121T120000Z-2", "20261121T120000Z-3"]

    def test_runs_that_start_together_never_share_a_folder(self, tmp_path):
        folders, gate = [], threading.Barrier(8)

        def start():
            gate.wait(timeout=120)
            folders.extend(new_run_folder(tmp_path, "a", now=NOON) for _ in range(5))

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert len(folders) == len(set(folders)) == 40
        assert (tmp_path / "latest").resolve() in folders
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "latest"]

    def test_latest_moves_to_the_newest(self, tmp_path):
        new_run_folder(tmp_path, "a", now=NOON)
        second = new_run_folder(tmp_path, "b", now=ONE)
        assert (tmp_path / "latest").resolve() == second
        assert not (tmp_path / "latest").readlink().is_absolute()

    def test_a_file_system_without_links_does_not_fail_the_run(self, tmp_path, monkeypatch):
        def refuse(*_args, **_kwargs):
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(Path, "symlink_to", refuse)
        folder = store(tmp_path)
        assert not (tmp_path / "latest").exists()
        assert find_run(tmp_path, "latest") == folder

    def test_a_folder_named_latest_does_not_fail_the_run(self, tmp_path):
        (tmp_path / "latest").mkdir()
        folder = store(tmp_path)
        assert find_run(tmp_path, "latest") == folder
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []

    @pytest.mark.parametrize(
        ("number", "words"),
        [
            (errno.ENOSPC, "make room"),
            (errno.EACCES, "permissions"),
            (errno.EROFS, "permissions"),
            (errno.EIO, "another place"),
        ],
    )
    def test_what_the_system_refuses_is_told_with_a_way_out(self, tmp_path, monkeypatch, number, words):
        def refuse(*_args, **_kwargs):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(Path, "mkdir", refuse)
        with pytest.raises(StoreError, match=words) as caught:
            new_run_folder(tmp_path, "a")
        assert str(tmp_path) in str(caught.value)

    def test_a_file_in_the_way_is_told(self, tmp_path):
        (tmp_path / "out").write_text("a file")
        with pytest.raises(StoreError, match="a file has that name"):
            new_run_folder(tmp_path / "out", "a")
        (tmp_path / "a").write_text("a file")
        with pytest.raises(StoreError, match="a file has that name"):
            new_run_folder(tmp_path, "a")


class TestSafeName:
    @given(st.text(max_size=300))
    def test_is_always_one_plain_component_and_stable(self, name):
        safe = safe_name(name)
        assert safe == safe_name(safe)
        assert re.fullmatch(r"[\w.-]+", safe)
        assert len(safe.encode()) <= 110
        assert not safe.startswith((".", "-"))
        assert safe.lower() != "latest"

    def test_examples(self):
        assert safe_name("../../etc/passwd") == "etc-passwd"
        assert safe_name("node loss, midrun") == "node-loss-midrun"
        assert safe_name("Latest") == "run-Latest"
        assert safe_name("实验") == "实验"
        assert safe_name("///") == "run"


class TestFindRun:
    def test_every_kind_of_reference_finds_it(self, tmp_path):
        older, newer = store(tmp_path, now=NOON), store(tmp_path, now=ONE)
        assert find_run(tmp_path, "latest") == newer
        assert find_run(tmp_path, "kill-node") == newer
        assert find_run(tmp_path, "kill-node/20261121T120000Z") == older
        assert find_run(tmp_path, str(older)) == older
        assert find_run(tmp_path, str(older / "events.jsonl")) == older
        assert find_run(tmp_path / "elsewhere", str(older)) == older

    def test_numbers_of_one_second_are_compared_as_numbers(self, tmp_path):
        folders = [store(tmp_path, now=NOON) for _ in range(11)]
        (tmp_path / "latest").unlink()
        assert find_run(tmp_path, "kill-node") == find_run(tmp_path, "latest") == folders[-1]

    def test_a_dangling_latest_falls_back_to_the_newest(self, tmp_path):
        kept = store(tmp_path, now=NOON)
        gone = store(tmp_path, now=ONE)
        (gone / "events.jsonl").unlink()
        gone.rmdir()
        assert find_run(tmp_path, "latest") == kept

    def test_a_run_is_found_by_the_name_it_was_given(self, tmp_path):
        folder = store(tmp_path, "node loss, midrun")
        assert find_run(tmp_path, "node loss, midrun") == folder

    def test_the_nearest_are_named(self, tmp_path):
        store(tmp_path, "kill-node")
        store(tmp_path, "slow-link")
        with pytest.raises(RunNotFound, match="Nearest: kill-node") as caught:
            find_run(tmp_path, "kil-node")
        assert "slow-link" not in str(caught.value)

    def test_one_without_a_log_is_told_apart_from_none(self, tmp_path):
        folder = new_run_folder(tmp_path, "kill-node")
        for reference in ("kill-node", f"kill-node/{folder.name}", str(folder)):
            with pytest.raises(RunNotFound, match="has no event log") as caught:
                find_run(tmp_path, reference)
            assert str(folder) in str(caught.value)

    def test_one_that_may_not_be_read_is_said_and_listed(self, tmp_path, monkeypatch):
        folder, other = store(tmp_path, now=ONE), store(tmp_path, "slow-link", now=NOON)
        real_stat = Path.stat

        def stat(path, **options):
            if folder in path.parents:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real_stat(path, **options)

        monkeypatch.setattr(Path, "stat", stat)
        for reference in ("kill-node", f"kill-node/{folder.name}", str(folder), str(folder / "events.jsonl")):
            for find in (find_run, find_samples):
                with pytest.raises(StoreError, match=r"cannot read .* \(Permission denied\)"):
                    find(tmp_path, reference)
        (tmp_path / "latest").unlink()
        assert find_run(tmp_path, "latest") == other
        assert len(list_runs(tmp_path)) == 2

    @pytest.mark.parametrize("reference", ["latest", "kill-node", "x" * 5000, "a/b/c"])
    def test_an_empty_store_says_how_to_fill_it(self, tmp_path, reference):
        with pytest.raises(RunNotFound, match="chaos run"):
            find_run(tmp_path / "none", reference)

    @pytest.mark.parametrize("reference", ["", "  ", "a\0b"])
    def test_what_cannot_be_a_reference_is_refused(self, tmp_path, reference):
        with pytest.raises(RunNotFound, match="names no run"):
            find_run(tmp_path, reference)

    def test_a_folder_without_a_log_is_no_run(self, tmp_path):
        folder = new_run_folder(tmp_path, "a", now=NOON)
        with pytest.raises(RunNotFound):
            find_run(tmp_path, str(folder))
        with pytest.raises(RunNotFound):
            find_run(tmp_path, "a")


class TestListRuns:
    def test_a_judged_run_is_listed_from_its_summary(self, tmp_path):
        incidents = [{"fault": "kill-node"}, {"fault": "kill-node"}, {"fault": "slow-link"}]
        summary = {"verdict": "pass", "steps_committed": 600, "incidents": incidents}
        folder = store(tmp_path, summary=summary)
        (entry,) = list_runs(tmp_path)
        assert (entry.name, entry.verdict, entry.steps) == ("kill-node", "pass", 600)
        assert entry.fault == "kill-node x2, slow-link"
        assert entry.started == NOON
        assert entry.path == folder
        assert find_run(tmp_path, entry.reference) == folder
        assert json.loads(json.dumps(to_json(entry)))["started"] == "2026-11-21T12:00:00+00:00"

    @pytest.mark.parametrize(
        ("job", "words"),
        [
            ({"runtime": "command", "command": ["torchrun", "my train.py"]}, "torchrun 'my train.py'"),
            (
                {"model": "llama-tiny", "nodes": 4, "gpus_per_node": 2, "strategy": "ndb"},
                "llama-tiny on 4 nodes x 2 ranks, ndb",
            ),
            ({}, ""),
            (3, ""),
        ],
    )
    def test_a_run_is_listed_with_its_job_and_the_first_reason(self, tmp_path, job, words):
        start = event("run_started", experiment={"job": job})
        store(tmp_path, events=[start], summary={"verdict": "fail", "status": "cut off", "reasons": ["one", "two"]})
        store(tmp_path, "odd", now=ONE, events=[start], summary={"verdict": "fail", "status": "cut off", "reasons": 3})
        store(
            tmp_path, "lost", now=ONE, events=[start], summary={"verdict": "pass", "reasons": ["fine"], "status": "x"}
        )
        listed = {entry.name: entry for entry in list_runs(tmp_path)}
        assert (listed["kill-node"].job, listed["kill-node"].reason) == (words, "one")
        assert (listed["odd"].job, listed["odd"].reason) == (words, "")
        # A verdict that the log contradicts gets the contradiction as its reason.
        assert (listed["lost"].verdict, listed["lost"].reason) == ("inconclusive", "the end of the log is missing")
        assert to_json(listed["lost"])["job"] == words

    def test_newest_last_over_all_names(self, tmp_path):
        store(tmp_path, "b", now=NOON)
        store(tmp_path, "a", now=ONE)
        store(tmp_path, "a", now=NOON)
        listed = [(e.name, e.started) for e in list_runs(tmp_path)]
        assert listed == [("a", NOON), ("b", NOON), ("a", ONE)]

    def test_a_run_still_going_and_one_cut_off_differ(self, tmp_path):
        experiment = {"faults": [{"kind": "kill-node"}]}
        log = [
            event("run_started", pid=os.getpid(), experiment=experiment),
            event("step_committed", step=7),
            event("step_committed", step=9, job="twin"),
        ]
        store(tmp_path, "going", now=ONE, events=log)
        with subprocess.Popen(["true"]) as gone:
            gone.wait(timeout=120)
        store(tmp_path, "cut", now=NOON, events=[event("run_started", pid=gone.pid, experiment=experiment)])
        cut, going = list_runs(tmp_path)
        assert (going.verdict, going.steps, going.fault) == ("running", 7, "kill-node")
        assert (cut.verdict, cut.steps) == ("cut off", None)

    def test_a_pid_that_now_is_another_process_is_not_the_run(self, tmp_path):
        store(tmp_path, events=[event("run_started", pid=os.getpid(), time_seconds=time.time() - 10_000_000)])
        (entry,) = list_runs(tmp_path)
        assert entry.verdict == "cut off"

    def test_a_run_that_ended_without_a_summary_is_not_judged(self, tmp_path):
        log = [event("run_started", pid=os.getpid()), event("run_ended", reason="completed")]
        store(tmp_path, events=log)
        (entry,) = list_runs(tmp_path)
        assert entry.verdict == "not judged"

    @pytest.mark.parametrize(
        "damage", [b"", b"\xff\xfe\x00", b"[]", b'"x"', b"{}", b"null", b'{"verdict": 3}', b"[" * 100_000]
    )
    def test_a_malformed_folder_does_not_break_the_list(self, tmp_path, damage):
        folder = new_run_folder(tmp_path, "bad", now=ONE)
        (folder / "events.jsonl").write_bytes(damage)
        (folder / "summary.json").write_bytes(damage)
        (tmp_path / "a-file").write_text("not a run")
        (tmp_path / "bad" / "notes").mkdir()
        store(tmp_path, "good", now=NOON, summary={"verdict": "fail", "incidents": 3})
        good, bad = list_runs(tmp_path)
        assert (bad.name, bad.verdict) == ("bad", "unreadable")
        assert (good.name, good.verdict, good.steps) == ("good", "fail", None)

    def test_a_summary_without_a_log_still_lists(self, tmp_path):
        folder = store(tmp_path, summary={"verdict": "dirty"})
        (folder / "events.jsonl").unlink()
        assert [entry.verdict for entry in list_runs(tmp_path)] == ["dirty"]

    def test_a_cut_off_last_line_is_no_obstacle(self, tmp_path):
        folder = store(tmp_path, events=[event("run_started"), event("step_committed", step=3)])
        with (folder / "events.jsonl").open("a") as log:
            log.write('{"time": 12')
        assert list_runs(tmp_path)[0].steps == 3

    def test_no_store_is_an_empty_list(self, tmp_path):
        assert list_runs(tmp_path / "none") == []

    def test_a_store_that_cannot_be_read_is_told(self, tmp_path):
        (tmp_path / "out").write_text("a file")
        with pytest.raises(StoreError, match="a file has that name"):
            list_runs(tmp_path / "out")


def test_reading_the_store_is_light():
    code = (
        "import sys, harness.store.runs; sys.exit(any(m in sys.modules for m in ('torch', 'rich', 'jinja2', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0
