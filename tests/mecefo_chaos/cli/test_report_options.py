"""`chaos report --html` and `--pictures`."""

import json
import os
import threading

import pytest

from harness.report import pictures
from mecefo_chaos.cli.main import run_cli
from tests.harness import synthetic

pytestmark = pytest.mark.unit


@pytest.fixture
def stored(tmp_path):
    """A whole run, as its log."""
    folder = tmp_path / "runs" / "synthetic" / "20260101T000000Z"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(event.to_json() + "\n" for event in synthetic.run()))
    return folder


def test_the_page_of_a_run_whose_end_was_never_seen(stored, tmp_path, capsys):
    lines = (stored / "events.jsonl").read_text().splitlines(keepends=True)
    (stored / "events.jsonl").write_text("".join(lines[:40]) + lines[40][:30])
    page = tmp_path / "page.html"
    assert run_cli(["report", str(stored), "--html", str(page)]) == 5
    assert "the log was cut off" in page.read_text().lower()
    assert 'href="./runs/synthetic/20260101T000000Z/events.jsonl"' in page.read_text()
    assert "INCONCLUSIVE" in capsys.readouterr().out


def test_without_a_browser_there_are_svgs_and_a_word_about_it(stored, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pictures, "BROWSERS", ("no-such-browser",))
    assert run_cli(["report", str(stored), "--json", "--pictures", str(tmp_path / "docs")]) == 0
    written = capsys.readouterr()
    assert json.loads(written.out)["verdict"] == "pass"
    assert "5 pictures in" in written.err and "as SVG only" in written.err and "no-such-browser" in written.err
    assert sorted(file.name for file in (tmp_path / "docs").iterdir()) == [
        "loss.svg", "ranks.svg", "recovery-0.svg", "speed-over-time.svg", "time.svg",
    ]  # fmt: skip


@pytest.mark.parametrize("option", ["--html", "--pictures"])
def test_a_place_that_cannot_be_written_to_is_named_before_anything_is_printed(stored, option, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert run_cli(["report", str(stored), option, str(tmp_path / "file" / "into")]) == 4
    written = capsys.readouterr()
    assert written.err == f"chaos: {option}: {tmp_path / 'file'} is not a folder\n"
    assert written.out == ""


def test_a_place_that_only_writing_shows_to_be_none_is_named(stored, capsys):
    assert run_cli(["report", str(stored), "--pictures", "/proc/no/such"]) == 3
    err = capsys.readouterr().err
    assert "cannot write" in err and "/proc/no" in err and "Traceback" not in err


def test_a_page_goes_where_a_link_points_and_into_what_is_no_file(stored, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "page.html").symlink_to(tmp_path / "elsewhere" / "page.html")
    assert run_cli(["report", str(stored), "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").is_symlink() and (tmp_path / "elsewhere" / "page.html").is_file()
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert run_cli(["report", str(stored), "--html", str(pipe)]) == 0
    assert pipe.is_fifo()
    reader.join(60)
    assert read[0].endswith("</html>")
