"""What the benchmark trains."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.convergence.policies import POLICIES, Policy
from benchmarks.convergence.runs import DEFAULT_APPROXIMATION, SAMPLES_PER_REPLICA, Run
from benchmarks.convergence.training import NO_CORRECTION, Correction
from mecefo_runtime.job.config import ApproximationConfig

# Failure-free runs of these shares of the steps say what a step is worth.
LENGTHS = (0.55, 0.7, 0.85, 1.15)
# With as many times the steps a policy's loss is measured too, beside what the failure-free runs say of it.
CHECKED_LENGTH = 1.25
# Quality budgets: at most these shares of a step's samples go through degraded layers. 0: re-partition without
# approximation.
LIMITS = (0.25, 0.125, 0.0)
# With the rest averaged: every layer is projected by at most this share of the replicas, and a budget beside it.
PROJECTED_LIMIT = 0.5
PROJECTED = ((PROJECTED_LIMIT, 0.0), (0.75, 0.0), (PROJECTED_LIMIT, 0.25))
CORRECTIONS = {
    "rest averaged": Correction(averages_rest=True),
    "rest averaged, no weight below": Correction(averages_rest=True, weight_below=0.0),
}
# Beside the default, r = 16 of 64 with left-singular vectors for the down projection. At r = 64 the gate's and the up
# projection's gradients are exact: what is left is what the attention's missing backward pass costs.
APPROXIMATIONS = {
    "r = 1": ApproximationConfig(rank=1),
    "r = 4": ApproximationConfig(rank=4),
    "r = 8": ApproximationConfig(rank=8),
    "r = 32": ApproximationConfig(rank=32),
    "r = 64": ApproximationConfig(rank=64),
    "right-singular": ApproximationConfig(down_projection="right"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A policy under a failure process, None: without failures; `length_ratio` times the benchmark's steps."""

    policy: str = "exact"
    process: str | None = None
    degraded_share_limit: float = 1.0
    correction: str | None = None
    approximation: str | None = None
    length_ratio: float = 1.0
    projected_share_limit: float = 0.0

    def __str__(self) -> str:
        limit = f", budget {self.degraded_share_limit:.1%}" if self.degraded_share_limit < 1 else ""
        limit += f", projected {self.projected_share_limit:.0%}" if self.projected_share_limit else ""
        correction = f", {self.correction}" if self.correction else ""
        correction += f", {self.approximation}" if self.approximation else ""
        length = f", {self.length_ratio:.0%} of the steps" if self.length_ratio != 1 else ""
        name = "no failures" if self.process is None else f"{self.policy}, {self.process}"
        return name + limit + correction + length

    @property
    def slug(self) -> str:
        """A file's name."""
        return str(self).replace(", ", "-").replace(" = ", "").replace(" ", "-").replace("%", "")

    def run(self, seed: int, num_steps: int, samples_per_replica: int = SAMPLES_PER_REPLICA) -> Run:
        """The run of this case with `seed`, where the benchmark's runs have `num_steps`."""
        return Run(
            policy=Policy(POLICIES[self.policy].planner, self.degraded_share_limit, self.projected_share_limit),
            process=self.process,
            seed=seed,
            num_steps=round(num_steps * self.length_ratio),
            correction=CORRECTIONS[self.correction] if self.correction else NO_CORRECTION,
            samples_per_replica=samples_per_replica,
            approximation=APPROXIMATIONS[self.approximation] if self.approximation else DEFAULT_APPROXIMATION,
        )


FREE = Case()


def list_cases(num_seeds: int) -> list[tuple[Case, int]]:
    """All cases with their seeds: what the others are compared with first, then the hardest process."""
    cases = [FREE]
    cases += [Case(policy, "high") for policy in POLICIES]
    cases += [Case(length_ratio=ratio) for ratio in LENGTHS]
    cases += [Case("mecefo", "high", correction=correction) for correction in CORRECTIONS]
    cases += [Case("mecefo", "high", degraded_share_limit=limit) for limit in LIMITS]
    cases += [Case("mecefo", "high", degraded_share_limit=0.25, correction="rest averaged")]
    cases += [
        Case("mecefo", "high", limit, "rest averaged", projected_share_limit=projected)
        for projected, limit in PROJECTED
    ]
    cases += [
        Case("mecefo", "high", 0.0, "rest averaged", approximation, projected_share_limit=PROJECTED_LIMIT)
        for approximation in ("r = 1", "r = 4")
    ]
    cases += [Case("mecefo", "high", approximation=approximation) for approximation in APPROXIMATIONS]
    cases += [Case("mecefo", "high", length_ratio=CHECKED_LENGTH)]
    for process in ("mid", "low"):
        cases += [Case(policy, process) for policy in POLICIES]
        cases += [Case("mecefo", process, degraded_share_limit=0.0)]
        cases += [Case("mecefo", process, correction="rest averaged")]
        cases += [Case("mecefo", process, 0.0, "rest averaged", projected_share_limit=PROJECTED_LIMIT)]
    return [(case, seed) for case in cases for seed in range(num_seeds)]
