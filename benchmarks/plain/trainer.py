"""One rank of plain training: PyTorch's own pipeline schedule and collectives, and nothing that survives a fault.

It computes what ours computes: the same modules from the same seed on the same samples, split over replicas and stages
in the same way. Layout of ranks: rank = stage * data_parallel + replica.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.plain.phases import PhaseClock, Window
from benchmarks.plain.usage import read_memory
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import EMBEDDING, HEAD, layer_unit
from mecefo_runtime.model.data import Corpus, read_corpus, samples_of_step
from mecefo_runtime.model.model import build_unit
from mecefo_runtime.model.schedule import learning_rate


class PlainTrainer:
    """One rank; `rendezvous` is a file that does not exist yet, on which all ranks of the job meet."""

    def __init__(self, job: JobConfig, rank: int, rendezvous: Path, window: Window) -> None:
        self._job = job
        self._window = window
        num_replicas, num_stages = job.data_parallel, job.pipeline
        self._stage, self._replica = divmod(rank, num_replicas)
        self._has_embedding, self._has_head = self._stage == 0, self._stage == num_stages - 1
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=num_replicas * num_stages
        )
        # Every rank takes part in making every group.
        holders = [dist.new_group([s * num_replicas + r for r in range(num_replicas)]) for s in range(num_stages)]
        pipelines = [dist.new_group([s * num_replicas + r for s in range(num_stages)]) for r in range(num_replicas)]
        self._holders, self._pipeline = holders[self._stage], pipelines[self._replica]
        self._corpus = Corpus(read_corpus(job.data), job.sequence_length, job.seed)
        module = self._build()
        self._gradients = _flat_gradients(module)
        self._gradients_of = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        self._optimizer = self._build_optimizer(module)
        self._schedule = self._build_schedule(module)

    def _build(self) -> nn.Sequential:
        layers = self._job.cluster().stage_layers(self._stage)
        embedding = [EMBEDDING] if self._has_embedding else []
        head = [HEAD] if self._has_head else []
        names = [*embedding, *map(layer_unit, layers), *head]
        return nn.Sequential(*(build_unit(name, self._job.model, self._job.seed) for name in names))

    def _build_optimizer(self, module: nn.Module) -> torch.optim.AdamW:
        parameters = list(module.parameters())
        return torch.optim.AdamW(
            [
                {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self._job.weight_decay},
                {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=self._job.learning_rate,
            betas=self._job.betas,
            fused=True,
        )

    def _build_schedule(self, module: nn.Module) -> Schedule1F1B:
        job = self._job
        tokens = torch.zeros(job.microbatch_size, job.sequence_length, dtype=torch.int64)
        # Whether they require a gradient decides what is sent back.
        hidden = torch.zeros(*tokens.shape, job.model.hidden_size, requires_grad=True)
        logits = torch.zeros(*tokens.shape, job.model.vocab_size, requires_grad=True)
        stage = PipelineStage(
            module,
            self._stage,
            job.pipeline,
            torch.device("cpu"),
            input_args=(tokens if self._has_embedding else hidden,),
            output_args=(logits if self._has_head else hidden,),
            group=self._pipeline,
        )

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            summed = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
            return summed / job.tokens_per_step

        return Schedule1F1B(stage, job.microbatches_per_replica, loss_fn=loss, scale_grads=False)

    def run(self) -> dict[str, Any]:
        """Train all steps of the job; returns what this rank measured, as plain JSON values.

        `losses` is this replica's part of every step's loss (their sum over replicas is the loss), None where there is
        no head.
        """
        clock = PhaseClock(self._window)
        losses, norms, ended_seconds = [], [], [time.monotonic()]
        cpu_seconds = [0.0, 0.0]
        for step in range(1, self._job.steps + 1):
            loss, norm = self._step(step, clock)
            losses.append(loss)
            norms.append(norm)
            ended_seconds.append(time.monotonic())
            if step in (self._window.first, self._window.last):
                cpu_seconds[step == self._window.last] = time.process_time()
            if step == self._window.last:
                memory = read_memory()
        return {
            "ended_monotonic": ended_seconds,
            "losses": losses if self._has_head else None,
            "gradient_norms": norms,
            "cpu_seconds": cpu_seconds[1] - cpu_seconds[0],
            "memory": asdict(memory),
            "phases": clock.per_step(),
        }

    def _step(self, step: int, clock: PhaseClock) -> tuple[float, float]:
        """Returns (this replica's part of the loss, norm of the gradient of the whole model)."""
        job = self._job
        clock.enter(step, "between")
        self._gradients.zero_()
        clock.enter(step, "data")
        inputs, targets = self._batch(step)
        clock.enter(step, "pipeline")
        losses: list[Tensor] = []
        first_inputs = (inputs,) if self._has_embedding else ()
        if self._has_head:
            self._schedule.step(*first_inputs, target=targets, losses=losses, return_outputs=False)
        else:
            self._schedule.step(*first_inputs, return_outputs=False)
        clock.enter(step, "reduce")
        if job.data_parallel > 1:
            dist.all_reduce(self._gradients, group=self._holders)
        squared_norm = torch.nn.utils.get_total_norm(self._gradients_of).square()
        if job.pipeline > 1:
            dist.all_reduce(squared_norm, group=self._pipeline)
        norm = float(squared_norm) ** 0.5
        clock.enter(step, "optimizer")
        if norm > job.clip_grad_norm:
            self._gradients.mul_(job.clip_grad_norm / norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(step, job)
        self._optimizer.step()
        clock.enter(step, "between")
        return float(sum(losses)), norm

    def _batch(self, step: int) -> tuple[Tensor | None, Tensor | None]:
        """(inputs, targets) of this replica; only the ends of the pipeline read text."""
        if not self._has_embedding and not self._has_head:
            return None, None
        num_samples = self._job.microbatches_per_replica * self._job.microbatch_size
        first = self._replica * num_samples
        return self._corpus.batch(samples_of_step(step, self._job.samples_per_step)[first : first + num_samples])


def _flat_gradients(module: nn.Module) -> Tensor:
    """One tensor of which every parameter's gradient is a view: the bucket that is reduced."""
    gradients = torch.zeros(sum(parameter.numel() for parameter in module.parameters()))
    offset = 0
    for parameter in module.parameters():
        parameter.grad = gradients[offset : offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()
    return gradients
