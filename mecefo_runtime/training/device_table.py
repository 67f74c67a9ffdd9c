"""A table of this device, measured: what `calibrate` measures, with its links, as a device model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import wait_all
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.link import Link, Links
from mecefo_runtime.prediction.device_model import DeviceModel, Measurement
from mecefo_runtime.step.calibrate import measure_costs, measure_transfer
from mecefo_runtime.system.devices import device_name_of, find_device
from mecefo_runtime.system.process import run_apart
from mecefo_runtime.training.two_ranks import on_two_ranks

# The rest is the context's and the allocator's.
_MEMORY_SHARE = 0.95
_NUM_ROUND_TRIPS = 50


def measure_device(
    job: JobConfig,
    *,
    name: str,
    model: str,
    links: Links | None,
    date: str,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> DeviceModel:
    """The table of the device that this process computes on, for the preset `model` at the shapes of `job`.

    `links` None: they are measured, between two ranks of this process. `progress`: see `measure_costs`.
    """
    basis = "links as they were stated"
    if links is None:
        progress("link between two ranks", 0, 0)
        # Apart: gloo's threads are not all over when it is. And first: a process that has to do with CUDA cannot fork.
        bandwidth, latency = json.loads(run_apart(lambda: json.dumps(_measure_link())))
        links, basis = Links(Link(bandwidth, latency)), "links between two ranks of the machine, by gloo"
    torch.set_num_threads(1)
    device = find_device(job.device, 0)
    memory_bytes = None
    if device.type == "cuda":
        memory_bytes = int(_MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory)
    measured = measure_costs(replace(job, rank_memory_bytes=memory_bytes), device, progress)
    bytes_per_second = links.between_nodes.bandwidth_bytes_per_second
    return DeviceModel(
        name=name,
        provenance="measured",
        device=device_name_of(device),
        model=model,
        sequence_length=job.sequence_length,
        microbatch_size=job.microbatch_size,
        approximation_rank=job.approximation.rank,
        costs=replace(measured, transfer_bytes_per_second=bytes_per_second),
        links=links,
        # Between stages activations move in fp32, whatever they are multiplied in.
        activation_value_bytes=4,
        basis=f"{job.precision}; {basis}",
        measurement=Measurement(date, str(torch.__version__)),
    )


def _measure_link() -> tuple[float, float]:
    """(Bytes per second, seconds of latency)."""
    cpu = torch.device("cpu")
    speeds = [speed for speed in on_two_ranks(lambda groups: measure_transfer(groups, cpu)) if speed is not None]
    times = on_two_ranks(lambda groups: [_round_trip_seconds(groups) for _ in range(_NUM_ROUND_TRIPS)])
    return median(speeds), median(seconds for of_rank in times for seconds in of_rank) / 2


def _round_trip_seconds(groups: Groups) -> float:
    peer, ping, pong = 1 - groups.rank, torch.zeros(1), torch.zeros(1)
    began = time.monotonic()
    if groups.rank == 0:
        wait_all([groups.send(ping, peer, 0), groups.start_receive(pong, peer, 0)])
    else:
        groups.receive(pong, peer, 0)
        groups.send(ping, peer, 0).wait()
    return time.monotonic() - began
