"""A process is stopped in the middle of a file that it writes, and where that was is known."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.host.process_table import is_stopped
from chaos.injection.write_watch import WriteWatch
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.integration

# Appends to a log, and writes a file when it is told to: in pieces, the last of which waits for another word.
WRITER = """
import sys
log = open(sys.argv[1] + ".log", "a"); log.write("x" * 5000); log.flush()
print("ready", flush=True)
sys.stdin.readline()
with open(sys.argv[1], "wb", buffering=0) as file:
    for _ in range(int(sys.argv[2])):
        file.write(bytes(100))
    if sys.argv[3] == "waits":
        sys.stdin.readline()
print("written", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[object]:
    children = []

    def start(num_pieces: int, ending: str) -> tuple[subprocess.Popen[str], ProcessId]:
        arguments = [sys.executable, "-c", WRITER, str(tmp_path / "a.pt"), str(num_pieces), ending]
        child = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child, ProcessId.of(child.pid)

    yield start
    for child in children:
        child.kill()
        child.communicate()


def say(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


@pytest.mark.parametrize("is_path_known", [True, False])
def test_it_stands_still_with_the_file_open_at_the_byte_that_is_told(
    tmp_path: Path, writer: object, is_path_known: bool
) -> None:
    child, process = writer(30, "waits")  # type: ignore[operator]
    watch = WriteWatch(process, 1000, str(tmp_path / "a.pt") if is_path_known else None)
    say(child)
    written = watch.wait()
    assert written is not None
    assert is_stopped(process)
    assert written.path == str(tmp_path / "a.pt")
    assert 1000 <= written.offset == written.num_bytes == (tmp_path / "a.pt").stat().st_size <= 3000
    watch.let_go()
    say(child)
    assert child.stdout is not None
    assert child.stdout.readline() == "written\n"


def test_a_file_that_stays_smaller_stops_nobody(tmp_path: Path, writer: object) -> None:
    child, process = writer(3, "waits")  # type: ignore[operator]
    watch = WriteWatch(process, 1000)
    say(child)
    while not (tmp_path / "a.pt").exists() or (tmp_path / "a.pt").stat().st_size < 300:
        time.sleep(0.001)
    watch.end()
    assert watch.wait() is None
    assert not is_stopped(process)


def test_it_ends_with_the_process(writer: object) -> None:
    child, process = writer(1, "ends")  # type: ignore[operator]
    watch = WriteWatch(process, 1000)
    child.kill()
    child.wait()
    assert watch.wait() is None
