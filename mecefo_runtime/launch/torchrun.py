"""Training under a launcher that sets the usual environment: torchrun, Slurm's or Kubernetes' equivalents.

    torchrun --nproc-per-node 4 -m mecefo_runtime --pipeline 2 --steps 200

Every process is a rank. Rank 0 also starts the coordinator, and the ranks learn its address and the job's token from
the launcher's store, which they ask once, before they train.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import click
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

from mecefo_runtime.checkpoint.durable import MismatchedCheckpoint, newest_durable
from mecefo_runtime.job.config import PRESETS, CheckpointConfig, JobConfig
from mecefo_runtime.job.layout import LayoutError
from mecefo_runtime.launch.worker import run_worker
from mecefo_runtime.membership.coordinator import JOB_FAILED, run_coordinator
from mecefo_runtime.membership.coordinator_checkpoint import CoordinatorCheckpoint
from mecefo_runtime.model.data import DataError, read_corpus
from mecefo_runtime.planners import names, stops_on_loss
from mecefo_runtime.system.devices import DeviceChoice, DeviceError, require_device
from mecefo_runtime.system.events import Emitter
from mecefo_runtime.system.process import ProcessId, start_child
from mecefo_runtime.system.sinks import connect_sink
from mecefo_runtime.system.wire import new_token

USAGE_ERROR = 4
STORE_TIMEOUT_SECONDS = 60.0
# After so many coordinators in a row that heard of no further step, there is not another one.
MAX_FRUITLESS_COORDINATORS = 4
_DEFAULTS = JobConfig()


class LaunchError(Exception):
    """The environment or the options do not make a job; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process is in the job, as the launcher says."""

    rank: int
    num_ranks: int
    ranks_per_node: int
    attempt: int
    store_host: str
    store_port: int
    is_store_ours: bool

    @property
    def node(self) -> int:
        """The node of this rank."""
        return self.rank // self.ranks_per_node

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place:
        """Read RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

        Raises:
            LaunchError: one of them is missing or no number.
        """
        try:
            num_ranks = int(environment["WORLD_SIZE"])
            place = cls(
                rank=int(environment["RANK"]),
                num_ranks=num_ranks,
                ranks_per_node=int(environment.get("LOCAL_WORLD_SIZE", num_ranks)),
                attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)) + 1,
                store_host=environment["MASTER_ADDR"],
                store_port=int(environment["MASTER_PORT"]),
                # torchrun's agent has a store at that address already; other launchers only name the place for one.
                is_store_ours=environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
            )
        except KeyError as error:
            raise LaunchError(
                f"{error.args[0]} is not set: start this with torchrun --nproc-per-node N -m mecefo_runtime"
            ) from error
        except ValueError as error:
            raise LaunchError(f"the launcher's environment makes no sense: {error}") from error
        if num_ranks % place.ranks_per_node:
            raise LaunchError(f"{num_ranks} ranks are not the same number on each node ({place.ranks_per_node})")
        return place


def _check_log(log: Path) -> None:
    """Before ranks wait for a coordinator that cannot be started."""
    try:
        log.open("ab").close()
    except OSError as error:
        raise LaunchError(f"--coordinator-log: cannot write to {log}: {error.strerror}") from error


def job_of(place: Place, options: Mapping[str, Any]) -> JobConfig:
    """The job that the command line asks for, on the ranks that the launcher started.

    Raises:
        LaunchError: the shape does not fit, the text cannot be read, or there is no such device.
    """
    pipeline = int(options["pipeline"])
    if place.num_ranks % pipeline:
        raise LaunchError(f"{place.num_ranks} ranks do not make pipelines of {pipeline} stages: change --pipeline")
    folder, every = options["checkpoint_folder"], options["checkpoint_every"]
    if (folder is None) != (every is None):
        raise LaunchError("--checkpoint-folder and --checkpoint-every belong together")
    recipe = ("steps", "seed", "strategy", "sequence_length", "microbatch_size", "microbatches_per_replica")
    chosen = (*recipe, "data", "device", "precision")
    try:
        job = replace(
            _DEFAULTS,
            model=PRESETS[options["model"]],
            nodes=place.num_ranks // place.ranks_per_node,
            gpus_per_node=place.ranks_per_node,
            data_parallel=place.num_ranks // pipeline,
            pipeline=pipeline,
            # A restarted attempt goes on where the one before it left something to go on from.
            checkpoint=None if folder is None else CheckpointConfig(str(Path(folder).resolve()), every, resume=True),
            **{name: options[name] for name in chosen},
        )
        require_device(job.device)
        read_corpus(job.data, sequence_length=job.sequence_length)
        newest_durable(job)
    except (LayoutError, DataError, DeviceError, MismatchedCheckpoint, ValueError) as error:
        raise LaunchError(str(error)) from error
    return job


def launch(place: Place, job: JobConfig, host: str, log: Path) -> int:
    """Be rank `place.rank` of `job`; returns the exit code. `host` is where this rank can be reached by the others.

    Raises:
        LaunchError: the launcher's store cannot be reached.
    """
    environment = {
        **os.environ,
        "RANK": str(place.rank),
        "MECEFO_NODE": str(place.node),
        "MECEFO_ATTEMPT": "1",
        "MECEFO_HOST": host,
        "MECEFO_JOB": json.dumps(job.to_dict()),
    }
    if place.rank == 0:
        listener = socket.create_server((host, 0), backlog=1024)
        token = new_token()
        _start_keeper({**environment, "MECEFO_TOKEN": token}, job, listener, log)
        meeting = {"coordinator": f"{host}:{listener.getsockname()[1]}", "token": token}
        listener.close()
    # Under another name for each attempt: the store of torchrun outlives its attempts.
    key = f"mecefo/{place.attempt}"
    try:
        store = TCPStore(
            place.store_host,
            place.store_port,
            is_master=place.is_store_ours and place.rank == 0,
            wait_for_workers=False,
            timeout=timedelta(seconds=STORE_TIMEOUT_SECONDS),
        )
        if place.rank == 0:
            store.set(key, json.dumps(meeting))
        meeting = json.loads(store.get(key))
    except RuntimeError as error:
        address = f"{place.store_host}:{place.store_port}"
        raise LaunchError(f"cannot meet the other ranks at {address}: {str(error).splitlines()[0]}") from error
    environment |= {"MECEFO_COORDINATOR": meeting["coordinator"], "MECEFO_TOKEN": meeting["token"]}
    return run_worker(environment)


def _start_keeper(environment: Mapping[str, str], job: JobConfig, listener: socket.socket, log: Path) -> None:
    """Keep a coordinator running, in processes of their own, until the job has ended or this rank is gone.

    When that comes to nothing, this process is ended: without a coordinator no job comes to its end, and a launcher
    ends the other ranks when one has failed.
    """
    checkpoint, rank = CoordinatorCheckpoint(), os.getpid()
    # The keeper's own output goes to the log.
    violations = os.dup(sys.stderr.fileno())

    def coordinate() -> int:
        emitter = Emitter(connect_sink(environment), "coordinator", attempt=1)
        return run_coordinator(job, listener, environment["MECEFO_TOKEN"], emitter, checkpoint)

    def keep() -> int:
        try:
            code = keep_coordinator(lambda: start_child("coordinator", log, coordinate), checkpoint)
            violation = _violation(code, log)
        except OSError as error:
            code, violation = 1, f"no coordinator can be started: {error.strerror}"
        if code not in (0, JOB_FAILED):
            os.write(violations, f"mecefo_runtime: {violation}\n".encode())
            os.kill(rank, signal.SIGTERM)
        return code

    start_child("keeper", log, keep)
    os.close(violations)


def keep_coordinator(start: Callable[[], ProcessId], checkpoint: CoordinatorCheckpoint) -> int:
    """Keep a coordinator running, which `start` forks; returns the exit code of the last one.

    Any but 0 and JOB_FAILED: MAX_FRUITLESS_COORDINATORS in a row crashed or were killed and heard of no further step.
    """
    num_fruitless, known = 0, checkpoint.step
    while True:
        code = os.waitstatus_to_exitcode(os.waitpid(start().pid, 0)[1])
        if code in (0, JOB_FAILED):
            return code
        num_fruitless = num_fruitless + 1 if checkpoint.step == known else 0
        known = checkpoint.step
        if num_fruitless >= MAX_FRUITLESS_COORDINATORS:
            return code


def _violation(code: int, log: Path) -> str:
    end = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    where = "give --coordinator-log FILE to see why" if log == Path(os.devnull) else f"see {log}"
    times = f"{MAX_FRUITLESS_COORDINATORS} times in a row"
    return f"the coordinator crashed {times}, the last time {end}, and no step was committed meanwhile: {where}"


@click.command(help=__doc__.split("\n\n")[0])
@click.option("--model", type=click.Choice(list(PRESETS)), default="llama-tiny", show_default=True)
@click.option("--steps", type=click.IntRange(1), default=_DEFAULTS.steps, show_default=True)
@click.option("--pipeline", type=click.IntRange(1), default=1, show_default=True, help="Stages of a replica.")
@click.option(
    "--strategy",
    type=click.Choice([name for name in names() if not stops_on_loss(name)]),
    default=_DEFAULTS.strategy,
    show_default=True,
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--data", type=click.Path(), help="Text to train on. Default: some that Python comes with.")
@click.option("--sequence-length", type=click.IntRange(1), default=_DEFAULTS.sequence_length, show_default=True)
@click.option("--microbatch-size", type=click.IntRange(1), default=_DEFAULTS.microbatch_size, show_default=True)
@click.option(
    "--microbatches-per-replica", type=click.IntRange(1), default=_DEFAULTS.microbatches_per_replica, show_default=True
)
@click.option(
    "--device", type=click.Choice(get_args(DeviceChoice)), default=_DEFAULTS.device, show_default=True, help="Of ranks."
)
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default=_DEFAULTS.precision, show_default=True)
@click.option("--checkpoint-folder", type=click.Path(), help="Write checkpoints here, and begin with the newest.")
@click.option("--checkpoint-every", type=click.IntRange(1), metavar="STEPS", help="How often.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address at which other ranks reach this one.")
@click.option("--coordinator-log", type=click.Path(path_type=Path), default=Path(os.devnull), help="Its output.")
def main(host: str, coordinator_log: Path, **options: Any) -> None:
    """Entry point."""
    try:
        _check_log(coordinator_log)
        place = Place.of(os.environ)
        code = launch(place, job_of(place, options), host, coordinator_log)
    except LaunchError as error:
        click.echo(f"mecefo_runtime: {error}", err=True)
        code = USAGE_ERROR
    sys.exit(code)
