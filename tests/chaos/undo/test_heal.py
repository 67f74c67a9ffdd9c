"""Healing from the ledger alone: what is undone, whom it leaves alone, and what a new run is refused for."""

import json
import os
import re
import secrets
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

import chaos.undo.heal
from chaos.errors import HealError
from chaos.host.run_processes import RUN_VARIABLE
from chaos.undo import run_registry
from chaos.undo.heal import heal, preview, refuse_if_unclean, unclean
from chaos.undo.ledger import Ledger, read_ledger
from chaos.undo.run_registry import OpenRun, Place
from harness.exporter.targets import OWNER_LABEL, TARGETS_FILE, owner_of
from mecefo_chaos.cli.main import run_cli
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

# No process has such a pid.
DEAD = ProcessId(2_000_000_000, 1)


class MakeFile:
    """Makes a file; its undo removes it."""

    has_undo = True

    @staticmethod
    def undo(record):
        path = Path(record["path"])
        if path.is_dir():
            raise HealError(f"{path} is a folder")
        path.unlink(missing_ok=True)
        return {"undone": f"{path.name} is gone"}


class Leave:
    """Has nothing to undo."""

    has_undo = False

    @staticmethod
    def undo(record):
        return {"undone": "nothing to undo"}


@pytest.fixture(autouse=True)
def ground(tmp_path, monkeypatch):
    monkeypatch.setenv(run_registry.STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.setattr(chaos.undo.heal, "registry", lambda: {"make-file": MakeFile, "leave": Leave})
    monkeypatch.setattr(chaos.undo.heal, "WATCHDOG_PATIENCE_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def left(tmp_path):
    """A registered run whose `chaos` is dead, with two files made and one fault that has nothing to undo."""
    return leave_behind(tmp_path / "run")


def leave_behind(folder, *, owner=DEAD):
    folder.mkdir()
    # Its processes are looked for on the whole machine, where this test may run more than once at a time.
    run = secrets.token_hex(8)
    open_run = OpenRun(run, folder, folder / "ledger.jsonl", Place.here(), owner, DEAD)
    with Ledger(open_run.ledger, run) as ledger:
        for number in range(2):
            path = folder / f"made-{number}"
            ledger.prepare(number, "make-file", {"path": str(path)})
            path.write_text("")
        ledger.prepare(2, "leave", {"pid": 1})
        ledger.applied(0, "make-file")
    run_registry.register(open_run)
    return open_run


def made(run):
    return sorted(path.name for path in run.folder.glob("made-*"))


def test_everything_pending_is_undone_the_newest_first_and_the_run_forgotten(left):
    healed = heal(left)
    assert healed.is_clean
    assert [one["incident"] for one in healed.undone] == [2, 1, 0]
    assert made(left) == [] and read_ledger(left.ledger).pending == () and run_registry.registered() == ()
    again = heal(left)
    assert again.is_clean and again.undone == ()


def test_what_cannot_be_undone_stays_and_the_rest_is_undone(left):
    (left.folder / "made-0").unlink()
    (left.folder / "made-0").mkdir()
    healed = heal(left)
    assert not healed.is_clean
    assert [one["reason"] for one in healed.failed] == [f"{left.folder}/made-0 is a folder"]
    assert {one["what"] for one in healed.left} == {f"{left.folder}/made-0"}
    assert [entry.incident for entry in read_ledger(left.ledger).pending] == [0]
    assert len(run_registry.registered()) == 1
    (left.folder / "made-0").rmdir()
    assert heal(left).is_clean and run_registry.registered() == ()


def test_what_cannot_be_undone_here_is_closed_when_the_user_has_undone_it(left, monkeypatch):
    monkeypatch.setattr(chaos.undo.heal, "registry", lambda: {"leave": Leave})
    (failed, _) = heal(left).failed
    assert failed["why"].code == "undo_not_installed" and failed["record"] == {"path": f"{left.folder}/made-1"}
    for name in made(left):
        (left.folder / name).unlink()
    healed = heal(left, is_by_hand=True)
    assert healed.is_clean and [one["evidence"]["undone"] for one in healed.undone] == ["by hand", "by hand"]
    assert read_ledger(left.ledger).pending == () and run_registry.registered() == ()
    refuse_if_unclean()


def test_an_undo_that_breaks_down_says_where(left, monkeypatch):
    class Broken(MakeFile):
        @staticmethod
        def undo(record):
            return record["nosuchkey"]

    monkeypatch.setattr(chaos.undo.heal, "registry", lambda: {"leave": Leave, "make-file": Broken})
    reason = heal(left).failed[0]["reason"]
    assert re.search(r"the undo of make-file broke down at .*test_heal\.py:\d+: KeyError\('nosuchkey'\)", reason)


def test_what_another_host_left_is_not_healed_here(left):
    there = replace(left, place=replace(left.place, host="node2", boot="another boot"))
    with pytest.raises(HealError, match="belongs to node2"):
        heal(there)
    assert made(left) == ["made-0", "made-1"] and len(read_ledger(left.ledger).pending) == 3


def test_an_entry_of_another_host_in_a_shared_ledger_is_left_to_it(left):
    lines = [json.loads(line) for line in left.ledger.read_text().splitlines()]
    for line in lines:
        if line["incident"] == 0 and "place" in line:
            line["place"][:2] = ["node2", "another boot"]
    left.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    healed = heal(left)
    assert [one["incident"] for one in healed.undone] == [2, 1] and made(left) == ["made-0"]
    assert [one["reason"] for one in healed.failed] == [
        "the entry belongs to node2 (or a container on it): run `chaos heal` there"
    ]
    assert [entry.incident for entry in read_ledger(left.ledger).pending] == [0]


def test_a_fault_that_is_not_installed_any_more_is_said(left, monkeypatch):
    monkeypatch.setattr(chaos.undo.heal, "registry", lambda: {"leave": Leave})
    assert "no fault 'make-file' is installed" in heal(left).failed[0]["reason"]
    assert "incident 0 (make-file) is not undone" in unclean(left)


def test_its_processes_are_ended_and_no_others(left):
    ours, other = (
        subprocess.Popen(["sleep", "600"], env={**os.environ, RUN_VARIABLE: run})
        for run in (left.run, left.run[::-1] + "0")
    )
    try:
        os.kill(ours.pid, signal.SIGSTOP)
        while b"sleep" not in Path(f"/proc/{ours.pid}/cmdline").read_bytes():
            time.sleep(0.001)
        assert "1 of its processes still run" in unclean(left)
        assert [one["pid"] for one in preview(left).ended] == [ours.pid]
        assert ours.poll() is None, "a preview does nothing"
        assert [one["pid"] for one in heal(left).ended] == [ours.pid]
        assert ours.wait() == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for child in (ours, other):
            child.kill()
            child.wait()


class TestRefusal:
    def test_of_a_new_run_names_what_to_do(self, left):
        with pytest.raises(HealError, match=r"incident 0 \(make-file\) is not undone.*`chaos heal`") as refusal:
            refuse_if_unclean()
        assert str(left.folder) in str(refusal.value)
        assert "leave" not in str(refusal.value), "what has nothing to undo is no reason"
        heal(left)
        refuse_if_unclean()

    def test_not_for_a_run_that_left_nothing(self, left):
        for path in left.folder.glob("made-*"):
            path.unlink()
        with Ledger(left.ledger, left.run) as ledger:
            for incident in (0, 1):
                ledger.undo(incident, "make-file", {}, lambda record: {})
        refuse_if_unclean()
        assert run_registry.registered() == ()

    def test_not_for_a_run_that_is_under_way_or_elsewhere(self, left):
        run_registry.register(replace(left, chaos=ProcessId.of(os.getpid())))
        refuse_if_unclean()
        run_registry.register(replace(left, place=replace(left.place, host="another")))
        refuse_if_unclean()
        assert len(run_registry.registered()) == 2, "what another host has registered stays"

    def test_for_a_ledger_that_is_gone_or_damaged(self, left):
        heal(left)
        run_registry.register(left)
        left.ledger.write_bytes(left.ledger.read_bytes() + b"?\n")
        with pytest.raises(HealError, match="no entry of a ledger"):
            refuse_if_unclean()
        healed = heal(left)
        assert not healed.is_clean and healed.problems
        left.ledger.unlink()
        with pytest.raises(HealError, match="ledger is missing"):
            refuse_if_unclean()
        assert heal(left).is_clean, "whoever removes the ledger has looked"
        refuse_if_unclean()

    def test_for_a_registry_that_cannot_be_read(self, left, tmp_path):
        heal(left)
        (tmp_path / "state" / "odd.json").write_text("{")
        with pytest.raises(HealError, match=r"odd\.json"):
            refuse_if_unclean()

    def test_comes_from_chaos_run_with_its_exit_code(self, left, capsys):
        assert run_cli(["run", "kill-node", "--at", "step=10"]) == 6
        assert "`chaos heal`" in capsys.readouterr().err
        assert not (left.folder.parent / "chaos-runs").exists(), "nothing was begun"


class TestCommand:
    def test_heals_and_says_so_and_has_nothing_to_do_then(self, left, capsys):
        assert run_cli(["heal"]) == 0
        out = capsys.readouterr().out
        assert f"{left.folder}" in out and "incident 0 (make-file): undone: made-0 is gone" in out
        assert made(left) == []
        assert run_cli(["heal"]) == 0
        assert "nothing to heal" in capsys.readouterr().out

    def test_a_dry_run_changes_nothing(self, left, capsys):
        before = left.ledger.read_bytes()
        assert run_cli(["heal", "--dry-run"]) == 0
        assert "incident 0 (make-file): would be undone" in capsys.readouterr().out
        assert (made(left), left.ledger.read_bytes()) == (["made-0", "made-1"], before)

    def test_json(self, left, capsys):
        assert run_cli(["heal", "--json"]) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        assert (run["clean"], len(run["undone"]), run["folder"]) == (True, 3, str(left.folder))

    def test_dead_runs_leave_the_targets_of_prometheus_and_living_ones_stay(self, left, capsys):
        def entry(process, port):
            labels = {"experiment": "e", "role": "job", OWNER_LABEL: owner_of(process)}
            return {"targets": [f"127.0.0.1:{port}"], "labels": labels}

        living = [entry(ProcessId.of(os.getppid()), 1)]
        # In the run's own OUT, and in the one that is looked at anyhow, of a run that its watchdog has healed.
        files = [left.folder.parent.parent / TARGETS_FILE, Path("chaos-runs") / TARGETS_FILE]
        for number, file in enumerate(files, 2):
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps([entry(DEAD, number), *living]))
        assert run_cli(["heal", "--dry-run", "--json"]) == 0
        assert sorted(json.loads(capsys.readouterr().out)["targets_removed"]) == ["127.0.0.1:2", "127.0.0.1:3"]
        assert all(len(json.loads(file.read_text())) == 2 for file in files)
        assert run_cli(["heal"]) == 0
        out = capsys.readouterr().out
        assert "removed from prometheus.json: 2 addresses of dead runs" in out
        assert all(json.loads(file.read_text()) == living for file in files)
        files[1].write_text(json.dumps([entry(DEAD, 3)]))
        assert run_cli(["heal"]) == 0
        assert "nothing to heal" not in capsys.readouterr().out
        assert not files[1].exists(), "a file without entries is none"
        assert run_cli(["heal"]) == 0
        assert "nothing to heal" in capsys.readouterr().out
        files[0].unlink()

    def test_targets_that_cannot_be_mended_are_said_and_fail_nothing(self, left, capsys):
        (Path("chaos-runs") / TARGETS_FILE).mkdir(parents=True)
        assert run_cli(["heal"]) == 0
        assert "cannot be mended: Is a directory" in capsys.readouterr().err

    def test_dirty_is_exit_code_6(self, left, capsys):
        (left.folder / "made-1").unlink()
        (left.folder / "made-1").mkdir()
        assert run_cli(["heal"]) == 6
        assert "incident 1 (make-file) is NOT undone" in capsys.readouterr().out

    def test_leaves_a_run_alone_that_is_under_way(self, left, capsys):
        run_registry.register(replace(left, chaos=ProcessId.of(os.getpid())))
        assert run_cli(["heal"]) == 0
        assert "left alone" in capsys.readouterr().err
        assert run_cli(["heal", str(left.ledger)]) == 4
        assert "is under way" in capsys.readouterr().err
        assert made(left) == ["made-0", "made-1"]

    def test_a_recycled_pid_does_not_protect_it(self, left, capsys):
        us = ProcessId.of(os.getpid())
        run_registry.register(replace(left, chaos=ProcessId(us.pid, us.start_ticks - 1)))
        assert run_cli(["heal"]) == 0
        assert made(left) == []

    @pytest.mark.parametrize("is_registered", [True, False])
    def test_a_run_by_its_ledger(self, left, is_registered, capsys):
        if not is_registered:
            run_registry.forget(left.run)
            # The ledger itself says who wrote it: this very process, which lives.
            assert run_cli(["heal", str(left.ledger)]) == 4
            left.ledger.write_text(left.ledger.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {DEAD.pid}'))
        assert run_cli(["heal", str(left.ledger)]) == 0
        assert made(left) == []

    @pytest.mark.parametrize("reference", ["no-such-run", "/nowhere"])
    def test_a_run_that_is_not_there(self, reference, capsys):
        assert run_cli(["heal", reference]) in (3, 4)
        assert "Traceback" not in capsys.readouterr().err

    def test_one_that_cannot_be_healed_does_not_keep_the_others(self, left, tmp_path, capsys):
        broken = leave_behind(tmp_path / "broken")
        broken.ledger.chmod(0o400)
        moved = broken.folder / "elsewhere"
        broken.ledger.rename(moved)
        broken.ledger.mkdir()
        assert run_cli(["heal"]) == 6
        assert made(left) == []
        assert len(run_registry.registered()) == 1
