"""What does a degraded block save, in time and memory? `python -m benchmarks.approximation [--json] [--quick]`.

One transformer block, forward and backward: normal, degraded, and degraded with recomputation of gate and up or, as in
the paper, of all of the feed-forward half, in turn in one process. A neighbour that does both runs two such blocks for
each normal one.

The measured ratio to the normal block should be at most 1.1 times the one counted in floating-point operations. On the
CPU in fp32, in CPU time of one thread (what others do on the machine changes it least); with CUDA in bf16 too, by the
device's clock; `--device`, `--shapes` and `--precision` ask for others. Then technique III's bases, on the CPU: how
good they are after a short training, and what they cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, get_args

import click
import torch
from torch import Tensor, nn

from benchmarks._machine import Machine, describe_machine
from benchmarks._operations import count_block
from benchmarks._runs import finish, progress
from benchmarks._spread import Spread, spread, table
from benchmarks._subspaces import DECAY, Cost, Quality, measure_cost, measure_quality, report_cost, report_quality
from mecefo_runtime.job.config import PRESETS, ApproximationConfig
from mecefo_runtime.model.approximate import Recompute, degrade
from mecefo_runtime.model.model import build_unit
from mecefo_runtime.system.devices import DeviceChoice, DeviceError, require_device

MAX_EXCESS_RATIO = 1.1
EXIT_NO_DEVICE = 3
SEQUENCE_LENGTH = 256
# How much each degraded way computes again.
RECOMPUTE: Mapping[str, Recompute] = {
    "degraded": False,
    "degraded, recomputed": True,
    "degraded, all recomputed": "full",
}
WAYS = ("normal", *RECOMPUTE)
RANKS = (64, 16)
QUALITY_RANKS = (16, 8)
NUM_WARMUP_ROUNDS = 2
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
# How many sequences a block gets: enough to keep the device busy, for not too long.
NUM_SEQUENCES = {
    "cpu": {"60m": 4, "130m": 4, "350m": 2, "1b": 1, "7b": 1},
    "cuda": {"60m": 64, "130m": 64, "350m": 64, "1b": 32, "7b": 16},
}
DEFAULT_PRESETS = {"cpu": ("60m", "350m"), "cuda": ("350m", "1b", "7b")}
DEFAULT_PRECISION = {"cpu": "fp32", "cuda": "bf16"}


@dataclass(frozen=True, slots=True)
class Shape:
    """One block of a preset and its input."""

    preset: str
    num_sequences: int
    device: str
    dtype: str
    rank: int

    def __str__(self) -> str:
        hidden = PRESETS[self.preset].hidden_size
        tokens = f"{self.num_sequences} x {SEQUENCE_LENGTH} tokens"
        return f"{self.device} {self.dtype}, {self.preset} (h = {hidden}), {tokens}, r = {self.rank}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one way of running a block took, by round, and what autograd stored for it besides the parameters."""

    shape: Shape
    way: str
    forward_seconds: Spread
    backward_seconds: Spread
    saved_bytes: int

    @property
    def seconds(self) -> Spread:
        """Forward and backward together, of each round."""
        return spread(map(sum, zip(self.forward_seconds.values, self.backward_seconds.values, strict=True)))


@dataclass(frozen=True, slots=True)
class Ratio:
    """A degraded block's time over the normal one's: measured in each round, and counted in operations."""

    shape: Shape
    way: str
    measured: Spread
    counted: float

    @property
    def excess(self) -> float:
        """The measured ratio over the counted one."""
        return self.measured.median / self.counted

    @property
    def is_met(self) -> bool:
        """Whether the aim is."""
        return self.excess <= MAX_EXCESS_RATIO


def shapes(devices: Sequence[str], presets: Sequence[str] | None = None, precision: str | None = None) -> list[Shape]:
    """What is measured on `devices` (`cpu`, `cuda`); None stands for what is usual on each of them."""
    return [
        Shape(preset, NUM_SEQUENCES[device][preset], device, DTYPES[precision or DEFAULT_PRECISION[device]], rank)
        for device in devices
        for preset in presets or DEFAULT_PRESETS[device]
        for rank in RANKS
    ]


def read_presets(text: str) -> tuple[str, ...]:
    """The presets that `text` names, separated by commas, in any case.

    Raises:
        click.BadParameter: there is no such preset.
    """
    found = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
    unknown = [name for name in found if name not in NUM_SEQUENCES["cpu"]]
    if unknown:
        raise click.BadParameter(f"there is no {unknown[0]!r}: there are {', '.join(NUM_SEQUENCES['cpu'])}")
    return found


def ways_in_turn(round_number: int) -> tuple[str, ...]:
    """Every other round backwards, so that a drift of the machine favours no way."""
    return WAYS if round_number % 2 == 0 else WAYS[::-1]


def build(shape: Shape, way: str) -> nn.Module:
    """The block, run in that way; the weights are the same in all ways."""
    block = build_unit("layer.0", PRESETS[shape.preset], 0, device=shape.device, dtype=getattr(torch, shape.dtype))
    if way != "normal":
        degrade(block, ApproximationConfig(shape.rank), recompute=RECOMPUTE[way])
    return block


def count_saved_bytes(block: nn.Module, x: Tensor) -> int:
    """What autograd stores for one forward pass: each storage once, parameters apart."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    stored: dict[int, Tensor] = {}  # the tensors, or a storage that is freed could lend its address to the next

    def pack(tensor: Tensor) -> Tensor:
        stored[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = block(x)
    assert output.requires_grad
    return sum(tensor.untyped_storage().nbytes() for address, tensor in stored.items() if address not in parameters)


def run_timed(device: str, parts: Sequence[Callable[[], object]]) -> list[float]:
    """Seconds of each part, run one after the other: CPU time of this process, or by the events of the CUDA stream."""
    if device == "cpu":
        times = [time.process_time()]
        for part in parts:
            part()
            times.append(time.process_time())
        return [end - begin for begin, end in pairwise(times)]
    events = [
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(len(parts) + 1)
    ]
    torch.cuda.synchronize()
    events[0].record()
    for part, event in zip(parts, events[1:], strict=True):
        part()
        event.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1000 for begin, end in pairwise(events)]


def measure(shape: Shape, num_rounds: int) -> list[Measurement]:
    """Run the ways in turn, `num_rounds` times after the warm-up."""
    generator = torch.Generator().manual_seed(0)
    size = (shape.num_sequences, SEQUENCE_LENGTH, PRESETS[shape.preset].hidden_size)
    x, grad = (torch.randn(size, generator=generator).to(shape.device, getattr(torch, shape.dtype)) for _ in range(2))
    x.requires_grad_()
    blocks = {way: build(shape, way) for way in WAYS}
    forward: dict[str, list[float]] = {way: [] for way in WAYS}
    backward: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(NUM_WARMUP_ROUNDS + num_rounds):
        for way in ways_in_turn(number):
            block = blocks[way]
            block.zero_grad(set_to_none=True)
            x.grad = None
            outputs: list[Tensor] = []
            seconds = run_timed(
                shape.device,
                # The default arguments bind what the loop variables are now.
                [
                    lambda block=block, outputs=outputs: outputs.append(block(x)),  # type: ignore[misc]
                    lambda outputs=outputs: outputs.pop().backward(grad),  # type: ignore[misc]
                ],
            )
            if number >= NUM_WARMUP_ROUNDS:
                forward[way].append(seconds[0])
                backward[way].append(seconds[1])
    return [
        Measurement(shape, way, spread(forward[way]), spread(backward[way]), count_saved_bytes(blocks[way], x))
        for way in WAYS
    ]


def ratios(measurements: Sequence[Measurement]) -> list[Ratio]:
    """Every degraded way beside the normal one of the same shape, round by round."""
    normal = {m.shape: m for m in measurements if m.way == "normal"}
    found = []
    for m in measurements:
        if m.way == "normal":
            continue
        model, shape = PRESETS[m.shape.preset], m.shape
        pairs = zip(m.seconds.values, normal[shape].seconds.values, strict=True)
        counted = count_block(model, shape.num_sequences, SEQUENCE_LENGTH, rank=shape.rank, recompute=RECOMPUTE[m.way])
        whole = count_block(model, shape.num_sequences, SEQUENCE_LENGTH)
        found.append(Ratio(shape, m.way, spread(mine / other for mine, other in pairs), counted / whole))
    return found


def gpu_of(measurements: Sequence[Measurement]) -> str | None:
    """The model of the GPU that some of them were made on; None: all were made on the CPU."""
    return torch.cuda.get_device_name() if any(m.shape.device == "cuda" for m in measurements) else None


def report(
    measurements: Sequence[Measurement],
    qualities: Sequence[Quality],
    last_loss: float,
    costs: Sequence[Cost],
    machine: Machine,
) -> str:
    """The result as text."""

    def milliseconds(seconds: float) -> str:
        return f"{seconds * 1000:.1f}"

    lines = [f"machine: {machine}"]
    if (gpu := gpu_of(measurements)) is not None:
        lines.append(f"device: {gpu}")
    for shape in dict.fromkeys(m.shape for m in measurements):
        rows = [
            (
                m.way,
                *m.seconds.to_text(milliseconds),
                milliseconds(m.forward_seconds.median),
                milliseconds(m.backward_seconds.median),
                f"{m.saved_bytes / 2**20:.2f}",
            )
            for m in measurements
            if m.shape == shape
        ]
        lines += ["", str(shape), table(("ms", "median", "min", "max", "n", "forward", "backward", "saved MiB"), rows)]
    ratio_rows = [
        (
            f"{ratio.shape}: {ratio.way}",
            *ratio.measured.to_text(lambda value: f"{value:.3f}"),
            f"{ratio.counted:.3f}",
            f"{2 * ratio.measured.median:.2f}",
            f"{ratio.excess:.3f}",
            "met" if ratio.is_met else "NOT met",
        )
        for ratio in ratios(measurements)
    ]
    columns = ("over normal", "median", "min", "max", "n", "counted", "two of them", "measured/counted")
    lines += ["", table((*columns, f"<= {MAX_EXCESS_RATIO}"), ratio_rows)]
    lines += [
        "",
        f"bases after training llama-tiny to a loss of {last_loss:.2f}: energy over the best, error |P(G) - G| / |G|",
        report_quality(qualities),
    ]
    lines += ["", f"a basis of weights with singular values i ** -{DECAY}", report_cost(costs)]
    return "\n".join(lines)


def to_document(
    measurements: Sequence[Measurement],
    qualities: Sequence[Quality],
    last_loss: float,
    costs: Sequence[Cost],
    machine: Machine,
) -> dict[str, Any]:
    """The result as plain JSON values."""
    return {
        "benchmark": "approximation",
        "machine": machine.to_dict(),
        "gpu": gpu_of(measurements),
        "blocks": [
            {
                **asdict(m.shape),
                "way": m.way,
                "seconds": m.seconds.to_dict(),
                "forward_seconds": m.forward_seconds.to_dict(),
                "backward_seconds": m.backward_seconds.to_dict(),
                "saved_bytes": m.saved_bytes,
            }
            for m in measurements
        ],
        "ratios": [
            {
                **asdict(ratio.shape),
                "way": ratio.way,
                "measured": ratio.measured.to_dict(),
                "counted": ratio.counted,
                "is_met": ratio.is_met,
            }
            for ratio in ratios(measurements)
        ],
        "training_loss": last_loss,
        "quality": [asdict(quality) for quality in qualities],
        "cost": [
            {
                "num_rows": cost.num_rows,
                "num_columns": cost.num_columns,
                "rank": cost.rank,
                "svd_seconds": cost.svd_seconds.to_dict(),
                "first_seconds": cost.first_seconds.to_dict(),
                "warm_seconds": cost.warm_seconds.to_dict(),
                "first_energy_ratio": cost.first_energy_ratio,
            }
            for cost in costs
        ],
    }


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
@click.option("--quick", is_flag=True, help="Just enough rounds to see that it works; the figures mean little.")
@click.option(
    "--device",
    type=click.Choice(get_args(DeviceChoice)),
    default="auto",
    show_default=True,
    help="Where the blocks run; auto: on the CPU, and on a GPU where there is one.",
)
@click.option(
    "--shapes",
    "presets",
    metavar="NAMES",
    callback=lambda context, option, text: None if text is None else read_presets(text),
    help="Presets, such as 350M,1B,7B. Default: 60M and 350M on the CPU, 350M, 1B and 7B on a GPU.",
)
@click.option(
    "--precision",
    type=click.Choice(list(DTYPES)),
    help="Of weights and activations. Default: fp32 on the CPU, bf16 on a GPU.",
)
def main(
    as_json: bool, quick: bool, device: DeviceChoice, presets: tuple[str, ...] | None, precision: str | None
) -> None:
    """Entry point."""
    torch.set_num_threads(1)
    try:
        require_device(device)
    except DeviceError as error:
        click.echo(f"approximation: {error}", err=True)
        raise click.exceptions.Exit(EXIT_NO_DEVICE) from error
    devices = [device] if device != "auto" else ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    measurements = []
    for shape in shapes(devices, presets, precision):
        if quick and shape.preset != (presets or DEFAULT_PRESETS[shape.device])[0]:
            continue
        measurements += measure(shape, 2 if quick else 15)
        progress(f"{shape}: done")
    qualities, last_loss = measure_quality(QUALITY_RANKS, 5 if quick else 50)
    progress("quality of bases: done")
    costs = []
    for preset in ("60m",) if quick else ("60m", "350m"):
        model = PRESETS[preset]
        for rank in RANKS:
            costs.append(measure_cost(model.intermediate_size, model.hidden_size, rank, 1 if quick else 5))
            progress(f"cost of a basis of {preset}, r = {rank}: done")
    results = (measurements, qualities, last_loss, costs, describe_machine())
    # An aim that is not met is a finding, not a failure.
    finish(to_document(*results), report(*results), as_json=as_json, has_failures=False)


if __name__ == "__main__":
    main()
