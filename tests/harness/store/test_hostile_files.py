"""What anybody may have written into the files of a stored run: they are read, or said to be unreadable, and no more.

Through the commands, so that nothing between the file and the terminal breaks down.
"""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.undo import run_registry
from chaos.undo.ledger import Ledger, read_ledger
from chaos.undo.run_registry import OpenRun, Place
from chaos.user_files import MAX_LINE_BYTES, bounded_lines
from harness.store.log import read_events
from harness.store.runs import UNREADABLE, list_runs
from mecefo_chaos.cli.main import run_cli
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId
from tests.harness.counting import peak_bytes
from tests.harness.synthetic import run

pytestmark = pytest.mark.unit

TOO_LONG_BYTES = 4 * MAX_LINE_BYTES
DEAD = ProcessId(2_000_000_000, 1)
# As JSON text, where it has no other form.
HOSTILE = [
    *("1e400", "-1e400", "NaN", "-Infinity", "1" * 400, "1" * 5000, "-1", "0", "1.5", "1e15", "9" * 19, "true", "null"),
    *('""', '"\\ud800"', '"\\u0000"', '"\\u202e\\u001b[31m"', '"' + "x" * 5000 + '"', '"1e400"', "[]", "{}", "[[]]"),
    *("[" * 50 + "]" * 50, "[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500, "[" * 100_000, '{"": {"": []}}'),
    *("[null]", "[1e400]", '["x", 1]', '{"1e400": 1e400}', '[{"rank": 1e400}]'),
]
LINES = [event.to_json() for event in run(steps=6)]
KEYS = sorted({f'"{key}":' for line in LINES for key in re.findall(r'"(\w+)":', line)})
QUIET = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
HEAD = ("pid", "attempt", "time", "monotonic", "step", "rank", "node", "kind", "job", "source", "fields")


@pytest.fixture(autouse=True)
def ground(tmp_path, monkeypatch):
    monkeypatch.setenv(run_registry.STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    # The rules of the machine's packet filter, which take long to list, are no file of a run.
    monkeypatch.setattr("chaos.undo.residue.network._LISTINGS", ())


def store(tmp_path, lines, **files):
    folder = tmp_path / "chaos-runs" / "job" / "20260101T000000Z"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("summary.json", "experiment.yaml"):
        (folder / name).unlink(missing_ok=True)
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines), errors="surrogatepass")
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, errors="surrogatepass")
    return folder


def read_by_everybody(capsys):
    """No exception leaves any of the readers, and none prints a traceback."""
    for command in (["runs"], ["runs", "--json"], ["report"], ["report", "--json"], ["replay", "latest", "--dry-run"]):
        code = run_cli(command)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err, err
        assert code in range(7)
        if command[0] == "runs":
            assert code == 0 and "job/20260101T000000Z" in out


def put(line, key, value):
    """`line` with another value of `key`, its first one or what is in its fields."""
    try:
        raw = json.loads(line)
    except ValueError:
        return line
    name, marker = key[1:-2], "@@@"
    holder = raw if name in raw else raw["fields"]
    if name not in holder:
        return line
    return json.dumps({**raw, name: marker} if holder is raw else {**raw, "fields": {**holder, name: marker}}).replace(
        f'"{marker}"', value
    )


@pytest.mark.parametrize("value", ["1e400", "-1e400", "NaN", "1" * 400, "1" * 5000, "true", '"7"', "[]", "null"])
@pytest.mark.parametrize("key", HEAD)
def test_one_line_does_not_keep_the_others_from_being_listed(tmp_path, key, value, capsys):
    store(tmp_path, [put(line, f'"{key}":', value) if n == 0 else line for n, line in enumerate(LINES)])
    other = tmp_path / "chaos-runs" / "other" / "20260101T000001Z"
    other.mkdir(parents=True)
    (other / "events.jsonl").write_text("".join(f"{line}\n" for line in LINES))
    assert run_cli(["runs"]) == 0
    out, err = capsys.readouterr()
    assert "other/20260101T000001Z" in out and "job/20260101T000000Z" in out and "Traceback" not in err
    read_by_everybody(capsys)


@QUIET
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(LINES) - 1), st.sampled_from(KEYS), st.sampled_from(HOSTILE)), max_size=4
    )
)
def test_events(tmp_path, capsys, changes):
    lines = list(LINES)
    for number, key, value in changes:
        lines[number] = put(lines[number], key, value)
    store(tmp_path, lines)
    read_by_everybody(capsys)


@QUIET
@given(
    key=st.sampled_from(HEAD),
    value=st.one_of(
        st.sampled_from(HOSTILE), st.integers().map(str), st.floats().map(json.dumps), st.text().map(json.dumps)
    ),
)
def test_a_head_is_read_or_refused(key, value):
    line = put(LINES[5], f'"{key}":', value)
    for text in (line, line.encode(errors="surrogatepass")):
        with suppress(ValueError):
            event = Event.from_json(text)
            assert type(event.pid) is type(event.attempt) is int
            assert abs(event.pid) < 1 << 31 and abs(event.monotonic_seconds) < 1e12
            assert event.rank is None or type(event.rank) is int
            assert Event.from_json(event.to_json()).kind == event.kind, "what is written is read again"


@QUIET
@given(text=st.one_of(st.sampled_from(HOSTILE), st.text(), st.sampled_from(HOSTILE).map('{{"verdict": {}}}'.format)))
def test_a_summary_and_an_experiment(tmp_path, capsys, text):
    store(tmp_path, LINES, summary_json=text, experiment_yaml=text)
    read_by_everybody(capsys)


@QUIET
@given(
    key=st.sampled_from(["verdict", "status", "seed", "experiment_hash", "steps_committed", "incidents", "gates"]),
    value=st.sampled_from(HOSTILE),
)
def test_keys_of_a_summary(tmp_path, capsys, key, value):
    summary = json.dumps({"verdict": "pass", "status": "completed", key: "@@@"}).replace('"@@@"', value)
    store(tmp_path, LINES, summary_json=summary)
    read_by_everybody(capsys)


@QUIET
@given(
    key=st.sampled_from(
        ["incident", "fault", "state", "record", "run", "by", "pid", "folder", "absent", "place", "folders"]
    ),
    value=st.sampled_from(HOSTILE),
)
def test_a_ledger(tmp_path, capsys, key, value):
    folder = store(tmp_path, LINES)
    folder.chmod(0o755)
    (folder / "ledger.jsonl").unlink(missing_ok=True)
    with Ledger(folder / "ledger.jsonl", "ab12") as ledger:
        ledger.prepare(0, "fill-disk", {"ballast": str(folder / ".ballast-1"), "disk": None})
    line = json.loads((folder / "ledger.jsonl").read_text())
    changed = json.dumps({**line, "pid": DEAD.pid, key: "@@@"}).replace('"@@@"', value)
    (folder / "ledger.jsonl").write_text(changed + "\n", errors="surrogatepass")
    read_ledger(folder / "ledger.jsonl")
    run_registry.register(OpenRun("ab12", folder, folder / "ledger.jsonl", Place.here(), DEAD, DEAD))
    for command in (["heal", "--dry-run"], ["heal", "--dry-run", str(folder)], ["heal", str(folder)], ["heal"]):
        assert run_cli(command) in range(7)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err, err
    run_registry.forget("ab12")


@QUIET
@given(
    key=st.sampled_from(["run", "folder", "ledger", "place", "chaos", "watchdog", "folders", "ledger_file"]),
    value=st.sampled_from(HOSTILE),
)
def test_an_entry_of_the_registry(tmp_path, capsys, key, value):
    run_registry.register(OpenRun("ab12", tmp_path, tmp_path / "ledger.jsonl", Place.here(), DEAD))
    (entry,) = (tmp_path / "state").glob("ab12.*.json")
    told = json.loads(entry.read_text())
    entry.write_text(json.dumps({**told, key: "@@@"}).replace('"@@@"', value), errors="surrogatepass")
    for command in (["heal", "--dry-run"], ["heal"]):
        assert run_cli(command) in range(7)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err, err
    entry.unlink(missing_ok=True)


@pytest.mark.parametrize("engine", ["\u202e[31m", "1e400", "tcp://[", "unix://", "x" * 5000])
def test_an_engine_that_is_none(tmp_path, engine, capsys):
    run_registry.register(OpenRun("ab12", tmp_path, tmp_path / "ledger.jsonl", Place.here(), DEAD, engine=engine))
    assert run_cli(["heal", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err, err


class TestLongLines:
    def test_they_are_not_kept(self, tmp_path):
        path = tmp_path / "lines"
        path.write_bytes(b"a\n" + b"x" * 1000 + b"\nb\n" + b"y" * 1000)
        with path.open("rb") as file:
            assert list(bounded_lines(file, 10)) == [b"a\n", None, b"b\n", None]
        path.write_bytes(b"x" * 9 + b"\n" + b"x" * 10)
        with path.open("rb") as file:
            assert list(bounded_lines(file, 10)) == [b"x" * 9 + b"\n", b"x" * 10]

    def test_a_log_without_an_end_of_line_is_not_read_as_a_whole(self, tmp_path, capsys):
        """Several times as long as a line may be, sparse on the disk."""
        folder = store(tmp_path, LINES)
        with (folder / "events.jsonl").open("r+b") as file:
            file.seek(0, os.SEEK_END)
            file.truncate(file.tell() + TOO_LONG_BYTES)

        def read():
            log = read_events(folder / "events.jsonl")
            assert len(log.events) == len(LINES) and log.unreadable == (len(LINES) + 1,)
            assert [entry.verdict for entry in list_runs(Path("chaos-runs"))] != []

        # Its parts, and what they are put together to.
        assert peak_bytes(read) < 2.2 * MAX_LINE_BYTES < TOO_LONG_BYTES

    def test_a_first_line_without_an_end_is_an_unreadable_run(self, tmp_path):
        folder = store(tmp_path, [])
        with (folder / "events.jsonl").open("r+b") as file:
            file.truncate(TOO_LONG_BYTES)
        assert [entry.verdict for entry in list_runs(Path("chaos-runs"))] == [UNREADABLE]
