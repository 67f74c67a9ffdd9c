"""An emulated run: the paper's process, compressed into a run of the real runtime that two cores can carry.

7B under `high` fails every 763 steps, and a rank is away for 3,050: nobody emulates that as it is. What decides the
speed of settled layouts is how many ranks are down and where, and that has the same distribution if time is squeezed:
a failure every `INTERVAL_STEPS`, each repaired after as many times that as the paper's repair takes of its interval. A
run begins with the number of ranks down that the process has on average: drawn from Poisson, with what is left of
their repairs. What each loss and each rejoin costs beside is measured apart, and charged at the paper's own rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chaos.experiment.experiment import Experiment
from chaos.experiment.reading import from_mapping
from mecefo_chaos.studies.papers.mecefo.claims import NODES, NUM_RANKS, Process
from mecefo_chaos.studies.papers.mecefo.setting import METHODS, SHAPES, Cell
from mecefo_runtime.job.layout import Cluster

# Steps: one failure in so many, and how many before the first.
INTERVAL_STEPS = 5
FREE_STEPS = 5
NUM_STEPS = 30
TWIN_STEPS = 12
# A rank that was repaired is not lost again before it is surely back.
_BACK_STEPS = 4
# So that links add nothing to compute; what state takes to move then follows from its bytes.
_HIDDEN_LINK = {"bandwidth": "10000GB/s", "latency": "1us"}


@dataclass(frozen=True, slots=True)
class PlannedLoss:
    """`rank` is lost in `step` and repaired `repair_steps` later."""

    step: int
    rank: int
    repair_steps: int


def planned_losses(
    process: Process, cluster: Cluster, seed: int, *, num_steps: int = NUM_STEPS, interval_steps: int = INTERVAL_STEPS
) -> tuple[PlannedLoss, ...]:
    """The losses of one run, in order; the same for the same seed."""
    generator = np.random.default_rng([seed, cluster.data_parallel, round(process.mean_down * 16)])
    repair_steps = round(interval_steps * process.mean_down)
    begin = FREE_STEPS + 1
    # The stationary state: as many as are down at any time, each somewhere in its repair.
    due = [(begin, int(generator.integers(2, repair_steps + 1))) for _ in range(generator.poisson(process.mean_down))]
    at = float(begin)
    while (at := at + generator.exponential(interval_steps)) < num_steps - 1:
        due.append((max(begin + 1, round(at)), repair_steps))
    found: list[PlannedLoss] = []
    for step, steps in due:
        down = {loss.rank for loss in found if step < loss.step + loss.repair_steps + _BACK_STEPS}
        at_once = {loss.rank for loss in found if loss.step == step}
        left = [rank for rank in range(cluster.num_ranks) if rank not in down]
        # A stage that is lost with all of its holders at once is lost for good.
        possible = [rank for rank in left if not _takes_stage(cluster, at_once | {rank})]
        if possible:
            found.append(PlannedLoss(step, int(generator.choice(possible)), steps))
    return tuple(found)


def _takes_stage(cluster: Cluster, ranks: set[int]) -> bool:
    cells = [cluster.cell_of(rank) for rank in ranks]
    stages = [stage for _, stage in cells]
    return any(stages.count(stage) >= cluster.data_parallel - 1 for stage in stages)


def experiment_of(cell: Cell, seed: int | None, *, time_scale: float | None = None) -> Experiment:
    """The run of one seed as an ordinary experiment; without a seed the failure-free one.

    Raises:
        ValueError: the runtime has no such strategy.
    """
    method = METHODS[cell.method]
    if method.strategy is None:
        raise ValueError(f"{method.words} cannot be run: {method.why_not_run}")
    data_parallel, pipeline = SHAPES[cell.shape]
    num_steps = TWIN_STEPS if seed is None else NUM_STEPS
    job: dict[str, object] = {
        "device_model": f"a100-{cell.size}",
        "time_scale": "auto" if time_scale is None else time_scale,
        "nodes": NODES,
        "gpus_per_node": NUM_RANKS // NODES,
        "data_parallel": data_parallel,
        "pipeline": pipeline,
        "microbatch_size": cell.sequences_per_microbatch,
        "microbatches_per_replica": cell.num_microbatches,
        "steps": num_steps,
        "strategy": method.strategy,
        "heartbeat_timeout": "30s",
        "health": {"checksum_every_steps": 0},
    }
    if not cell.is_exposed:
        job["link"] = dict(_HIDDEN_LINK)
    if method.quality is not None:
        job["quality"] = method.quality
    faults: list[dict[str, object]] = []
    if seed is not None:
        bare = from_mapping({"name": "shape", "job": job})
        losses = planned_losses(cell.of_process, bare.cluster(), seed, num_steps=num_steps)
        faults = [_fault(loss, num_steps) for loss in losses]
    name = f"{cell.key}-{'twin' if seed is None else f'seed{seed}'}"
    return from_mapping({"name": name, "seed": seed or 0, "job": job, "faults": faults, "twin": False})


def _fault(loss: PlannedLoss, num_steps: int) -> dict[str, object]:
    is_back = loss.step + loss.repair_steps < num_steps
    return {
        "kind": "kill-process",
        "on": f"rank={loss.rank}",
        "at": {"step": loss.step},
        "repair": f"{loss.repair_steps}steps" if is_back else "none",
    }
