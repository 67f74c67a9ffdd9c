"""An address that outlives its listener: each process that replaces another listens at the same one."""

from __future__ import annotations

import socket


class ReservedAddress:
    """A free port of `host` that no other process is given; it has a listener only when one is opened.

    While no process listens there, the kernel refuses connections at once: a client does not wait for a process that
    is gone. So the listener is the process's alone, and ends with it.
    """

    def __init__(self, host: str) -> None:
        self._socket = socket.socket()
        # Two sockets may have an address as long as one of them does not listen, if both say so.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        host, port = self._socket.getsockname()
        self._address = host, port

    def __str__(self) -> str:
        return "{}:{}".format(*self._address)

    def listen(self) -> socket.socket:
        """A listener there, in whatever network namespace the caller is: it must be the one of the reservation.

        Raises:
            OSError: somebody listens there already.
        """
        return socket.create_server(self._address, backlog=1024)

    def close(self) -> None:
        """Release the port."""
        self._socket.close()
