"""`python -m harness.network PARENT_PID NODES RANKS COMMAND...`: run COMMAND with networks of its own."""

from __future__ import annotations

import os
import sys

from harness.network.namespaces import leave_for_own_namespaces, make_networks
from harness.network.plan import NETWORKS_VARIABLE, sites
from mecefo_runtime.system.process import die_with_parent


def main() -> None:
    """Make the networks, hand their descriptors over in the environment, and become COMMAND."""
    parent, num_nodes, num_ranks = (int(word) for word in sys.argv[1:4])
    die_with_parent(parent)
    try:
        leave_for_own_namespaces()
        networks = make_networks(sites(num_nodes, num_ranks))
    except OSError as error:
        print(f"networks cannot be made: {error}", file=sys.stderr)
        sys.exit(1)
    command = sys.argv[4:]
    os.execvpe(command[0], command, {**os.environ, NETWORKS_VARIABLE: networks.to_text()})


if __name__ == "__main__":
    main()
