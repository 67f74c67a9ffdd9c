"""What this rank's device needs for a microbatch of each kind of unit, measured on copies of them before it trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import wait_all
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.layout import EMBEDDING, HEAD, layer_unit
from mecefo_runtime.model.approximate import degrade, set_recompute
from mecefo_runtime.model.model import Head, build_unit
from mecefo_runtime.model.optimizer import EagerAdamW
from mecefo_runtime.system.dilation import NO_DILATION
from mecefo_runtime.training.pipeline import in_precision

NUM_ROUNDS = 5
# Enough to be more than latency, little enough to cost nothing at the start of a job.
PROBE_BYTES = 1 << 20
_PROBE_TAG = 1 << 19


def measure_costs(job: JobConfig, device: torch.device) -> Costs:
    """Measure forward, backward and optimizer of each kind of unit at the job's shapes: medians of a few rounds.

    Seconds are what a rank's compute takes: on a CPU this thread's CPU seconds times the job's dilation, on a GPU its
    own. How fast state moves is not known before there are groups (see `measure_transfer`): until then, as fast as this
    rank copies it.
    """
    shape = (job.microbatch_size, job.sequence_length)
    generator = torch.Generator().manual_seed(job.seed)
    tokens_BT = torch.randint(job.model.vocab_size, shape, generator=generator).to(device)
    x_BTH = torch.randn(*shape, job.model.hidden_size, generator=generator).to(device)
    block = build_unit(layer_unit(0), job.model, job.seed, device=device)
    embedding = build_unit(EMBEDDING, job.model, job.seed, device=device)
    head = build_unit(HEAD, job.model, job.seed, device=device)
    assert isinstance(head, Head)
    scale = job.dilation_ratio if device.type == "cpu" else NO_DILATION

    def time_passes(module: Callable[[Tensor], Tensor] | nn.Module, x: Tensor) -> tuple[float, float]:
        return _time_passes(module, x, job.precision)

    forward, backward = time_passes(block, x_BTH)
    activation_bytes = _count_saved_bytes(block, x_BTH, job.precision)
    update_seconds = _time_update(block)
    degrade(block, job.approximation, recompute=False, seed=job.seed)
    degraded_forward, degraded_backward = time_passes(block, x_BTH)
    degraded_bytes = _count_saved_bytes(block, x_BTH, job.precision)
    set_recompute(block, True)
    _, recomputed_backward = time_passes(block, x_BTH)
    recomputed_bytes = _count_saved_bytes(block, x_BTH, job.precision)
    return Costs(
        layer_forward_seconds=scale * forward,
        layer_backward_seconds=scale * backward,
        degraded_forward_seconds=scale * degraded_forward,
        degraded_backward_seconds=scale * degraded_backward,
        recomputed_backward_seconds=scale * recomputed_backward,
        embedding_seconds=scale * sum(time_passes(embedding, tokens_BT)),
        head_seconds=scale * sum(time_passes(lambda x: head.loss(x, tokens_BT), x_BTH)),
        layer_update_seconds=scale * update_seconds,
        layer_state_bytes=_state_bytes(block),
        embedding_state_bytes=_state_bytes(embedding),
        head_state_bytes=_state_bytes(head),
        layer_activation_bytes=activation_bytes,
        degraded_activation_bytes=degraded_bytes,
        recomputed_activation_bytes=recomputed_bytes,
        transfer_bytes_per_second=_copy_speed(device),
        memory_bytes=job.rank_memory_bytes,
    )


def measure_transfer(groups: Groups, device: torch.device) -> float | None:
    """Bytes per second from one rank's `device` to the next's, while all ranks do the same; None for a rank alone.

    Raises:
        EpochBroken: a peer is gone.
    """
    if len(groups.members) == 1:
        return None
    place = groups.members.index(groups.rank)
    after, before = groups.members[(place + 1) % len(groups.members)], groups.members[place - 1]
    outgoing = torch.zeros(PROBE_BYTES, dtype=torch.uint8, device=device)
    incoming = torch.empty(PROBE_BYTES, dtype=torch.uint8, device=device)
    # The first time, NCCL connects to its peer, page-locked memory is made, and who is early waits for who is late.
    for _ in range(2):
        began = time.monotonic()
        wait_all([groups.send(outgoing, after, _PROBE_TAG), groups.start_receive(incoming, before, _PROBE_TAG)])
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return PROBE_BYTES / (time.monotonic() - began)


def time_parts(device: torch.device, parts: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of each part, run one after the other: this thread's CPU time, or by the events of the CUDA stream."""
    if device.type == "cpu":
        times = [time.thread_time()]
        for part in parts:
            part()
            times.append(time.thread_time())
        return [end - begin for begin, end in pairwise(times)]
    events = [
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(len(parts) + 1)
    ]
    torch.cuda.synchronize(device)
    events[0].record()
    for part, event in zip(parts, events[1:], strict=True):
        part()
        event.record()
    events[-1].synchronize()
    return [begin.elapsed_time(end) / 1000 for begin, end in pairwise(events)]


def _time_passes(module: Callable[[Tensor], Tensor] | nn.Module, x: Tensor, precision: str) -> tuple[float, float]:
    """Median seconds of (forward, backward), gradients accumulating as in training."""
    forwards, backwards = [], []
    with in_precision(precision, x.device):
        output = module(x)
    gradient = None if output.ndim == 0 else torch.ones_like(output)
    del output
    outputs: list[Tensor] = []
    for _ in range(NUM_ROUNDS + 1):
        x_in = x.detach().requires_grad_(x.is_floating_point())

        def forward(x_in: Tensor = x_in) -> None:
            with in_precision(precision, x.device):
                outputs.append(module(x_in))

        seconds = time_parts(x.device, [forward, lambda: torch.autograd.backward(outputs.pop(), gradient)])
        forwards.append(seconds[0])
        backwards.append(seconds[1])
    # The first round warms up.
    return median(forwards[1:]), median(backwards[1:])


def _time_update(module: nn.Module) -> float:
    optimizer = EagerAdamW(module.parameters(), lr=0.0, fused=True)
    device = next(module.parameters()).device
    seconds = [time_parts(device, [optimizer.step])[0] for _ in range(NUM_ROUNDS + 1)]
    return median(seconds[1:])


def _count_saved_bytes(module: nn.Module, x: Tensor, precision: str) -> int:
    """What a forward pass keeps for its backward pass, parameters left out and nothing counted twice."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), in_precision(precision, x.device):
        output = module(x.detach().requires_grad_())
    total = sum(kept.values())
    del output
    return total


def _copy_speed(device: torch.device) -> float:
    source = torch.zeros(PROBE_BYTES, dtype=torch.uint8, device=device)
    destination = torch.empty_like(source)
    seconds = [time_parts(device, [lambda: destination.copy_(source)])[0] for _ in range(NUM_ROUNDS)]
    return PROBE_BYTES / max(median(seconds), 1e-9)


def _state_bytes(module: nn.Module) -> int:
    """Parameters, gradients and both moments of AdamW."""
    return 4 * sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
