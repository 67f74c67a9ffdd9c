"""Measures what a microbatch of each kind of unit costs on this rank's device, before training."""

from __future__ import annotations

import json
import time
import zlib
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
from mecefo_runtime.model.approximate import degrade, refresh
from mecefo_runtime.model.backward import backward
from mecefo_runtime.model.model import Head, build_unit
from mecefo_runtime.model.optimizer import EagerAdamW
from mecefo_runtime.state.traffic import FREE, Traffic
from mecefo_runtime.step.pipeline import in_precision
from mecefo_runtime.system.devices import find_device, host_bytes
from mecefo_runtime.system.json_values import from_json, to_json
from mecefo_runtime.system.process import run_apart

NUM_ROUNDS = 15
# On a CPU whose compute is not padded to these times: they only decide on layouts, and all ranks measure at once.
NUM_UNPADDED_ROUNDS = 5
# Enough to be more than latency, little enough to cost nothing at the start of a job.
PROBE_BYTES = 1 << 20
_PROBE_TAG = 1 << 19


def measure_costs(
    job: JobConfig,
    device: torch.device,
    progress: Callable[[str, int, int], None] = lambda *_: None,
    num_rounds: int = NUM_ROUNDS,
) -> Costs:
    """Measure forward, backward and optimizer of each kind of unit at the job's shapes: medians of a few rounds.

    Every round measures all kinds, so that a machine that becomes slower meanwhile affects all of them alike. Seconds
    are what a rank's compute takes: on a CPU this thread's CPU seconds times the job's dilation, on a GPU its own.
    How fast state moves is not known before there are groups (see `measure_transfer`): until then, as fast as this
    rank copies it. `progress` takes what is measured, and how many rounds of how many are done.
    """
    shape = (job.microbatch_size, job.sequence_length)
    generator = torch.Generator().manual_seed(job.seed)
    tokens_BT = torch.randint(job.model.vocab_size, shape, generator=generator).to(device)
    x_BTH = torch.randn(*shape, job.model.hidden_size, generator=generator).to(device)
    layers = (build_unit(layer_unit(0), job.model, job.seed, device=device) for _ in range(5))
    exact, degraded, recomputed, fully_recomputed, projected = layers
    embedding = build_unit(EMBEDDING, job.model, job.seed, device=device)
    head = build_unit(HEAD, job.model, job.seed, device=device)
    assert isinstance(head, Head)
    exact_bytes = _count_saved_bytes(exact, x_BTH, job.precision)
    degrade(degraded, job.approximation, recompute=False, seed=job.seed)
    degrade(recomputed, job.approximation, recompute=True, seed=job.seed)
    degrade(fully_recomputed, job.approximation, recompute="full", seed=job.seed)
    degrade(projected, job.approximation, skip_attention=False, seed=job.seed)
    optimizer = EagerAdamW(exact.parameters(), lr=0.0, fused=True)
    state = torch.zeros(_state_bytes(exact) * 3 // 4, dtype=torch.uint8, device=device)

    def passes(module: Callable[[Tensor], Tensor], x: Tensor) -> list[Callable[[], object]]:
        return _passes(module, x, job.precision)

    parts: dict[tuple[str, ...], Sequence[Callable[[], object]]] = {
        ("layer_forward_seconds", "layer_backward_seconds"): passes(exact, x_BTH),
        ("layer_update_seconds",): [optimizer.step],
        ("degraded_forward_seconds", "degraded_backward_seconds"): passes(degraded, x_BTH),
        ("", "recomputed_backward_seconds"): passes(recomputed, x_BTH),
        ("", "fully_recomputed_backward_seconds"): passes(fully_recomputed, x_BTH),
        ("", "projected_backward_seconds"): passes(projected, x_BTH),
        ("refresh_seconds",): [lambda: refresh(degraded)],
        ("embedding_forward_seconds", "embedding_backward_seconds"): passes(embedding, tokens_BT),
        ("head_forward_seconds", "head_backward_seconds"): passes(lambda x: head.loss(x, tokens_BT), x_BTH),
        ("layer_checksum_seconds",): [lambda: zlib.crc32(host_bytes(state))],
    }
    rounds: dict[str, list[float]] = {}
    for number in range(num_rounds + 1):
        progress("rounds of all layers", number, num_rounds + 1)
        for names, run in parts.items():
            for name, taken in zip(names, time_parts(device, run), strict=True):
                rounds.setdefault(name, []).append(taken)
    # The first round warms up. What takes less than the clock's resolution takes that.
    seconds = {name: max(median(times[1:]), 1e-9) for name, times in rounds.items() if name}
    costs = Costs(
        **seconds,
        layer_state_bytes=_state_bytes(exact),
        embedding_state_bytes=_state_bytes(embedding),
        head_state_bytes=_state_bytes(head),
        layer_activation_bytes=exact_bytes,
        degraded_activation_bytes=_count_saved_bytes(degraded, x_BTH, job.precision),
        recomputed_activation_bytes=_count_saved_bytes(recomputed, x_BTH, job.precision),
        transfer_bytes_per_second=_copy_speed(device),
        memory_bytes=job.rank_memory_bytes,
    )
    return costs.scaled(job.dilation_ratio) if device.type == "cpu" else costs


def measure_apart(job: JobConfig, device_place: int) -> Costs:
    """As `measure_costs`, in a separate process: its memory does not add to that of training."""

    def measure() -> str:
        device = find_device(job.device, device_place)
        is_exact = job.is_padded or device.type != "cpu"
        costs = measure_costs(job, device, num_rounds=NUM_ROUNDS if is_exact else NUM_UNPADDED_ROUNDS)
        return json.dumps(to_json(costs))

    return from_json(Costs, json.loads(run_apart(measure)))


def measure_transfer(groups: Groups, device: torch.device, traffic: Traffic = FREE) -> float | None:
    """Bytes per second from one rank's `device` to the next's, while all ranks do the same.

    None for a rank alone, and of links that are emulated, which are known. On a link of known speed, no more than that.

    Raises:
        EpochBroken: a peer is gone.
    """
    if len(groups.members) == 1 or traffic.is_emulated:
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
    return traffic.transfer_bytes_per_second(PROBE_BYTES / (time.monotonic() - began))


def measure_message(groups: Groups, job: JobConfig) -> float:
    """CPU seconds of an activation that one rank sends to the next, at both ends and with all threads: the median.

    All members send to the next one at once, so that each has one end of two messages. 0.0 for a rank alone.

    Raises:
        EpochBroken: a peer is gone.
    """
    if len(groups.members) == 1:
        return 0.0
    place = groups.members.index(groups.rank)
    after, before = groups.members[(place + 1) % len(groups.members)], groups.members[place - 1]
    traffic = Traffic(keeps_time=True)
    outgoing = torch.zeros(job.microbatch_size, job.sequence_length, job.model.hidden_size)
    incoming = torch.empty_like(outgoing)

    def pass_on() -> None:
        sending, _kept = traffic.send(groups, outgoing, after, _PROBE_TAG, 0.0)
        traffic.receive(groups, incoming, before, _PROBE_TAG, 0.0)
        wait_all([sending])

    return process_seconds(pass_on)


def process_seconds(run: Callable[[], object]) -> float:
    """CPU seconds of `run`, with all threads that have to do with it: the median of a few times, the first left out."""
    rounds = []
    for _ in range(NUM_ROUNDS + 1):
        began_seconds = time.process_time()
        run()
        rounds.append(time.process_time() - began_seconds)
    return median(rounds[1:])


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


def _passes(module: Callable[[Tensor], Tensor], x: Tensor, precision: str) -> list[Callable[[], object]]:
    """Its forward and its backward pass, to be called in turn; gradients accumulate as in training."""
    outputs: list[Tensor] = []
    x_in = x.detach().requires_grad_(x.is_floating_point())

    def forward() -> None:
        x_in.grad = None
        with in_precision(precision, x.device):
            outputs.append(module(x_in))

    def back() -> None:
        output = outputs.pop()
        backward(output, None if output.ndim == 0 else torch.ones_like(output))

    return [forward, back]


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
