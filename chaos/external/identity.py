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
# Which of the run's jobs: the main one, or its fault-free baseline.
JOB_VARIABLE = "CHAOS_JOB"
# torchft's examples and launchers set them for the processes of each replica group, which all have ranks from 0.
_REPLICA_GROUP, _NUM_REPLICA_GROUPS = "REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS"


@dataclass(frozen=True, slots=True)
class Identity:
    """One rank; all but `attempt` count from 0. `attempt` counts the launcher's starts of the ranks, from 1.

    Where the job consists of replica groups that have launchers of their own (torchft), `replica` is the group,
    `group_rank` the rank within it, `rank` that among all of them, in the order of the groups; `world_size` is that of
    all groups together, as far as their number is known.
    """

    rank: int
    node: int
    local_rank: int
    world_size: int
    attempt: int
    replica: int | None = None
    first_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether it speaks for its replica group, or for the whole job where there are none."""
        return self.rank == self.first_rank


def identify(environment: Mapping[str, str], replica: int | None = None) -> Identity:
    """The identity of this process: by its process group, else by the launcher's variables, else rank 0 of 1.

    Its node is the container that it is in, else what the launcher counts as one. `replica` is the group as the script
    itself names it, where no variable does.
    """
    rank, world_size = _number(environment, "RANK", 0), _number(environment, "WORLD_SIZE", 1)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    ranks_per_node = max(1, _number(environment, "LOCAL_WORLD_SIZE", world_size))
    node = _number(environment, "GROUP_RANK", rank // ranks_per_node)
    group = _number(environment, _REPLICA_GROUP, -1 if replica is None else replica)
    num_groups = max(group + 1, _number(environment, _NUM_REPLICA_GROUPS, 1))
    is_grouped = group >= 0
    return Identity(
        rank=group * world_size + rank if is_grouped else rank,
        node=_number(
            environment, NODE_VARIABLE, group * max(1, world_size // ranks_per_node) + node if is_grouped else node
        ),
        local_rank=_number(environment, "LOCAL_RANK", rank % ranks_per_node),
        world_size=world_size * num_groups if is_grouped else world_size,
        attempt=attempt_of(environment),
        replica=group if is_grouped else None,
        first_rank=group * world_size if is_grouped else 0,
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
