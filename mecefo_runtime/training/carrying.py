"""How slowly a device must be emulated so that this machine's cores can keep up with the arithmetic: measured."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import torch

from mecefo_runtime.comm.groups import Groups
from mecefo_runtime.comm.operations import wait_all
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import configured_layout
from mecefo_runtime.job.link import Link, Links
from mecefo_runtime.prediction.rated_link import RatedLink
from mecefo_runtime.prediction.step_time import step_seconds
from mecefo_runtime.state.traffic import Traffic
from mecefo_runtime.step.calibrate import measure_costs
from mecefo_runtime.system.dilation import usable_cores
from mecefo_runtime.system.process import run_apart
from mecefo_runtime.training.two_ranks import on_two_ranks

_NUM_MESSAGES = 200
# What is measured by one process is so much quicker than among many that share caches and cores.
AMONG_MANY_RATIO = 1.5
_DIGITS = 2


def smallest_time_scale(job: JobConfig, num_cores: int) -> float:
    """The least scale at which a step of `job`, whose own is 1, takes as long as the cores need to compute it all.

    By CPU seconds of the small model's layers and of messages, measured in a process of its own; rounded up. A part
    of the cores is left to other processes, as with time dilation.
    """
    assert job.ratings is not None
    cpu_seconds = float(run_apart(lambda: json.dumps(_step_cpu_seconds(job))))
    carried_seconds = AMONG_MANY_RATIO * cpu_seconds / usable_cores(num_cores)
    return _rounded_up(carried_seconds / step_seconds(configured_layout(job.cluster()), job.ratings))


def _rounded_up(scale: float) -> float:
    """To two digits: what is measured again a moment later is mostly the same then."""
    unit = 10.0 ** (math.floor(math.log10(scale)) - _DIGITS + 1)
    return round(math.ceil(scale / unit) * unit, 6)


def _step_cpu_seconds(job: JobConfig) -> float:
    """What all ranks together compute in a step, and spend on messages between stages, reductions and the commit."""
    torch.set_num_threads(1)
    costs = measure_costs(replace(job, dilation_ratio=1.0), torch.device("cpu"))
    num_messages = 2 * (job.pipeline - 1) * job.data_parallel * job.microbatches_per_replica
    num_ranks = job.data_parallel * job.pipeline
    # Each step of a ring is a message, too, of each of its ranks.
    num_messages += num_ranks * (2 * (job.data_parallel - 1) + 2)
    num_layers = job.model.num_layers
    microbatch_seconds = num_layers * costs.layer_seconds + costs.embedding_seconds + costs.head_seconds
    update_seconds = job.data_parallel * (num_layers + 2) * costs.layer_update_seconds
    num_microbatches = job.data_parallel * job.microbatches_per_replica
    return num_microbatches * microbatch_seconds + update_seconds + num_messages * _message_cpu_seconds(job)


def _message_cpu_seconds(job: JobConfig) -> float:
    """CPU seconds of one message between two ranks, at both ends, with all threads that have to do with it."""

    def exchange(groups: Groups) -> float:
        traffic = Traffic(RatedLink(Links(Link(1e15)), groups.rank, 2))
        x_BTH = torch.zeros(job.microbatch_size, job.sequence_length, job.model.hidden_size)
        began = time.process_time()
        for _ in range(_NUM_MESSAGES):
            sending, _kept = traffic.send(groups, x_BTH, 1 - groups.rank, 0, 0.0)
            traffic.receive(groups, x_BTH, 1 - groups.rank, 0, 0.0)
            wait_all([sending])
        return time.process_time() - began

    # Of the process, so of both ends; each of them sent so many.
    return max(on_two_ranks(exchange)) / (2 * _NUM_MESSAGES)
