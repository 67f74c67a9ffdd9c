"""The registry of runs that are under way: where it is, what stands in it, and whose it is."""

import os
from dataclasses import replace

import pytest

from chaos.errors import EnvironmentFailure
from chaos.undo import run_registry
from chaos.undo.run_registry import OpenRun, Place
from mecefo_runtime.system.process import ProcessId

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
    for name in ("odd.json", "not ours.txt"):
        (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    assert {entry.path.name: entry.run is None for entry in run_registry.registered()} == {
        "r1.json": False,
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
