"""A device as a table: what a model's layers cost on it, and what its links carry. Stored as a JSON file."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from mecefo_runtime.job.config import PRESETS, JobConfig, ModelConfig
from mecefo_runtime.job.costs import Costs
from mecefo_runtime.job.emulation import Emulation
from mecefo_runtime.job.link import Links
from mecefo_runtime.prediction.step_time import reducing_over
from mecefo_runtime.system.json_values import FormatError, JsonTypeError, from_json, to_json

FORMAT = "chaos device model 1"


class DeviceModelError(ValueError):
    """The input is not a device model; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """When and with what a table was measured."""

    date: str
    torch: str
    num_ranks: int = 1


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """What one device takes for the layers of the preset `model`, in undilated seconds.

    `predicted` is computed from counted operations and published figures, `basis` says which; `measured` was timed on
    the `device`, and `measurement` says when. Costs are for one microbatch of `microbatch_size` sequences of
    `sequence_length` tokens; degraded layers have low-rank gradients of rank `approximation_rank`.
    `activation_value_bytes` are those of one number of an activation that moves between stages.

    Raises:
        DeviceModelError: there is no such preset, or a figure is impossible.
    """

    STORED_FORMAT: ClassVar[str] = FORMAT

    name: str
    provenance: Literal["measured", "predicted"]
    device: str
    model: str
    sequence_length: int
    microbatch_size: int
    approximation_rank: int
    costs: Costs
    links: Links
    activation_value_bytes: int = 4
    basis: str = ""
    measurement: Measurement | None = None

    def __post_init__(self) -> None:
        if self.model not in PRESETS:
            raise DeviceModelError(f"there is no model {self.model[:40]!r}: there are {', '.join(PRESETS)}")
        for name in ("sequence_length", "microbatch_size", "approximation_rank", "activation_value_bytes"):
            if getattr(self, name) < 1:
                raise DeviceModelError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not (self.name.strip() and self.name.isprintable() and self.device.isprintable()):
            raise DeviceModelError("name and device must be words on one line")

    @property
    def config(self) -> ModelConfig:
        """The shape of the model that the table is for."""
        return PRESETS[self.model]

    @property
    def tokens_per_microbatch(self) -> int:
        """Tokens of one microbatch."""
        return self.sequence_length * self.microbatch_size

    @property
    def message_bytes(self) -> int:
        """What moves from stage to stage for one microbatch: its activations, or their gradients."""
        return self.tokens_per_microbatch * self.config.hidden_size * self.activation_value_bytes

    def to_text(self) -> str:
        """The text of its file."""
        return json.dumps(to_json(self), indent=2) + "\n"


def parse_device_model(text: str) -> DeviceModel:
    """Read what `DeviceModel.to_text` wrote.

    Raises:
        DeviceModelError: it is something else.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        # Of the decoder's own kind, with line and column; or the text nests too deep.
        place = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "too deep"
        raise DeviceModelError(f"it is no JSON ({place})") from None
    if not isinstance(raw, dict):
        raise DeviceModelError("a device model is a JSON object")
    try:
        return from_json(DeviceModel, raw)
    except FormatError as error:
        raise DeviceModelError(f"{error}: `chaos calibrate` writes one") from None
    except JsonTypeError as error:
        raise DeviceModelError(str(error)) from None


# A layer of it takes as long as the interpreter needs for its operations: nothing that is smaller is quicker.
_ARITHMETIC_SIZE = 16
_ARITHMETIC_RANK = 4
_ARITHMETIC_SEQUENCE_LENGTH = 8


def emulating(job: JobConfig, device: DeviceModel) -> JobConfig:
    """`job` on so many of `device`: a small model of as many layers does the arithmetic, the table gives the times.

    Links that the job has are the device's.
    """
    size = _ARITHMETIC_SIZE
    links = device.links if job.links is None else job.links
    memory_bytes = job.rank_memory_bytes or device.costs.memory_bytes
    bytes_per_second = links.between_nodes.bandwidth_bytes_per_second
    # There and back; what a device computes for it is little.
    commit_seconds = max(2 * links.between_nodes.latency_seconds, 1e-9)
    costs = replace(device.costs, transfer_bytes_per_second=bytes_per_second, memory_bytes=memory_bytes)
    # For planners: reductions take their time on the links.
    costs = reducing_over(costs, links.between_nodes, job.data_parallel)
    return replace(
        job,
        model=ModelConfig(size, 2 * size, device.config.num_layers, 1, 1, vocab_size=256),
        sequence_length=_ARITHMETIC_SEQUENCE_LENGTH,
        microbatch_size=device.microbatch_size,
        approximation=replace(job.approximation, rank=_ARITHMETIC_RANK),
        precision="fp32",
        device="cpu",
        dilation_ratio=1.0,
        pacing="rated",
        ratings=replace(costs, commit_seconds=commit_seconds),
        links=links,
        emulation=Emulation(
            device_model=device.name,
            provenance=device.provenance,
            device=device.device,
            model=device.model,
            sequence_length=device.sequence_length,
            message_bytes=device.message_bytes,
            time_scale=1.0,
        ),
    )


def rescaled(job: JobConfig, ratio: float) -> JobConfig:
    """`job`, which emulates a device, with seconds of the device that last `ratio` times as long."""
    emulation, ratings, links = job.emulation, job.ratings, job.links
    assert emulation is not None and ratings is not None and links is not None
    bytes_per_second = ratings.transfer_bytes_per_second / ratio
    return replace(
        job,
        ratings=replace(ratings.scaled(ratio), transfer_bytes_per_second=bytes_per_second),
        links=links.scaled(ratio),
        emulation=replace(emulation, time_scale=emulation.time_scale * ratio),
    )
