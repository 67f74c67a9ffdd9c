"""What a job is: model shapes, the training recipe and the cluster, as frozen values. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.emulation import Emulation
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.job.link import Links
from mecefo_runtime.job.protection import Protection
from mecefo_runtime.job.setting import INLINE, REQUIRED, Option, check_limits, setting
from mecefo_runtime.job.traits import OF_RUNTIME, JobTraits
from mecefo_runtime.stacks.rulers import MAX_REDUNDANCY, OffsetKind
from mecefo_runtime.system.devices import DeviceChoice
from mecefo_runtime.system.job_records import JobStarted, RatingsAgreed
from mecefo_runtime.system.json_values import to_json

MAX_RANKS = 1024
"""The limit of a job, over all nodes."""
NODES_PER_RACK_TEXT = "nodes per rack, for the target `rack=0`"
MAX_STEPS = 10**8


def num_setting(default: int | None, text: str, option: Option) -> Any:
    """The setting of a number of nodes, or of ranks: from 1 to the limit of a job."""
    return setting(default, text, at_least=1, at_most=MAX_RANKS, option=option)


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

    rank: int = setting(16, "r, the rank of low-rank weight gradients", at_least=1)
    refresh_steps: int = setting(50, "tau, the number of steps between updates of a projection", at_least=1)
    down_projection: Literal["left", "right"] = setting(
        "left", "project the gradient of the FFN's down projection by left or right singular vectors"
    )
    average_rest: bool = setting(True, "average what the projection drops over the replicas that compute it exactly")

    def __post_init__(self) -> None:
        check_limits(self)
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

    nonfinite: RejectedStepPolicy = setting("repeat", "action on a step with a loss or gradient that is not finite")
    outlier: RejectedStepPolicy = setting("repeat", "action on a step with an outlier gradient")
    outlier_ratio: float = setting(50.0, "threshold of an outlier: gradient norm as a multiple of the median", above=1)
    window_steps: int = setting(20, "number of recent steps of that median", at_least=1, at_most=10**6)
    max_repeats: int = setting(1, "maximum number of times that a step is recomputed", at_least=0, at_most=1000)
    checksum_every_steps: int = setting(
        100,
        "interval at which the holders of a layer compare checksums of their state; 0: never",
        at_least=0,
        at_most=MAX_STEPS,
    )

    def __post_init__(self) -> None:
        for name in ("nonfinite", "outlier"):
            if getattr(self, name) not in get_args(RejectedStepPolicy):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(RejectedStepPolicy))}, not {getattr(self, name)!r}"
                )
        check_limits(self)


# Where nothing is said of checkpoints, too: then every restart begins with the first step. A link that is cut costs a
# restart of two or three seconds as long as it is, and may be whole again after many.
MAX_FRUITLESS_RESTARTS = 10


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Durable checkpoints: one every `every_steps` into `folder`, of which the newest `keep` are kept.

    With `resume` the job begins with the newest one that is there. With a strategy that restarts all ranks after a
    loss, the job ends when `max_fruitless_restarts` successive restarts made no progress.
    """

    every_steps: int = setting(
        REQUIRED,
        "interval between checkpoints, in steps",
        at_least=1,
        at_most=MAX_STEPS,
        option=Option(
            "--checkpoint-every",
            "STEPS",
            help="Interval between checkpoints. Default: no checkpoints.",
            in_torchrun=True,
        ),
    )
    keep: int = setting(2, "number of checkpoints to keep", at_least=1, at_most=10**6)
    folder: str = setting(
        "",
        "folder of the checkpoints; default: inside the run's folder",
        unit="path",
        option=Option("--checkpoint-folder", "DIRECTORY", in_torchrun=True),
    )
    resume: bool = setting(False, "resume from the newest checkpoint in `folder`")
    max_fruitless_restarts: int = setting(
        MAX_FRUITLESS_RESTARTS,
        "checkpoint and reft: maximum number of restarts in a row without a new step",
        at_least=1,
        at_most=1000,
    )

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, slots=True)
class SnapshotConfig:
    """Snapshots in the memory of the nodes: one after every `every_steps` steps, in `memory_bytes` a node at most.

    `auto` takes the interval from what a snapshot costs and `mtbf_seconds`, the mean time between losses; None: as it
    is seen (see `mecefo_runtime.job.snapshot_interval`). `protection` in groups of about `group_size` nodes (`copy`: of
    two); `nodes_per_rack` says which are lost together.
    """

    every_steps: int | Literal["auto"] = setting(
        1,
        "interval between snapshots, in steps; `auto`: the interval with the lowest cost",
        key="every",
        at_least=1,
        at_most=MAX_STEPS,
        option=Option(
            "--snapshot-every",
            "STEPS|auto",
            help="Interval between snapshots in the nodes' memory; auto: the cheapest. Default: no snapshots.",
            in_torchrun=True,
        ),
    )
    protection: Protection = setting(
        "xor",
        "what snapshots survive: a lost rank (none), any one node of a group (copy, xor), any two (pq)",
        option=Option("--snapshot-protection", "none|copy|xor|pq", in_torchrun=True),
    )
    group_size: int = setting(
        4,
        "number of nodes that protect each other",
        key="group",
        at_least=2,
        at_most=MAX_RANKS,
        option=Option("--snapshot-group", in_run=False, in_torchrun=True),
    )
    memory_bytes: int = setting(
        8 << 30, "maximum memory of each node for snapshots and parity", key="memory", unit="bytes", at_least=1
    )
    mtbf_seconds: float | None = setting(
        None, "mean time between failures for `every: auto`; default: as observed", key="mtbf", unit="seconds"
    )
    nodes_per_rack: int | None = None

    def __post_init__(self) -> None:
        check_limits(self)

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
class JobSettings:
    """What a user sets of a job. Batch sizes count sequences, lengths count tokens (bytes).

    Each field is a key of the `job` of an experiment file, in this order, and one with an option is one of the command
    line. A further setting is a further field, and the code that uses it.
    """

    model: ModelConfig = setting(
        PRESETS["llama-tiny"],
        "model preset; all but llama-tiny have a published LLaMA shape",
        option=Option(
            "--model",
            help="Model preset; all but llama-tiny have a published LLaMA shape. Default: llama-tiny.",
            in_torchrun=True,
        ),
    )
    nodes: int = num_setting(4, "number of nodes, without spares", Option("--nodes"))
    gpus_per_node: int = num_setting(2, "ranks per node, also on machines without a GPU", Option("--gpus-per-node"))
    nodes_per_rack: int | None = num_setting(None, NODES_PER_RACK_TEXT, Option("--nodes-per-rack"))
    data_parallel: int = setting(
        4,
        "number of model replicas; default: derived from the number of ranks",
        at_least=1,
        option=Option("--data-parallel", "D"),
    )
    steps: int = setting(
        560,
        "number of optimizer steps",
        at_least=1,
        at_most=MAX_STEPS,
        option=Option("--steps", in_torchrun=True),
    )
    data: str | None = setting(
        None,
        "UTF-8 text to train on, a file or folder; default: the sources of Python's standard library",
        unit="path",
        option=Option("--data", in_torchrun=True),
    )
    strategy: str = setting(
        "mecefo",
        "recovery strategy: which ranks take over the layers of a lost rank, and how",
        option=Option("--strategy", help="Recovery strategy: {words}. Default: mecefo.", in_torchrun=True),
    )
    projected_share_limit: float = setting(
        QUALITIES["auto"].projected_share_limit,
        "mecefo: how much may be approximated; a ratio limits the share of samples through degraded layers",
        key="quality",
        at_least=0,
        at_most=1,
        option=Option(
            "--quality",
            "auto|speed|exact|X",
            help="With mecefo: approximate for the earliest final loss (auto), for full speed, not at all, or at most "
            "this share of samples. Default: auto.",
            in_torchrun=True,
        ),
    )
    """At most this share of the replicas projects a layer, see `Span`."""
    degraded_share_limit: float = setting(
        QUALITIES["auto"].degraded_share_limit,
        "as `quality` with a ratio, which takes precedence",
        at_least=0,
        at_most=1,
    )
    """At most this share of a step's samples goes through degraded layers."""
    pipeline: int = setting(
        2,
        "pipeline stages per replica; default: derived from the number of ranks",
        at_least=1,
        option=Option("--pipeline", "P", in_torchrun=True),
    )
    sequence_length: int = setting(
        64,
        "tokens per sequence",
        at_least=1,
        at_most=2**20,
        option=Option("--sequence-length", in_run=False, in_torchrun=True),
    )
    microbatch_size: int = setting(
        2,
        "sequences per microbatch",
        at_least=1,
        at_most=2**20,
        option=Option("--microbatch-size", in_run=False, in_torchrun=True),
    )
    microbatches_per_replica: int = setting(
        3,
        "microbatches per replica and step",
        at_least=1,
        at_most=2**20,
        option=Option("--microbatches-per-replica", "M", in_torchrun=True),
    )
    learning_rate: float = setting(3e-3, "learning rate of AdamW after the warm-up", above=0)
    warmup_steps: int = setting(20, "steps of learning-rate warm-up", at_least=0, at_most=MAX_STEPS)
    spares: int = setting(
        0,
        "number of spare nodes, which replace lost ones; they have the highest node numbers",
        at_least=0,
        at_most=MAX_RANKS,
        option=Option("--spares", "K"),
    )
    redundancy: int | None = setting(
        None,
        "spare, mecefo+spare: number of replicas that hold each shard; default: floor(log2 N + 0.833)",
        at_least=1,
        at_most=MAX_REDUNDANCY,
        option=Option(
            "--redundancy",
            "R",
            help="With spare: number of replicas that hold each shard of a step.",
            in_torchrun=True,
        ),
    )
    stack_offsets: OffsetKind = setting(
        "golomb", "spare, mecefo+spare: placement of shards, by a Golomb ruler or consecutive"
    )
    approximation: ApproximationConfig = setting(ApproximationConfig(), "approximation of degraded layers")
    health: HealthConfig = setting(HealthConfig(), "handling of steps with bad values")
    checkpoint: CheckpointConfig | None = setting(None, "durable checkpoints; default: none")
    snapshots: SnapshotConfig | None = setting(None, "snapshots in the nodes' memory; default: none")
    sharded_optimizer: bool = setting(
        False, "shard the optimizer state over the replicas of a layer (ZeRO-1); snapshots protect it"
    )
    """Each holder of a unit has the moments of its share alone (arXiv 1910.02054)."""
    takeover: Literal["auto", "direct", "background"] = setting(
        "auto", "whether training waits for state transfer; `auto`: whatever is estimated to cost less"
    )
    """`direct`: training waits for the state; `background`: it continues with fewer replicas until then."""
    dilation_ratio: float = setting(
        1.0,
        "slow-down factor of each rank's compute, so that ranks on few cores do not disturb each other",
        key="dilation",
        at_least=1,
        option=Option(
            "--dilation",
            "auto|off|X",
            help="Time dilation: each rank computes X times slower than this CPU. Default: auto.",
        ),
    )
    """CPU time is padded by it: it has no effect on ranks that compute on a GPU."""
    pacing: Pacing = setting(
        "rated",
        "duration of dilated compute: a rated time, measured at the start, or a multiple of CPU time",
        option=Option(
            "--pacing",
            "rated|measured|off",
            help="Duration of dilated compute: a rated time, measured at the start (rated), or X times the CPU time "
            "used (measured); off: no dilation. Default: rated.",
        ),
    )
    """All ranks agree on the ratings at the start; `off` goes with a dilation of 1."""
    emulation: Emulation | None = setting(None, key=INLINE)
    """Of which device the ratings and links are, None: this one."""
    links: Links | None = setting(
        None,
        "bandwidth and latency between ranks to emulate; default: those of the device model",
        key="link",
        option=Option(
            "--link",
            "bandwidth=B,latency=T",
            help="Emulate this link between ranks, e.g. bandwidth=25GB/s,latency=20us.",
        ),
    )
    """What moves between ranks takes as long as on these, None: as long as it takes."""
    rank_memory_bytes: int | None = setting(None, "memory per rank, for planners; default: no limit", at_least=1)
    heartbeat_timeout_seconds: float = setting(
        2.0,
        "silence after which a rank is declared lost; a closed connection is detected at once",
        key="heartbeat_timeout",
        unit="seconds",
        # Anything shorter takes a busy machine for a lost rank.
        at_least=0.5,
        at_most=600.0,
    )
    precision: Literal["fp32", "bf16"] = setting(
        "fp32",
        "precision of matrix products; everything else is in fp32",
        option=Option("--precision", in_run=False, in_torchrun=True),
    )
    """`bf16` multiplies matrices in bfloat16 (torch.autocast)."""
    device: DeviceChoice = setting(
        "auto", "device type of the ranks", option=Option("--device", in_run=False, in_torchrun=True)
    )
    """`auto` is a GPU where the rank has one."""


@dataclass(frozen=True, slots=True)
class JobConfig(JobSettings):
    """One training job: its settings, and what is decided when it is started.

    `ratings` are the costs of compute segments from elsewhere, with the dilation in them; None: the ranks measure.
    `priority`: `idle` ranks have what all others leave of the CPU. `coordinator_timeout_seconds`: a rank that needs a
    coordinator waits this long while there is none, None: without a limit.
    """

    traits: ClassVar[JobTraits] = OF_RUNTIME

    seed: int = 0
    min_learning_rate_ratio: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip_grad_norm: float = 1.0
    ratings: Costs | None = None
    priority: Literal["normal", "idle"] = "normal"
    collective_timeout_seconds: float = 60.0
    coordinator_timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        check_limits(self)
        if self.sharded_optimizer and self.takeover == "background":
            raise ValueError("with sharded_optimizer no state moves in the background: takeover is auto or direct")
        self.cluster()

    def start_record(self) -> JobStarted:
        """The event of its start."""
        return JobStarted(
            num_ranks=self.cluster().num_ranks,
            nodes=self.nodes,
            steps=self.steps,
            traits=self.traits.to_dict(),
            tokens_per_step=self.emulated_tokens(self.tokens_per_step),
            samples_per_step=self.samples_per_step,
            dilation_ratio=self.dilation_ratio,
            emulation=to_json(self)["emulation"],
            snapshots=None if self.snapshots is None else str(self.snapshots),
            spares=self.spares,
        )

    def with_checkpoints_in(self, folder: Path) -> JobConfig:
        """With its checkpoints in `folder`, where it writes any and no folder is given."""
        if self.checkpoint is None or self.checkpoint.folder:
            return self
        return dataclasses.replace(self, checkpoint=dataclasses.replace(self.checkpoint, folder=str(folder)))

    @property
    def num_held_parameters(self) -> int:
        """Parameters that its ranks hold, over all replicas."""
        return self.data_parallel * self.model.num_parameters

    def step_timeout_seconds(self, *, has_steps: bool) -> float | None:
        """How long it may take without a step; None: that depends on how long its steps usually take."""
        return None

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
