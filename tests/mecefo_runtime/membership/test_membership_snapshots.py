"""The coordinator when every rank is lost, or every holder of some state, and nodes keep snapshots of it."""

from __future__ import annotations

import pytest

from mecefo_runtime.checkpoint.durable import Durable
from mecefo_runtime.comm.messages import Form, Trouble
from mecefo_runtime.job.protection import Group, ParityHeld, SnapshotOffers
from mecefo_runtime.job.state_source import CheckpointSource, Offer, ParitySource, Share, SnapshotSource, Version
from mecefo_runtime.membership.member_table import Stage
from mecefo_runtime.membership.transitions import SNAPSHOTS_TIMEOUT_SECONDS
from mecefo_runtime.snapshots.messages import Reencode
from tests.mecefo_runtime.membership.membership_world import CLUSTER, SimulatedRank, World

pytestmark = pytest.mark.unit

NODES = range(CLUSTER.nodes)
CHECKPOINT = Durable(6, "/checkpoints/step-6")


def source(node: int) -> SnapshotSource:
    return SnapshotSource(node, f"127.0.0.1:{node}")


class SnapshotWorld(World):
    """Each node keeps its ranks' shares of every unit that they hold: a replica's are on one node."""

    def __init__(self, *checkpoints: Durable, strategy: str = "mecefo", protects: bool = False) -> None:
        super().__init__(strategy, checkpoints=checkpoints, has_snapshots=True, protects_snapshots=protects)
        self.start()
        # One node's process is late: the first epoch waits for it.
        assert not self.forms
        for node in NODES:
            self.coordinator.on_snapshots(node, SnapshotOffers(source(node).address))
        self.obey()
        self.commit(10)
        self.lineage = self.forms[-1].lineage
        self.holders = self.forms[-1].layout.holders()

    def offer(
        self,
        *steps: int,
        nodes: tuple[int, ...] = tuple(NODES),
        agreed: int | None = None,
        bears: int = 0,
        group: tuple[int, ...] = tuple(NODES),
    ) -> None:
        """Nodes have snapshots of these steps, and know that all agreed on the last of them, if nothing is said.

        All nodes, or those of `group`, are one group that bears the loss of so many.
        """
        for node in nodes:
            version = Version(agreed or steps[-1], self.lineage)
            own = tuple(self.offers(node, step) for step in steps)
            parities = tuple(self.parity(step, bears, group) for step in steps if bears)
            self.coordinator.on_snapshots(node, SnapshotOffers(source(node).address, version, own, parities))

    def parity(self, step: int, bears: int, group: tuple[int, ...]) -> ParityHeld:
        shares = {node: self.offers(node, step).shares for node in group}
        return ParityHeld(Version(step, self.lineage), Group(group, bears), shares)

    def offers(self, node: int, step: int) -> Offer:
        shares = {
            unit: frozenset(
                Share(place, len(ranks)) for place, rank in enumerate(ranks) if CLUSTER.node_of(rank) == node
            )
            for unit, ranks in self.holders.items()
        }
        return Offer(Version(step, self.lineage), source(node), {unit: own for unit, own in shares.items() if own})

    def come(self) -> None:
        for rank in range(CLUSTER.num_ranks):
            self.ranks[rank] = SimulatedRank(rank, 2)
            self.coordinator.on_hello(self.ranks[rank].hello())
        self.obey()

    @property
    def sources(self) -> set[object]:
        return {piece.source for piece in self.forms[-1].pieces}


def test_the_first_epoch_does_not_wait_for_ever_for_a_snapshot_process() -> None:
    world = World(has_snapshots=True)
    world.start()
    world.coordinator.on_snapshots(0, SnapshotOffers(source(0).address))
    world.obey()
    assert not world.forms
    deadline = world.coordinator.next_deadline()
    assert deadline is not None and deadline <= world.now + SNAPSHOTS_TIMEOUT_SECONDS
    while world.now < SNAPSHOTS_TIMEOUT_SECONDS:
        world.now += 1.0
        for rank in world.ranks:
            world.coordinator.on_heard(rank)
        world.coordinator.tick()
    world.obey()
    assert set(world.forms[-1].snapshot_processes) == {0}
    assert any("no snapshot process yet" in str(event) for event in world.events)


def test_a_restart_waits_for_the_snapshot_process_of_the_node_that_came_back() -> None:
    world = SnapshotWorld(strategy="reft")
    world.offer(9, 10, bears=1)
    world.coordinator.on_snapshots(2, None)
    world.kill(*CLUSTER.ranks_of(2))
    world.come()
    assert world.coordinator.stage is Stage.GATHERING
    world.coordinator.on_snapshots(2, SnapshotOffers(source(2).address))
    world.obey()
    assert world.coordinator.stage is Stage.TRAINING
    assert set(world.forms[-1].snapshot_processes) == set(NODES)


def test_a_job_of_which_every_rank_is_lost_starts_again_from_memory() -> None:
    world = SnapshotWorld(CHECKPOINT)
    world.offer(9, 10)
    world.kill(*range(CLUSTER.num_ranks))
    assert world.last("restarting")["ranks"] == list(range(CLUSTER.num_ranks))
    assert world.coordinator.failure is None
    world.come()
    assert world.coordinator.stage is Stage.TRAINING
    assert world.last("snapshot_restored") == {"step": 10, "nodes": list(NODES), "rebuilt_nodes": []}
    assert {rank.committed for rank in world.ranks.values()} == {10}
    assert world.sources == {source(node) for node in NODES}
    assert "checkpoint_restored" not in world.kinds()
    assert world.forms[-1].lineage != world.lineage, "what is saved now must not complete what was saved before"


def test_the_newest_version_that_every_node_has_is_taken() -> None:
    world = SnapshotWorld(CHECKPOINT)
    world.offer(9, 10)
    world.offer(9, nodes=(2,))
    world.kill(*range(CLUSTER.num_ranks))
    world.come()
    assert world.last("snapshot_restored")["step"] == 9


def test_a_version_on_which_nobody_has_agreed_is_not_taken() -> None:
    """It is whole, but the step in which it was copied was not committed: its state may be what went wrong."""
    world = SnapshotWorld()
    world.offer(9, 10, agreed=9)
    world.kill(*range(CLUSTER.num_ranks))
    world.come()
    assert world.last("snapshot_restored")["step"] == 9


def test_a_node_that_has_not_heard_of_the_agreement_gives_what_it_has() -> None:
    world = SnapshotWorld()
    world.offer(10)
    world.offer(9, 10, nodes=(2,), agreed=9)
    world.kill(*range(CLUSTER.num_ranks))
    world.come()
    assert world.last("snapshot_restored")["step"] == 10


def test_when_a_node_and_its_snapshots_are_gone_there_is_the_checkpoint() -> None:
    world = SnapshotWorld(CHECKPOINT)
    world.offer(9, 10)
    world.coordinator.on_snapshots(2, None)
    world.kill(*range(CLUSTER.num_ranks))
    world.come()
    # Its process may be about to come.
    world.pass_time(11.0)
    assert world.last("checkpoint_restored") == {"step": 6, "folder": CHECKPOINT.folder}
    assert world.sources == {CheckpointSource(CHECKPOINT.folder)}


def test_a_node_whose_supervisor_is_gone_is_not_asked_before_its_process_is_heard_again() -> None:
    world = SnapshotWorld(CHECKPOINT)
    world.offer(9, 10)
    world.coordinator.on_supervisor_lost(2)
    world.kill(*range(CLUSTER.num_ranks))
    world.come()
    # Its process may be about to come.
    world.pass_time(11.0)
    assert world.last("checkpoint_restored")["step"] == 6
    world = SnapshotWorld(CHECKPOINT)
    world.offer(9, 10)
    world.coordinator.on_supervisor_lost(2)
    world.offer(9, 10, nodes=(2,))
    world.kill(*range(CLUSTER.num_ranks))
    world.come()
    assert world.last("snapshot_restored")["step"] == 10


def test_with_neither_the_job_ends_and_says_what_is_lost() -> None:
    world = SnapshotWorld()
    world.kill(*range(CLUSTER.num_ranks))
    assert "every rank that held state is lost" in str(world.coordinator.failure)


def test_what_all_holders_lost_comes_from_memory_while_the_others_live() -> None:
    world = SnapshotWorld()
    world.offer(9)
    lost = world.holders["layer.3"]
    world.kill(*lost)
    assert world.last("snapshot_restored")["step"] == 9
    assert set(world.ranks) == set(range(CLUSTER.num_ranks)) - set(lost)
    assert {rank.committed for rank in world.ranks.values()} == {9}
    assert "restarting" not in world.kinds()


@pytest.mark.parametrize(
    ("bears", "restored"),
    [
        # Node 1 may be asked for the version before: that was not found to be damaged.
        (0, {"step": 9, "nodes": list(NODES), "rebuilt_nodes": []}),
        (1, {"step": 10, "nodes": [node for node in NODES if node != 1], "rebuilt_nodes": [1]}),
    ],
)
def test_a_source_that_could_not_be_read_is_not_asked_again_for_that_version(
    bears: int, restored: dict[str, object]
) -> None:
    """What it had is rebuilt by others from the parity of its group, or an older version is taken."""
    world = SnapshotWorld(CHECKPOINT)
    world.offer(9, 10, bears=bears)
    world.kill(*range(CLUSTER.num_ranks))
    for rank in range(CLUSTER.num_ranks):
        world.ranks[rank] = SimulatedRank(rank, 2)
        world.coordinator.on_hello(world.ranks[rank].hello())
    forms = [message for _, message in world.sent if isinstance(message, Form)]
    assert forms[-1].returns_to == Version(10, world.lineage)
    world.sent.clear()
    refusal = Trouble(forms[-1].epoch, "head is damaged in chunk 3", refused=source(1))
    world.coordinator.on_trouble(0, refusal)
    world.pass_time(1.0)
    assert world.last("snapshot_restored") == restored
    assert world.coordinator.stage is Stage.TRAINING
    rebuilders = {one.node for one in world.sources if isinstance(one, ParitySource)}
    assert bool(rebuilders) == bool(bears) and 1 not in rebuilders
    assert (source(1) in world.sources) == (not bears)


def lose_nodes(world: SnapshotWorld, *nodes: int) -> None:
    """With all that they keep; the repair brings empty ones."""
    for node in nodes:
        world.coordinator.on_snapshots(node, None)
    world.kill(*(rank for node in nodes for rank in CLUSTER.ranks_of(node)))
    for node in nodes:
        world.coordinator.on_snapshots(node, SnapshotOffers(source(node).address))


def recovery(world: SnapshotWorld) -> dict:
    told = world.last("regrouped")
    return {key: told[key] for key in ("rung", "sources", "passed_over")}


def test_reft_ends_all_ranks_and_starts_them_again_from_memory() -> None:
    world = SnapshotWorld(strategy="reft")
    world.offer(9, 10)
    world.kill(5)
    assert world.last("restarting")["ranks"] == list(range(CLUSTER.num_ranks))
    world.come()
    assert world.last("snapshot_restored")["step"] == 10
    assert world.last("layout")["resume_step"] == 11
    num_pieces = len(world.forms[-1].pieces)
    assert recovery(world) == {
        "rung": "snapshot",
        "sources": {"snapshot": {"pieces": num_pieces, "num_bytes": num_pieces, "seconds": 0.5}},
        "passed_over": {"peer": "the strategy ends all ranks after a loss"},
    }


def test_the_log_names_the_rung_and_why_no_better_one_served() -> None:
    world = SnapshotWorld(CHECKPOINT, strategy="reft")
    world.offer(9, 10, bears=1)
    lose_nodes(world, 2)
    world.come()
    told = recovery(world)
    assert told["rung"] == "parity"
    assert set(told["sources"]) == {"snapshot", "parity"}
    assert told["passed_over"]["snapshot"] == "that of step 10 lacks what node 2 kept"
    world = SnapshotWorld(CHECKPOINT, strategy="reft")
    world.offer(9, 10, bears=1)
    lose_nodes(world, 2, 3)
    world.come()
    assert world.last("checkpoint_restored")["step"] == CHECKPOINT.step
    assert recovery(world)["passed_over"] == {
        "peer": "the strategy ends all ranks after a loss",
        "snapshot": "that of step 10 lacks what nodes 2 and 3 kept",
        "parity": "nodes 2 and 3 were lost, and their group of 4 bears 1",
    }


def test_reft_stops_where_no_rung_serves_and_says_what_is_lost() -> None:
    world = SnapshotWorld(strategy="reft")
    world.offer(9, 10, bears=1)
    lose_nodes(world, 2, 3)
    world.come()
    assert world.coordinator.failure == (
        "no state is left to go on with: no peer: the strategy ends all ranks after a loss; no snapshot: that of step "
        "10 lacks what nodes 2 and 3 kept; no parity: nodes 2 and 3 were lost, and their group of 4 bears 1; no "
        "checkpoint: there is none. Checkpoints would have kept a copy"
    )
    # All of the memory: a job that had snapshots does not silently begin with the first step.
    world = SnapshotWorld(strategy="reft")
    world.offer(9, 10, bears=1)
    lose_nodes(world, *NODES)
    world.come()
    assert "that of step 10 lacks what nodes 0, 1, 2 and 3 kept" in str(world.coordinator.failure)


def test_before_the_first_snapshot_reft_begins_anew() -> None:
    world = SnapshotWorld(strategy="reft")
    world.kill(5)
    world.come()
    assert world.last("layout")["resume_step"] == 1
    told = recovery(world)
    assert (told["rung"], told["sources"]) == ("start", {})
    assert told["passed_over"] == {
        "peer": "the strategy ends all ranks after a loss",
        "snapshot": "there was none yet that all ranks had",
        "checkpoint": "there is none",
    }


def test_what_peers_hold_comes_from_them() -> None:
    world = SnapshotWorld()
    world.offer(9, 10)
    world.kill(0)
    told = recovery(world)
    assert (told["rung"], told["passed_over"]) == ("peer", {})
    assert set(told["sources"]) <= {"peer"}


def test_with_checkpoints_alone_a_job_of_which_every_rank_is_lost_starts_again_from_the_newest() -> None:
    world = World("mecefo", checkpoints=(CHECKPOINT,))
    world.start()
    world.commit(10)
    world.kill(*range(CLUSTER.num_ranks))
    assert world.last("restarting")["ranks"] == list(range(CLUSTER.num_ranks))
    for rank in range(CLUSTER.num_ranks):
        world.ranks[rank] = SimulatedRank(rank, 2)
        world.coordinator.on_hello(world.ranks[rank].hello())
    world.obey()
    assert world.last("checkpoint_restored")["step"] == CHECKPOINT.step
    told = world.last("regrouped")
    assert (told["rung"], told["passed_over"]) == ("checkpoint", {"peer": "every rank that held state was lost"})


def test_what_a_lost_node_kept_is_protected_again_when_the_others_train_without_it() -> None:
    world = SnapshotWorld(protects=True)
    world.offer(10, bears=1)
    lost = list(CLUSTER.ranks_of(1))
    for rank in lost:
        del world.ranks[rank]
        world.coordinator.on_lost(rank, "supervisor")
    world.coordinator.on_supervisor_lost(1)
    world.now += 1.0
    left = (0, 2, 3)
    world.offer(10, nodes=left, bears=1)
    assert world.coordinator.stage is not Stage.TRAINING
    assert not world.told_snapshots, "they may be needed for what is under way"
    world.obey()
    assert world.coordinator.stage is Stage.TRAINING
    order = Reencode(
        Version(10, world.lineage),
        base=0,
        generation=1,
        processes={node: source(node).address for node in left},
        holders=left,
        rebuilders=left,
    )
    assert world.told_snapshots == [(node, order) for node in left]
    assert world.last("snapshots_unprotected") == {"step": 10, "nodes": [1], "losses_left": 0}
    assert set(world.forms[-1].snapshot_processes) == set(left)
    # Newer ones that the others protect are as good.
    world.offer(20, nodes=left, bears=1, group=left)
    assert not world.last("snapshots_protected")["is_reencoded"]
    assert len(world.told_snapshots) == len(left)


def test_a_snapshot_process_that_is_lost_alone_is_made_good_as_well_and_one_that_is_late_is_not_lost() -> None:
    world = SnapshotWorld(protects=True)
    world.offer(10, nodes=(0, 1, 2), bears=1)
    # What node 3 has of it was told before it had its parities.
    world.offer(9, 10, nodes=(3,), agreed=9)
    world.pass_time(2.0)
    world.offer(9, 10, nodes=(3,), agreed=9)
    assert not world.told_snapshots
    world.offer(10, nodes=(3,), bears=1)
    assert "snapshots_unprotected" not in world.kinds()
    world.coordinator.on_snapshots(2, None)
    world.coordinator.on_snapshots(2, SnapshotOffers(source(2).address))
    world.pass_time(2.0)
    world.offer(10, nodes=(0,), bears=1)
    ((_, order), *others) = world.told_snapshots
    assert (order.holders, set(order.processes), len(others)) == ((0, 1, 3), set(NODES), 3)
    assert {form.epoch for form in world.forms} == {1}, "nobody trains otherwise because of it"


def test_a_node_without_ranks_is_not_waited_for() -> None:
    """Its snapshot process lives, and will have nothing of the next snapshot."""
    world = SnapshotWorld()
    world.offer(10)
    world.kill(*CLUSTER.ranks_of(2))
    assert set(world.forms[-1].snapshot_processes) == {0, 1, 3}
