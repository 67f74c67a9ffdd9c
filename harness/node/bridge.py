"""Passes a stream on to the agent that is already on this host; it imports nothing that takes long."""

from __future__ import annotations

import os
import selectors
import socket
from contextlib import suppress

from chaos.host import python_module
from harness.node.socket_folder import AGENT_SOCKET, SocketFolder

_PART_BYTES = 1 << 16
_CONNECT_SECONDS = 5.0


def pass_on(folder: SocketFolder) -> bool:
    """Pass standard input on to the agent, and what it says to standard output, until either ends.

    Returns False, at once, where there is no agent.
    """
    if not folder.is_ours():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent, selectors.DefaultSelector() as selector:
        agent.settimeout(_CONNECT_SECONDS)
        try:
            agent.connect(folder.path(AGENT_SOCKET))
        except OSError:
            return False
        agent.settimeout(None)
        python_module.begin_output()
        selector.register(0, selectors.EVENT_READ)
        selector.register(agent, selectors.EVENT_READ)
        with suppress(OSError):
            while True:
                for key, _ in selector.select():
                    part = os.read(key.fd, _PART_BYTES)
                    if not part:
                        return True
                    if key.fd == 0:
                        agent.sendall(part)
                    else:
                        _write(part)
    return True


def _write(part: bytes) -> None:
    while part:
        part = part[os.write(1, part) :]
