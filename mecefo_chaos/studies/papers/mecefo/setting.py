"""The paper's experiment as values that forecasts and runs take: sizes, shapes, microbatches, methods.

Two things that decide the figures are not in the notes on the paper that we had, so all is told for two of each:

- How many microbatches a replica computes. Few of them leave idle time in the pipeline, which hides what a hit replica
  is slower by, and make every step slower.
- Whether communication is hidden behind compute, or exposed: activations that a stage waits for, and gradients (fp32)
  reduced over InfiniBand when the backward pass is over, as this runtime does. A hit replica's ranks hold more layers
  each, so their reduction takes longer, and a planner that balances compute does not see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mecefo_chaos.studies.forecast.model import BAMBOO, JobModel, Policy
from mecefo_chaos.studies.papers.mecefo.claims import NODES, NUM_RANKS, PROCESSES, SEQUENCE_LENGTH, SIZES, Process, Size
from mecefo_runtime.job.config import QUALITIES, Quality
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.prediction.device_model import DeviceModel
from mecefo_runtime.prediction.named_devices import named_device

# Data-parallel replicas and pipeline stages; no tensor parallelism.
SHAPES: Mapping[str, tuple[int, int]] = {"4x8": (4, 8), "8x4": (8, 4)}
MICROBATCHES = (8, 32)
# The default strategy with its default quality, on which claims are judged, and the other quality that approximates.
DEFAULT, SPEED = "mecefo", "mecefo-speed"


@dataclass(frozen=True, slots=True)
class Method:
    """A way to bear failures. `strategy` is the runtime's, None: it has none such, and `why_not_run` says why.

    `claimed_by` is the system of the paper's table that it stands for.
    """

    name: str
    words: str
    policy: Policy
    strategy: str | None
    claimed_by: str | None = None
    why_not_run: str = ""

    @property
    def quality(self) -> str | None:
        """The name of its quality, of the strategy that has such."""
        limits = Quality(self.policy.degraded_share_limit, self.policy.projected_share_limit)
        names = {limits: name for name, limits in QUALITIES.items()}
        return names[limits] if self.strategy == "mecefo" else None

    @property
    def label(self) -> str:
        """The name of a row in a table: the strategy and its quality."""
        return self.name if self.quality is None else f"{self.strategy}, {self.quality}"


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method(DEFAULT, "the default: layers projected", Policy("mecefo", *QUALITIES["auto"]), "mecefo", "MeCeFO"),
        Method(SPEED, "layers degraded without a limit", Policy("mecefo", *QUALITIES["speed"]), "mecefo", "MeCeFO"),
        Method("mecefo-paper", "the paper to the letter", Policy("mecefo-paper"), "mecefo-paper", "MeCeFO"),
        Method("exact", "the neighbour does both, exact", Policy("exact"), "exact"),
        Method("oobleck-like", "pipeline templates, exact", Policy("oobleck-like"), "oobleck-like", "Oobleck"),
        Method(
            "mecefo-exact", "layers redistributed, none approximated", Policy("mecefo", *QUALITIES["exact"]), "mecefo"
        ),
        Method(
            "bamboo-like",
            "redundant computation in the neighbour",
            Policy(BAMBOO),
            None,
            "Bamboo",
            "in the runtime's layouts a replica holds each layer once",
        ),
        Method(
            "checkpoint",
            "restart of all, with spares",
            Policy("checkpoint"),
            None,
            None,
            "the runtime's waits for the repair, and without spares some rank is always down under this process",
        ),
    )
}


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One square of the table: names of the size, the process and the shape, microbatches a replica, the method.

    `is_exposed`: communication takes time of its own.
    """

    size: str
    process: str
    shape: str
    num_microbatches: int
    method: str
    is_exposed: bool = False

    @property
    def key(self) -> str:
        """One word, for files and for `--only`."""
        communication = "exposed" if self.is_exposed else "hidden"
        return f"{self.size}-{self.process}-{self.shape}-m{self.num_microbatches}-{communication}-{self.method}"

    @property
    def setting(self) -> str:
        """The size and what the methods of one table have in common, in short."""
        communication = "exposed" if self.is_exposed else "hidden"
        return f"{self.of_size.words}, {self.shape}, {self.num_microbatches} microbatches, {communication}"

    @property
    def of_size(self) -> Size:
        """The model."""
        return SIZES[self.size]

    @property
    def of_process(self) -> Process:
        """The failures."""
        return PROCESSES[self.process]

    @property
    def sequences_per_microbatch(self) -> int:
        """Which makes the global batch the paper's."""
        return self.of_size.sequences // (SHAPES[self.shape][0] * self.num_microbatches)


def twin_of(cell: Cell) -> Cell:
    """Whose failure-free run is the cell's: without failures all methods that can be run do the same."""
    return Cell(cell.size, "high", cell.shape, cell.num_microbatches, SPEED, cell.is_exposed)


def device_of(cell: Cell) -> DeviceModel:
    """The table of an A100 for the cell's model and microbatch: predicted from counted operations."""
    return named_device(f"a100-{cell.size}", microbatch_size=cell.sequences_per_microbatch)


def job_of(cell: Cell) -> JobModel:
    """The job as forecasts take it."""
    device = device_of(cell)
    data_parallel, pipeline = SHAPES[cell.shape]
    cluster = Cluster(
        nodes=NODES,
        gpus_per_node=NUM_RANKS // NODES,
        data_parallel=data_parallel,
        pipeline=pipeline,
        num_layers=device.config.num_layers,
        num_microbatches=data_parallel * cell.num_microbatches,
    )
    job = JobModel(cluster, device.costs, tokens_per_step=cell.of_size.sequences * SEQUENCE_LENGTH)
    if not cell.is_exposed:
        return job
    return replace(job, link=device.links.between_nodes, activation_bytes=device.message_bytes)


def cells() -> tuple[Cell, ...]:
    """All of them, in the order in which they are told: `high` under every execution model, the others under one."""
    few, many = MICROBATCHES
    hidden, exposed = (many, False), (many, True)
    return tuple(
        Cell(size, process, shape, number, method, is_exposed)
        for size in ("7b", "1b", "350m")
        for process in ("high", "mid", "low")
        for shape in SHAPES
        for number, is_exposed in (((few, False), (few, True), hidden, exposed) if process == "high" else (hidden,))
        for method in METHODS
    )
