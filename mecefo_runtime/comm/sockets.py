"""The sockets that this process has open, whoever opened them: gloo's and NCCL's are nowhere to be asked for."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def open_sockets() -> Iterator[socket.socket]:
    """Each of them, as a duplicate that is closed when the next one is asked for."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if entry.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as duplicate:
                    yield duplicate
