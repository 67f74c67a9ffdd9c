"""Whatever is lost, in whatever order it is noticed: the members agree again, and no step is lost or done twice."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mecefo_runtime.membership.member_table import Stage
from tests.mecefo_runtime.membership.membership_model import CLUSTER, World

NUM_STEPS = 12
RANKS = st.integers(0, CLUSTER.num_ranks - 1)


class Schedule(RuleBasedStateMachine):
    """Deliveries, moves and losses in any order; at the end all is well and must become so."""

    @initialize(strategy=st.sampled_from(["ndb", "exact"]), begun=st.integers(0, 80))
    def begin(self, strategy: str, begun: int) -> None:
        self.world = World(strategy, NUM_STEPS)
        self.run_a_while(begun)

    @rule(moves=st.integers(1, 40))
    def run_a_while(self, moves: int) -> None:
        """Everybody goes on, each by one move in turn."""
        world = self.world
        for _ in range(moves):
            world.tell_news()
            for link in list(world.links):
                world.deliver_up(link)
            for rank, process in world.ranks.items():
                world.deliver_down(rank)
                if process.is_alive and not process.is_hung:
                    process.act()
            world.pass_time(0.005)

    @rule(rank=RANKS, num=st.integers(1, 6))
    def act(self, rank: int, num: int) -> None:
        process = self.world.ranks[rank]
        for _ in range(num):
            if process.is_alive and not process.is_hung:
                process.act()

    @rule(rank=RANKS, num=st.integers(1, 4))
    def deliver_to_rank(self, rank: int, num: int) -> None:
        for _ in range(num):
            self.world.deliver_down(rank)

    @rule(index=st.integers(0, 7), num=st.integers(1, 4))
    def deliver_to_coordinator(self, index: int, num: int) -> None:
        links = [link for link in self.world.links if link.up]
        if links:
            for _ in range(num):
                self.world.deliver_up(links[index % len(links)])

    @rule()
    def tell_news(self) -> None:
        self.world.tell_news()

    @rule(seconds=st.sampled_from([0.03, 0.2, 0.6, 2.5]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(rank=RANKS)
    def kill(self, rank: int) -> None:
        if self.world.ranks[rank].is_alive and self.world.can_spare(rank):
            self.world.kill(rank)

    @rule(rank=RANKS)
    def start(self, rank: int) -> None:
        process = self.world.ranks[rank]
        if not process.is_alive and process.exit == -9:
            self.world.start(rank)

    @rule(rank=RANKS)
    def hang(self, rank: int) -> None:
        if self.world.ranks[rank].is_alive and self.world.can_spare(rank):
            self.world.ranks[rank].is_hung = True

    @rule(rank=RANKS)
    def wake(self, rank: int) -> None:
        self.world.ranks[rank].is_hung = False

    @precondition(lambda self: self.world.coordinator is not None)
    @rule()
    def kill_coordinator(self) -> None:
        self.world.kill_coordinator()

    @precondition(lambda self: self.world.coordinator is None)
    @rule()
    def start_coordinator(self) -> None:
        self.world.start_coordinator()

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is None:
            return
        world.settle()
        assert world.coordinator.stage is Stage.ENDED
        assert world.coordinator.failure is None, world.coordinator.failure
        assert set(world.applied) == set(range(1, NUM_STEPS + 1))
        for process in world.ranks.values():
            assert process.exit in (0, -9), process.exit
            # Whoever slept while the others came to the end has nothing that counts.
            if process.exit == 0 and process.committed == NUM_STEPS:
                assert set(process.units.values()) <= {NUM_STEPS}


TestSchedule = pytest.mark.unit(Schedule.TestCase)
TestSchedule.settings = settings(stateful_step_count=40)
