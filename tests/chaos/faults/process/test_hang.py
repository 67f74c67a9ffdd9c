"""A held interpreter lock, in a real process with a real agent: nothing in it runs, and then all of it runs again."""

import json
import os
from pathlib import Path

import pytest

from chaos.errors import HealError
from chaos.faults.process.hang import HangGil
from chaos.host.process_table import thread_names
from mecefo_runtime.system.process import ProcessId
from tests.chaos.one_node import older
from tests.chaos.one_rank import OneRank

pytestmark = pytest.mark.unit

# Waits as long, but without the lock.
LET_GO = "import ctypes\nctypes.PyDLL = ctypes.CDLL"
# Does not wait at all.
HARMLESS = "import chaos.in_process.hang as h\nh.HangGil.released = lambda self: None"


@pytest.fixture(autouse=True)
def _no_last_words(monkeypatch):
    # Here the rank is the whole job: after a failed verification nobody else tells of an end.
    monkeypatch.setattr("chaos.injection.executor.LAST_WORDS_SECONDS", 0.05)


@pytest.fixture
def soon_silent(monkeypatch):
    """A rank that hangs is verified sooner; for tests of what comes after that."""
    monkeypatch.setattr("chaos.faults.process.hang.SILENT_SECONDS", 0.3)


def gates(folder):
    return list(folder.glob("*.gate"))


def test_nothing_runs_until_it_is_lifted(tmp_path):
    run = OneRank(tmp_path, HangGil, lifetime="2s")
    run.play(then=lambda: run.watch.last_step > 10)
    evidence = run.evidence()
    assert evidence["silent_seconds"] >= 1.0
    assert [process["state"] for process in evidence["processes"]] == ["S"], "there, and not stopped"
    fourth, fifth = run.watch.steps[3], run.watch.steps[4]
    assert fifth.seconds >= 2.0 > fourth.seconds, "it hung in the step of its trigger, for its lifetime"
    assert gates(tmp_path) == []


@pytest.mark.usefixtures("soon_silent")
def test_it_ends_by_itself_when_its_time_is_up(tmp_path):
    run = OneRank(tmp_path, HangGil, at_most="1s")
    run.play(until="verified", then=lambda: run.watch.last_step > 10)
    assert run.watch.steps[4].seconds >= 1.0


@pytest.mark.parametrize("setup", [LET_GO, HARMLESS], ids=["lock-let-go", "no-wait"])
def test_without_the_lock_held_it_is_not_verified(tmp_path, monkeypatch, setup):
    monkeypatch.setattr(HangGil, "verify_timeout_seconds", 1.2)
    run = OneRank(tmp_path, HangGil, lifetime="1s", setup=setup)
    run.play(then=lambda: run.watch.last_step > 10)
    assert "other Python threads ran for 1.2 s" in run.reason()
    assert gates(tmp_path) == []


@pytest.mark.usefixtures("soon_silent")
def test_a_stopped_rank_does_not_hang(tmp_path, monkeypatch):
    monkeypatch.setattr("chaos.faults.process.hang.ALIVE_WITHIN_SECONDS", 0.3)
    setup = "import chaos.in_process.hang as h, os\nh.HangGil.released = lambda self: os.kill(os.getpid(), 19)"
    run = OneRank(tmp_path, HangGil, lifetime="1s", setup=setup)
    run.play(until="unverified")
    assert "stopped by a signal" in run.reason()
    (failed,) = run.of("undo_failed")
    assert "no Python thread of it ran" in failed["reason"], "what somebody else has stopped is not ours to resume"


@pytest.mark.usefixtures("soon_silent")
class TestUndo:
    """From the record alone, of a rank that hangs and an injector that is gone."""

    def hang(self, folder, lifetime="1h"):
        """A run that is hanging now, by its record; what is asked of it is done while it hangs."""
        return OneRank(folder, HangGil, lifetime=lifetime)

    def record(self, folder):
        first = (folder / "ledger.jsonl").read_text().splitlines()[0]
        return json.loads(first)["record"]

    def test_the_record_is_enough(self, tmp_path):
        run = self.hang(tmp_path)
        done = []

        def undo():
            if not done:
                assert run.watch.last_step == 4
                done.append(HangGil.undo(self.record(tmp_path)))
                done.append(HangGil.undo(self.record(tmp_path)))
            return run.watch.last_step > 10

        run.play(until="verified", then=undo)
        assert done[0] == done[1]
        assert gates(tmp_path) == []

    def test_one_that_still_hangs_is_said(self, tmp_path, monkeypatch):
        monkeypatch.setattr("chaos.faults.process.hang.ALIVE_WITHIN_SECONDS", 0.3)
        run = self.hang(tmp_path)
        said = []

        def undo():
            if not said:
                record = self.record(tmp_path)
                # The gate of another: nobody opens the right one.
                wrong = [{**process, "gate": str(tmp_path / "no.gate")} for process in record["processes"]]
                with pytest.raises(HealError) as error:
                    HangGil.undo({"processes": wrong})
                said.append(str(error.value))
            return True

        run.play(until="verified", then=undo)
        assert "still hangs" in said[0]

    def test_never_applied_it_does_no_harm(self, tmp_path):
        process = ProcessId.of(os.getpid())
        gate = str(tmp_path / "never.gate")
        record = {"processes": [{"pid": process.pid, "start_ticks": process.start_ticks, "gate": gate}]}
        assert HangGil.undo(record) == HangGil.undo(record)
        assert not Path(gate).exists()

    def test_a_recycled_pid_is_not_hit(self, tmp_path, monkeypatch):
        run = OneRank(tmp_path, HangGil)
        recycled = type("Recycled", (), {"of": lambda pid: older(ProcessId.of(pid))})
        monkeypatch.setattr("tests.chaos.one_rank.ProcessId", recycled)
        run.play(until="unverified", then=lambda: run.watch.last_step > 10)
        assert "nothing of rank=0 is running any more" in run.reason()
        assert gates(tmp_path) == []


@pytest.mark.usefixtures("soon_silent")
def test_it_ends_with_the_injector(tmp_path):
    """The gate's other end is closed, however the injector ended."""
    run = OneRank(tmp_path, HangGil, lifetime="1h")
    closed = []
    null = os.open(os.devnull, os.O_RDWR)

    def close():
        if not closed:
            (gate,) = gates(tmp_path)
            ours = [entry for entry in Path("/proc/self/fd").iterdir() if _leads_to(entry, gate)]
            closed.extend(ours)
            for entry in ours:
                os.dup2(null, int(entry.name))
        return run.watch.last_step > 10

    run.play(until="verified", then=close)
    os.close(null)
    assert len(closed) == 1


def _leads_to(entry, path):
    try:
        return entry.readlink() == path
    except OSError:
        return False


@pytest.mark.usefixtures("soon_silent")
def test_no_witness_stays(tmp_path):
    run = OneRank(tmp_path, HangGil, lifetime="500ms")
    names = []

    def look():
        names.append({name.split()[0] for name in thread_names(run.process).values()})
        return run.watch.last_step > 10

    run.play(then=look)
    assert names[-1] and "gil-witness" not in names[-1]
