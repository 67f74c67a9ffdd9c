"""Streams that nobody reads any more end nothing."""

import io
import os
from pathlib import Path

import pytest

from chaos.errors import EnvironmentFailure
from chaos.host.streams import forgiving, standard_output

pytestmark = pytest.mark.unit


@pytest.fixture
def closed_pipe():
    """The writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        yield stream


@pytest.fixture
def closed_terminal():
    """A terminal that was closed."""
    master, terminal = os.openpty()
    os.close(master)
    with os.fdopen(terminal, "w", encoding="utf-8") as stream:
        yield stream


@pytest.mark.parametrize("of", [forgiving, standard_output])
@pytest.mark.parametrize("kind", ["closed_pipe", "closed_terminal"])
def test_what_nobody_reads_is_no_failure(request, kind, of):
    stream = of(request.getfixturevalue(kind))
    for _ in range(2):
        assert stream.write("lost") == 4
        stream.flush()


def test_a_full_disk_behind_standard_output_is_told():
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        stream = standard_output(full)
        with pytest.raises(EnvironmentFailure, match="cannot write to standard output: No space left on device"):
            stream.write("x" * 100_000)
            stream.flush()


def test_a_full_disk_behind_what_is_told_beside_is_no_failure():
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        stream = forgiving(full)
        stream.write("x" * 100_000)
        stream.flush()


@pytest.mark.parametrize("of", [forgiving, standard_output])
def test_a_character_that_the_encoding_lacks_is_escaped(of):
    raw = io.BytesIO()
    stream = of(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("a → b")
    stream.flush()
    assert raw.getvalue() == b"a \\u2192 b"


@pytest.mark.parametrize("of", [forgiving, standard_output])
def test_bytes_come_after_the_text_before_them(of):
    raw = io.BytesIO()
    stream = of(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("a")
    stream.buffer.write(b"b")
    stream.write("c")
    stream.flush()
    assert raw.getvalue() == b"abc"


def test_bytes_that_nobody_reads_are_no_failure(closed_pipe):
    stream = standard_output(closed_pipe)
    assert stream.buffer.write(b"lost") == 4
    stream.buffer.flush()
