from pathlib import Path

import pytest

from harness.store.log import LogError, read_events
from tests.harness.synthetic import run

pytestmark = pytest.mark.unit


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_reads_every_event(tmp_path: Path):
    events = run(steps=5, faults=(), baseline=False)
    log = read_events(write(tmp_path / "events.jsonl", [event.to_json() for event in events]))
    assert [event.kind for event in log.events] == [event.kind for event in events]
    assert (log.unreadable, log.ends_in_a_line) == ((), False)


def test_a_cut_off_last_line_is_told_and_left_out(tmp_path: Path):
    lines = [event.to_json() for event in run(steps=5, faults=(), baseline=False)]
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(lines)[:-20])
    log = read_events(path)
    assert len(log.events) == len(lines) - 1
    assert (log.unreadable, log.ends_in_a_line) == ((), True)


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[]",
        "17",
        "null",
        "not json",
        "\x00\x01",
        "[" * 100_000,
        run(steps=1, faults=())[0].to_json().replace('"fields":{', '"fields":[], "other":{'),
        run(steps=1, faults=())[0].to_json().replace('"monotonic":1000.0', '"monotonic":NaN'),
        run(steps=1, faults=())[0].to_json().replace('"pid":150', '"pid":1e999'),
        run(steps=1, faults=())[0].to_json().replace('"step":null', '"step":"7"'),
    ],
)
def test_a_line_that_is_no_event_is_told(tmp_path: Path, line: str):
    good = run(steps=1, faults=())[0].to_json()
    assert line != good
    log = read_events(write(tmp_path / "events.jsonl", [good, "", line, good]))
    assert (len(log.events), log.unreadable, log.ends_in_a_line) == (2, (3,), False)


def test_bytes_that_are_no_text_are_told(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\xff\xfe\x00\n" + run(steps=1, faults=())[0].to_json().encode() + b"\n")
    assert read_events(path).unreadable == (1,)


def test_a_missing_log_says_so(tmp_path: Path):
    with pytest.raises(LogError, match="no such event log"):
        read_events(tmp_path / "events.jsonl")


def test_a_folder_is_no_log(tmp_path: Path):
    with pytest.raises(LogError, match="cannot be read"):
        read_events(tmp_path)


@pytest.mark.parametrize(("text", "num_unreadable"), [("", 0), ("\n\n", 0), ("half a li", 1)])
def test_a_log_without_events_says_so(tmp_path: Path, text: str, num_unreadable: int):
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    with pytest.raises(LogError, match=f"no events in it \\({num_unreadable} unreadable"):
        read_events(path)
