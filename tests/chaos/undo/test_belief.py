"""Forged ledgers, ledgers that others may write to, and a second user: what is believed, and what is left alone."""

import asyncio
import json
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.errors import HealError
from chaos.faults import registry
from chaos.host import small_disk
from chaos.host.process_table import is_stopped
from chaos.host.run_processes import RUN_VARIABLE, bears_mark, processes_of, undoing
from chaos.undo import run_registry
from chaos.undo.guard import Guard
from chaos.undo.heal import refuse_if_unclean, undo_pending
from chaos.undo.ledger import Ledger, read_ledger
from chaos.undo.residue.base import AuditScope
from chaos.undo.run_registry import OpenRun, Place
from mecefo_chaos.cli.main import run_cli
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

NOBODY = 65534
DEAD = ProcessId(2_000_000_000, 1)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes root: files of a second user")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def ground(tmp_path, monkeypatch):
    monkeypatch.setenv(run_registry.STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def line(fault, record, run, **more):
    """One line of a ledger as an earlier version wrote it; `more` is what a later one adds."""
    return {
        "incident": 0,
        "fault": fault,
        "state": "prepared",
        "record": record,
        "run": run,
        "by": "chaos",
        "pid": DEAD.pid,
        "start_ticks": DEAD.start_ticks,
        "time": 4e9,
        "folder": "/r",
        "absent": [],
        **more,
    }


def ledger_in(folder, *lines):
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({**one, "incident": number}) + "\n" for number, one in enumerate(lines))
    path = folder / "ledger.jsonl"
    path.write_text(text)
    path.chmod(0o644)
    folder.chmod(0o755)
    return path


def new_line(fault, record, run, folder):
    return line(fault, record, run, place=Place.here().to_json(), folders=[str(folder)])


def ballast(path):
    return {"ballast": str(path), "disk": None}


def chown(*paths):
    for path in paths:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@contextmanager
def child(**environment):
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def stop(process):
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    return ProcessId.of(process.pid)


@as_root
class TestAnotherUsersLedger:
    def test_nothing_of_it_is_done_and_root_is_shown_how(self, tmp_path, capsys):
        victims, theirs = tmp_path / "root", tmp_path / "theirs"
        victims.mkdir()
        (victims / ".ballast-1").write_text("root's")
        (victims / ".hidden-secret-1").write_text("root's")
        disk = {"name": "chaos-disk-1", "folder": str(tmp_path / "under"), "place": str(tmp_path / "place")}
        disk |= {"num_bytes": 1 << 20}
        (tmp_path / "under").mkdir()
        mark = secrets.token_hex(8)
        with child() as stopped, child(**{RUN_VARIABLE: mark}) as marked:
            process = stop(stopped)
            numbers = {"pid": process.pid, "start_ticks": process.start_ticks}
            limit = {**numbers, "limit_bytes": 1, "by": "rlimit", "soft": 1 << 30, "hard": 1 << 31}
            before = resource.prlimit(process.pid, resource.RLIMIT_DATA)
            hidden = {"struck": "s", "checkpoint": "c", "step": 1, "num_files": 1, "what": "w", "details": {}}
            hidden |= {"folder": str(victims / "secret"), "hidden": str(victims / ".hidden-secret-1")}
            lines = (
                new_line("fill-disk", ballast(victims / ".ballast-1"), mark, victims),
                new_line("hide-checkpoint", hidden, mark, victims),
                new_line("pause-process", {"processes": [numbers]}, mark, victims),
                new_line("leak-memory", {"processes": [], "limits": [limit]}, mark, victims),
                new_line("fill-disk", {"ballast": f"{disk['folder']}/.ballast-2", "disk": disk}, mark, tmp_path),
            )
            path = ledger_in(theirs, *lines)
            (theirs / "events.jsonl").write_text("{}\n")
            chown(theirs, path)
            before_heal = path.read_bytes()
            small_disk.put_over(small_disk.SmallDisk(**disk))
            try:
                for reference in (path, theirs):
                    for option in ([], ["--dry-run"], ["--yes"]):
                        assert run_cli(["heal", str(reference), *option]) == 4
                        said = capsys.readouterr().err
                        assert f"runuser -u nobody -- chaos heal {theirs}" in said
                assert small_disk.is_over(small_disk.SmallDisk(**disk))
            finally:
                small_disk.take_away(small_disk.SmallDisk(**disk))
            assert sorted(one.name for one in victims.iterdir()) == [".ballast-1", ".hidden-secret-1"]
            assert is_stopped(process) and marked.poll() is None
            assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == before
            assert path.read_bytes() == before_heal

    @pytest.mark.parametrize("whose", ["ledger", "folder"])
    def test_both_must_be_ours(self, tmp_path, whose, capsys):
        folder = tmp_path / "run"
        path = ledger_in(folder, new_line("fill-disk", ballast(folder / ".ballast-1"), "ab12", folder))
        (folder / ".ballast-1").write_text("")
        chown(path if whose == "ledger" else folder)
        assert run_cli(["heal", str(path)]) == 4
        assert "runuser -u nobody" in capsys.readouterr().err
        assert (folder / ".ballast-1").exists()

    def test_an_unknown_user_is_named_by_number(self, tmp_path, capsys):
        path = ledger_in(tmp_path / "run", new_line("fill-disk", ballast(tmp_path / ".ballast-1"), "ab12", tmp_path))
        os.chown(path, 4_000_001, 4_000_001)
        assert run_cli(["heal", str(path)]) == 4
        assert "setpriv --reuid=4000001" in capsys.readouterr().err

    def test_one_that_took_the_place_of_a_registered_one(self, tmp_path, capsys):
        folder = tmp_path / "run"
        run = OpenRun("ab12", folder, folder / "ledger.jsonl", Place.here(), DEAD, DEAD, folders=(tmp_path,))
        run_registry.register(run)
        (tmp_path / ".ballast-1").write_text("")
        path = ledger_in(folder, new_line("fill-disk", ballast(tmp_path / ".ballast-1"), "ab12", tmp_path))
        chown(path)
        assert run_cli(["heal"]) == 6
        assert "runuser -u nobody" in capsys.readouterr().out
        assert (tmp_path / ".ballast-1").exists()
        with pytest.raises(HealError, match="belongs to nobody"):
            refuse_if_unclean()
        with pytest.raises(HealError, match="belongs to nobody"):
            undo_pending(run, "watchdog")
        with pytest.raises(HealError, match="belongs to nobody"):
            undo_pending(run, "chaos")
        assert (tmp_path / ".ballast-1").exists()

    def test_of_another_owner_but_the_very_file_that_was_registered(self, tmp_path):
        """As on a network file system where root is nobody."""
        folder = tmp_path / "run"
        (tmp_path / "run").mkdir()
        (folder / ".ballast-1").write_text("")
        path = ledger_in(folder, new_line("fill-disk", ballast(folder / ".ballast-1"), "ab12", folder))
        chown(path)
        status = path.stat()
        run = OpenRun("ab12", folder, path, Place.here(), DEAD, DEAD, ledger_file=(status.st_dev, status.st_ino))
        run_registry.register(run)
        assert run_cli(["heal"]) == 0
        assert not (folder / ".ballast-1").exists()

    def test_who_is_not_root_is_told_whose_it_is(self, tmp_path):
        """A process of another user heals root's ledger."""
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed")
        start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from mecefo_chaos.cli.main import run_cli"
        code = f"{start}; sys.exit(run_cli(%r))"
        who = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        if subprocess.run([*who, sys.executable, "-c", code % ["--help"]], capture_output=True, check=False).returncode:
            pytest.skip("another user cannot read this checkout or this Python")
        for parent in (tmp_path, *tmp_path.parents):
            if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
                parent.chmod(0o755)
        path = ledger_in(tmp_path / "run", new_line("fill-disk", ballast(tmp_path / ".ballast-1"), "ab12", tmp_path))
        done = subprocess.run(
            [*who, sys.executable, "-c", code % ["heal", str(path)]],
            env={**os.environ, "CHAOS_STATE": "/nonexistent", "HOME": "/nonexistent"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 4, done.stderr
        assert "belongs to root" in done.stderr and "only root can heal it" in done.stderr
        assert "Traceback" not in done.stderr


class TestOwnLedger:
    """Of this user's, of a run that is not registered (any more)."""

    def left(self, folder):
        folder.mkdir()
        (folder / ".ballast-1").write_text("")
        return ledger_in(folder, new_line("fill-disk", ballast(folder / ".ballast-1"), "ab12", folder))

    def test_it_is_believed_where_nobody_else_may_write(self, tmp_path):
        path = self.left(tmp_path / "run")
        assert run_cli(["heal", str(path)]) == 0
        assert not (tmp_path / "run" / ".ballast-1").exists()

    @pytest.mark.parametrize("mode", [0o020, 0o002])
    @pytest.mark.parametrize("what", ["ledger", "folder"])
    def test_it_is_not_where_others_may_write(self, tmp_path, mode, what, capsys):
        path = self.left(tmp_path / "run")
        open_one = path if what == "ledger" else path.parent
        open_one.chmod(open_one.stat().st_mode | mode)
        assert run_cli(["heal", str(path), "--yes"]) == 4
        assert f"chmod go-w {open_one}" in capsys.readouterr().err
        assert (tmp_path / "run" / ".ballast-1").exists()

    def test_a_link_is_not_followed(self, tmp_path, capsys):
        path = self.left(tmp_path / "run")
        (tmp_path / "other").mkdir()
        link = tmp_path / "other" / "ledger.jsonl"
        link.symlink_to(path)
        assert run_cli(["heal", str(link)]) == 4
        assert "it is a link" in capsys.readouterr().err
        assert (tmp_path / "run" / ".ballast-1").exists()

    def test_another_name_of_a_file_is_not_believed(self, tmp_path, capsys):
        path = self.left(tmp_path / "run")
        os.link(path, tmp_path / "second")
        assert run_cli(["heal", str(path)]) == 4
        assert "hard links" in capsys.readouterr().err

    def test_of_another_host_it_is_left_to_that(self, tmp_path, capsys):
        path = self.left(tmp_path / "run")
        told = json.loads(path.read_text())
        told["place"][0] = "elsewhere"
        path.write_text(json.dumps(told) + "\n")
        assert run_cli(["heal", str(path)]) == 4
        assert "belongs to elsewhere" in capsys.readouterr().err


class TestRegistered:
    def test_a_folder_in_which_others_may_write_does_no_harm(self, tmp_path):
        folder = tmp_path / "run"
        path = ledger_in(folder, new_line("fill-disk", ballast(folder / ".ballast-1"), "ab12", folder))
        (folder / ".ballast-1").write_text("")
        folder.chmod(0o777)
        run_registry.register(OpenRun("ab12", folder, path, Place.here(), DEAD, DEAD, folders=(folder,)))
        assert run_cli(["heal"]) == 0
        assert not (folder / ".ballast-1").exists()

    def test_its_ledger_in_which_others_may_write_has_to_be_looked_at(self, tmp_path, capsys):
        folder = tmp_path / "run"
        path = ledger_in(folder, new_line("fill-disk", ballast(folder / ".ballast-1"), "ab12", folder))
        (folder / ".ballast-1").write_text("")
        path.chmod(0o666)
        run_registry.register(OpenRun("ab12", folder, path, Place.here(), DEAD, DEAD, folders=(folder,)))
        assert run_cli(["heal"]) == 6
        assert "others may write" in capsys.readouterr().out
        assert (folder / ".ballast-1").exists()
        assert run_cli(["heal", "--yes"]) == 0
        assert not (folder / ".ballast-1").exists()

    def test_files_outside_and_through_links_are_left_and_the_rest_is_undone(self, tmp_path, capsys):
        folder, outside = tmp_path / "run", tmp_path / "outside"
        folder.mkdir()
        outside.mkdir()
        for place in (folder, outside):
            (place / ".ballast-1").write_text("")
        (folder / "link").symlink_to(outside)
        run = OpenRun("ab12", folder, folder / "ledger.jsonl", Place.here(), DEAD, DEAD, folders=(folder,))
        run_registry.register(run)
        forged = [str(outside)]
        ledger_in(
            folder,
            line("fill-disk", ballast(folder / ".ballast-1"), "ab12", folders=forged),
            line("fill-disk", ballast(outside / ".ballast-1"), "ab12", folders=forged),
            line("fill-disk", ballast(folder / "link" / ".ballast-1"), "ab12", folders=forged),
            line("fill-disk", ballast(f"{folder}/../outside/.ballast-1"), "ab12", folders=forged),
        )
        assert run_cli(["heal", "--dry-run"]) == 0
        # As one line: a terminal's width breaks it.
        said = " ".join(capsys.readouterr().out.split())
        assert f" {folder}/.ballast-1" in said and f"{outside}/.ballast-1 is in none of the folders" in said
        assert run_cli(["heal"]) == 6
        said = " ".join(capsys.readouterr().out.split())
        assert "incident 0 (fill-disk): undone" in said
        assert f"incident 1 (fill-disk) is NOT undone: {outside}/.ballast-1 is in none of the folders" in said
        assert "incident 2 (fill-disk) is NOT undone" in said and "reached through a link" in said
        assert "incident 3 (fill-disk) is NOT undone" in said
        assert not (folder / ".ballast-1").exists() and (outside / ".ballast-1").exists()

    def test_an_entry_of_another_run_is_left(self, tmp_path, capsys):
        folder = tmp_path / "run"
        path = ledger_in(folder, new_line("fill-disk", ballast(folder / ".ballast-1"), "cd34", folder))
        (folder / ".ballast-1").write_text("")
        run_registry.register(OpenRun("ab12", folder, path, Place.here(), DEAD, DEAD, folders=(folder,)))
        assert run_cli(["heal"]) == 6
        assert "of another run (cd34)" in capsys.readouterr().out
        assert (folder / ".ballast-1").exists()

    def test_a_file_elsewhere_is_registered_before_a_fault_may_change_it(self, tmp_path, monkeypatch):
        """A script saves wherever it likes: which file is damaged is known only then."""
        folder, elsewhere = tmp_path / "run", tmp_path / "scratch"
        folder.mkdir()
        elsewhere.mkdir()
        (tmp_path / "link").symlink_to(elsewhere)
        guard = Guard(folder, folder, folders=(tmp_path / "link",), on_lapse=print, on_loss=print)
        guard.open(has_watchdog=False)
        monkeypatch.delenv(RUN_VARIABLE)
        assert run_registry.find(guard.run.run).folders == (folder, elsewhere), "resolved"
        guard.ledger.prepare(0, "fill-disk", ballast(tmp_path / ".ballast-1"))
        (tmp_path / ".ballast-1").write_text("")
        assert run_registry.find(guard.run.run).folders == (folder, elsewhere, tmp_path / ".ballast-1")
        guard.ledger.__exit__(None, None, None)
        run = replace(run_registry.find(guard.run.run), chaos=DEAD)
        run_registry.register(run)
        assert run_cli(["heal"]) == 0
        assert not (tmp_path / ".ballast-1").exists() and run_registry.registered() == ()

    @pytest.mark.parametrize("how", ["link", "foreign"])
    def test_an_entry_of_the_registry_that_others_made_is_not_read(self, tmp_path, how):
        run_registry.register(OpenRun("ab12", tmp_path, tmp_path / "ledger.jsonl", Place.here(), DEAD))
        (entry,) = (tmp_path / "state").iterdir()
        if how == "link":
            entry.rename(tmp_path / "elsewhere.json")
            entry.symlink_to(tmp_path / "elsewhere.json")
        elif os.geteuid() == 0:
            chown(entry)
        else:
            pytest.skip("takes root: files of a second user")
        assert [one.run for one in run_registry.registered()] == [None]


class TestOlderLedger:
    """It does not say which folders are the job's."""

    @pytest.fixture
    def left(self, tmp_path):
        (tmp_path / ".ballast-1").write_text("")
        return ledger_in(tmp_path / "run", line("fill-disk", ballast(tmp_path / ".ballast-1"), "ab12"))

    @pytest.mark.parametrize("is_registered", [True, False])
    def test_it_is_healed_after_a_look_and_an_explicit_yes(self, tmp_path, left, is_registered, capsys):
        if is_registered:
            run_registry.register(OpenRun("ab12", left.parent, left, Place.here(), DEAD, DEAD))
        assert run_cli(["heal", str(left)]) == 6
        said = capsys.readouterr().out
        assert f"chaos heal --dry-run {left.parent}" in said and f"chaos heal --yes {left.parent}" in said
        assert run_cli(["heal", str(left), "--dry-run"]) == 0
        assert f"    {tmp_path}/.ballast-1" in capsys.readouterr().out
        assert (tmp_path / ".ballast-1").exists()
        assert run_cli(["heal", str(left), "--yes"]) == 0
        assert not (tmp_path / ".ballast-1").exists()

    @pytest.mark.parametrize("answer", [True, False])
    def test_at_a_terminal_it_is_asked(self, tmp_path, left, answer, monkeypatch, capsys):
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("click.confirm", lambda *_, **__: answer)
        assert run_cli(["heal", str(left)]) == (0 if answer else 6)
        assert f"    {tmp_path}/.ballast-1" in capsys.readouterr().out, "what it is asked about is shown"
        assert (tmp_path / ".ballast-1").exists() != answer

    def test_json_is_not_asked(self, left, monkeypatch, capsys):
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        assert run_cli(["heal", str(left), "--json"]) == 6
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        assert "--yes" in run["problems"][0]


class TestAfterARestart:
    def run(self, folder, *lines, boot="another"):
        path = ledger_in(folder, *lines)
        place = replace(Place.here(), boot=boot)
        return OpenRun("ab12", folder, path, place, DEAD, DEAD, folders=(folder,))

    def test_files_are_undone_and_processes_left(self, tmp_path, capsys):
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / ".ballast-1").write_text("")
        gate = folder / "hang-1-2.gate"
        os.mkfifo(gate)
        with child(**{RUN_VARIABLE: "ab12"}) as stopped:
            process = stop(stopped)
            numbers = {"pid": process.pid, "start_ticks": process.start_ticks}
            run = self.run(
                folder,
                new_line("fill-disk", ballast(folder / ".ballast-1"), "ab12", folder),
                new_line("pause-process", {"processes": [numbers]}, "ab12", folder),
                new_line("hang-gil", {"processes": [{**numbers, "gate": str(gate)}]}, "ab12", folder),
            )
            run_registry.register(run)
            assert run_cli(["heal"]) == 6, "a process with its mark is told of, and left"
            assert is_stopped(process)
        assert "ended when the host was started again" in capsys.readouterr().out
        assert not (folder / ".ballast-1").exists() and not gate.exists()
        assert run_cli(["heal"]) == 0

    def test_also_by_what_the_ledger_alone_says(self, tmp_path):
        folder = tmp_path / "run"
        with child() as stopped:
            process = stop(stopped)
            record = {"processes": [{"pid": process.pid, "start_ticks": process.start_ticks}]}
            place = replace(Place.here(), boot="another").to_json()
            path = ledger_in(folder, line("pause-process", record, "ab12", place=place, folders=[]))
            assert run_cli(["heal", str(path)]) == 0
            assert is_stopped(process)
            # An earlier version wrote only the time.
            path = ledger_in(folder, line("pause-process", record, "ab12", time=1.0))
            assert run_cli(["heal", str(path), "--yes"]) == 0
            assert is_stopped(process)


class TestNames:
    """What has no name is not everything."""

    def test_an_empty_run_has_no_processes_and_nothing_is_called_so(self, tmp_path):
        with child(**{RUN_VARIABLE: ""}):
            assert processes_of("") == ()
        assert not AuditScope("", (), tmp_path / "ledger.jsonl").is_ours("anything")

    @pytest.mark.parametrize(
        ("fault", "record"),
        [
            ("fill-disk", {"ballast": "", "disk": None}),
            ("fill-disk", {"ballast": "/", "disk": None}),
            ("fill-disk", {"ballast": "{folder}/data.bin", "disk": None}),
            ("fill-disk", {"ballast": "{folder}/.ballast-1", "disk": {"name": "", "folder": "{folder}"}}),
            ("fill-disk", {"ballast": "{folder}/.ballast-1", "disk": {"name": "tmpfs", "folder": "{folder}"}}),
            ("flip-checkpoint-bit", {"name": "", "kept": "{folder}/kept/x"}),
            ("flip-checkpoint-bit", {"name": "../run/data.bin", "kept": "{folder}/kept/x"}),
            ("flip-checkpoint-bit", {"name": "data.bin", "kept": ""}),
            ("hide-checkpoint", {"folder": "{folder}/x", "hidden": ""}),
            ("hide-checkpoint", {"folder": "{folder}/x", "hidden": "{folder}/data.bin"}),
            ("hang-gil", {"processes": [{"pid": 1, "start_ticks": 1, "gate": "{folder}/data.bin"}]}),
            ("leak-memory", {"group": ""}),
            ("leak-memory", {"group": "/sys/fs/cgroup", "home": "/sys/fs/cgroup"}),
            ("leak-memory", {"group": "/sys/fs/cgroup/chaos-leak-1-1", "home": "/"}),
            ("drop-link", {"comment": ""}),
            ("drop-link", {"comment": "-A"}),
            ("drop-link", {"comment": "chaos:"}),
        ],
    )
    def test_a_record_that_names_nothing_of_ours_does_nothing(self, tmp_path, fault, record):
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "data.bin").write_text("data")
        known = {"struck": "s", "checkpoint": "c", "step": 1, "num_files": 1, "what": "w", "details": {}}
        if fault == "flip-checkpoint-bit":
            known |= {"folder": str(folder), "num_bytes": 4, "crc32": 1, "unit_crc32": None}
            known |= {"damaged_num_bytes": 4, "damaged_crc32": 0xADF3F363}
        if fault == "leak-memory":
            limit = {"pid": 1, "start_ticks": 1, "limit_bytes": 1, "by": "cgroup", **record}
            known, record = {"limits": [limit]}, {}
        if fault == "drop-link":
            us = ProcessId.of(os.getpid())
            holder = {"pid": us.pid, "start_ticks": us.start_ticks}
            known, record = {"rules": [{"how": "namespace-firewall", "at": "x", "holder": holder, **record}]}, {}
        text = json.dumps({**known, **record}).replace("{folder}", str(folder))
        told = json.loads(text)
        if isinstance(told.get("disk"), dict):
            told["disk"] |= {"place": str(folder / "disk"), "num_bytes": 1}
        with pytest.raises(HealError):
            registry()[fault].undo(told)
        assert [one.name for one in folder.iterdir()] == ["data.bin"] and (folder / "data.bin").read_text() == "data"

    def test_what_has_not_the_mark_of_the_run_is_not_killed(self):
        with child(**{RUN_VARIABLE: "ab12"}) as marked, child() as other:
            mine, theirs = ProcessId.of(marked.pid), ProcessId.of(other.pid)
            with undoing("ab12"):
                assert bears_mark(mine) and not bears_mark(theirs)
                assert not bears_mark(replace(mine, start_ticks=mine.start_ticks - 1))
            with undoing("ab1"):
                assert not bears_mark(mine)

    def test_a_cycle_of_another_run_goes_on(self):
        from chaos.host import python_module

        with child() as stopped:
            process = ProcessId.of(stopped.pid)
            whom = f"{process.pid}:{process.start_ticks}"
            words = python_module.command("chaos.host.duty_cycle", "2.0", "0.05", "0.2", "0", whom)
            record = {"processes": [{"pid": process.pid, "start_ticks": process.start_ticks}], "period_seconds": 0.0}
            for mark, is_ended in (("cd34", False), ("ab12", True)):
                cycle = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, RUN_VARIABLE: mark}
                )
                try:
                    while cycle.stdout.readline() != python_module.BEGIN:
                        pass
                    with undoing("ab12"):
                        try:
                            registry()["slow-rank"].undo(record)
                        except HealError:
                            assert not is_ended, "it is stopped again and again"
                    assert (cycle.poll() is None) != is_ended or cycle.wait(60) == -signal.SIGKILL
                finally:
                    cycle.kill()
                    cycle.communicate()


def test_a_ledger_is_written_to_the_file_that_was_opened(tmp_path):
    """Whoever puts another in its place does not have it believed, nor written to."""
    path, aside = tmp_path / "ledger.jsonl", tmp_path / "aside"
    with Ledger(path, "ab12") as ledger:
        ledger.prepare(0, "f", {})
        path.rename(aside)
        path.write_text("")
        assert ledger.undo(0, "f", {}, lambda record: {"undone": "it"})["undone"] == "it"
        assert ledger.read().pending == ()
    assert path.read_text() == "" and read_ledger(aside).pending == ()


def test_its_own_ledger_is_not_open_to_the_group(tmp_path):
    before = os.umask(0)
    try:
        with Ledger(tmp_path / "ledger.jsonl", "ab12"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "ledger.jsonl").stat().st_mode & 0o777 == 0o644


def test_a_link_in_its_place_is_not_written_through(tmp_path):
    (tmp_path / "victim").write_text("")
    (tmp_path / "ledger.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(Exception, match="cannot open the undo ledger"):
        Ledger(tmp_path / "ledger.jsonl", "ab12")


class TestARunItself:
    """What knows the very file that it made undoes by that."""

    def guard(self, folder, monkeypatch):
        folder.mkdir()
        guard = Guard(folder, folder, on_lapse=print, on_loss=print)
        guard.open(has_watchdog=False)
        monkeypatch.delenv(RUN_VARIABLE)
        guard.ledger.prepare(0, "fill-disk", ballast(folder / ".ballast-1"))
        (folder / ".ballast-1").write_text("")
        return guard

    def test_a_file_system_that_gives_everybody_all_rights(self, tmp_path, monkeypatch):
        guard = self.guard(tmp_path / "run", monkeypatch)
        (tmp_path / "run").chmod(0o777)
        (tmp_path / "run" / "ledger.jsonl").chmod(0o777)
        assert undo_pending(guard.run, "watchdog").failed == []
        assert not (tmp_path / "run" / ".ballast-1").exists()
        assert asyncio.run(guard.close(registry())).is_clean

    def test_an_empty_ledger_in_the_place_of_its_own_is_not_the_end_of_it(self, tmp_path, monkeypatch):
        guard = self.guard(tmp_path / "run", monkeypatch)
        (tmp_path / "run" / "ledger.jsonl").unlink()
        (tmp_path / "run" / "ledger.jsonl").write_text("")
        farewell = asyncio.run(guard.close(registry()))
        assert [one["incident"] for one in farewell.undone] == [0] and farewell.is_clean
        assert not (tmp_path / "run" / ".ballast-1").exists()


def dead_and_living():
    here = Place.here()
    labels = {"experiment": "e", "role": "job", "__chaos_owner": f"{here.host} {here.pid_namespace} 2 1"}
    living = {**labels, "__chaos_owner": "elsewhere pid:[1] 1 1"}
    return [{"targets": ["x"], "labels": labels}, {"targets": ["y"], "labels": living}]


@as_root
def test_targets_of_prometheus_in_a_folder_of_others_are_left_to_them(tmp_path):
    (tmp_path / "chaos-runs").mkdir()
    targets = tmp_path / "chaos-runs" / "prometheus.json"
    targets.write_text(json.dumps(dead_and_living()))
    chown(tmp_path / "chaos-runs")
    assert run_cli(["heal"]) == 0
    assert json.loads(targets.read_text()) == dead_and_living()


def test_no_link_is_followed_where_they_are_written(tmp_path):
    (tmp_path / "chaos-runs").mkdir()
    (tmp_path / "chaos-runs").chmod(0o775)
    targets, victim = tmp_path / "chaos-runs" / "prometheus.json", tmp_path / "victim"
    targets.write_text(json.dumps(dead_and_living()))
    victim.write_text("victim")
    (tmp_path / "chaos-runs" / f".prometheus.json.{os.getpid()}").symlink_to(victim)
    assert run_cli(["heal"]) == 0
    assert json.loads(targets.read_text()) == dead_and_living()[1:] and victim.read_text() == "victim"
