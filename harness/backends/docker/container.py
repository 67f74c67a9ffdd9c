"""`python -m harness.backends.docker.container NAME [DATA [MODULE]...]`: the first process of a container.

A fork server that gets its orders over the run's control server, a socket that is mounted into the container, and that
ends, and the container with it, when whoever gives the orders hangs up or dies. With DATA ("": the text that comes
with us) it brings into memory first what ranks of our runtime need.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from harness.backends.forkserver import ForkServer, load
from mecefo_runtime.system.process import set_name
from mecefo_runtime.system.wire import connect, encode

CONTROL_VARIABLE = "CHAOS_CONTROL"
# The IPv4 address by which the run's other containers reach this one.
ADDRESS_VARIABLE = "CHAOS_ADDRESS"
CONNECT_TIMEOUT_SECONDS = 10.0
# The name of the container that has no ranks.
COORDINATOR = "coordinator"


def report_to_control_server(name: str) -> socket.socket:
    """A connection to the control server, which knows this container as `name`."""
    control = connect(os.environ[CONTROL_VARIABLE], CONNECT_TIMEOUT_SECONDS)
    control.settimeout(None)
    control.sendall(encode({"role": "node", "name": name}))
    return control


def main() -> None:
    """Serve until the control server hangs up."""
    # The kernel keeps from a container's first process what it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    set_name("chaos-forks")
    name, loaded = sys.argv[1], sys.argv[2:]
    control = report_to_control_server(name)
    if loaded:
        load(loaded[0] or None, loaded[1:])
    ForkServer(control.fileno(), control.fileno(), host=os.environ[ADDRESS_VARIABLE]).serve()


if __name__ == "__main__":
    main()
