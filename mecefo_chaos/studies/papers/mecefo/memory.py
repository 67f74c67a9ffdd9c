"""Whether a rank's memory holds what a method gives it after one loss: the paper's ablation, from the layouts alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from mecefo_chaos.studies.forecast.model import JobModel
from mecefo_chaos.studies.papers.mecefo.setting import DEFAULT, METHODS, SHAPES, SPEED, Cell, device_of, job_of
from mecefo_runtime.planners import NoLayout, Situation, find
from mecefo_runtime.prediction.step_time import most_memory_bytes

# Sequences of a microbatch: the paper's is not in our notes.
_SEQUENCES = (1, 2, 4, 8, 16, 32)
# Neighbour-do-both without any technique, ours with both qualities that approximate, and with all three techniques.
EXAMINED = ("exact", DEFAULT, "mecefo-paper", SPEED)


@dataclass(frozen=True, slots=True)
class Memory:
    """What the fullest rank needs when the worst of all single losses has come, in bytes.

    `needed_bytes` is by method; None: the planner found no layout that fits.
    """

    size: str
    shape: str
    sequences_per_microbatch: int
    capacity_bytes: int
    free_bytes: int
    needed_bytes: dict[str, int | None]

    def fits(self, method: str) -> bool:
        """Whether the method's ranks have room."""
        needed = self.needed_bytes[method]
        return needed is not None and needed <= self.capacity_bytes

    @property
    def is_possible(self) -> bool:
        """Whether the job runs at all, before anything has failed."""
        return self.free_bytes <= self.capacity_bytes


def memory_of(size: str) -> tuple[Memory, ...]:
    """For all shapes and microbatches of one size that make up the paper's global batch."""
    return tuple(chain.from_iterable(_of_shape(size, shape) for shape in SHAPES))


def _of_shape(size: str, shape: str) -> list[Memory]:
    found = []
    for sequences in _SEQUENCES:
        replica_sequences = Cell(size, "high", shape, 1, "exact").sequences_per_microbatch
        cell = Cell(size, "high", shape, replica_sequences // sequences, "exact")
        job = job_of(cell)
        capacity = device_of(cell).costs.memory_bytes
        assert capacity is not None, "a named device has a limit"
        everybody = frozenset(range(job.cluster.num_ranks))
        needed: dict[str, int | None] = {}
        for method in EXAMINED:
            policy = METHODS[method].policy
            planner = find(policy.name)
            limits = (policy.degraded_share_limit, policy.projected_share_limit)
            try:
                # Replicas are alike, so the stages of one are all the single losses that there are.
                losses = [job.cluster.rank_at(0, stage) for stage in range(job.cluster.pipeline)]
                layouts = [planner(_after(job, rank, limits)) for rank in losses]
                needed[method] = max(most_memory_bytes(layout, job.costs) for layout in layouts)
            except NoLayout:
                needed[method] = None
        free = most_memory_bytes(find("exact")(Situation(job.cluster, everybody, job.costs)), job.costs)
        found.append(Memory(size, shape, sequences, capacity, free, needed))
    return found


def _after(job: JobModel, rank: int, limits: tuple[float, float]) -> Situation:
    alive = frozenset(range(job.cluster.num_ranks)) - {rank}
    return Situation(job.cluster, alive, job.costs, degraded_share_limit=limits[0], projected_share_limit=limits[1])
