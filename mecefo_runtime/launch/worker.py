"""A rank's main: environment in, exit code out. Runs under our supervisor or any launcher that sets the variables."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Mapping

import torch

from mecefo_runtime.comm.coordinator_client import CoordinatorLost, Stopped
from mecefo_runtime.comm.nccl_log import nccl_log_settings
from mecefo_runtime.comm.participant import CoordinatorAddress
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.launch.sinks import connect_sink
from mecefo_runtime.system.devices import DeviceError
from mecefo_runtime.system.dilation import SLICE_SECONDS
from mecefo_runtime.system.events import MAIN_JOB, Emitter
from mecefo_runtime.system.process import ask_for_short_slices, leave_out_of_collections
from mecefo_runtime.system.wire import LOOPBACK
from mecefo_runtime.training.hooks import Hooks
from mecefo_runtime.training.rank_setup import Observers, RankIdentity
from mecefo_runtime.training.trainer import Trainer


def run_worker(environment: Mapping[str, str]) -> int:
    """Train as the rank that `environment` describes; returns the exit code.

    Variables: RANK, MECEFO_NODE, MECEFO_ATTEMPT, MECEFO_JOB (JSON), MECEFO_JOB_NAME, MECEFO_COORDINATOR (`host:port`),
    MECEFO_TOKEN, MECEFO_EVENTS, MECEFO_HOOKS, MECEFO_HOST (this rank's own address; default: loopback), LOCAL_RANK (its
    number among the ranks that see the same GPUs; default: RANK, which spreads ranks as evenly), MECEFO_NCCL_LOG (the
    path of a file, with `{rank}` in it, for what NCCL says of its connections; default: it says nothing),
    MECEFO_METRICS (where to serve metrics, see `mecefo_runtime.training.exporter`; default: nowhere), MECEFO_SNAPSHOTS
    (`host:port` of the node's snapshot process; default: there is none).
    """
    torch.set_num_threads(1)
    # `kill -USR1 PID` writes every thread's stack into the rank's log.
    faulthandler.register(signal.SIGUSR1)
    rank, node, attempt = (int(environment[name]) for name in ("RANK", "MECEFO_NODE", "MECEFO_ATTEMPT"))
    job = JobConfig.from_dict(json.loads(environment["MECEFO_JOB"]))
    local_rank = int(environment.get("LOCAL_RANK", rank))
    if job.is_padded:
        ask_for_short_slices(SLICE_SECONDS)
    if nccl_log := environment.get("MECEFO_NCCL_LOG"):
        os.environ.update(nccl_log_settings(nccl_log.format(rank=rank)))
    emitter = Emitter(
        connect_sink(environment),
        "rank",
        job=environment.get("MECEFO_JOB_NAME", MAIN_JOB),
        rank=rank,
        node=node,
        attempt=attempt,
    )
    hooks = Hooks(environment.get("MECEFO_HOOKS", ""), rank=rank, node=node, attempt=attempt)
    host, snapshots = environment.get("MECEFO_HOST", LOOPBACK), environment.get("MECEFO_SNAPSHOTS", "")
    identity = RankIdentity(rank, node, attempt, host, local_rank, snapshots)
    coordinator = CoordinatorAddress(environment["MECEFO_COORDINATOR"], environment["MECEFO_TOKEN"])
    observers = Observers(emitter, hooks, environment.get("MECEFO_METRICS", ""))
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
