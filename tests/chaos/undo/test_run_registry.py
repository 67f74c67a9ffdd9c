"""The registry of runs that are under way: where it is, what stands in it, and whose it is."""

import json
import os
from dataclasses import replace

import pytest

from chaos.errors import EnvironmentFailure
from chaos.undo import run_registry
from chaos.undo.run_registry import OpenRun, Place
from mecefo_runtime.system.host import Host
from mecefo_runtime.system.process import ForeignProcess, ProcessId

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(run_registry.STATE_VARIABLE, str(tmp_path / "state"))
    return tmp_path / "state"


def a_run(folder, run="r1", **changes):
    us = ProcessId.of(os.getpid())
    return replace(OpenRun(run, folder, folder / "ledger.jsonl", Place.here(), us), **changes)


def test_a_run_is_there_until_it_is_forgotten(tmp_path, folder):
    run = a_run(tmp_path)
    run_registry.register(run)
    watched = replace(run, watchdog=ProcessId(7, 8))
    run_registry.register(watched)
    assert [entry.run for entry in run_registry.registered()] == [watched]
    run_registry.forget("r1")
    run_registry.forget("r1")
    assert run_registry.registered() == ()
    assert list(folder.iterdir()) == [], "no partial file is left either"


def test_hosts_that_share_the_folder_have_an_entry_each(tmp_path, folder):
    run = a_run(tmp_path)
    there = replace(run, place=replace(run.place, host="node2", boot="another boot"))
    earlier = replace(run, place=replace(run.place, boot="an earlier boot"))
    for one in (run, there, earlier):
        run_registry.register(one)
    assert {one.run for one in run_registry.registered()} == {run, there, earlier}
    assert run_registry.find("r1") == run and run_registry.find("r1", there.place.host_boot) == there
    run_registry.forget("r1")
    assert {one.run for one in run_registry.registered()} == {there, earlier}
    run_registry.forget("r1", earlier.place.host_boot)
    assert [one.run for one in run_registry.registered()] == [there]


def test_an_entry_of_an_earlier_version_is_read_and_forgotten(tmp_path, folder):
    run = a_run(tmp_path)
    run_registry.register(run)
    (named,) = folder.iterdir()
    raw = json.loads(named.read_text())
    named.unlink()
    raw["place"] = raw["place"][:3]
    (folder / "r1.json").write_text(json.dumps(raw))
    (folder / "r1.json").chmod(0o600)
    assert run_registry.find("r1") == run and run_registry.find("r1").is_owned()
    run_registry.forget("r1", Host("node2", "another boot"))
    assert len(run_registry.registered()) == 1, "it is of this host"
    run_registry.forget("r1")
    assert run_registry.registered() == ()


def test_the_processes_of_a_run_are_those_of_its_place(tmp_path):
    run = a_run(tmp_path)
    there = replace(run, place=replace(run.place, host="node2", boot="another boot"))
    assert there.chaos == replace(run.chaos, host=Host("node2", "another boot"))
    with pytest.raises(ForeignProcess) as refused:
        there.is_owned()
    assert refused.value.code == "other_host"
    assert OpenRun.from_json(there.to_json()) == there


@pytest.mark.parametrize(("machine", "is_elsewhere"), [("", False), ("its own", True)])
def test_another_machine_with_the_same_name_is_no_earlier_boot(tmp_path, machine, is_elsewhere):
    run = a_run(tmp_path)
    there = replace(run, place=replace(run.place, boot="another", machine=machine))
    here = replace(Place.here(), machine="this one")
    assert there.place.is_elsewhere(here) == is_elsewhere and there.place.is_earlier_boot(here) != is_elsewhere
    assert not run.place.is_elsewhere(here) and not run.place.is_earlier_boot(here), "the boot id tells it"


def test_it_lives_as_long_as_its_process_and_no_other_with_its_pid(tmp_path):
    run = a_run(tmp_path)
    assert run.is_owned()
    recycled = ProcessId(run.chaos.pid, run.chaos.start_ticks - 1)
    assert not replace(run, chaos=recycled).is_owned()
    assert not run.is_watched()
    assert replace(run, watchdog=run.chaos).is_watched()


def test_a_pid_means_nothing_after_a_restart_of_the_host_or_on_another_one(tmp_path):
    run = a_run(tmp_path)
    restarted = replace(run, place=replace(run.place, boot="another"))
    assert not restarted.is_owned() and not restarted.is_elsewhere()
    assert replace(run, place=replace(run.place, host="another")).is_elsewhere()
    assert replace(run, place=replace(run.place, pid_namespace="pid:[1]")).is_elsewhere()
    assert not run.is_elsewhere()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"run": 1}', "\x00", "\udcff", "[" * 10**5])
def test_a_file_that_says_nothing_is_told_of(tmp_path, folder, text):
    run_registry.register(a_run(tmp_path))
    (named,) = folder.iterdir()
    for name in ("odd.json", "not ours.txt"):
        (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    assert {entry.path.name: entry.run is None for entry in run_registry.registered()} == {
        named.name: False,
        "odd.json": True,
    }


def test_a_chosen_folder_that_cannot_be_had_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(run_registry.STATE_VARIABLE, str(tmp_path / "file" / "state"))
    with pytest.raises(EnvironmentFailure, match="CHAOS_STATE"):
        run_registry.register(a_run(tmp_path))
    assert run_registry.registered() == ()


@pytest.fixture
def no_choice(tmp_path, monkeypatch):
    """The user has chosen nothing; the temporary folder is the test's."""
    monkeypatch.delenv(run_registry.STATE_VARIABLE)
    monkeypatch.setattr(run_registry.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary" / f"mecefo-chaos-{os.geteuid()}"


def test_the_places_are_those_of_the_base_directories(tmp_path, no_choice, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert run_registry.writable_folder() == tmp_path / "xdg" / "mecefo-chaos"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run_registry.writable_folder() == tmp_path / "home" / ".local" / "state" / "mecefo-chaos"


def test_without_a_home_it_is_in_the_temporary_folder_and_for_this_user_alone(tmp_path, no_choice, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run_registry.register(a_run(tmp_path))
    assert run_registry.writable_folder() == no_choice
    assert no_choice.stat().st_mode & 0o777 == 0o700
    assert len(run_registry.registered()) == 1
    # Whoever else can write there could tell us what to undo.
    no_choice.chmod(0o777)
    assert run_registry.registered() == ()
    with pytest.raises(EnvironmentFailure, match="others may write"):
        run_registry.writable_folder()
