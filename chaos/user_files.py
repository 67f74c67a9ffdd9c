"""Reads and writes files that anybody may have put there: never waits for ever for the other end of a named pipe.

To open such a pipe is to wait for who writes to it, or reads from it (fifo(7)).
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Literal

# Whoever has a pipe open may compute before it writes.
MAX_SILENCE_SECONDS = 60.0
MAX_WAIT_FOR_READER_SECONDS = 10.0
_POLL_SECONDS = 0.02
# What a run writes comes to it in lines of at most half of it (`mecefo_runtime.system.wire.MAX_LINE_BYTES`).
MAX_LINE_BYTES = 1 << 25
# A summary, an entry of the registry, a table of ratings: documents that are read as a whole.
MAX_DOCUMENT_BYTES = 1 << 28
_READ_BYTES = 1 << 16


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading that must be one on a disk: what a run or this tool wrote.

    Raises:
        OSError: it cannot be opened, or it is a pipe, a device or a socket.
        ValueError: no file can have the name.
    """
    return open(path, "rb", opener=_open_regular)


def read_regular(path: Path, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """The content of such a file; raises as `open_regular` does.

    Raises:
        OSError: also, it has more than `max_bytes`.
    """
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes >> 20} MiB")
    return content


def bounded_lines(file: IO[bytes], max_bytes: int | None = None) -> Iterator[bytes | None]:
    """The lines of a file with their ends; None in place of one of more than `max_bytes`, which is not kept.

    Without `max_bytes` it is `MAX_LINE_BYTES`.
    """
    bound = MAX_LINE_BYTES if max_bytes is None else max_bytes
    while line := file.readline(bound + 1):
        if len(line) <= bound:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(_READ_BYTES)
        yield None


def read_input(path: Path, max_bytes: int | None = None) -> bytes:
    """The content, or its first `max_bytes`, of a file that a user names. It may be a pipe that is open for writing.

    Raises:
        OSError: it cannot be read, or it is a pipe to which nobody writes.
        ValueError: no file can have the name.
    """
    with open(path, "rb", buffering=0, opener=_open_at_once) as file:
        if not stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            os.set_blocking(file.fileno(), True)
            return _read(file, max_bytes)
        return _read_pipe(file, max_bytes)


def write_output(path: Path, text: str) -> None:
    """Write a file that a user names, in UTF-8; see `open_output`."""
    with open_output(path, "wb") as file:
        file.write(text.encode(errors="replace"))


def open_output(path: Path, mode: Literal["wb", "ab"]) -> IO[bytes]:
    """Open a file that a user names, for writing. It may be a device, or a pipe that somebody reads.

    Raises:
        OSError: it cannot be written, or it is a pipe that nobody reads.
        ValueError: no file can have the name.
    """
    return open(path, mode, opener=_open_for_reader)


def _open_for_reader(path: str, flags: int) -> int:
    deadline = time.monotonic() + MAX_WAIT_FOR_READER_SECONDS
    while True:
        try:
            descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
        except OSError as error:
            if error.errno != errno.ENXIO or not stat.S_ISFIFO(Path(path).stat().st_mode):
                raise
            if time.monotonic() >= deadline:
                raise OSError(errno.EINVAL, "a pipe that nobody reads") from None
            time.sleep(_POLL_SECONDS)
        else:
            os.set_blocking(descriptor, True)
            return descriptor


def _read(file: IO[bytes], max_bytes: int | None) -> bytes:
    """What is read at once may be less than there is."""
    content = bytearray()
    while max_bytes is None or len(content) < max_bytes:
        chunk = file.read(_READ_BYTES if max_bytes is None else min(_READ_BYTES, max_bytes - len(content)))
        if not chunk:
            break
        content += chunk
    return bytes(content)


def _read_pipe(file: IO[bytes], max_bytes: int | None) -> bytes:
    content = bytearray()
    poll = select.poll()
    poll.register(file, select.POLLIN)
    while max_bytes is None or len(content) < max_bytes:
        # None: it has a writer, which has not written yet.
        chunk = file.read(_READ_BYTES if max_bytes is None else min(_READ_BYTES, max_bytes - len(content)))
        if chunk:
            content += chunk
        elif chunk is not None:
            break
        elif not poll.poll(MAX_SILENCE_SECONDS * 1000):
            raise OSError(errno.EINVAL, f"a pipe to which nothing was written for {MAX_SILENCE_SECONDS:g} s")
    if not content:
        raise OSError(errno.EINVAL, "a pipe that nobody writes to")
    return bytes(content)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    # Of a directory, Python says so itself.
    return descriptor
