import errno
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chaos.undo.ledger
from chaos.errors import EnvironmentFailure, HealError
from chaos.undo.ledger import Entry, Ledger, read_ledger
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
RECORD = {"processes": [{"pid": 7, "start_ticks": 8}]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def undo(ledger, incident, fault):
    ledger.undo(incident, fault, RECORD, lambda record: {})


def test_an_entry_is_pending_from_prepared_to_closed(path):
    assert read_ledger(path).pending == ()
    with Ledger(path) as ledger:
        assert read_ledger(path).pending == ()
        ledger.prepare(0, "kill-node", RECORD)
        assert read_ledger(path).pending == (Entry(0, "kill-node", "prepared", RECORD),)
        ledger.applied(0, "kill-node")
        assert read_ledger(path).pending == (Entry(0, "kill-node", "applied", RECORD),), "the record is kept"
        ledger.prepare(1, "kill-process", {})
        undo(ledger, 0, "kill-node")
        assert read_ledger(path).pending == (Entry(1, "kill-process", "prepared", {}),)
        undo(ledger, 1, "kill-process")
        assert read_ledger(path).pending == ()


def test_a_line_is_synced_before_the_call_returns(path, monkeypatch):
    synced = []

    def fsync(descriptor):
        assert os.fstat(descriptor).st_ino == path.stat().st_ino
        synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", fsync)
    with Ledger(path) as ledger:
        for act in (
            lambda: ledger.prepare(0, "f", RECORD),
            lambda: ledger.applied(0, "f"),
            lambda: undo(ledger, 0, "f"),
        ):
            act()
            assert synced[-1] == path.read_bytes()
    assert [json.loads(line)["state"] for line in synced[-1].splitlines()] == ["prepared", "applied", "struck"]


def test_it_survives_the_death_of_its_writer(path):
    code = f"""
import os, signal
from pathlib import Path
from chaos.undo.ledger import Ledger
Ledger(Path({str(path)!r})).prepare(3, "kill-node", {RECORD!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert read_ledger(path).pending == (Entry(3, "kill-node", "prepared", RECORD),)


def test_an_old_ledger_is_continued(path):
    with Ledger(path) as ledger:
        ledger.prepare(0, "kill-node", RECORD)
    with Ledger(path) as ledger:
        undo(ledger, 0, "kill-node")
    assert read_ledger(path).pending == ()


def test_what_cannot_be_written_is_not_to_be_applied(tmp_path):
    with pytest.raises(EnvironmentFailure, match="nothing was injected"):
        Ledger(tmp_path / "no such folder" / "ledger.jsonl")
    with Ledger(Path("/dev/full")) as ledger, pytest.raises(EnvironmentFailure, match="No space"):
        ledger.prepare(0, "kill-node", RECORD)


ACTS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["prepare", "applied", "undo"])), max_size=12)


@given(acts=ACTS, cut=st.integers(0, 400))
def test_wherever_it_is_cut_off_nothing_pending_is_forgotten(tmp_path_factory, acts, cut):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    states = {}
    with Ledger(path) as ledger:
        for incident, act in acts:
            if act == "prepare":
                ledger.prepare(incident, "f", RECORD)
            elif incident in states:
                (undo if act == "undo" else Ledger.applied)(ledger, incident, "f")
            else:
                continue
            states[incident] = act
    assert {entry.incident for entry in read_ledger(path).pending} == {i for i, act in states.items() if act != "undo"}
    assert all(entry.record == RECORD for entry in read_ledger(path).pending)

    data = path.read_bytes()
    whole_lines = data[: max(0, len(data) - cut)]
    path.write_bytes(whole_lines)
    kept = {}
    for line in whole_lines.splitlines():
        # A line that lacks its end only is a whole one.
        with suppress(ValueError):
            kept[json.loads(line)["incident"]] = json.loads(line)["state"]
    pending = {i for i, state in kept.items() if state != "struck"}
    assert {entry.incident for entry in read_ledger(path).pending} == pending

    # Whoever undoes the rest writes behind what was cut off.
    with Ledger(path, by="heal") as ledger:
        for entry in read_ledger(path).pending:
            assert ledger.undo(entry.incident, "f", entry.record, lambda record: dict(record))["by"] == "heal"
    assert read_ledger(path).pending == ()
    assert read_ledger(path).problems == ()


OF_TWO_WRITERS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 3), st.sampled_from(["prepare", "applied", "undo", "lapse", "cut"])),
    max_size=15,
)


@given(acts=OF_TWO_WRITERS)
def test_each_of_two_writers_knows_what_the_other_one_has_undone(tmp_path_factory, acts):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    with Ledger(path) as first, Ledger(path, by="watchdog") as second:
        for writer, incident, act in acts:
            ledger = (first, second)[writer]
            if act == "cut":
                # By others: the file is not so long any more.
                os.truncate(path, path.stat().st_size // 2)
            elif act == "prepare":
                ledger.prepare(incident, "f", RECORD)
            elif act == "applied":
                ledger.applied(incident, "f")
            else:
                known = read_ledger(path).of(incident)
                evidence = ledger.undo(incident, "f", RECORD, undo_nothing, lapse=act == "lapse")
                assert (evidence["undone"] == "already") is (known is not None and known.state == "struck")
                assert ("again_by" in evidence) is (known is not None and known.state == "lapsed")


def test_a_ledger_that_was_written_anew_with_lines_of_the_same_length_is_read_anew(path):
    with Ledger(path) as ledger:
        ledger.prepare(0, "f", RECORD)
        undone = [ledger.undo(0, "f", RECORD, undo_nothing)["undone"] for _ in range(2)]
        path.write_bytes(path.read_bytes().replace(b'"struck"', b'"lapsed"'))
        undone.append(ledger.undo(0, "f", RECORD, undo_nothing)["undone"])
    assert undone == ["nothing", "already", "nothing"]


def test_an_undo_reads_only_what_is_new(path, monkeypatch):
    num_entries = 100
    with Ledger(path) as ledger:
        for incident in range(num_entries):
            ledger.prepare(incident, "f", RECORD)
        lines = []
        loads = chaos.undo.ledger.loads
        monkeypatch.setattr(chaos.undo.ledger, "loads", lambda line: lines.append(line) or loads(line))
        for incident in range(num_entries):
            undo(ledger, incident, "f")
    assert len(lines) < 2 * num_entries


def undo_nothing(record):
    return {"undone": "nothing"}


def test_an_entry_says_whose_it_is(path, tmp_path):
    made, there = str(tmp_path / "made"), str(tmp_path)
    with Ledger(path, "run-1") as ledger:
        ledger.prepare(0, "f", {"kept": [made], "in": {"folder": there}, "relative": "a/b"})
        ledger.applied(0, "f")
    (entry,) = read_ledger(path).entries
    assert (entry.run, entry.folder, entry.by) == ("run-1", str(tmp_path), "chaos")
    assert entry.owner == ProcessId.of(os.getpid())
    assert entry.absent == (made,), "what was not there and is named by the record is what the fault is about to make"


def test_undo_affects_and_says_by_whom(path):
    with Ledger(path) as ledger, Ledger(path, by="watchdog") as other:
        ledger.prepare(0, "f", RECORD)
        assert other.undo(0, "f", RECORD, lambda record: {"undone": record}) == {"undone": RECORD, "by": "watchdog"}
        assert ledger.undo(0, "f", RECORD, lambda _: pytest.fail("undone twice")) == {
            "undone": "already",
            "by": "watchdog",
        }
    assert read_ledger(path).pending == ()


@pytest.mark.parametrize("error", [HealError("still there"), KeyError("pid")], ids=["failed", "broken"])
def test_what_is_not_undone_is_not_affected(path, error):
    def undo(record):
        raise error

    with Ledger(path) as ledger:
        ledger.prepare(0, "f", RECORD)
        with pytest.raises(HealError, match=r"still there|broke down.*pid"):
            ledger.undo(0, "f", RECORD, undo)
        assert len(read_ledger(path).pending) == 1
        ledger.undo(0, "f", RECORD, undo_nothing)
    assert read_ledger(path).pending == ()


def test_what_lapsed_stays_pending_until_its_injector_undoes_it_too(path):
    with Ledger(path) as ledger, Ledger(path, by="watchdog") as watchdog:
        ledger.prepare(0, "f", RECORD)
        watchdog.undo(0, "f", RECORD, undo_nothing, lapse=True)
        assert [entry.state for entry in read_ledger(path).pending] == ["lapsed"]
        # The injector was between the record and the act: now it acts.
        ledger.applied(0, "f")
        assert [entry.state for entry in read_ledger(path).pending] == ["applied"]
        watchdog.undo(0, "f", RECORD, undo_nothing, lapse=True)
        evidence = ledger.undo(0, "f", RECORD, undo_nothing)
        assert (evidence["by"], evidence["again_by"]) == ("watchdog", "chaos")
        assert watchdog.undo(0, "f", RECORD, undo_nothing, lapse=True)["undone"] == "already"
    assert read_ledger(path).pending == ()


def test_one_at_a_time_undoes(path, monkeypatch):
    with Ledger(path) as ledger:
        ledger.prepare(0, "f", RECORD)
    code = f"""
from pathlib import Path
from chaos.undo.ledger import Ledger
def undo(record):
    print("undoing", flush=True)
    input()
    return {{}}
Ledger(Path({str(path)!r}), by="heal").undo(0, "f", {RECORD!r}, undo)
"""
    other = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=PIPE, stdout=PIPE)
    try:
        assert other.stdout.readline() == b"undoing\n"
        with Ledger(path) as ledger:
            monkeypatch.setattr(chaos.undo.ledger, "LOCK_TIMEOUT_SECONDS", 0.05)
            with pytest.raises(EnvironmentFailure, match="locked by another process"):
                ledger.undo(0, "f", RECORD, undo_nothing)
            monkeypatch.setattr(chaos.undo.ledger, "LOCK_TIMEOUT_SECONDS", 60.0)
            other.stdin.write(b"\n")
            other.stdin.flush()
            assert ledger.undo(0, "f", RECORD, undo_nothing) == {"undone": "already", "by": "heal"}
    finally:
        other.communicate()


def test_a_silent_holder_of_the_lock_does_not_keep_the_watchdog(path, monkeypatch):
    monkeypatch.setattr(chaos.undo.ledger, "LAPSE_LOCK_TIMEOUT_SECONDS", 0.01)
    with Ledger(path) as ledger, Ledger(path, by="watchdog") as watchdog:
        ledger.prepare(0, "f", RECORD)

        def undo(record):
            return watchdog.undo(0, "f", RECORD, undo_nothing, lapse=True)

        assert ledger.undo(0, "f", RECORD, undo)["undone"] == "nothing"
    assert read_ledger(path).pending == ()


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1, 2]",
        b'{"incident": 0}',
        b'{"incident": "0", "fault": "f", "state": "struck", "record": {}}',
        b'{"incident": 0, "fault": "f", "state": "forgiven", "record": {}}',
        b'{"incident": 0, "fault": "f", "state": "struck", "record": 7}',
        b'{"incident": 0, "fault": "f", "state": "struck", "record": {}, "pid": Infinity, "start_ticks": 1}',
        b"[" * 10**5,
        b"\xff\xfe\x00",
    ],
)
def test_what_cannot_be_understood_is_dirty(path, line):
    with Ledger(path) as ledger:
        ledger.prepare(0, "f", RECORD)
        undo(ledger, 0, "f")
    path.write_bytes(path.read_bytes() + line + b"\n")
    assert read_ledger(path).pending == ()
    assert read_ledger(path).problems == (f"{path}:3 is no entry of a ledger",)


def test_what_cannot_be_read_is_dirty(tmp_path):
    assert read_ledger(tmp_path).problems == (f"{tmp_path} cannot be read: Is a directory",)


@pytest.mark.parametrize(("number", "said"), [(errno.ENOSPC, "No space"), (errno.EFBIG, "ulimit -f")])
def test_half_a_line_is_taken_back(path, number, said):
    with Ledger(path) as ledger:
        ledger.prepare(0, "f", RECORD)
        before = path.read_bytes()
        file = ledger._file

        class Full:
            num_written = 0

            def write(self, data):
                if self.num_written:
                    raise OSError(number, os.strerror(number))
                self.num_written = file.write(data[:10])
                return self.num_written

            def fileno(self):
                return file.fileno()

        ledger._file = Full()
        with pytest.raises(EnvironmentFailure, match=said):
            ledger.applied(0, "f")
        ledger._file = file
    assert path.read_bytes() == before
