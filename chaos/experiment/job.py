"""The job of an experiment: its shape, recipe and protection, as a user writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from chaos.errors import UsageError, setting, shown
from chaos.experiment.device import DeviceModelText, LinkText, TimeScaleText, read_device
from chaos.experiment.fields import (
    DilationText,
    ModelName,
    QualityText,
    SnapshotIntervalText,
    Text,
    require_few_ranks,
)
from chaos.experiment.settings import SettingsText, config_values, model_of, with_texts
from chaos.language.trigger import OPEN_PHASES, PHASES
from mecefo_runtime.job.config import (
    PRESETS,
    ApproximationConfig,
    CheckpointConfig,
    HealthConfig,
    JobConfig,
    JobSettings,
    ModelConfig,
    SnapshotConfig,
    quality_of,
)
from mecefo_runtime.job.traits import OF_RUNTIME, JobTraits
from mecefo_runtime.planners import fixed_settings, goes_back_to, places_shards, with_fixed_settings
from mecefo_runtime.prediction.device_model import DeviceModel, emulating, rescaled
from mecefo_runtime.stacks.placement import DoesNotFit, Placement

_DEFAULTS = JobConfig()
# How often a job that can only go back to a checkpoint writes one, if it is not said.
DEFAULT_CHECKPOINT_STEPS = 20


class _BuiltIn(SettingsText, frozen=True):
    runtime: Literal["mecefo"] = Field(default="mecefo", description="the built-in training job")


if TYPE_CHECKING:
    # The fields that the models get of the settings, for type checkers.
    class _JobSettings(_BuiltIn, JobSettings, frozen=True): ...

    class _Approximation(SettingsText, ApproximationConfig, frozen=True): ...

    class _Health(SettingsText, HealthConfig, frozen=True): ...

    class _Checkpoint(SettingsText, CheckpointConfig, frozen=True): ...

    class _Snapshots(SettingsText, SnapshotConfig, frozen=True): ...

else:
    _JobSettings = model_of(JobSettings, _BuiltIn)
    _Approximation, _Health, _Checkpoint, _Snapshots = map(
        model_of, (ApproximationConfig, HealthConfig, CheckpointConfig, SnapshotConfig)
    )


class Approximation(_Approximation, frozen=True):
    """How degraded layers are approximated; see `mecefo_runtime.job.config.ApproximationConfig`."""


class Health(_Health, frozen=True):
    """What becomes of steps that are not fit to be committed; see `mecefo_runtime.job.config.HealthConfig`."""


@with_texts(CheckpointConfig)
class Checkpoint(_Checkpoint, frozen=True):
    """Durable checkpoints; `folder` None: in the run's own folder. See `mecefo_runtime.job.config.CheckpointConfig`."""

    folder: Text | None = None  # type: ignore[assignment]

    def config(self) -> CheckpointConfig:
        """As the runtime has it."""
        return CheckpointConfig(**config_values(self, CheckpointConfig) | {"folder": self.folder or ""})


@with_texts(SnapshotConfig)
class Snapshots(_Snapshots, frozen=True):
    """Snapshots in the nodes' memory: one `every` number of steps, in at most `memory` of each node.

    `auto` takes the interval from what one costs and the mean time between losses, `mtbf`; None: as it is seen.
    `protection` is what they survive: `none` the ranks, `copy` and `xor` any node of a `group`, `pq` any two.
    """

    every: SnapshotIntervalText = SnapshotConfig().every_steps

    def config(self, nodes_per_rack: int | None) -> SnapshotConfig:
        """As the runtime has it."""
        return SnapshotConfig(**config_values(self, SnapshotConfig), nodes_per_rack=nodes_per_rack)


@with_texts(JobSettings)
class Job(_JobSettings, frozen=True):
    """The job that is broken. Of data_parallel and pipeline, what is not given is derived from the ranks.

    `nodes_per_rack` says which nodes can be affected together as a rack; the runtime spreads protection over racks. The
    key `degraded_share_limit` is older than `quality`, and is it where it is given.
    """

    traits: ClassVar[JobTraits] = OF_RUNTIME
    # The phases at which a rank can be held, and the roles of processes beside the ranks.
    phases: ClassVar[tuple[str, ...]] = (*PHASES, *OPEN_PHASES)
    roles: ClassVar[tuple[str, ...]] = ("coordinator",)
    reset: ClassVar[None] = None

    # What a user writes in another way than the runtime has it; all else is in the settings.
    model: ModelName = "llama-tiny"  # type: ignore[assignment]
    data_parallel: int | None = Field(default=None, ge=1)  # type: ignore[assignment]
    strategy: str = _DEFAULTS.strategy
    pipeline: int | None = Field(default=None, ge=1)  # type: ignore[assignment]
    approximation: Approximation = Approximation()
    health: Health = Health()
    checkpoint: Checkpoint | None = None
    snapshots: Snapshots | None = None
    quality: QualityText = "auto"
    degraded_share_limit: float | None = Field(default=None, ge=0, le=1)  # type: ignore[assignment]
    dilation: DilationText = "auto"
    device_model: DeviceModelText | None = None
    time_scale: TimeScaleText = "auto"
    link: LinkText | None = None

    def advice_on_ranks(self) -> str | None:
        """What to add where a target names ranks that the job does not have: nothing."""
        return None

    def why_not_on_nodes(self) -> str | None:
        """None: it can be started on each of its nodes."""
        return None

    def filled(self) -> Job:
        """With what its device and its strategy fix, and with its shape.

        Raises:
            UsageError: the shape does not fit the ranks or the layers.
        """
        data_parallel, pipeline = self.shape()
        job = with_device(with_strategy(self))
        return job.model_copy(update={"data_parallel": data_parallel, "pipeline": pipeline})

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
        checkpoint, snapshots = self.checkpoint, self.snapshots
        written_otherwise = {
            "model": self.preset(),
            "data_parallel": data_parallel,
            "pipeline": pipeline,
            "degraded_share_limit": quality.degraded_share_limit,
            "projected_share_limit": quality.projected_share_limit,
            "dilation_ratio": dilation_ratio,
            "links": None if self.link is None else self.link.links(),
            "approximation": ApproximationConfig(**config_values(self.approximation, ApproximationConfig)),
            "health": HealthConfig(**config_values(self.health, HealthConfig)),
            "checkpoint": None if checkpoint is None else checkpoint.config(),
            "snapshots": None if snapshots is None else snapshots.config(self.nodes_per_rack),
        }
        config = JobConfig(seed=seed, **config_values(self, JobSettings) | written_otherwise)
        config, device = with_fixed_settings(config), self.stands_for()
        return config if device is None else rescaled(emulating(config, device), time_scale)

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


def _said_otherwise(said: SettingsText, settings: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
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
