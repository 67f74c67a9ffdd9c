"""One training run of the benchmark, and the folder that remembers those that are done."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.convergence.failures import PROCESSES, alive_by_step
from benchmarks.convergence.policies import CLUSTER, Policy, Share, plan_steps
from benchmarks.convergence.training import NO_CORRECTION, Correction, Group, Training, split_text
from mecefo_runtime.job.config import ApproximationConfig, JobConfig
from mecefo_runtime.model.data import samples_of_step

# A gradient's error costs two more steps to find out.
PROBE_EVERY_STEPS = 50
SAMPLES_PER_REPLICA = 3
DEFAULT_APPROXIMATION = ApproximationConfig()


@dataclass(frozen=True, slots=True)
class Run:
    """What to train: under failure process `process`, None: without failures.

    `num_steps` is the whole run's length: the learning rate's schedule and the failures are stretched over it.
    """

    policy: Policy
    process: str | None
    seed: int
    num_steps: int
    correction: Correction = NO_CORRECTION
    samples_per_replica: int = SAMPLES_PER_REPLICA
    approximation: ApproximationConfig = DEFAULT_APPROXIMATION

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)

    def job(self) -> JobConfig:
        """The job that is trained: llama-tiny on 8 replicas of 4 stages."""
        return JobConfig(
            nodes=CLUSTER.nodes,
            gpus_per_node=CLUSTER.gpus_per_node,
            data_parallel=CLUSTER.data_parallel,
            pipeline=CLUSTER.pipeline,
            steps=self.num_steps,
            seed=self.seed,
            sequence_length=32,
            microbatch_size=1,
            microbatches_per_replica=self.samples_per_replica,
            warmup_steps=50,
            approximation=self.approximation,
        )

    def alive_by_step(self) -> list[frozenset[int]]:
        """The living ranks of every step."""
        process = None if self.process is None else PROCESSES[self.process]
        return alive_by_step(process, CLUSTER.num_ranks, self.num_steps, self.seed)

    def is_trained(self) -> bool:
        """Whether its gradients can be others than the failure-free run's, or it is that run."""
        return self.process is None or self.policy.planner is None or self.policy.approximates

    def outcome(self, validation_loss: float, gradient_errors: Sequence[float]) -> Outcome:
        """The outcome that goes with what was measured; the rest follows from the plans."""
        alive = self.alive_by_step()
        plans = plan_steps(self.policy, alive)
        return Outcome(
            validation_loss=validation_loss,
            down_ranks=CLUSTER.num_ranks - fmean(map(len, alive)),
            degraded_ratio=fmean(plan.degraded_ratio for plan in plans),
            projected_ratio=fmean(plan.projected_ratio for plan in plans),
            lost_ratio=fmean(plan.lost_ratio for plan in plans),
            step_seconds=fmean(plan.seconds for plan in plans),
            gradient_errors=tuple(gradient_errors),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    `validation_loss` is in nats per byte. Means over steps: `down_ranks`, `degraded_ratio`, `projected_ratio` and
    `lost_ratio` (of samples times layers), `step_seconds` (predicted for the 7B cluster). `gradient_errors` are of the
    probed steps in which something was approximated or lost.
    """

    validation_loss: float
    down_ranks: float
    degraded_ratio: float
    projected_ratio: float
    lost_ratio: float
    step_seconds: float
    gradient_errors: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)


class Dealer:
    """Deals the samples of a step out to the shares of a layout, in whole samples.

    What a replica got too little or too much of is made up for in later steps, so that over many steps every replica
    computes its share.
    """

    def __init__(self, num_replicas: int) -> None:
        self._credit = [0.0] * num_replicas

    def deal(self, shares: Sequence[Share], samples: range) -> list[tuple[Share, tuple[int, ...]]]:
        """Every share with its samples; each of `samples` goes to exactly one share."""
        for share in shares:
            self._credit[share.replica] += share.ratio * len(samples)
        replicas = {share.replica for share in shares}
        sizes = dict.fromkeys(replicas, 0)
        for _ in samples:
            richest = max(replicas, key=lambda replica: (self._credit[replica], -replica))
            self._credit[richest] -= 1.0
            sizes[richest] += 1
        dealt, first = [], 0
        for share in shares:
            dealt.append((share, tuple(samples[first : first + sizes[share.replica]])))
            first += sizes[share.replica]
        return dealt


def trained_layers(layers: frozenset[int], num_planned: int, num_trained: int, step: int) -> frozenset[int]:
    """The layers of the trained model that stand for these of the planned model in this step.

    Every trained layer stands for `num_planned / num_trained` neighbouring ones in turn, a step each, so that over the
    steps it is approximated as often as they are.
    """
    num_each = num_planned // num_trained
    return frozenset(layer for layer in range(num_trained) if layer * num_each + step % num_each in layers)


def groups_of(dealt: Sequence[tuple[Share, tuple[int, ...]]], num_trained: int, step: int) -> list[Group]:
    """The samples of a step by what is approximated for them; those that nobody computes are left out."""
    samples_of: dict[tuple[frozenset[int], frozenset[int]], list[int]] = {}
    for share, samples in dealt:
        if not share.is_lost:
            degraded, projected = (
                trained_layers(layers, CLUSTER.num_layers, num_trained, step)
                for layers in (share.degraded, share.projected)
            )
            samples_of.setdefault((degraded, projected), []).extend(samples)
    return [Group(tuple(samples), *layers) for layers, samples in samples_of.items() if samples]


def train(run: Run, data: str | None) -> Outcome:
    """Train from scratch and measure; one thread."""
    torch.set_num_threads(1)
    job = run.job()
    training_text, validation_text = split_text(data)
    plans = plan_steps(run.policy, run.alive_by_step())
    training, dealer = Training(job, training_text, run.correction), Dealer(CLUSTER.data_parallel)
    errors: list[float] = []
    for step, plan in enumerate(plans, start=1):
        samples = samples_of_step(step, job.samples_per_step)
        groups = groups_of(dealer.deal(plan.shares, samples), job.model.num_layers, step)
        if step % PROBE_EVERY_STEPS == 0 and (plan.degraded_ratio or plan.projected_ratio or plan.lost_ratio):
            errors.append(training.gradient_error(groups, tuple(samples)))
        training.step(step, groups)
    return run.outcome(training.validation_loss(validation_text), errors)


def recall(run: Run, name: str, data: str | None, folder: Path) -> Outcome | None:
    """What `train_and_keep` kept as `name` in `folder`; None if that is nothing, or of another run."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    if found["run"] != run.to_dict() or found["data"] != data:
        return None
    return run.outcome(found["validation_loss"], found["gradient_errors"])


def train_and_keep(run: Run, name: str, data: str | None, folder: Path) -> Outcome:
    """Train `run`; its outcome stays in `folder` as `name`.json."""
    outcome = train(run, data)
    folder.mkdir(parents=True, exist_ok=True)
    # In one go: an interrupted benchmark leaves no half of a file.
    partial = folder / f"{name}.partial"
    measured = {"validation_loss": outcome.validation_loss, "gradient_errors": outcome.gradient_errors}
    partial.write_text(json.dumps({"run": run.to_dict(), "data": data} | measured, indent=2))
    partial.replace(folder / f"{name}.json")
    return outcome
