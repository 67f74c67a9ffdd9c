"""The traits of the job that a log is of."""

from __future__ import annotations

from mecefo_runtime.job.traits import OF_RUNTIME, JobTraits, traits_of
from mecefo_runtime.system.job_records import JobStarted


def read_traits(started: JobStarted | None) -> JobTraits:
    """By the beginning of the job; before it, those of the built-in runtime."""
    return OF_RUNTIME if started is None else traits_of(started.runtime, started.traits)
