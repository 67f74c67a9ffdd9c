"""`fake_host.py NAME FOLDER VERSION OFFSET MODULE [ARGUMENT]...`: runs a module of the tool as on a host of that name.

Its boot, sockets and state are those of FOLDER, and its clock is OFFSET seconds ahead: what it takes root to have, and
no more. Its processes are those of this machine.
"""

import os
import runpy
import socket
import sys
import time
from pathlib import Path


def main() -> None:
    name, folder, version, offset, module = sys.argv[1:6]
    place, who = Path(folder), (name, folder, version, offset)
    socket.gethostname = lambda: name
    own = time.monotonic
    time.monotonic = lambda: own() + float(offset)

    from chaos.host import python_module
    from chaos.undo.run_registry import STATE_VARIABLE
    from harness.node import facts, socket_folder
    from mecefo_runtime.system import host

    host._BOOT_ID = place / "boot_id"
    socket_folder._MEMORY = place
    # What it starts is on this host, too.
    python_module.command = lambda module, *words: [sys.executable, __file__, *who, module, *words]
    if version:
        facts.tool_version = lambda: version
    os.environ[STATE_VARIABLE] = str(place / "state")
    sys.argv[:] = [module, *sys.argv[6:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


main()
