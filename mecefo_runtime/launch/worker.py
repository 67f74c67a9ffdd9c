"""A rank's main: environment in, exit code out. Runs under our supervisor or any launcher that sets the variables."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

import torch

from mecefo_runtime.comm.coordinator_client import CoordinatorLost, Stopped
from mecefo_runtime.comm.nccl_log import nccl_log_settings
from mecefo_runtime.comm.participant import CoordinatorAddress
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.launch.sinks import connect_sink
from mecefo_runtime.system.devices import DeviceError
from mecefo_runtime.system.dilation import SLICE_SECONDS
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.process import ask_for_short_slices, leave_out_of_collections
from mecefo_runtime.training.hooks import Hooks
from mecefo_runtime.training.rank_setup import Observers, RankIdentity
from mecefo_runtime.training.trainer import Trainer


def run_worker(environment: RankEnvironment) -> int:
    """Train as the rank that `environment` describes; returns the exit code."""
    rank, node, attempt, job = environment.rank, environment.node, environment.attempt, environment.job
    assert rank is not None, "a rank has a number"
    torch.set_num_threads(1)
    # `kill -USR1 PID` writes every thread's stack into the rank's log.
    faulthandler.register(signal.SIGUSR1)
    if job.is_padded:
        ask_for_short_slices(SLICE_SECONDS)
    if environment.nccl_log:
        os.environ.update(nccl_log_settings(environment.nccl_log.format(rank=rank)))
    sink = connect_sink(environment.events)
    emitter = Emitter(sink, "rank", job=environment.name, rank=rank, node=node, attempt=attempt)
    hooks = Hooks(environment.hooks, rank=rank, node=node, attempt=attempt)
    local_rank = rank if environment.local_rank is None else environment.local_rank
    identity = RankIdentity(rank, node, attempt, environment.host, local_rank, environment.snapshots)
    coordinator = CoordinatorAddress(environment.coordinator, environment.token)
    observers = Observers(emitter, hooks, environment.metrics)
    try:
        trainer = Trainer(job, identity, coordinator, observers)
        leave_out_of_collections()
        trainer.run()
    except DeviceError as error:
        print(f"rank {rank}: {error}", file=sys.stderr)
        return 1
    except CoordinatorLost as error:
        print(f"rank {rank}: {error}: its process or its host is gone", file=sys.stderr)
        return 1
    except Stopped as reason:
        print(f"rank {rank}: told to end: {reason}", file=sys.stderr)
        return 1
    return 0
