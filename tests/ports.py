"""A free port for a program that has to be told one, which no other test is given before the program listens there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that the kernel gives to nobody else meanwhile; whoever asks for it by its number may listen at it.

    It is bound, and nobody listens: then all that ask for it with SO_REUSEADDR, as servers do, can have it too.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
