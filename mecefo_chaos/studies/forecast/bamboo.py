"""Redundant computation in the neighbour, after Bamboo (Thorpe et al., NSDI 2023, arXiv 2204.12013): a model alone.

Each rank holds its successor's stage too (the last one the first's), and runs its forward pass in every failure-free
step. When a rank is lost, its predecessor runs both stages, forward and backward, exactly, and nothing has to move. Two
neighbours lost at once break the pipeline, whose microbatches go to the others until one of the two is back.

The redundant forward pass is taken to follow the rank's own: Bamboo hides a part of it in bubbles, so this is what it
costs at most. Memory (twice the state) is not looked at.
"""

from __future__ import annotations

from mecefo_chaos.studies.forecast.layouts import Change, Stages, lost_stages
from mecefo_chaos.studies.forecast.model import JobModel, Rating
from mecefo_chaos.studies.forecast.pipeline import one_forward_one_backward, passes
from mecefo_runtime.job.layout import configured_layout, split_evenly
from mecefo_runtime.prediction.step_time import state_bytes


class Bamboo:
    """The ratings of a job whose ranks back each other up."""

    def __init__(self, job: JobModel) -> None:
        self._job = job
        layout = configured_layout(job.cluster)
        costs = job.costs
        self._forward, self._backward, self._update = passes(layout.replicas[0], layout.num_layers, costs)
        # Every rank reduces its own stage; the first one is through last.
        self._beside_seconds = job.overhead_seconds
        if job.link is not None:
            largest = max(
                state_bytes(len(span.layers), span.first == 0, span.end == layout.num_layers, costs)
                for span in layout.replicas[0].spans
            )
            self._beside_seconds += job.link.all_reduce_seconds(largest / 4, job.cluster.data_parallel)
        self._ratings: dict[tuple[Stages, ...], Rating | None] = {}

    @property
    def free(self) -> Rating:
        """Without failures, with the redundant forward passes."""
        rating = self.rating(frozenset())
        assert rating is not None, "with all ranks alive every pipeline is whole"
        return rating

    def rating(self, dead: frozenset[int]) -> Rating | None:
        """With the `dead` ranks' stages at their predecessors; None: every pipeline is broken."""
        key = tuple(sorted(lost_stages(self._job.cluster, dead).values()))
        if key not in self._ratings:
            self._ratings[key] = self._rate(key)
        return self._ratings[key]

    def change(self, before: frozenset[int], after: frozenset[int]) -> Change:
        """Nothing moves: whoever takes over has the state. One that is back is filled while the others continue."""
        return Change(is_lost=self.rating(after) is None)

    def _rate(self, lost: tuple[Stages, ...]) -> Rating | None:
        cluster = self._job.cluster
        broken = sum(self._is_broken(stages) for stages in lost)
        num_active = cluster.data_parallel - broken
        if not num_active:
            return None
        # Of replicas that are hit alike, one that takes the larger share decides.
        largest = split_evenly(cluster.num_microbatches, num_active)[0]
        patterns = {stages for stages in lost if not self._is_broken(stages)}
        if len(lost) < cluster.data_parallel:
            patterns.add(())
        return Rating(max(self._replica_seconds(stages, largest) for stages in patterns) + self._beside_seconds)

    def _is_broken(self, stages: Stages) -> bool:
        return any((stage - 1) % self._job.cluster.pipeline in stages for stage in stages)

    def _replica_seconds(self, lost: Stages, num_microbatches: int) -> float:
        num_stages = self._job.cluster.pipeline
        forward, backward, update = [], [], []
        for stage in range(num_stages):
            if stage in lost:
                continue
            successor = (stage + 1) % num_stages
            takes_over = successor in lost
            forward.append(self._forward[stage] + (num_stages > 1) * self._forward[successor])
            backward.append(self._backward[stage] + takes_over * self._backward[successor])
            update.append(self._update[stage] + takes_over * self._update[successor])
        return max(
            one_forward_one_backward(
                tuple(forward), tuple(backward), tuple(update), num_microbatches, self._job.message_seconds
            )
        )
