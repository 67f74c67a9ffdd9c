"""How good technique III's bases are and what they cost, against a full singular value decomposition."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._spread import Spread, spread, table
from mecefo_runtime.job.config import PRESETS, ApproximationConfig, ModelConfig
from mecefo_runtime.model.data import Corpus, read_corpus
from mecefo_runtime.model.low_rank import (
    FIRST_ITERATIONS,
    WARM_ITERATIONS,
    Bases,
    compute_bases,
    leading_right_singular_vectors,
)
from mecefo_runtime.model.model import Block, Embedding, Head, build_unit

MODEL = PRESETS["llama-tiny"]
NUM_SEQUENCES, SEQUENCE_LENGTH, LEARNING_RATE = 8, 64, 3e-3
# The singular values of the weights whose bases are timed: i ** -DECAY.
DECAY = 0.5
WAYS = ("first", "stale", "warm", "svd")


@dataclass(frozen=True, slots=True)
class Quality:
    """One weight's basis, `way` being how it was found: see `measure_quality`.

    `energy_ratio` is the energy of the weight that it captures, relative to the best of its size. `error_ratio` is
    |P(G) - G| / |G| for the gradient G of one batch.
    """

    weight: str
    way: str
    rank: int
    energy_ratio: float
    error_ratio: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds for one weight of `num_rows` x `num_columns`: a full SVD, a first basis and a refresh of it."""

    num_rows: int
    num_columns: int
    rank: int
    svd_seconds: Spread
    first_seconds: Spread
    warm_seconds: Spread
    first_energy_ratio: float


class _Llama(nn.Module):
    """The whole model, as the units that a job spreads over its ranks."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.embedding = build_unit("embedding", model, 0)
        self.blocks = nn.ModuleList(build_unit(f"layer.{i}", model, 0) for i in range(model.num_layers))
        self.head = build_unit("head", model, 0)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy per token, in nats."""
        assert isinstance(self.embedding, Embedding) and isinstance(self.head, Head)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head.loss(x, targets) / tokens.numel()


def measure_quality(ranks: Sequence[int], num_steps: int) -> tuple[list[Quality], float]:
    """Train a llama-tiny for 2 * `num_steps` steps on real text; returns the bases' quality, and the last loss.

    Half-way a first basis is computed from a random start. Of the weights at the end these are compared: that one as
    it is (stale), refreshed (warm), a first one computed then (first), and the best one (svd).
    """
    corpus = Corpus(read_corpus(None, sequence_length=SEQUENCE_LENGTH), SEQUENCE_LENGTH, seed=0)
    model = _Llama(MODEL)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.1)

    def step(number: int) -> float:
        optimizer.zero_grad()
        loss = model.loss(*corpus.batch(range(number * NUM_SEQUENCES, (number + 1) * NUM_SEQUENCES)))
        torch.autograd.backward(loss)
        return loss.item()

    configs = [
        ApproximationConfig(rank, num_steps, down_projection=side) for rank in ranks for side in ("left", "right")
    ]
    stale: dict[tuple[int, ApproximationConfig], Bases] = {}
    for number in range(2 * num_steps):
        if number == num_steps:
            stale = {
                (i, config): compute_bases(block, config, 0)
                for i, block in enumerate(model.blocks)
                for config in configs
            }
        step(number)
        optimizer.step()
    last_loss = step(2 * num_steps)
    found = []
    for (i, config), old in stale.items():
        block = model.blocks[i]
        assert isinstance(block, Block)
        ways = {
            "first": compute_bases(block, config, 0),
            "stale": old,
            "warm": compute_bases(block, config, 0, old),
        }
        found += _judge(block, config, ways)
    return found, last_loss


def _judge(block: Block, config: ApproximationConfig, ways: Mapping[str, Bases]) -> list[Quality]:
    """The quality of a block's bases, and of the best ones of their rank."""
    is_left = config.down_projection == "left"
    found = []
    for name in ("gate", "up", "down"):
        if name != "down" and not is_left:
            continue  # the same as with "left"
        parameter: nn.Parameter = getattr(block.ffn, name).weight
        assert parameter.grad is not None
        weight, gradient = parameter.detach(), parameter.grad
        if name == "down" and is_left:
            # A left projection is a right one of the transposed weight and gradient.
            weight, gradient = weight.T, gradient.T
        svd = torch.linalg.svd(weight, full_matrices=False)
        best = svd.S[: config.rank].square().sum().item()
        bases = {way: getattr(bases, name) for way, bases in ways.items()} | {"svd": svd.Vh[: config.rank].T}
        for way, basis in bases.items():
            energy = (weight @ basis).square().sum().item()
            cut_off = gradient - gradient @ basis @ basis.T
            error = (cut_off.norm() / gradient.norm()).item()
            label = f"down, {config.down_projection}" if name == "down" else name
            found.append(Quality(label, way, config.rank, energy / best, error))
    return found


def draw_decaying(num_rows: int, num_columns: int) -> Tensor:
    """A weight with singular values i ** -DECAY and random singular vectors, scaled to entries of about 0.02."""
    size = min(num_rows, num_columns)
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.linalg.qr(torch.randn(length, size, generator=generator)).Q for length in (num_rows, num_columns)
    )
    weight: Tensor = left * torch.arange(1, size + 1).pow(-DECAY) @ right.T
    return weight.mul_(0.02 / weight.square().mean().sqrt())


def measure_cost(num_rows: int, num_columns: int, rank: int, num_rounds: int) -> Cost:
    """Time the three ways in turn, in CPU time of this process; the first round is thrown away."""
    weight = draw_decaying(num_rows, num_columns)
    start = torch.randn(num_columns, rank, generator=torch.Generator().manual_seed(1))
    warm_basis = leading_right_singular_vectors(weight, start, FIRST_ITERATIONS)
    ways: dict[str, Callable[[], Any]] = {
        "svd": lambda: torch.linalg.svd(weight, full_matrices=False),
        "first": lambda: leading_right_singular_vectors(weight, start, FIRST_ITERATIONS),
        "warm": lambda: leading_right_singular_vectors(weight, warm_basis, WARM_ITERATIONS),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(num_rounds + 1):
        for way, run in ways.items():
            began = time.process_time()
            run()
            seconds[way].append(time.process_time() - began)
    best = torch.linalg.svdvals(weight)[:rank].square().sum().item()
    energy = (weight @ warm_basis).square().sum().item()
    svd_seconds, first_seconds, warm_seconds = (spread(seconds[way][1:]) for way in ways)
    return Cost(num_rows, num_columns, rank, svd_seconds, first_seconds, warm_seconds, energy / best)


def report_quality(qualities: Sequence[Quality]) -> str:
    """A row for each weight and rank: energy and gradient error of each way, the median over the layers."""
    rows = []
    for rank, weight in sorted({(q.rank, q.weight) for q in qualities}):
        own = [q for q in qualities if (q.rank, q.weight) == (rank, weight)]
        energies = [median(q.energy_ratio for q in own if q.way == way) for way in WAYS]
        errors = [median(q.error_ratio for q in own if q.way == way) for way in WAYS]
        rows.append((f"r = {rank}, {weight}", *(f"{value:.3f}" for value in (*energies, *errors))))
    header = ("median over the layers", *(f"energy {w}" for w in WAYS), *(f"error {w}" for w in WAYS))
    return table(header, rows)


def report_cost(costs: Sequence[Cost]) -> str:
    """A row for each weight and way, in milliseconds, and what a full SVD takes over it."""
    rows = []
    for cost in costs:
        name = f"{cost.num_rows} x {cost.num_columns}, r = {cost.rank}"
        for way, seconds in (("svd", cost.svd_seconds), ("first", cost.first_seconds), ("warm", cost.warm_seconds)):
            cells = seconds.to_text(lambda value: f"{value * 1000:.1f}")
            energy = "1.000" if way == "svd" else f"{cost.first_energy_ratio:.3f}" if way == "first" else "-"
            rows.append((f"{name}, {way}", *cells, f"{cost.svd_seconds.median / seconds.median:.0f}x", energy))
    return table(("CPU ms", "median", "min", "max", "n", "cheaper than svd", "energy"), rows)
