"""Training under a launcher that sets the usual environment: torchrun, Slurm's or Kubernetes' equivalents.

    torchrun --nproc-per-node 4 -m mecefo_runtime --pipeline 2 --steps 200

Every process is a rank. Rank 0 also starts the coordinator, and the ranks learn its address and the job's token from
the launcher's store, which they ask once, before they train. When rank 0 is lost, another rank of its host starts the
coordinator again at the same address (see `keeper`); where there is none, the others train on until they need one, and
end when they have waited for it in vain.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it

from mecefo_runtime.checkpoint.durable import MismatchedCheckpoint, newest_durable
from mecefo_runtime.job.config import PRESETS, JobConfig, JobSettings, SnapshotConfig
from mecefo_runtime.job.layout import LayoutError
from mecefo_runtime.job.rank_environment import RankEnvironment
from mecefo_runtime.job.reading import read_file, with_settings
from mecefo_runtime.job.setting import Place, alternatives, help_of, places, words_of
from mecefo_runtime.launch.keeper import listen, start_keeper, start_standby
from mecefo_runtime.launch.snapshot_keeper import keep_snapshots
from mecefo_runtime.launch.worker import run_worker
from mecefo_runtime.model.data import DataError, read_corpus
from mecefo_runtime.planners import names, stops_on_loss, with_fixed_settings
from mecefo_runtime.system.devices import DeviceError, require_device
from mecefo_runtime.system.process import ProcessId, die_with_parent
from mecefo_runtime.system.wire import LOOPBACK, new_token

USAGE_ERROR = 4
STORE_TIMEOUT_SECONDS = 60.0
# Of the ranks for a coordinator that they need; one that is started again is there within a second.
COORDINATOR_TIMEOUT_SECONDS = 60.0
_MAX_TIMEOUT_SECONDS = 3600.0
_DEFAULTS = JobConfig(coordinator_timeout_seconds=COORDINATOR_TIMEOUT_SECONDS)
_SNAPSHOTS = SnapshotConfig()
_SETTINGS: Mapping[str, Place] = {
    place.setting.option.name: place
    for place in places(JobSettings)
    if place.setting.option is not None and place.setting.option.in_torchrun
}
_FIELDS = ("seed", *(f"{name}_timeout_seconds" for name in ("heartbeat", "collective", "coordinator")))
_HELP = {
    "pipeline": "Pipeline stages per replica. Default: 1.",
    "folder": "Folder of the checkpoints; the job begins with the newest one in it.",
}
_WORDS = {"model": tuple(PRESETS), "strategy": tuple(name for name in names() if not stops_on_loss(name))}
Command = TypeVar("Command", bound=Callable[..., Any])


class LaunchError(Exception):
    """The environment or the options do not make a job; the text says what to change."""


@dataclass(frozen=True, slots=True)
class LauncherEnvironment:
    """Where this process is in the job, as the launcher says."""

    rank: int
    num_ranks: int
    ranks_per_node: int
    attempt: int
    store_host: str
    store_port: int
    is_store_ours: bool
    has_agent: bool

    @property
    def node(self) -> int:
        """The node of this rank."""
        return self.rank // self.ranks_per_node

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> LauncherEnvironment:
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
                # Who starts all ranks again, and is their parent.
                has_agent="TORCHELASTIC_RUN_ID" in environment,
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


def job_of(place: LauncherEnvironment, options: Mapping[str, Any], file: Path | None = None) -> JobConfig:
    """The job that a file and the options that were given ask for, on the ranks that the launcher started.

    `options` are settings by the names of their options, and fields of `JobConfig` by theirs.

    Raises:
        LaunchError: the shape does not fit, the text cannot be read, or there is no such device.
    """
    try:
        whole, settings = (None, dict[str, Any]()) if file is None else read_file(file)
        _put_options(settings, options)
        base = whole or _DEFAULTS
        pipeline = int(settings.setdefault("pipeline", 1 if whole is None else whole.pipeline))
        if place.num_ranks % pipeline:
            raise LaunchError(f"{place.num_ranks} ranks do not make pipelines of {pipeline} stages: change --pipeline")
        shape = {
            "nodes": place.num_ranks // place.ranks_per_node,
            "gpus_per_node": place.ranks_per_node,
            "data_parallel": place.num_ranks // pipeline,
            "spares": 0,
        }
        for key, started in shape.items():
            asked = settings.setdefault(key, started if whole is None else getattr(whole, key))
            if str(asked) != str(started):
                raise LaunchError(f"{key} is {asked} in {file}, but the launcher started ranks for {started}")
        _complete_parts(place, settings)
        job = with_settings(base, settings)
        job = replace(job, **{name: value for name, value in options.items() if name in _FIELDS})
        require_device(job.device)
        read_corpus(job.data, sequence_length=job.sequence_length)
        newest_durable(job)
    except (LayoutError, DataError, DeviceError, MismatchedCheckpoint, ValueError) as error:
        raise LaunchError(str(error)) from error
    return with_fixed_settings(job)


def _put_options(settings: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Set what `options` say in `settings`, at the path of each; of snapshots only where some are taken."""
    has_snapshots = settings.get("snapshots") is not None or "snapshot_every" in options
    for name, place in _SETTINGS.items():
        if name not in options or (place.path[0] == "snapshots" and not has_snapshots):
            continue
        *parts, key = place.path
        within = settings
        for part in parts:
            within[part] = dict(within.get(part) or {})
            within = within[part]
        within[key] = options[name]
    if has_snapshots and "snapshot_memory_gib" in options:
        settings["snapshots"]["memory"] = int(options["snapshot_memory_gib"] * (1 << 30))


def _complete_parts(place: LauncherEnvironment, settings: dict[str, Any]) -> None:
    """Fill in what checkpoints and snapshots are under a launcher, where nothing is given."""
    if (checkpoint := settings.get("checkpoint")) is not None:
        if not checkpoint.get("folder") or not checkpoint.get("every_steps"):
            raise LaunchError("--checkpoint-folder and --checkpoint-every belong together")
        # A restarted attempt continues where the one before it left a checkpoint.
        folder = str(Path(checkpoint["folder"]).resolve())
        settings["checkpoint"] = {"resume": True, **checkpoint, "folder": folder}
    if (snapshots := settings.get("snapshots")) is not None:
        if not place.has_agent:
            raise LaunchError("--snapshot-every needs torchrun: snapshots are for ranks that are started again")
        # A single node has no other to protect its memory.
        usual = _SNAPSHOTS.protection if place.num_ranks > place.ranks_per_node else "none"
        settings["snapshots"] = {"protection": usual, **snapshots}


def launch(
    place: LauncherEnvironment,
    job: JobConfig,
    host: str,
    log: Path,
    store_timeout_seconds: float = STORE_TIMEOUT_SECONDS,
) -> int:
    """Be rank `place.rank` of `job`; returns the exit code. `host` is where this rank can be reached by the others.

    Raises:
        LaunchError: the launcher's store cannot be reached.
    """
    environment = replace(RankEnvironment.read(os.environ, job), rank=place.rank, node=place.node, attempt=1, host=host)
    launcher = ProcessId.of(os.getppid())
    if place.has_agent:
        # It starts us from its main thread, and nobody starts us again when it is gone.
        die_with_parent(launcher.local_pid)
    meeting: dict[str, str] = {}
    if place.rank == 0:
        listener = listen(host)
        assert listener is not None, "any free port will do"
        meeting = {"coordinator": f"{host}:{listener.getsockname()[1]}", "token": new_token()}
        start_keeper(replace(environment, token=meeting["token"]), listener, log)
        listener.close()
    # Under another name for each attempt: the store of torchrun outlives its attempts.
    key = f"mecefo/{place.attempt}"
    of_node = f"{key}/snapshots/{place.node}"
    try:
        store = TCPStore(
            place.store_host,
            place.store_port,
            is_master=place.is_store_ours and place.rank == 0,
            wait_for_workers=False,
            timeout=timedelta(seconds=store_timeout_seconds),
        )
        if place.rank == 0:
            store.set(key, json.dumps(meeting))
        meeting = json.loads(store.get(key))
        environment = replace(environment, coordinator=meeting["coordinator"], token=meeting["token"])
        if job.snapshots is not None:
            if place.rank % place.ranks_per_node == 0:
                store.set(of_node, keep_snapshots(environment, log, launcher))
            environment = replace(environment, snapshots=store.get(of_node).decode())
    except RuntimeError as error:
        address = f"{place.store_host}:{place.store_port}"
        raise LaunchError(f"cannot meet the other ranks at {address}: {str(error).splitlines()[0]}") from error
    if place.rank > 0:
        start_standby(environment, log)
    return run_worker(environment)


def _timeout_option(name: str, least_seconds: float, default_seconds: float, text: str) -> Callable[[Command], Command]:
    return click.option(
        f"--{name}-timeout",
        f"{name}_timeout_seconds",
        type=click.FloatRange(least_seconds, _MAX_TIMEOUT_SECONDS),
        default=default_seconds,
        envvar=f"MECEFO_{name.upper()}_TIMEOUT_SECONDS",
        metavar="SECONDS",
        show_default=True,
        show_envvar=True,
        help=text,
    )


def _setting_options(command: Command) -> Command:
    """The options of settings that a job under torchrun has, as `mecefo_runtime.job.config` describes them."""
    for place in reversed(list(_SETTINGS.values())):
        option = place.setting.option
        assert option is not None
        command = click.option(
            option.flag, option.name, type=_click_type(place), metavar=option.metavar, help=_help_of(place)
        )(command)
    return command


def _click_type(place: Place) -> click.ParamType[Any]:
    kinds, setting, words = alternatives(place.type), place.setting, words_of(place.type)
    if setting.key in _WORDS or (words and int not in kinds):
        return click.Choice(_WORDS.get(setting.key, words))
    if setting.unit == "path":
        return click.Path()
    if int not in kinds or words:
        return click.STRING
    least, most = (None if limit is None else int(limit) for limit in (setting.at_least, setting.at_most))
    return click.IntRange(least, most)


def _help_of(place: Place) -> str:
    return _HELP.get(place.setting.key, help_of(place, _WORDS.get(place.setting.key, ())))


@click.command(help=__doc__.split("\n\n")[0])
@click.option(
    "--job",
    "file",
    type=click.Path(path_type=Path),
    help="JSON or YAML file with any settings: the `job` of an experiment, an experiment, or a job as this runtime "
    "writes it. Options replace what it says.",
)
@_setting_options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--snapshot-memory-gib",
    type=click.FloatRange(0, min_open=True),
    default=_SNAPSHOTS.memory_bytes / (1 << 30),
    show_default=True,
    help="Of a node, at most.",
)
@_timeout_option("heartbeat", 0.5, _DEFAULTS.heartbeat_timeout_seconds, "A rank that is silent for so long is lost.")
@_timeout_option("collective", 1.0, _DEFAULTS.collective_timeout_seconds, "For an operation between ranks.")
@_timeout_option("coordinator", 1.0, COORDINATOR_TIMEOUT_SECONDS, "For a coordinator, where a rank needs one.")
@_timeout_option("store", 1.0, STORE_TIMEOUT_SECONDS, "For the launcher's store, and for rank 0 in it.")
@click.option("--host", default=LOOPBACK, show_default=True, help="The address at which other ranks reach this one.")
@click.option("--coordinator-log", type=click.Path(path_type=Path), default=Path(os.devnull), help="Its output.")
@click.pass_context
def main(
    context: click.Context,
    /,
    file: Path | None,
    host: str,
    coordinator_log: Path,
    store_timeout_seconds: float,
    **options: Any,
) -> None:
    """Entry point."""
    by_default = {name for name in options if context.get_parameter_source(name) is ParameterSource.DEFAULT}
    given = {name: value for name, value in options.items() if name not in by_default}
    try:
        _check_log(coordinator_log)
        place = LauncherEnvironment.of(os.environ)
        code = launch(place, job_of(place, given, file), host, coordinator_log, store_timeout_seconds)
    except LaunchError as error:
        click.echo(f"mecefo_runtime: {error}", err=True)
        code = USAGE_ERROR
    sys.exit(code)
