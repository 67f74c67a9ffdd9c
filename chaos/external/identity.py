"""Which rank of the job this process is, by its process group or the launcher's environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

# Set by the rank that trains: what it starts, and what those start, are its workers and no ranks.
RANK_PID = "CHAOS_RANK_PID"
# Set where nodes are containers: which of them this is.
NODE_VARIABLE = "CHAOS_NODE"


@dataclass(frozen=True, slots=True)
class Identity:
    """One rank; all but `attempt` count from 0. `attempt` counts the launcher's starts of the ranks, from 1."""

    rank: int
    node: int
    local_rank: int
    world_size: int
    attempt: int


def identify(environment: Mapping[str, str]) -> Identity:
    """Who this process is: as its process group says, else as the launcher's variables say, else rank 0 of 1.

    Its node is the container that it is in, else what the launcher counts as one.
    """
    rank, world_size = _number(environment, "RANK", 0), _number(environment, "WORLD_SIZE", 1)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    ranks_per_node = max(1, _number(environment, "LOCAL_WORLD_SIZE", world_size))
    return Identity(
        rank=rank,
        node=_number(environment, NODE_VARIABLE, _number(environment, "GROUP_RANK", rank // ranks_per_node)),
        local_rank=_number(environment, "LOCAL_RANK", rank % ranks_per_node),
        world_size=world_size,
        attempt=attempt_of(environment),
    )


def attempt_of(environment: Mapping[str, str]) -> int:
    """1 + torchrun's count of restarts, else CHAOS_ATTEMPT, else 1."""
    restarts = _number(environment, "TORCHELASTIC_RESTART_COUNT", -1)
    return restarts + 1 if restarts >= 0 else _number(environment, "CHAOS_ATTEMPT", 1)


def may_be_rank(environment: Mapping[str, str]) -> bool:
    """Whether this process can be one: not what a rank started, and no worker of a DataLoader."""
    if environment.get(RANK_PID, str(os.getpid())) != str(os.getpid()):
        return False
    data = sys.modules.get("torch.utils.data")
    return data is None or data.get_worker_info() is None


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else otherwise
