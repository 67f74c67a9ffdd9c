"""What `benchmarks.forecast` runs: jobs of a few ranks, or of many emulated ones, and what they lose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chaos.experiment.experiment import Experiment
from chaos.experiment.reading import from_mapping

NUM_STEPS, FAULT_STEP, UNDER_FAULT_STEPS = 70, 25, 35
# Of emulated jobs, whose steps take seconds.
_NUM_EMULATED_STEPS, _EMULATED_FAULT_STEP = 24, 6


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job and what it loses, each (fault, target, step); it is lost for `repair_steps`.

    Its ranks are dilated, or those of `device_model`, of which two make a node.
    """

    strategy: str
    losses: tuple[tuple[str, str, int], ...]
    repair_steps: int | None = None
    pipeline: int = 2
    microbatches_per_replica: int = 3
    quality: str = "speed"
    data_parallel: int = 4
    num_steps: int = NUM_STEPS
    device_model: str | None = None

    def __str__(self) -> str:
        lost = " then ".join(f"{target} at {step}" for _, target, step in self.losses) or "no failure"
        quality = f", {self.quality}" if self.strategy == "mecefo" else ""
        back = f", back after {self.repair_steps}" if self.repair_steps else ""
        shape = f"{self.data_parallel}x{self.pipeline}, {self.microbatches_per_replica} microbatches"
        device = f", {self.device_model}" if self.device_model else ""
        return f"{self.strategy}{quality}, {shape}{device}: {lost}{back}"

    def experiment(self, seed: int, dilation_ratio: float) -> Experiment:
        """As the runtime runs it."""
        repair = "none" if self.repair_steps is None else f"{self.repair_steps}steps"
        job: dict[str, Any] = {
            "steps": self.num_steps,
            "strategy": self.strategy,
            "nodes": self.data_parallel * self.pipeline // 2,
            "gpus_per_node": 2,
            "data_parallel": self.data_parallel,
            "pipeline": self.pipeline,
            "microbatches_per_replica": self.microbatches_per_replica,
        }
        if self.device_model is None:
            job |= {"dilation": dilation_ratio, "device": "cpu"}
        else:
            job |= {"device_model": self.device_model, "heartbeat_timeout": "30s"}
        if self.strategy == "mecefo":
            job["quality"] = self.quality
        faults = [
            {"kind": kind, "on": target, "at": {"step": step}, "repair": repair} for kind, target, step in self.losses
        ]
        return from_mapping({"name": "forecast", "seed": seed, "job": job, "faults": faults, "twin": False})


def _one(strategy: str, target: str, **others: Any) -> Schedule:
    kind = "kill-node" if target.startswith("node") else "kill-process"
    return Schedule(strategy, ((kind, target, FAULT_STEP),), **others)


SCHEDULES: tuple[Schedule, ...] = (
    _one("mecefo", "rank=3"),
    _one("mecefo", "rank=0", repair_steps=UNDER_FAULT_STEPS),
    _one("mecefo", "node=2"),
    _one("mecefo", "rank=3", quality="exact"),
    _one("mecefo", "rank=5", data_parallel=2, pipeline=4, microbatches_per_replica=8),
    _one("ndb", "rank=3"),
    _one("ndb", "node=1", repair_steps=UNDER_FAULT_STEPS),
    _one("ndb", "rank=6", data_parallel=2, pipeline=4, microbatches_per_replica=8),
    _one("exact", "rank=1"),
    _one("exact", "node=2"),
    _one("exact", "rank=2", data_parallel=2, pipeline=4, microbatches_per_replica=8, repair_steps=UNDER_FAULT_STEPS),
    Schedule("mecefo", (("kill-process", "rank=3", FAULT_STEP), ("kill-process", "rank=4", 2 * FAULT_STEP))),
    Schedule("exact", (("kill-process", "rank=3", FAULT_STEP), ("kill-process", "rank=4", 2 * FAULT_STEP))),
)
# Without the approximations.
CALIBRATION: tuple[Schedule, ...] = (
    _one("exact", "rank=7"),
    _one("exact", "rank=6"),
    _one("exact", "rank=7", data_parallel=2, pipeline=4, microbatches_per_replica=8),
)


def emulated_schedules(device_model: str, data_parallel: int, pipeline: int) -> tuple[Schedule, ...]:
    """Jobs of that shape on such devices: a rank is lost, or a node, for good or for some steps.

    Where a replica is one rank, `spare` masks it: one, two of a node, and three one after the other.
    """
    step = _EMULATED_FAULT_STEP
    shape: dict[str, Any] = {
        "data_parallel": data_parallel,
        "pipeline": pipeline,
        "microbatches_per_replica": 2 * pipeline,
        "num_steps": _NUM_EMULATED_STEPS,
        "device_model": device_model,
    }
    last = data_parallel * pipeline - 1
    if pipeline == 1:
        middle, one_after_other = last // 2, ((1, step), (last // 2, step + 5), (last, step + 10))
        return (
            Schedule("spare", (("kill-process", f"rank={middle}", step),), **shape),
            Schedule("spare", (("kill-node", "node=1", step),), repair_steps=2 * step, **shape),
            Schedule("spare", tuple(("kill-process", f"rank={rank}", at) for rank, at in one_after_other), **shape),
        )
    return (
        Schedule("mecefo", (("kill-process", f"rank={last // 2}", step),), **shape),
        Schedule("mecefo", (("kill-node", "node=1", step),), quality="auto", **shape),
        Schedule("ndb", (("kill-process", f"rank={last}", step),), repair_steps=2 * step, **shape),
        Schedule("exact", (("kill-process", "rank=1", step), ("kill-process", f"rank={last}", 2 * step)), **shape),
    )
