"""Moves a rank of an external job, as its Python starts, into the network that was made for it.

Whoever starts the ranks stays where the networks' holder is. To the ranks the job then looks like one of as many hosts:
other ranks are reached by their addresses, and on the loopback there is nobody.
"""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping

from mecefo_runtime.comm.nccl_log import nccl_log_settings
from mecefo_runtime.system.own_network import CLONE_NEWNET, enter_namespace

# Name -> [descriptor, address], as JSON; and the process whose descriptors they are.
NETWORKS_VARIABLE = "CHAOS_NETWORKS"
HOLDER_VARIABLE = "CHAOS_NETWORKS_HOLDER"
# A path with `{rank}` in it, for what NCCL says of its connections.
NCCL_LOG_VARIABLE = "CHAOS_NCCL_LOG"
# The name of a rank's only interface beside the loopback.
INTERFACE = "eth0"
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def move(environment: MutableMapping[str, str]) -> bool:
    """Enter the network of the rank that `environment` names; False where it names none, or there is none for it.

    In any network it has NCCL say which way it takes, if that is asked for.

    MASTER_ADDR becomes the address of whoever has the store: torchrun's agent, or rank 0.

    Raises:
        OSError: the network cannot be entered.
    """
    nccl_log = environment.get(NCCL_LOG_VARIABLE)
    if nccl_log and environment.get("RANK", "").isdecimal():
        environment.update(nccl_log_settings(nccl_log.format(rank=environment["RANK"])))
    networks = json.loads(environment.get(NETWORKS_VARIABLE, "{}"))
    own = networks.get(f"rank-{environment.get('RANK', '')}")
    if own is None:
        return False
    here = os.open(f"/proc/{int(environment[HOLDER_VARIABLE])}/fd/{int(own[0])}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter_namespace(here, CLONE_NEWNET)
    finally:
        os.close(here)
    has_agent_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    environment["MASTER_ADDR"] = networks["coordinator" if has_agent_store else "rank-0"][1]
    environment.update(dict.fromkeys(_INTERFACE_VARIABLES, INTERFACE))
    return True
