"""Parameters of faults that carry a unit: durations in seconds, sizes in bytes, and rates in bits per second."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from chaos.errors import UsageError, nearest, shown
from chaos.language.sizes import QUANTITY, bytes_text, parse_bytes
from chaos.language.trigger import Duration
from chaos.language.validation_errors import said

# As `tc` writes them, in lower case.
_BITS_PER_UNIT = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def parse_seconds(value: object) -> float:
    """Seconds of `30s`, `1500ms`, `2min` or `1h`.

    Raises:
        UsageError: it is none of these, or not more than 0.
    """
    seconds = parse_seconds_from_zero(value)
    if seconds <= 0:
        raise UsageError(f"{shown(value)} is no time to do anything: write more than 0s")
    return seconds


def parse_seconds_from_zero(value: object) -> float:
    """As `parse_seconds`, but 0 s is allowed.

    Raises:
        UsageError: it is no time.
    """
    duration = Duration.parse(value, in_steps=False)
    if duration.seconds is None:
        raise UsageError(f"{duration} is no time: write it in seconds, such as 10s")
    return duration.seconds


def parse_rate(value: object) -> int:
    """Bits per second of `20mbit`, `1gbit`, `500kbit` or `9600bit`.

    Raises:
        UsageError: it is none of these, or not at least 1 bit per second.
    """
    match = QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not match[2]:
        raise UsageError(f"{shown(value)} is not a rate: write 20mbit, 1gbit, 500kbit or 9600bit")
    number, unit = match.groups()
    if unit not in _BITS_PER_UNIT:
        units = tuple(_BITS_PER_UNIT)
        raise UsageError(f"{unit!r} is no unit: use one of {', '.join(units)}", suggestion=nearest(unit, units))
    bits_per_second = int(float(number) * _BITS_PER_UNIT[unit])
    if bits_per_second < 1:
        raise UsageError(f"{shown(value)} carries nothing: use drop-link for that")
    return bits_per_second


def rate_text(bits_per_second: int) -> str:
    """A rate as `parse_rate` reads it, exactly: in the largest unit of which it is a whole number."""
    for unit, factor in reversed(_BITS_PER_UNIT.items()):
        if bits_per_second % factor == 0:
            return f"{bits_per_second // factor}{unit}"
    raise AssertionError("every rate is a number of bits")


def _seconds_text(seconds: float) -> str:
    return str(Duration(seconds=seconds))


SecondsText = Annotated[
    float,
    PlainValidator(said(parse_seconds)),
    PlainSerializer(_seconds_text, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["10s", "500ms"]}),
]
BytesText = Annotated[
    int,
    PlainValidator(said(parse_bytes)),
    PlainSerializer(bytes_text, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["512MiB", "1GiB"]}),
]
SecondsFromZeroText = Annotated[
    float,
    PlainValidator(said(parse_seconds_from_zero)),
    PlainSerializer(_seconds_text, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["50ms", "0s"]}),
]
RateText = Annotated[
    int,
    PlainValidator(said(parse_rate)),
    PlainSerializer(rate_text, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["20mbit", "1gbit"]}),
]
