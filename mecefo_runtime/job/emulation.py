"""The device that a job's ranks emulate: a table gives its times, a small model does the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from mecefo_runtime.job.setting import REQUIRED, Option, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """The device model of a job, by name, and what of it the job's own figures do not say.

    A second of the device lasts `time_scale` seconds; the job's ratings and links are scaled by it already. Samples
    are the device's, of `sequence_length` tokens there, of which the arithmetic does few; what a stage hands on of a
    microbatch has `message_bytes` there. `is_scale_chosen`: the time scale is a default, not the user's.
    """

    device_model: str = setting(
        REQUIRED,
        "device to emulate: the name of a known one, or a file by `chaos calibrate`",
        option=Option(
            "--device-model",
            "FILE|NAME",
            help="Emulate a device: a table gives the times, a small model does the arithmetic. {words}, or a file by "
            "`chaos calibrate`.",
        ),
    )
    provenance: str
    device: str
    model: str
    sequence_length: int
    message_bytes: int
    time_scale: float = setting(
        REQUIRED,
        "real seconds per emulated second; `auto`: the smallest that the cores can sustain",
        option=Option(
            "--time-scale",
            "auto|X",
            help="With a device model: real seconds per emulated second. Default: auto, the smallest that the cores "
            "can sustain.",
        ),
    )
    is_scale_chosen: bool = False
