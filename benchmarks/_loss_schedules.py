"""What `benchmarks.forecast` runs: jobs of eight ranks and what they lose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chaos.experiment.experiment import Experiment
from chaos.experiment.reading import from_mapping

NUM_STEPS, FAULT_STEP, UNDER_FAULT_STEPS = 70, 25, 35


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job of eight ranks and what it loses, each (fault, target, step); it is lost for `repair_steps`."""

    strategy: str
    losses: tuple[tuple[str, str, int], ...]
    repair_steps: int | None = None
    pipeline: int = 2
    microbatches_per_replica: int = 3
    quality: str = "speed"

    def __str__(self) -> str:
        lost = " then ".join(f"{target} at {step}" for _, target, step in self.losses) or "no failure"
        quality = f", {self.quality}" if self.strategy == "mecefo" else ""
        back = f", back after {self.repair_steps}" if self.repair_steps else ""
        shape = f"{8 // self.pipeline}x{self.pipeline}, {self.microbatches_per_replica} microbatches"
        return f"{self.strategy}{quality}, {shape}: {lost}{back}"

    def experiment(self, seed: int, dilation_ratio: float, num_steps: int) -> Experiment:
        """As the runtime runs it."""
        repair = "none" if self.repair_steps is None else f"{self.repair_steps}steps"
        job: dict[str, Any] = {
            "steps": num_steps,
            "strategy": self.strategy,
            "data_parallel": 8 // self.pipeline,
            "pipeline": self.pipeline,
            "microbatches_per_replica": self.microbatches_per_replica,
            "dilation": dilation_ratio,
            "device": "cpu",
        }
        if self.strategy == "mecefo":
            job["quality"] = self.quality
        faults = [
            {"kind": kind, "on": target, "at": {"step": step}, "repair": repair} for kind, target, step in self.losses
        ]
        return from_mapping({"name": "forecast", "seed": seed, "job": job, "faults": faults, "twin": False})


def _one(strategy: str, target: str, **others: Any) -> Schedule:
    kind = "kill-node" if target.startswith("node") else "kill-process"
    return Schedule(strategy, ((kind, target, FAULT_STEP),), **others)


SCHEDULES = (
    _one("mecefo", "rank=3"),
    _one("mecefo", "rank=0", repair_steps=UNDER_FAULT_STEPS),
    _one("mecefo", "node=2"),
    _one("mecefo", "rank=3", quality="exact"),
    _one("mecefo", "rank=5", pipeline=4, microbatches_per_replica=8),
    _one("ndb", "rank=3"),
    _one("ndb", "node=1", repair_steps=UNDER_FAULT_STEPS),
    _one("ndb", "rank=6", pipeline=4, microbatches_per_replica=8),
    _one("exact", "rank=1"),
    _one("exact", "node=2"),
    _one("exact", "rank=2", pipeline=4, microbatches_per_replica=8, repair_steps=UNDER_FAULT_STEPS),
    Schedule("mecefo", (("kill-process", "rank=3", FAULT_STEP), ("kill-process", "rank=4", 2 * FAULT_STEP))),
    Schedule("exact", (("kill-process", "rank=3", FAULT_STEP), ("kill-process", "rank=4", 2 * FAULT_STEP))),
)
# Without the approximations.
CALIBRATION = (
    _one("exact", "rank=7"),
    _one("exact", "rank=6"),
    _one("exact", "rank=7", pipeline=4, microbatches_per_replica=8),
)
