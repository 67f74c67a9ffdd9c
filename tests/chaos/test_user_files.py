"""Files that may be pipes: read when somebody writes to them, never waited for when nobody does."""

import os
import select
import time

import pytest

from chaos.user_files import open_output, open_regular, read_input, read_regular, write_output

pytestmark = pytest.mark.unit


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.fixture
def writer(pipe):
    """The end of the pipe that is open for writing, beside a reader that reads nothing."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(pipe, os.O_WRONLY)
    yield writer
    os.close(reader)


def when_waited_for(monkeypatch, act):
    """Calls `act` in place of a wait, which then ends as it would have."""

    class Poll:
        def register(self, *_):
            pass

        def poll(self, timeout):
            assert timeout > 0
            return act()

    monkeypatch.setattr(select, "poll", Poll)


def test_file_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 200_000)
    assert read_input(path) == read_regular(path) == b"x" * 200_000
    assert read_input(path, 70_000) == b"x" * 70_000


def test_nobody_writes(pipe):
    with pytest.raises(OSError, match="a pipe that nobody writes to"):
        read_input(pipe)


def test_writer_that_takes_its_time(pipe, writer, monkeypatch):
    parts = [b"one ", b"two"]

    def write():
        os.write(writer, parts.pop(0))
        if not parts:
            os.close(writer)
        return [(writer, select.POLLIN)]

    when_waited_for(monkeypatch, write)
    assert read_input(pipe) == b"one two"


def test_writer_that_never_writes(pipe, writer, monkeypatch):
    when_waited_for(monkeypatch, list)
    with pytest.raises(OSError, match="nothing was written for"):
        read_input(pipe)
    os.close(writer)


def test_no_more_is_read_than_asked_for(pipe, writer):
    os.write(writer, b"x" * 100)
    assert read_input(pipe, 10) == b"x" * 10
    os.close(writer)


@pytest.mark.parametrize("read", [open_regular, read_regular])
def test_what_must_be_a_file_is_no_pipe_and_no_device(pipe, read, tmp_path):
    for path in (pipe, pipe.parent / "link", tmp_path.joinpath("/dev/zero")):
        if path.name == "link":
            path.symlink_to(pipe)
        with pytest.raises(OSError, match="not a regular file"):
            read(path)
    with pytest.raises(IsADirectoryError):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none")
    with pytest.raises(ValueError, match="null"):
        read(tmp_path / "a\0b")


def test_output_goes_to_whoever_reads_the_pipe(pipe):
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output(pipe, "an é")
    assert os.read(reader, 100) == "an é".encode()
    with open_output(pipe, "ab") as file:
        file.write(b"more")
    assert os.read(reader, 100) == b"more"
    os.close(reader)


def test_reader_that_comes_late(pipe, monkeypatch):
    readers = []
    monkeypatch.setattr(time, "sleep", lambda _: readers.append(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)))
    write_output(pipe, "text")
    assert os.read(readers[0], 100) == b"text"
    os.close(readers[0])


def test_reader_that_never_comes(pipe, monkeypatch):
    monkeypatch.setattr("chaos.user_files.MAX_WAIT_FOR_READER_SECONDS", 0.0)
    with pytest.raises(OSError, match="a pipe that nobody reads"):
        write_output(pipe, "text")


def test_output_replaces_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("a longer text")
    write_output(path, "text")
    assert path.read_text() == "text"
