"""The job of an experiment: its shape, recipe and protection, as a user writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from chaos.errors import UsageError, setting, shown
from chaos.experiment.device import DeviceModelText, LinkText, TimeScaleText, read_device
from chaos.experiment.fields import (
    MAX_RANKS,
    DilationText,
    HeartbeatText,
    ModelName,
    QualityText,
    Said,
    SnapshotIntervalText,
    Text,
    WaitText,
    require_few_ranks,
)
from chaos.language.quantities import BytesText
from chaos.language.trigger import Duration
from mecefo_runtime.job.config import (
    MAX_FRUITLESS_RESTARTS,
    PRESETS,
    ApproximationConfig,
    CheckpointConfig,
    HealthConfig,
    JobConfig,
    ModelConfig,
    Pacing,
    RejectedStepPolicy,
    SnapshotConfig,
    quality_of,
)
from mecefo_runtime.job.protection import Protection
from mecefo_runtime.planners import fixed_settings, goes_back_to, places_shards, with_fixed_settings
from mecefo_runtime.prediction.device_model import DeviceModel, emulating, rescaled
from mecefo_runtime.stacks.placement import DoesNotFit, Placement
from mecefo_runtime.stacks.rulers import MAX_REDUNDANCY, OffsetKind
from mecefo_runtime.system.devices import DeviceChoice

# The recipe's defaults are the runtime's.
_DEFAULTS = JobConfig()
_DEFAULT_SNAPSHOTS = SnapshotConfig()
# How often a job that can only go back to a checkpoint writes one, if it is not said.
DEFAULT_CHECKPOINT_STEPS = 20
# Which roles are processes of their own, by runtime.
ROLES_OF_RUNTIME = {"mecefo": ("coordinator",), "command": ("launcher", "store")}


class Approximation(Said):
    """How degraded layers are approximated; see `mecefo_runtime.job.config.ApproximationConfig`."""

    rank: int = Field(default=_DEFAULTS.approximation.rank, ge=1)
    refresh_steps: int = Field(default=_DEFAULTS.approximation.refresh_steps, ge=1)
    down_projection: Literal["left", "right"] = _DEFAULTS.approximation.down_projection
    average_rest: bool = _DEFAULTS.approximation.average_rest


class Health(Said):
    """What becomes of steps that are not fit to be committed; see `mecefo_runtime.job.config.HealthConfig`."""

    nonfinite: RejectedStepPolicy = _DEFAULTS.health.nonfinite
    outlier: RejectedStepPolicy = _DEFAULTS.health.outlier
    outlier_ratio: float = Field(default=_DEFAULTS.health.outlier_ratio, gt=1, allow_inf_nan=False)
    window_steps: int = Field(default=_DEFAULTS.health.window_steps, ge=1, le=10**6)
    max_repeats: int = Field(default=_DEFAULTS.health.max_repeats, ge=0, le=1000)
    checksum_every_steps: int = Field(default=_DEFAULTS.health.checksum_every_steps, ge=0, le=10**8)


class Checkpoint(Said):
    """Durable checkpoints; `folder` None: in the run's own folder. See `mecefo_runtime.job.config.CheckpointConfig`."""

    every_steps: int = Field(ge=1, le=10**8)
    keep: int = Field(default=2, ge=1, le=10**6)
    folder: Text | None = None
    resume: bool = False
    max_fruitless_restarts: int = Field(default=MAX_FRUITLESS_RESTARTS, ge=1, le=1000)


class Snapshots(Said):
    """Snapshots in the nodes' memory: one `every` number of steps, in at most `memory` of each node.

    `auto` takes the interval from what one costs and the mean time between losses, `mtbf`; None: as it is seen.
    `protection` is what they survive: `none` the ranks, `copy` and `xor` any node of a `group`, `pq` any two.
    """

    every: SnapshotIntervalText = _DEFAULT_SNAPSHOTS.every_steps
    protection: Protection = _DEFAULT_SNAPSHOTS.protection
    group: int = Field(default=_DEFAULT_SNAPSHOTS.group_size, ge=2, le=MAX_RANKS)
    memory: BytesText = _DEFAULT_SNAPSHOTS.memory_bytes
    mtbf: WaitText | None = None

    def config(self, nodes_per_rack: int | None) -> SnapshotConfig:
        """As the runtime has it."""
        mtbf_seconds = None if self.mtbf is None else self.mtbf.seconds
        return SnapshotConfig(self.every, self.memory, self.protection, self.group, nodes_per_rack, mtbf_seconds)


class Containers(Said):
    """What a node of the docker backend is: its image, and its share of this machine.

    `cpus` of a core's time and `memory` are of each node; None: as much as there is.
    """

    image: Text = "mecefo-chaos"
    cpus: float | None = Field(default=None, ge=0.1, le=4096, allow_inf_nan=False)
    memory: BytesText | None = None


class Job(Said):
    """The job that is broken. Of data_parallel and pipeline, what is not given is derived from the ranks.

    `nodes_per_rack` says which nodes can be affected together as a rack; the runtime spreads protection over racks. The
    key `degraded_share_limit` is older than `quality`, and is it where it is given.
    """

    runtime: Literal["mecefo"] = "mecefo"
    model: ModelName = "llama-tiny"
    nodes: int = Field(default=_DEFAULTS.nodes, ge=1, le=MAX_RANKS)
    spares: int = Field(default=_DEFAULTS.spares, ge=0, le=MAX_RANKS)
    gpus_per_node: int = Field(default=_DEFAULTS.gpus_per_node, ge=1, le=MAX_RANKS)
    nodes_per_rack: int | None = Field(default=None, ge=1, le=MAX_RANKS)
    data_parallel: int | None = Field(default=None, ge=1)
    pipeline: int | None = Field(default=None, ge=1)
    steps: int = Field(default=_DEFAULTS.steps, ge=1, le=10**8)
    strategy: str = _DEFAULTS.strategy
    data: Text | None = None
    dilation: DilationText = "auto"
    pacing: Pacing = _DEFAULTS.pacing
    device_model: DeviceModelText | None = None
    time_scale: TimeScaleText = "auto"
    link: LinkText | None = None
    sequence_length: int = Field(default=_DEFAULTS.sequence_length, ge=1, le=2**20)
    microbatch_size: int = Field(default=_DEFAULTS.microbatch_size, ge=1, le=2**20)
    microbatches_per_replica: int = Field(default=_DEFAULTS.microbatches_per_replica, ge=1, le=2**20)
    learning_rate: float = Field(default=_DEFAULTS.learning_rate, gt=0, allow_inf_nan=False)
    warmup_steps: int = Field(default=_DEFAULTS.warmup_steps, ge=0, le=10**8)
    approximation: Approximation = Approximation()
    health: Health = Health()
    checkpoint: Checkpoint | None = None
    snapshots: Snapshots | None = None
    sharded_optimizer: bool = _DEFAULTS.sharded_optimizer
    takeover: Literal["auto", "direct", "background"] = _DEFAULTS.takeover
    quality: QualityText = "auto"
    degraded_share_limit: float | None = Field(default=None, ge=0, le=1)
    redundancy: int | None = Field(default=None, ge=1, le=MAX_REDUNDANCY)
    stack_offsets: OffsetKind = _DEFAULTS.stack_offsets
    rank_memory_bytes: int | None = Field(default=None, ge=1)
    heartbeat_timeout: HeartbeatText = Duration(seconds=_DEFAULTS.heartbeat_timeout_seconds)
    precision: Literal["fp32", "bf16"] = _DEFAULTS.precision
    device: DeviceChoice = _DEFAULTS.device

    @property
    def num_ranks(self) -> int:
        """Ranks over all nodes but the spare ones."""
        return self.nodes * self.gpus_per_node

    def stands_for(self) -> DeviceModel | None:
        """The device of its ranks, for its shape of a microbatch; None where they stand for themselves.

        Raises:
            UsageError: there is no such device.
        """
        if self.device_model is None:
            return None
        rank = self.approximation.rank if "rank" in self.approximation.model_fields_set else None
        said = {
            key: getattr(self, key) for key in ("sequence_length", "microbatch_size") if key in self.model_fields_set
        }
        return read_device(self.device_model, approximation_rank=rank, **said)

    def preset(self) -> ModelConfig:
        """The shape of the model: that of the device's table, if one is named.

        Raises:
            UsageError: there is no such device.
        """
        device = self.stands_for()
        return PRESETS[self.model] if device is None else device.config

    def shape(self) -> tuple[int, int]:
        """(data_parallel, pipeline). Where neither is given: two stages if that leaves two replicas or more, else one.

        Raises:
            UsageError: what is given does not fit the ranks or the layers, or there are too many ranks.
        """
        require_few_ranks(self.nodes + self.spares, self.gpus_per_node, self.model_fields_set)
        num_layers = self.preset().num_layers
        fitting = [
            (self.num_ranks // stages, stages)
            for stages in range(1, min(self.num_ranks, num_layers) + 1)
            if self.num_ranks % stages == 0
        ]
        wanted = [(d, p) for d, p in fitting if self.data_parallel in (None, d) and self.pipeline in (None, p)]
        if not wanted:
            given = {"data_parallel": self.data_parallel, "pipeline": self.pipeline}
            shapes = ", ".join(f"{d} x {p}" for d, p in fitting)
            asked = " and ".join(
                f"{setting(f'job.{key}')} {value}" for key, value in given.items() if value is not None
            )
            raise UsageError(
                f"{asked} cannot be shared out over {self.num_ranks} ranks ({self.nodes} nodes x {self.gpus_per_node}) "
                f"and {num_layers} layers: {setting('job.data_parallel')} x {setting('job.pipeline')} can be {shapes}",
                key=next(key for key, value in given.items() if value is not None),
            )
        return next(((d, p) for d, p in wanted if p == 2 and d >= 2), wanted[0])

    def to_config(self, seed: int, dilation_ratio: float, time_scale: float = 1.0) -> JobConfig:
        """The job as the runtime takes it, with what its strategy fixes.

        Checkpoints that are to go to the run's folder have the folder "". A second of an emulated device lasts
        `time_scale` seconds.

        Raises:
            UsageError: the shape does not fit.
        """
        if self.sharded_optimizer and self.takeover == "background":
            why = f"must be auto or direct with {setting('job.sharded_optimizer')}: no state moves in the background"
            raise UsageError(why, key="takeover")
        data_parallel, pipeline = self.shape()
        if places_shards(self.strategy):
            try:
                Placement.of(data_parallel, self.redundancy, self.stack_offsets)
            except DoesNotFit as error:
                raise UsageError(str(error), key="redundancy") from None
        quality = quality_of(self.quality if self.degraded_share_limit is None else self.degraded_share_limit)
        config = JobConfig(
            model=self.preset(),
            nodes=self.nodes,
            spares=self.spares,
            gpus_per_node=self.gpus_per_node,
            data_parallel=data_parallel,
            pipeline=pipeline,
            steps=self.steps,
            seed=seed,
            strategy=self.strategy,
            sequence_length=self.sequence_length,
            microbatch_size=self.microbatch_size,
            microbatches_per_replica=self.microbatches_per_replica,
            learning_rate=self.learning_rate,
            warmup_steps=self.warmup_steps,
            data=self.data,
            approximation=ApproximationConfig(**self.approximation.model_dump()),
            health=HealthConfig(**self.health.model_dump()),
            checkpoint=self._checkpoint_config(),
            snapshots=None if self.snapshots is None else self.snapshots.config(self.nodes_per_rack),
            sharded_optimizer=self.sharded_optimizer,
            takeover=self.takeover,
            degraded_share_limit=quality.degraded_share_limit,
            projected_share_limit=quality.projected_share_limit,
            redundancy=self.redundancy,
            stack_offsets=self.stack_offsets,
            rank_memory_bytes=self.rank_memory_bytes,
            heartbeat_timeout_seconds=self.heartbeat_timeout.seconds or _DEFAULTS.heartbeat_timeout_seconds,
            precision=self.precision,
            device=self.device,
            dilation_ratio=dilation_ratio,
            pacing=self.pacing,
            links=None if self.link is None else self.link.links(),
        )
        config, device = with_fixed_settings(config), self.stands_for()
        return config if device is None else rescaled(emulating(config, device), time_scale)

    def _checkpoint_config(self) -> CheckpointConfig | None:
        said = self.checkpoint
        if said is None:
            return None
        return CheckpointConfig(
            said.folder or "", said.every_steps, said.keep, said.resume, said.max_fruitless_restarts
        )

    def contradictions_of_strategy(self) -> Mapping[tuple[str, ...], str]:
        """By key, why what is said of the job cannot be with its strategy, which fixes it otherwise."""
        fixed_by_key = fixed_settings(self.strategy)
        found: dict[tuple[str, ...], str] = {
            key: f"must be {shown(fixed)} with the strategy {self.strategy}, or left out, not {shown(own)}"
            for key, own, fixed in _said_otherwise(self, fixed_by_key)
        }
        for key in ("redundancy", "stack_offsets"):
            if getattr(self, key) != getattr(_DEFAULTS, key) and not places_shards(self.strategy):
                found[key,] = f"must be left out with the strategy {self.strategy}: its replicas hold all data"
        if self.quality != "auto" and "degraded_share_limit" in fixed_by_key:
            found["quality",] = f"must be left out with the strategy {self.strategy}, which fixes it"
        return found

    def violation_about_checkpoint_before(self, step: int | None) -> str | None:
        """Why there cannot be a checkpoint yet when `step` comes; None if there may be one."""
        # A folder of the user's own may have some already.
        if self.checkpoint is None or self.checkpoint.folder is not None or step is None:
            return None
        first = self.checkpoint.every_steps
        if step > first:
            return None
        return f"there is no checkpoint yet in step {step}: the first is written at the end of step {first}"

    def violation_about_checkpoint_of(self, step: int | None) -> str | None:
        """Why a fault cannot be injected in the phase `checkpoint` of `step`; None if it can."""
        if self.checkpoint is None:
            return f"the job writes no checkpoints: give it {setting('job.checkpoint.every_steps', 20)}"
        every = self.checkpoint.every_steps
        if step is not None and step % every:
            return f"step {step} writes no checkpoint: choose a multiple of {every}"
        return None

    def violation_about_snapshot_of(self, step: int | None, *, is_encoded: bool) -> str | None:
        """Why a fault cannot be injected while the snapshot of `step` is copied, or encoded; None if it can."""
        if self.snapshots is None:
            return f"the job keeps no snapshots: give it {setting('job.snapshots.every', 1)}"
        if is_encoded and (self.snapshots.protection == "none" or self.nodes == 1):
            why = "a single node" if self.nodes == 1 else setting("job.snapshots.protection", "none")
            return f"with {why} no parity is encoded"
        every = self.snapshots.every
        if step is not None and every != "auto" and step % every:
            return f"no snapshot is taken of step {step}: choose a multiple of {every}"
        if step is not None and step == self.steps:
            return f"step {step} is the last one: its snapshot would be copied during the next, which there is not"
        return None


def with_strategy(job: Job) -> Job:
    """`job` with what its strategy fixes, and with what it goes back to where nothing is said of that."""
    update = {
        key: getattr(job, key).model_copy(update=fixed) if isinstance(fixed, Mapping) else fixed
        for key, fixed in fixed_settings(job.strategy).items()
    }
    needed = goes_back_to(job.strategy)
    if needed == "checkpoint" and job.checkpoint is None:
        update["checkpoint"] = Checkpoint(every_steps=DEFAULT_CHECKPOINT_STEPS)
    if needed == "snapshots" and job.snapshots is None:
        # No other node could protect the memory of a single node.
        update["snapshots"] = Snapshots() if job.nodes > 1 else Snapshots(protection="none")
    return job.model_copy(update=update)


def _said_otherwise(said: Said, settings: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """(key, what is said, what it has to be) of everything in `said` that differs from `settings`."""
    for key, fixed in settings.items():
        own = getattr(said, key)
        if key not in said.model_fields_set or own == fixed:
            continue
        if isinstance(fixed, Mapping):
            yield from (((key, *inner), *values) for inner, *values in _said_otherwise(own, fixed))
        else:
            yield (key,), own, fixed


def with_device(job: Job) -> Job:
    """`job`, with what the table of its device says of the model and its microbatches, if it names one."""
    device = job.stands_for()
    if device is None:
        return job
    approximation = job.approximation.model_copy(update={"rank": device.approximation_rank})
    told = {"model": device.model, "approximation": approximation}
    shape = {"sequence_length": device.sequence_length, "microbatch_size": device.microbatch_size}
    return job.model_copy(update=told | shape)
