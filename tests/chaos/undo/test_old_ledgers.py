"""Ledgers as earlier versions wrote them are read and undone; a record that cannot be is refused in words."""

import json
import os
import signal
import subprocess
import sys
import zlib

import pytest

from chaos.errors import HealError
from chaos.faults import registry
from chaos.host.process_table import is_stopped
from chaos.undo import run_registry
from chaos.undo.heal import undo_pending
from chaos.undo.ledger import read_ledger
from chaos.undo.run_registry import OpenRun, Place
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

DEAD = ProcessId(2_000_000_000, 1)
GONE = '{"role": "rank", "rank": 1, "node": 0, "pid": 2000000000, "start_ticks": 7}'
# What stood in ledgers before records were classes, of every fault that the version had.
RECORDS = {
    "kill-process": f'{{"processes": [{GONE}]}}',
    "kill-node": f'{{"processes": [{{"role": "supervisor", "rank": null, "node": 1, "pid": 2000000000, '
    f'"start_ticks": 7}}, {GONE}]}}',
    "segfault": f'{{"processes": [{GONE}]}}',
    "pause-process": f'{{"processes": [{GONE}]}}',
    "slow-rank": f'{{"processes": [{GONE}], "period_seconds": 0.05}}',
    "hang-gil": '{"processes": [{"role": "rank", "rank": 1, "node": 0, "pid": 2000000000, "start_ticks": 7, '
    '"gate": "/nonexistent/hang-2000000000-7.gate"}]}',
    "leak-memory": f'{{"processes": [{GONE}, {GONE}], "limits": [{{"pid": 2000000000, "start_ticks": 7, '
    '"limit_bytes": 536870912, "by": "cgroup", "group": "/sys/fs/cgroup/chaos-leak-2000000000-7", '
    '"home": "/sys/fs/cgroup"}, {"pid": 2000000000, "start_ticks": 7, "limit_bytes": 536870912, "by": "rlimit", '
    '"soft": -1, "hard": -1}]}',
    "slow-data": '{"ranks": [1], "effect": "chaos.inside.slow:DelayPhase", "phase": "data"}',
    "bit-flip": f'{{"processes": [{GONE}]}}',
    "ecc-telemetry": f'{{"processes": [{GONE}]}}',
    "drop-link": '{"rules": [{"how": "namespace-firewall", "at": "rank 0", "holder": {"pid": 2000000000, '
    '"start_ticks": 7}, "descriptor": 8, "comment": "chaos:ab12:1", "rules": [["OUTPUT", "-d", "10.77.84.3/32", "-j", '
    '"DROP"]], "queue": null, "shape": null}], "links": [[0, 2], [1, "coordinator"]]}',
    "slow-link": '{"rules": [{"how": "namespace-firewall", "at": "coordinator", "holder": {"pid": 2000000000, '
    '"start_ticks": 7}, "descriptor": 8, "comment": "chaos:ab12:2", "rules": [], "queue": 2, "shape": '
    '{"delay_seconds": 0.05}}], "links": [[0, 2]]}',
    "flip-checkpoint-bit": '{"folder": "/nonexistent/step-00000010/head", "name": "parameters.bin", "num_bytes": 3, '
    '"crc32": 5, "unit_crc32": 6, "kept": "/nonexistent/kept/x", "struck": "/nonexistent/step-00000010/head/'
    'parameters.bin", "checkpoint": "/nonexistent/step-00000010", "step": 10, "num_files": 4, "what": "checkpoint of '
    'step 10: one byte", "details": {"offset": 1}}',
    "flip-snapshot-bit": '{"parts": [{"node": 1, "pid": 2000000000, "start_ticks": 7, "descriptor": 8, "sequence": 5, '
    '"sequence_offset": 8, "step": 11, "lineage": "ab12", "is_agreed": true, "rank": 2, "unit": "layer.3", "share": '
    '[1, 2], "bits": [{"offset": 1041736, "bit": 2, "before": 148}]}]}',
    "hide-checkpoint": '{"struck": "/nonexistent/s", "checkpoint": "/nonexistent/s", "step": 10, "num_files": 4, '
    '"what": "its folder made a link to itself", "details": {}, "folder": "/nonexistent/s", "hidden": '
    '"/nonexistent/.hidden-s"}',
    "fill-disk": '{"ballast": "/nonexistent/.ballast-1", "disk": null}',
    "fill-shm": f'{{"processes": [{GONE}], "files": [{{"device": 4000000000, "name": ".chaos-shm-0123456789ab"}}]}}',
}


LIMIT = {"pid": 1, "start_ticks": 7, "limit_bytes": 1}


def run_with(folder, *lines):
    """A run whose tool is dead, with these lines in its ledger."""
    run = OpenRun("ab12", folder, folder / "ledger.jsonl", Place.here(), DEAD, DEAD)
    run.ledger.write_text("".join(f"{line}\n" for line in lines))
    return run


def line(kind, record, state="prepared"):
    return (
        f'{{"incident": 0, "fault": "{kind}", "state": "{state}", "record": {record}, "run": "ab12", "by": "chaos", '
        f'"pid": 2000000000, "start_ticks": 1, "time": 1790000000.0, "folder": "/r", "absent": []}}'
    )


@pytest.fixture(autouse=True)
def own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv(run_registry.STATE_VARIABLE, str(tmp_path / "state"))


@pytest.mark.parametrize("kind", RECORDS)
def test_what_an_earlier_version_wrote_is_undone(kind, tmp_path):
    run = run_with(tmp_path, line(kind, RECORDS[kind]), line(kind, "{}", "applied"))
    undoing = undo_pending(run, "heal")
    assert undoing.failed == [] and len(undoing.undone) == 1
    assert read_ledger(run.ledger).pending == ()


def test_what_a_later_version_adds_to_a_record_is_left_out():
    record = json.loads(RECORDS["pause-process"])
    record |= {"since": 1.5}
    record["processes"][0]["cgroup"] = "/x"
    assert json.dumps(registry()["pause-process"].Record.from_json(record).to_json()) == RECORDS["pause-process"]


@pytest.mark.parametrize("kind", RECORDS)
def test_the_record_of_a_fault_is_written_as_it_was(kind):
    assert json.dumps(registry()[kind].Record.from_json(json.loads(RECORDS[kind])).to_json()) == RECORDS[kind]


def test_every_family_of_records_is_among_them():
    assert {fault.Record for fault in registry().values()} == {registry()[kind].Record for kind in RECORDS}


def test_a_process_that_an_earlier_version_stopped_goes_on(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = ProcessId.of(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        record = f'{{"processes": [{{"role": "rank", "pid": {process.pid}, "start_ticks": {process.start_ticks}}}]}}'
        undoing = undo_pending(run_with(tmp_path, line("pause-process", record)), "heal")
        assert undoing.failed == [] and not is_stopped(process)
        child.communicate(b"\n")


def test_a_file_that_an_earlier_version_damaged_is_whole_again(tmp_path):
    unit, kept = tmp_path / "step-00000010" / "head", tmp_path / "kept" / "x"
    unit.mkdir(parents=True)
    kept.parent.mkdir()
    (unit / "unit.json").write_text("{}")
    (unit / "p.bin").write_bytes(b"damaged")
    kept.write_bytes(b"whole")
    record = {
        "folder": str(unit),
        "name": "p.bin",
        "num_bytes": 5,
        "crc32": zlib.crc32(b"whole"),
        "unit_crc32": zlib.crc32(b"{}"),
        "kept": str(kept),
    }
    record = json.loads(RECORDS["flip-checkpoint-bit"]) | record
    undoing = undo_pending(run_with(tmp_path, line("flip-checkpoint-bit", json.dumps(record))), "heal")
    assert undoing.failed == [] and (unit / "p.bin").read_bytes() == b"whole"


@pytest.mark.parametrize(
    ("kind", "record", "said"),
    [
        ("pause-process", {"processes": [{"role": "rank", "start_ticks": 7}]}, "ProcessRecord lacks ['pid']"),
        (
            "pause-process",
            {"processes": [{"pid": "1", "start_ticks": 7}]},
            "pid: int is expected, not '1'",
        ),
        ("kill-node", {"processes": 7}, "processes: a list is expected, not '7'"),
        ("hang-gil", {"processes": [{"pid": 1, "start_ticks": 7}]}, "HangingProcess lacks ['gate']"),
        ("leak-memory", {"limits": [LIMIT | {"by": "wish"}]}, "by: one of ('cgroup', 'rlimit') is expected"),
        ("leak-memory", {"limits": [LIMIT | {"by": "cgroup"}]}, "names no control group"),
        ("slow-rank", {"processes": [], "period_seconds": "long"}, "period_seconds: float is expected"),
        ("drop-link", {"rules": ["all"]}, "rules: an object is expected, not 'all'"),
        ("drop-link", {"rules": [{"how": "namespace-firewall", "at": "rank 0"}]}, "FirewallRecord lacks ['comment']"),
        ("drop-link", {"rules": [], "links": [[0, 1, 2]]}, "links: a list of 2 is expected"),
        ("flip-checkpoint-bit", {"folder": "/x"}, "DamagedFile lacks ['checkpoint', "),
        ("hide-checkpoint", {"folder": "/x"}, "HiddenFolder lacks ['checkpoint', "),
        ("fill-disk", {"ballast": "/x", "disk": {"name": "d"}}, "disk: SmallDisk lacks ['folder', "),
    ],
)
def test_junk_is_refused_in_words_and_stays_pending(kind, record, said, tmp_path):
    run = run_with(tmp_path, line(kind, json.dumps(record)))
    (failed,) = undo_pending(run, "heal").failed
    assert said in failed["reason"] and "broke down" not in failed["reason"]
    assert [entry.incident for entry in read_ledger(run.ledger).pending] == [0]
    with pytest.raises(HealError):
        registry()[kind].undo(record)
