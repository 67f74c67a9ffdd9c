"""What a job is: model shapes, the training recipe and the cluster, as frozen values. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.emulation import Emulation
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.job.link import Link, Links
from mecefo_runtime.job.protection import Protection
from mecefo_runtime.stacks.rulers import OffsetKind
from mecefo_runtime.system.devices import DeviceChoice
from mecefo_runtime.system.job_records import RatingsAgreed


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A LLaMA shape: `num_key_value_heads < num_heads` is grouped-query attention."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    vocab_size: int
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is no multiple of num_heads {self.num_heads}")
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is no multiple of num_key_value_heads {self.num_key_value_heads}"
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model, embedding and head included."""
        hidden = self.hidden_size
        key_value_size = self.num_key_value_heads * self.head_size
        block = 2 * hidden * (hidden + key_value_size) + 3 * hidden * self.intermediate_size + 2 * hidden
        return self.num_layers * block + 2 * self.vocab_size * hidden + hidden


# 60m to 1b: GaLore's LLaMA shapes (arXiv 2403.03507, Table 6), which MeCeFO trains too; 7b: LLaMA (arXiv 2302.13971).
# The tokenizer of ours is bytes, the shapes keep the published vocabulary so that costs and memory are the published
# ones.
PRESETS: Mapping[str, ModelConfig] = {
    "llama-tiny": ModelConfig(64, 176, 4, 4, 4, 256),
    "60m": ModelConfig(512, 1376, 8, 8, 8, 32_000),
    "130m": ModelConfig(768, 2048, 12, 12, 12, 32_000),
    "350m": ModelConfig(1024, 2736, 24, 16, 16, 32_000),
    "1b": ModelConfig(2048, 5461, 24, 32, 32, 32_000),
    "7b": ModelConfig(4096, 11008, 32, 32, 32, 32_000),
}


@dataclass(frozen=True, slots=True)
class ApproximationConfig:
    """The MeCeFO techniques for degraded layers (arXiv 2510.16415, section 3).

    `rank` is r of the low-rank weight gradient, `refresh_steps` is tau. `down_projection` says which singular vectors
    the down projection's gradient is projected on: "left" is nearer to the exact gradient, "right" is the paper's.
    `average_rest` (ours, not the paper's) averages what the projection drops over the exact replicas alone, as the
    attention's gradients are, so that the low-rank part has no bias across replicas.
    """

    rank: int = 16
    refresh_steps: int = 50
    down_projection: Literal["left", "right"] = "left"
    average_rest: bool = True

    def __post_init__(self) -> None:
        for name in ("rank", "refresh_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.down_projection not in ("left", "right"):
            raise ValueError(f"down_projection must be left or right, not {self.down_projection!r}")


class Quality(NamedTuple):
    """How much of a step may be approximated, see `JobConfig`."""

    degraded_share_limit: float
    projected_share_limit: float


QUALITIES: Mapping[str, Quality] = {
    # What is soonest at the loss that the job would have without failures (docs/explanation/convergence.md).
    "auto": Quality(0.0, 0.5),
    "speed": Quality(1.0, 0.0),
    "exact": Quality(0.0, 0.0),
}


def quality_of(name: str | float) -> Quality:
    """The quality of that name, or with such a limit for degraded samples and no projected layers.

    Raises:
        ValueError: there is none.
    """
    if isinstance(name, str):
        if name not in QUALITIES:
            raise ValueError(f"quality must be {', '.join(QUALITIES)} or a share from 0 to 1, not {name!r}")
        return QUALITIES[name]
    return Quality(name, 0.0)


def other_quality(limits: Quality) -> str:
    """The quality to compare `limits` with: `speed`, which approximates most, and the default where that is in use."""
    return "auto" if limits == QUALITIES["speed"] else "speed"


RejectedStepPolicy = Literal["commit", "repeat", "skip", "evict"]
Pacing = Literal["rated", "measured", "off"]


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """What happens to a step that fails its health check; see `health`.

    `nonfinite`: its loss or gradient is not finite. `outlier`: its gradient's norm is more than `outlier_ratio` times
    the median of the last `window_steps`. `repeat` computes it again, `max_repeats` times; if that does not help, a
    step that is not finite is skipped, and an outlier is committed for what it is. `skip` leaves it out at once.
    `evict` repeats too, and then evicts the rank that corrupted it; if it is not known, it does as `repeat`. `commit`
    commits it all the same. With `nonfinite: evict`, a rank that sends damaged state repeatedly is evicted, too.
    `checksum_every_steps`: the interval at which the holders of a unit compare its state; 0: never.
    """

    nonfinite: RejectedStepPolicy = "repeat"
    outlier: RejectedStepPolicy = "repeat"
    outlier_ratio: float = 50.0
    window_steps: int = 20
    max_repeats: int = 1
    checksum_every_steps: int = 100

    def __post_init__(self) -> None:
        for name in ("nonfinite", "outlier"):
            if getattr(self, name) not in get_args(RejectedStepPolicy):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(RejectedStepPolicy))}, not {getattr(self, name)!r}"
                )
        if not self.outlier_ratio > 1:
            raise ValueError(f"outlier_ratio must be more than 1, not {self.outlier_ratio}")
        for name, least in (("window_steps", 1), ("max_repeats", 0), ("checksum_every_steps", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")


# Where nothing is said of checkpoints, too: then every restart begins with the first step. A link that is cut costs a
# restart of two or three seconds as long as it is, and may be whole again after many.
MAX_FRUITLESS_RESTARTS = 10


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Durable checkpoints: one every `every_steps` into `folder`, of which the newest `keep` are kept.

    With `resume` the job begins with the newest one that is there. With a strategy that restarts all ranks after a
    loss, the job ends when `max_fruitless_restarts` successive restarts made no progress.
    """

    folder: str
    every_steps: int
    keep: int = 2
    resume: bool = False
    max_fruitless_restarts: int = MAX_FRUITLESS_RESTARTS

    def __post_init__(self) -> None:
        for name in ("every_steps", "keep", "max_fruitless_restarts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class SnapshotConfig:
    """Snapshots in the memory of the nodes: one after every `every_steps` steps, in `memory_bytes` a node at most.

    `auto` takes the interval from what a snapshot costs and `mtbf_seconds`, the mean time between losses; None: as it
    is seen (see `mecefo_runtime.job.snapshot_interval`). `protection` in groups of about `group_size` nodes (`copy`: of
    two); `nodes_per_rack` says which are lost together.
    """

    every_steps: int | Literal["auto"] = 1
    memory_bytes: int = 8 << 30
    protection: Protection = "xor"
    group_size: int = 4
    nodes_per_rack: int | None = None
    mtbf_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("every_steps", "memory_bytes"):
            if getattr(self, name) != "auto" and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.group_size < 2:
            raise ValueError(f"group_size must be at least 2, not {self.group_size}")

    def __str__(self) -> str:
        """How often, and what protects them."""
        often = {1: "every step", "auto": "at the cheapest interval"}.get(
            self.every_steps, f"every {self.every_steps} steps"
        )
        groups = "in pairs of nodes" if self.protection == "copy" else f"in groups of {self.group_size} nodes"
        return f"{often}, {'unprotected' if self.protection == 'none' else f'protected by {self.protection} {groups}'}"


# The exit code of a coordinator whose job cannot continue; any other but 0 is a crash, after which it is started again.
JOB_FAILED = 3


@dataclass(frozen=True, slots=True)
class JobConfig:
    """One training job. Batch sizes count sequences, lengths count tokens (bytes).

    `nodes` train; `spares` nodes more, of as many ranks, are ready to take the place of lost ones.
    `degraded_share_limit`: at most this share of a step's samples goes through degraded layers.
    `projected_share_limit`: at most this share of the replicas projects a layer, see `Span`. `sharded_optimizer`: each
    holder of a unit has the moments of its share alone (ZeRO-1, arXiv 1910.02054). `takeover`: whether
    training waits for state that has to move (`direct`), continues with fewer replicas meanwhile (`background`), or
    does what costs less (`auto`). `redundancy`: how many replicas hold each shard of a step where the strategy places
    them, None: as many as SPARe's closed form has it; `stack_offsets` says which. `rank_memory_bytes`: what a rank may
    use for state and activations, None: no limit. `precision`: `bf16` multiplies matrices in bfloat16 (torch.autocast);
    parameters, gradients and optimizer state stay in fp32. `device`: what each rank computes on; `auto` is a GPU where
    the rank has one. `dilation_ratio` pads CPU time: it has no effect on ranks that compute on a GPU. `pacing`: whether
    a compute segment is padded to what such segments cost by ratings on which all ranks agree at the start, or to what
    this execution took; `off` goes with a dilation of 1. `ratings` are such costs from elsewhere, with the dilation in
    them; None: the ranks measure. `links`: what moves between ranks takes as long as on these, None: as long as it
    takes. `emulation`: what device the ratings and links are of, None: this one. `priority`: `idle` ranks have what all
    others leave of the CPU. `coordinator_timeout_seconds`: a rank that cannot go on without a coordinator waits for so
    long while there is none, None: for as long as it takes.
    """

    model: ModelConfig = PRESETS["llama-tiny"]
    nodes: int = 4
    gpus_per_node: int = 2
    data_parallel: int = 4
    pipeline: int = 2
    spares: int = 0
    steps: int = 560
    seed: int = 0
    strategy: str = "mecefo"
    sequence_length: int = 64
    microbatch_size: int = 2
    microbatches_per_replica: int = 3
    learning_rate: float = 3e-3
    min_learning_rate_ratio: float = 0.1
    warmup_steps: int = 20
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip_grad_norm: float = 1.0
    data: str | None = None
    approximation: ApproximationConfig = field(default_factory=ApproximationConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    checkpoint: CheckpointConfig | None = None
    snapshots: SnapshotConfig | None = None
    sharded_optimizer: bool = False
    takeover: Literal["auto", "direct", "background"] = "auto"
    degraded_share_limit: float = QUALITIES["auto"].degraded_share_limit
    projected_share_limit: float = QUALITIES["auto"].projected_share_limit
    redundancy: int | None = None
    stack_offsets: OffsetKind = "golomb"
    rank_memory_bytes: int | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    device: DeviceChoice = "auto"
    dilation_ratio: float = 1.0
    pacing: Pacing = "rated"
    ratings: Costs | None = None
    links: Links | None = None
    emulation: Emulation | None = None
    priority: Literal["normal", "idle"] = "normal"
    heartbeat_timeout_seconds: float = 2.0
    collective_timeout_seconds: float = 60.0
    coordinator_timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "sequence_length", "microbatch_size", "microbatches_per_replica"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("degraded_share_limit", "projected_share_limit"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1, not {getattr(self, name)}")
        if self.spares < 0:
            raise ValueError(f"spares must not be negative, not {self.spares}")
        if self.sharded_optimizer and self.takeover == "background":
            raise ValueError("with sharded_optimizer no state moves in the background: takeover is auto or direct")
        self.cluster()

    def cluster(self) -> Cluster:
        """The configured cluster.

        Raises:
            mecefo_runtime.job.layout.LayoutError: the shape does not fit the ranks.
        """
        return Cluster(
            nodes=self.nodes + self.spares,
            gpus_per_node=self.gpus_per_node,
            data_parallel=self.data_parallel,
            pipeline=self.pipeline,
            num_layers=self.model.num_layers,
            num_microbatches=self.data_parallel * self.microbatches_per_replica,
            spares=self.spares,
        )

    @property
    def max_fruitless_restarts(self) -> int:
        """The maximum number of successive restarts without progress."""
        return MAX_FRUITLESS_RESTARTS if self.checkpoint is None else self.checkpoint.max_fruitless_restarts

    @property
    def is_padded(self) -> bool:
        """Whether compute lasts longer than it takes. On GPUs it never does."""
        return self.dilation_ratio > 1 or self.emulation is not None

    @property
    def is_rated(self) -> bool:
        """Whether compute is padded to rated times."""
        return self.pacing == "rated" and self.is_padded

    @property
    def rated_as(self) -> dict[str, Any]:
        """What ratings depend on, besides the machine: ratings of another job with an equal key can be reused."""
        names = ("sequence_length", "microbatch_size", "precision", "dilation_ratio")
        # Of the approximation the rank alone says how many operations there are: strategies that differ in the rest can
        # be compared by the same ratings.
        shapes = {"model": dataclasses.asdict(self.model), "rank": self.approximation.rank}
        device = {} if self.emulation is None else {"device_model": self.emulation.device_model}
        return {name: getattr(self, name) for name in names} | shapes | device

    @property
    def rating_origin(self) -> RatingsAgreed | None:
        """What its log says of its ratings before they are known: where they are from; None: it has none."""
        if not self.is_rated:
            return None
        scale = None if self.emulation is None else self.emulation.time_scale
        were_given = self.ratings is not None and self.emulation is None
        ranks = tuple(self.rated_ranks)
        return RatingsAgreed(rated_as=self.rated_as, ranks=ranks, were_given=were_given, time_scale=scale)

    @property
    def rated_ranks(self) -> list[int]:
        """What ratings of messages and commits depend on in addition."""
        return [self.data_parallel, self.pipeline]

    @property
    def samples_per_step(self) -> int:
        """Sequences that one step consumes over all replicas."""
        return self.data_parallel * self.microbatches_per_replica * self.microbatch_size

    def unpaced(self) -> JobConfig:
        """The same arithmetic as fast as it goes: without dilation, links, or another device's times."""
        return dataclasses.replace(self, dilation_ratio=1.0, ratings=None, links=None, emulation=None)

    def emulated_tokens(self, num_tokens: int) -> int:
        """What `num_tokens` of the arithmetic are on the emulated device, of whose sequences it does a part."""
        if self.emulation is None:
            return num_tokens
        return num_tokens * self.emulation.sequence_length // self.sequence_length

    @property
    def tokens_per_step(self) -> int:
        """Predicted tokens of one step over all replicas."""
        return self.samples_per_step * self.sequence_length

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> JobConfig:
        """Read what `to_dict` wrote."""
        values = dict(raw)
        values["model"] = ModelConfig(**values["model"])
        values["approximation"] = ApproximationConfig(**values["approximation"])
        values["health"] = HealthConfig(**values["health"])
        if values["checkpoint"] is not None:
            values["checkpoint"] = CheckpointConfig(**values["checkpoint"])
        # Logs of earlier versions do not have it.
        if values.get("snapshots") is not None:
            values["snapshots"] = SnapshotConfig(**values["snapshots"])
        values["betas"] = tuple(values["betas"])
        if values["ratings"] is not None:
            values["ratings"] = Costs.from_dict(values["ratings"])
        if values["links"] is not None:
            between, inside = (values["links"][name] for name in ("between_nodes", "inside_node"))
            values["links"] = Links(Link(**between), None if inside is None else Link(**inside))
        if values["emulation"] is not None:
            values["emulation"] = Emulation(**values["emulation"])
        return cls(**values)
