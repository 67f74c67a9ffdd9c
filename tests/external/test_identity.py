"""Which rank a process is, and which processes are none."""

import os

import pytest

from chaos.external.identity import NODE_VARIABLE, RANK_PID, Identity, attempt_of, identify, may_be_rank

pytestmark = pytest.mark.unit

OF_TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_as_torchrun_says():
    assert identify(OF_TORCHRUN) == Identity(rank=5, node=1, local_rank=1, world_size=8, attempt=3)


def test_a_node_that_is_a_container_is_that_one_whatever_the_launcher_counts():
    assert identify({**OF_TORCHRUN, NODE_VARIABLE: "3"}).node == 3
    assert identify({"RANK": "1", "WORLD_SIZE": "2", NODE_VARIABLE: "1"}).node == 1


def test_alone():
    assert identify({}) == Identity(rank=0, node=0, local_rank=0, world_size=1, attempt=1)


def test_rank_and_size_alone_are_one_node():
    assert identify({"RANK": "3", "WORLD_SIZE": "4"}) == Identity(3, 0, 3, 4, 1)


def test_what_is_no_number_says_nothing():
    assert identify({"RANK": "first", "WORLD_SIZE": ""}) == identify({})


def test_attempts():
    assert attempt_of({"CHAOS_ATTEMPT": "4"}) == 4
    assert attempt_of({"CHAOS_ATTEMPT": "4", "TORCHELASTIC_RESTART_COUNT": "0"}) == 1


def test_what_a_rank_started_is_none():
    assert may_be_rank({})
    assert may_be_rank({RANK_PID: str(os.getpid())})
    assert not may_be_rank({RANK_PID: str(os.getppid())})


def test_ranks_of_replica_groups_are_told_apart():
    of_group = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "NUM_REPLICA_GROUPS": "3"}
    found = [identify({**of_group, "REPLICA_GROUP_ID": str(group)}) for group in range(3)]
    assert [(one.rank, one.node, one.replica, one.leads) for one in found] == [
        (1, 0, 0, False),
        (3, 1, 1, False),
        (5, 2, 2, False),
    ]
    assert {one.world_size for one in found} == {6}
    assert identify({**of_group, "RANK": "0", "REPLICA_GROUP_ID": "2"}).leads
    # As the script names it to torchft's manager, where no variable says so.
    assert identify({"RANK": "0", "WORLD_SIZE": "1"}, replica=1).rank == 1
    # Not the launcher's own.
    assert identify({"RANK": "0", "WORLD_SIZE": "1"}).replica is None
