"""A Unix socket that listens in a file of the run's folder, whatever the length of that folder's path."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

# sockaddr_un takes 108 bytes, with a zero at the end (unix(7)).
MAX_PATH_BYTES = 107
_NAME = "control.socket"
_BACKLOG = 1024


class SocketFile:
    """A listening `socket` at `path`, which only this user may open.

    The path is relative to the working folder where that makes it short enough and it `may_be_relative`: whoever
    connects must share that folder. Where a run's folder is too deep or cannot hold a socket, it is a fresh folder for
    temporary files.

    Raises:
        OSError: there is no place for it.
    """

    def __init__(self, folder: Path, *, may_be_relative: bool = True) -> None:
        self._temporary: Path | None = None
        place = folder.resolve() / _NAME
        paths = (str(place), os.path.relpath(place)) if may_be_relative else (str(place),)
        candidates = [path for path in paths if len(os.fsencode(path)) <= MAX_PATH_BYTES]
        if candidates:
            # Not every file system can hold one.
            with suppress(OSError):
                self.socket, self.path = _listen(candidates[0]), candidates[0]
                return
        self._temporary = Path(tempfile.mkdtemp(prefix="chaos-"))
        self.path = str(self._temporary / _NAME)
        try:
            self.socket = _listen(self.path)
        except OSError:
            self._temporary.rmdir()
            raise

    def remove(self) -> None:
        """Remove what was made; nobody can connect any more."""
        Path(self.path).unlink(missing_ok=True)
        if self._temporary is not None:
            self._temporary.rmdir()


def _listen(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        Path(path).chmod(0o600)
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
