"""Runs a command on networks of its own: `python -m harness.network.command NUMBER... COMMAND...`.

The numbers are: the parent's pid, how many nodes and ranks, two descriptors TOLD and GO, and the limit of open files.
What starts the ranks is where the coordinator of a job of ours is; each rank moves into its own network as its Python
starts (`chaos.host.join_network`). Which networks there are goes to the descriptor TOLD; then a byte from GO is waited
for. The process that becomes COMMAND holds the networks, and has the limit that its user has set.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from chaos.host.inherited import give_back_open_files
from chaos.host.join_network import HOLDER_VARIABLE, NETWORKS_VARIABLE
from harness.network.namespaces import leave_for_own_namespaces, make_networks
from harness.network.plan import sites

_PR_SET_PDEATHSIG = 1
# What a shell says of a command that it cannot run.
_CANNOT_RUN = 127


def main() -> None:
    """Make the networks, tell them, wait, and become COMMAND."""
    parent, num_nodes, num_ranks, told, go, open_files = (int(word) for word in sys.argv[1:7])
    try:
        leave_for_own_namespaces()
        # The bridge is in this one, and would go with it.
        os.set_inheritable(os.open("/proc/self/ns/net", os.O_RDONLY), True)
        networks = make_networks(sites(num_nodes, num_ranks))
        networks.coordinator.enter()
    except OSError as error:
        sys.exit(f"networks cannot be made: {error}")
    # Upon SIGTERM launchers end their ranks. It was set before, and forgotten with the change of rights.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    os.write(told, networks.to_text().encode())
    os.close(told)
    if not os.read(go, 1):
        sys.exit(1)
    os.close(go)
    command = sys.argv[7:]
    environment = {**os.environ, NETWORKS_VARIABLE: networks.to_text(), HOLDER_VARIABLE: str(os.getpid())}
    give_back_open_files(open_files)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"{command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        sys.exit(_CANNOT_RUN)


if __name__ == "__main__":
    main()
