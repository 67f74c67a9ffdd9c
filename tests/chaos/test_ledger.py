import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaos.errors import EnvironmentFailure
from chaos.ledger import Entry, Ledger, read_pending

pytestmark = pytest.mark.unit

RECORD = {"processes": [{"pid": 7, "start_ticks": 8}]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_an_entry_is_pending_from_prepared_to_struck(path):
    assert read_pending(path) == ()
    with Ledger(path) as ledger:
        assert read_pending(path) == ()
        ledger.prepare(0, "kill-node", RECORD)
        assert read_pending(path) == (Entry(0, "kill-node", "prepared", RECORD),)
        ledger.applied(0, "kill-node")
        assert read_pending(path) == (Entry(0, "kill-node", "applied", RECORD),), "the record is kept"
        ledger.prepare(1, "kill-process", {})
        ledger.strike(0, "kill-node")
        assert read_pending(path) == (Entry(1, "kill-process", "prepared", {}),)
        ledger.strike(1, "kill-process")
        assert read_pending(path) == ()


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
            lambda: ledger.strike(0, "f"),
        ):
            act()
            assert synced[-1] == path.read_bytes()
    assert [json.loads(line)["state"] for line in synced[-1].splitlines()] == ["prepared", "applied", "struck"]


def test_it_survives_the_death_of_its_writer(path):
    code = f"""
import os, signal
from pathlib import Path
from chaos.ledger import Ledger
Ledger(Path({str(path)!r})).prepare(3, "kill-node", {RECORD!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == -signal.SIGKILL
    assert read_pending(path) == (Entry(3, "kill-node", "prepared", RECORD),)


def test_an_old_ledger_is_continued(path):
    with Ledger(path) as ledger:
        ledger.prepare(0, "kill-node", RECORD)
    with Ledger(path) as ledger:
        ledger.strike(0, "kill-node")
    assert read_pending(path) == ()


def test_what_cannot_be_written_is_not_to_be_applied(tmp_path):
    with pytest.raises(EnvironmentFailure, match="nothing was injected"):
        Ledger(tmp_path / "no such folder" / "ledger.jsonl")
    with Ledger(Path("/dev/full")) as ledger, pytest.raises(EnvironmentFailure, match="No space"):
        ledger.prepare(0, "kill-node", RECORD)


ACTS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["prepare", "applied", "strike"])), max_size=12)


@settings(max_examples=60)
@given(acts=ACTS, cut=st.integers(0, 400))
def test_wherever_it_is_cut_off_nothing_pending_is_forgotten(tmp_path_factory, acts, cut):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    states = {}
    with Ledger(path) as ledger:
        for incident, act in acts:
            if act == "prepare":
                ledger.prepare(incident, "f", RECORD)
            elif incident in states:
                getattr(ledger, act)(incident, "f")
            else:
                continue
            states[incident] = act
    assert {entry.incident for entry in read_pending(path)} == {i for i, act in states.items() if act != "strike"}
    assert all(entry.record == RECORD for entry in read_pending(path))

    data = path.read_bytes()
    whole_lines = data[: max(0, len(data) - cut)]
    path.write_bytes(whole_lines)
    kept = {}
    for line in whole_lines.splitlines(keepends=True):
        # A line that lacks its end only is a whole one.
        if line.rstrip(b"\n").endswith(b"}}"):
            kept[json.loads(line)["incident"]] = json.loads(line)["state"]
    assert {entry.incident for entry in read_pending(path)} == {i for i, state in kept.items() if state != "struck"}
