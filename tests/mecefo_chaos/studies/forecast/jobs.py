"""Jobs, losses and layouts' ratings for forecasts, for tests."""

from __future__ import annotations

from collections.abc import Mapping

from mecefo_chaos.studies.forecast.layouts import Change
from mecefo_chaos.studies.forecast.model import JobModel, Loss, Policy, Rating, Recovery
from mecefo_chaos.studies.forecast.simulation import simulate
from mecefo_runtime.job.config import PRESETS, ApproximationConfig
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.prediction.predicted_costs import predict_costs

# Of the order of an A100 with bf16.
COSTS_7B = predict_costs(
    PRESETS["7b"],
    sequence_length=256,
    microbatch_size=2,
    approximation=ApproximationConfig(rank=64),
    flops_per_second=1.5e14,
    accesses_bytes_per_second=1.5e12,
    transfer_bytes_per_second=25e9,
    bytes_per_value=2,
)


def job_of(data_parallel: int = 8, pipeline: int = 4, microbatches_per_replica: int = 16, **others) -> JobModel:
    """The 7B model on nodes of one rank."""
    num_ranks = data_parallel * pipeline
    num_microbatches = data_parallel * microbatches_per_replica
    cluster = Cluster(num_ranks, 1, data_parallel, pipeline, PRESETS["7b"].num_layers, num_microbatches)
    return JobModel(cluster, COSTS_7B, tokens_per_step=num_microbatches * 512, **others)


class TenRanks:
    """A job whose step takes 10 s, and one more for each rank that is lost; without two ranks it cannot run."""

    def __init__(self, changes: Mapping[int, Change] | None = None, redundancy_seconds: float = 0.0) -> None:
        self._changes = changes or {}
        self._free_seconds = 10.0 + redundancy_seconds

    @property
    def free(self) -> Rating:
        return Rating(self._free_seconds)

    def rating(self, dead: frozenset[int]) -> Rating | None:
        return Rating(self._free_seconds + len(dead), 0.1 * len(dead)) if len(dead) < 9 else None

    def change(self, before: frozenset[int], after: frozenset[int]) -> Change:
        return self._changes.get(len(after), Change())


def simulated(losses=(), horizon_seconds=1000.0, recovery=None, policy="exact", rates=None, seed=0):
    """What ten ranks do under `losses`, each (seconds, rank, repair seconds)."""
    found = [Loss(at_seconds, (rank,), repair_seconds) for at_seconds, rank, repair_seconds in losses]
    return simulate(
        rates or TenRanks(),
        Policy(policy),
        recovery or Recovery(),
        found,
        horizon_seconds,
        free_seconds=10.0,
        num_ranks=10,
        seed=seed,
    )
