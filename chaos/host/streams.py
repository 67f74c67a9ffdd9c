"""Standard streams whose reader may go away: a closed terminal, a pipe to `head`, a full disk behind them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TextIO, cast

from chaos.errors import EnvironmentFailure

GONE = frozenset({errno.EPIPE, errno.EIO, errno.ENXIO, errno.EBADF, errno.ESTALE})
"""What writing to a stream fails with when nobody reads it any more; EIO is a terminal that was closed."""


class _Stream:
    """A text stream that is dropped when nobody reads it: all that follows goes nowhere.

    Whatever else it fails of is none of its user's business either if `name` is None; otherwise every later use fails
    of it too, with EnvironmentFailure (click tries to write, and ignores how that ends).
    """

    def __init__(self, stream: TextIO, name: str | None) -> None:
        self._stream = stream
        self._name = name
        self._is_dropped = False
        self._failure: str | None = None

    def write(self, text: str) -> int:
        """Write, if anybody reads; what the encoding of the stream lacks is written as an escape."""
        encoding = self._stream.encoding or "utf-8"
        shown = text.encode(encoding, "backslashreplace").decode(encoding)
        self._try(lambda: self._stream.write(shown))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all of `lines`."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush, if anybody reads."""
        self._try(self._stream.flush)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            if not self._is_dropped:
                act()
        except (OSError, ValueError) as error:
            if isinstance(error, BlockingIOError) and self._name is None:
                # Somebody made it non-blocking, and it is full: this is lost, the next may not be.
                return
            self._is_dropped = True
            with suppress(OSError, ValueError):
                drop(self._stream)
            if self._name is not None and isinstance(error, OSError) and error.errno not in GONE:
                self._failure = f"cannot write to {self._name}: {error.strerror}"
        if self._failure is not None:
            raise EnvironmentFailure(self._failure)

    @property
    def buffer(self) -> _Bytes:
        """The same for bytes, which click writes for completion."""
        return _Bytes(self._stream, self._try)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Bytes:
    """The binary side of a stream, after what was written as text before."""

    def __init__(self, stream: TextIO, attempt: Callable[[Callable[[], object]], None]) -> None:
        self._stream = stream
        self._attempt = attempt

    def write(self, data: bytes) -> int:
        """Write, if anybody reads."""
        self.flush()
        self._attempt(lambda: self._stream.buffer.write(data))
        return len(data)

    def flush(self) -> None:
        """Flush, if anybody reads."""
        self._attempt(self._stream.flush)


def forgiving(stream: TextIO) -> TextIO:
    """`stream`, but it never fails: for what is told while something else is done that must not end with it."""
    return stream if isinstance(stream, _Stream) else cast(TextIO, _Stream(stream, None))


def standard_output(stream: TextIO) -> TextIO:
    """`stream`, but that nobody reads any more is no failure.

    That it takes nothing, such as on a full disk, raises EnvironmentFailure.
    """
    return cast(TextIO, _Stream(stream, "standard output"))


def drop(stream: TextIO) -> None:
    """What is still in the buffer of `stream` goes nowhere: it would fail once more when Python exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
