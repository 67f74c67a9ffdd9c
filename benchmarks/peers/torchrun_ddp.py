"""torchrun: plain DistributedDataParallel over gloo; a death restarts every rank from the last checkpoint.

This file is the command line, and, as `-m benchmarks.peers.torchrun_ddp`, a rank.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.peers.job import Peer, PeerJob
from benchmarks.peers.records import Recorder
from mecefo_runtime.system.process import die_with_parent

MAX_RESTARTS = 3
# Of init_process_group and of every collective; far above a step, far below torch's half hour.
TIMEOUT_SECONDS = 30.0


# By default (torch 2.13) all restarts share one store: a rank that starts before another finds that one's dead port
# there and cannot connect; a trial of eight ranks used up all its restarts so. This gives each a store of its own.
ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def peer(name: str, checkpoint_steps: int) -> Peer:
    """A peer: torchrun with a checkpoint after every so many steps."""
    return Peer(name, {"checkpoint_steps": checkpoint_steps}, workers, environment=ENVIRONMENT)


def workers(job: PeerJob) -> list[list[str]]:
    """torchrun, which starts the ranks: its defaults, on loopback, on a free port that it picks itself."""
    return [
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--local-addr=127.0.0.1",
            f"--nproc-per-node={job.num_ranks}",
            f"--max-restarts={MAX_RESTARTS}",
            "-m",
            "benchmarks.peers.torchrun_ddp",
        ]
    ]


def main() -> None:
    """Train as one rank."""
    # torchrun puts every rank into a session of its own, where no signal to torchrun's group reaches it.
    die_with_parent(os.getppid())
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.peers.replica import Replica

    job = PeerJob.from_environment()
    rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    checkpoint_steps = int(job.settings["checkpoint_steps"])
    checkpoint = job.folder / "checkpoint.pt"
    recorder = Recorder(job.folder, rank, restart)
    replica = Replica(job, rank)
    first_step = 1
    if checkpoint.exists():
        saved: dict[str, Any] = torch.load(checkpoint)
        replica.model.load_state_dict(saved["model"])
        replica.optimizer.load_state_dict(saved["optimizer"])
        first_step = saved["step"] + 1
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_SECONDS))
    wrapped = DistributedDataParallel(replica.model)
    for step in range(first_step, job.config.steps + 1):
        began = time.monotonic()
        replica.optimizer.zero_grad()
        if rank == job.victim and step == job.fault_step and restart == 0:
            recorder.kill(step)
        loss = replica.compute(step, wrapped, wrapped.no_sync)
        replica.prepare_update(step)
        replica.optimizer.step()
        recorder.attempt(step, began, time.monotonic(), job.num_ranks, loss)
        if rank == 0 and step % checkpoint_steps == 0:
            state = {"step": step, "model": replica.model.state_dict(), "optimizer": replica.optimizer.state_dict()}
            save(state, checkpoint)
    # PyTorch (2.13) waits for ever, now and then, where it outlives its group: it takes the group's threads down then
    # with the interpreter's lock in its hand.
    del wrapped
    dist.destroy_process_group()


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that a reader sees the old one or the new one."""
    import torch

    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


if __name__ == "__main__":
    main()
