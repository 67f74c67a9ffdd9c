"""The device that a job's ranks emulate: a table gives its times, a small model does the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Emulation:
    """The device model of a job, by name, and what of it the job's own figures do not say.

    A second of the device lasts `time_scale` seconds; the job's ratings and links are scaled by it already. Samples
    are the device's, of `sequence_length` tokens there, of which the arithmetic does few; what a stage hands on of a
    microbatch has `message_bytes` there. `is_scale_chosen`: the time scale is a default, not the user's.
    """

    device_model: str
    provenance: str
    device: str
    model: str
    sequence_length: int
    message_bytes: int
    time_scale: float
    is_scale_chosen: bool = False
