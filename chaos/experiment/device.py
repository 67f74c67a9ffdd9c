"""The device that a job's ranks emulate, and its links, as a user names them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from chaos.errors import UsageError, nearest, shown
from chaos.language.sizes import parse_bytes
from chaos.language.validation_errors import said
from chaos.user_files import read_input
from mecefo_runtime.job.link import Link, Links
from mecefo_runtime.prediction.device_model import DeviceModel, DeviceModelError, parse_device_model
from mecefo_runtime.prediction.named_devices import NAMES, named_device

# A table has a few kilobytes.
_MAX_FILE_BYTES = 2**20
_MAX_TEXT = 200
_LATENCY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ns|us|ms|s)")
_NANOSECONDS_PER_UNIT = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_MIN_TIME_SCALE, _MAX_TIME_SCALE = 0.001, 1000.0
_LINK_KEYS = ("bandwidth", "latency")


def read_device(
    name: str,
    *,
    sequence_length: int | None = None,
    microbatch_size: int | None = None,
    approximation_rank: int | None = None,
) -> DeviceModel:
    """The device of a known name, for a microbatch of another shape where one is given; or the one in a file.

    Raises:
        UsageError: there is no such device, or the file holds none.
    """
    if name in NAMES:
        return named_device(
            name,
            sequence_length=sequence_length,
            microbatch_size=microbatch_size,
            approximation_rank=approximation_rank,
        )
    if "/" not in name and not name.endswith(".json"):
        message = f"there is no device {shown(name)}: there are {', '.join(NAMES)}; or write the path of a .json file"
        raise UsageError(message, suggestion=nearest(name, NAMES))
    try:
        content = read_input(Path(name).expanduser(), _MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise UsageError(f"{name} is no device model: it is larger than any")
        return parse_device_model(content.decode())
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from None
    except RuntimeError:
        raise UsageError(f"{name} names the home of a user that this machine does not know") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is no device model: it is no text") from None
    except DeviceModelError as error:
        raise UsageError(f"{name} is no device model: {error}") from None


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """What a user says of the links of a job's ranks."""

    bandwidth_bytes_per_second: int
    latency_nanoseconds: int = 0

    def __str__(self) -> str:
        latency = f",latency={_latency_text(self.latency_nanoseconds)}" if self.latency_nanoseconds else ""
        return f"bandwidth={_bandwidth_text(self.bandwidth_bytes_per_second)}{latency}"

    def links(self) -> Links:
        """The same for all pairs of ranks."""
        return Links(Link(float(self.bandwidth_bytes_per_second), self.latency_nanoseconds / 1e9))

    @classmethod
    def parse(cls, value: object) -> LinkSpec:
        """Read `bandwidth=25GB/s,latency=20us`, or a mapping of the same.

        Raises:
            UsageError: it is none of these; `key` is the part that is wrong, where it is one part.
        """
        if isinstance(value, LinkSpec):
            return value
        if isinstance(value, str):
            parts = [part.partition("=") for part in value[:_MAX_TEXT].split(",")]
            if not all(equals for _, equals, _ in parts):
                raise UsageError(f"{shown(value)} is no link: write bandwidth=25GB/s,latency=20us")
            value = {key.strip(): text.strip() for key, _, text in parts}
        if not isinstance(value, Mapping):
            raise UsageError(f"{shown(value)} is no link: write bandwidth=25GB/s,latency=20us")
        for key in value:
            if key not in _LINK_KEYS:
                suggestion = nearest(str(key), _LINK_KEYS)
                message = f"a link has no {shown(key)}: it has {' and '.join(_LINK_KEYS)}"
                raise UsageError(message, suggestion=suggestion)
        if "bandwidth" not in value:
            raise UsageError("a link has a bandwidth: write bandwidth=25GB/s", key="bandwidth")
        return cls(_bandwidth(value["bandwidth"]), _latency(value.get("latency", "0s")))


def _bandwidth(value: object) -> int:
    size, slash, per = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not slash or per.strip() != "s":
        raise UsageError(f"{shown(value)} is no bandwidth: write 25GB/s or 100MiB/s", key="bandwidth")
    try:
        return parse_bytes(size.strip())
    except UsageError as error:
        raise UsageError(f"{error.message} for each second", key="bandwidth", suggestion=error.suggestion) from None


def _latency(value: object) -> int:
    match = _LATENCY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UsageError(f"{shown(value)} is no latency: write 20us, 1.5ms or 0s", key="latency")
    return round(float(match[1]) * _NANOSECONDS_PER_UNIT[match[2]])


def _bandwidth_text(bytes_per_second: int) -> str:
    units = {"GB": 10**9, "MB": 10**6, "kB": 10**3}
    unit = next((unit for unit, size in units.items() if bytes_per_second % size == 0), "B")
    return f"{bytes_per_second // units.get(unit, 1)}{unit}/s"


def _latency_text(nanoseconds: int) -> str:
    unit = next(u for u, size in reversed(_NANOSECONDS_PER_UNIT.items()) if nanoseconds % size == 0)
    return f"{nanoseconds // _NANOSECONDS_PER_UNIT[unit]}{unit}"


def _device_name(value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > _MAX_TEXT:
        raise UsageError(f"{shown(value)} is no device: write one of {', '.join(NAMES)}, or the path of a .json file")
    read_device(value)
    return value


def _time_scale(value: object) -> str | float:
    if value == "auto":
        return "auto"
    try:
        scale = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        scale = math.nan
    if not _MIN_TIME_SCALE <= scale <= _MAX_TIME_SCALE:
        message = f"must be auto, or seconds for each of the device's, from {_MIN_TIME_SCALE:g} to {_MAX_TIME_SCALE:g}"
        raise UsageError(f"{message}, not {shown(value)}")
    return scale


DeviceModelText = Annotated[
    str, PlainValidator(said(_device_name)), WithJsonSchema({"type": "string", "examples": [*NAMES, "device.json"]})
]
TimeScaleText = Annotated[
    str | float,
    PlainValidator(said(_time_scale)),
    WithJsonSchema(
        {"anyOf": [{"enum": ["auto"]}, {"type": "number", "minimum": _MIN_TIME_SCALE, "maximum": _MAX_TIME_SCALE}]}
    ),
]
LinkText = Annotated[
    LinkSpec,
    PlainValidator(said(LinkSpec.parse)),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "examples": ["bandwidth=25GB/s,latency=20us"]},
                {
                    "type": "object",
                    "properties": {
                        "bandwidth": {"type": "string", "examples": ["25GB/s"]},
                        "latency": {"type": "string", "examples": ["20us"]},
                    },
                    "required": ["bandwidth"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
