"""Which other runs a run sees: of its own user by the registry, of other users by their beacons."""

import os
import socket
from dataclasses import replace

import pytest

from chaos.undo import other_runs, run_registry
from chaos.undo.other_runs import Beacon, OtherRun, OtherRuns
from chaos.undo.run_registry import OpenRun, Place
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

OWN, OTHER = f"{1:016x}", f"{2:016x}"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv(run_registry.STATE_VARIABLE, str(tmp_path / "state"))
    # Beacons of runs on the machine on which the tests run are none of theirs.
    monkeypatch.setattr(other_runs, "_UNIX_SOCKETS", tmp_path / "none")


def a_run(folder, run, **changes):
    us = ProcessId.of(os.getpid())
    return replace(OpenRun(run, folder, folder / "ledger.jsonl", Place.here(), us), **changes)


def test_a_run_that_begins_later_is_seen_until_it_is_forgotten(tmp_path):
    run_registry.register(a_run(tmp_path, OWN))
    others = OtherRuns(OWN)
    assert others.alive() == {}
    run_registry.register(a_run(tmp_path / "other", OTHER))
    assert others.alive() == {OTHER: OtherRun(OTHER, tmp_path / "other", os.geteuid())}
    # It is registered again when its watchdog is there.
    run_registry.register(a_run(tmp_path / "other", OTHER, watchdog=ProcessId(7, 8)))
    assert list(others.alive()) == [OTHER]
    run_registry.forget(OTHER)
    assert others.alive() == {}


def test_what_a_dead_run_left_is_no_other_run(tmp_path):
    us = ProcessId.of(os.getpid())
    here = Place.here()
    dead = {
        "recycled": {"chaos": replace(us, start_ticks=us.start_ticks - 1)},
        "restarted": {"place": replace(here, boot="another")},
        "elsewhere": {"place": replace(here, pid_namespace="pid:[1]")},
    }
    for run, changes in dead.items():
        run_registry.register(a_run(tmp_path, run, **changes))
    (tmp_path / "state" / "odd.json").write_text("{}")
    assert OtherRuns(OWN).alive() == {}


def test_a_file_is_read_once_while_it_does_not_change(tmp_path, monkeypatch):
    run_registry.register(a_run(tmp_path, OTHER))
    others = OtherRuns(OWN)
    assert list(others.alive()) == [OTHER]

    def unexpected(path):
        raise AssertionError(path)

    monkeypatch.setattr(run_registry, "_read", unexpected)
    assert list(others.alive()) == [OTHER]


def test_a_run_of_another_user_is_seen_without_its_folder(tmp_path, monkeypatch):
    table = tmp_path / "unix"
    line = "0000000000000000: 00000002 00000000 00000000 0002 01 24316 @mecefo-chaos-run/{uid}/{run}\n"
    own_uid, foreign = os.geteuid(), os.geteuid() + 1
    lines = [line.format(uid=uid, run=run) for uid, run in ((own_uid, OTHER), (foreign, f"{3:016x}"), (foreign, "x"))]
    table.write_text("Num RefCount Protocol Flags Type St Inode Path\n" + "".join(lines))
    monkeypatch.setattr(other_runs, "_UNIX_SOCKETS", table)
    assert OtherRuns(OWN).alive() == {f"{3:016x}": OtherRun(f"{3:016x}", None, foreign)}


def test_a_beacon_can_be_seen_by_everybody_until_it_is_closed(monkeypatch):
    monkeypatch.undo()
    run = os.urandom(8).hex()
    beacon = Beacon(run)
    seen = OtherRuns(OWN)
    monkeypatch.setattr(seen, "_uid", os.geteuid() + 1)
    assert seen.alive()[run] == OtherRun(run, None, os.geteuid())
    beacon.close()
    beacon.close()
    assert run not in seen.alive()


def test_a_beacon_whose_name_is_taken_is_no_failure():
    run = os.urandom(8).hex()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taken:
        taken.bind(f"\0mecefo-chaos-run/{os.geteuid()}/{run}".encode())
        Beacon(run).close()
