"""The machine that a benchmark ran on, and what others did on it meanwhile."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil


@dataclass(frozen=True, slots=True)
class Machine:
    """The benchmark was confined to `num_cores_used` of `num_cores`."""

    num_cores: int
    num_cores_used: int
    cpu_model: str
    python: str
    torch: str

    def __str__(self) -> str:
        used = "" if self.num_cores_used == self.num_cores else f", {self.num_cores_used} of them used"
        return f"{self.num_cores} cores{used}, {self.cpu_model}, Python {self.python}, torch {self.torch}"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def describe_machine() -> Machine:
    """Look up the machine, as far as this process may use it."""
    return Machine(
        num_cores=os.cpu_count() or 1,
        num_cores_used=len(os.sched_getaffinity(0)),
        cpu_model=read_cpu_model(Path("/proc/cpuinfo")),
        python=platform.python_version(),
        torch=version("torch"),
    )


def read_cpu_model(cpuinfo: Path) -> str:
    """The first processor's model; its architecture where the kernel does not name one (as on ARM)."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


@contextmanager
def confined_to(num_cores: int) -> Iterator[tuple[int, ...]]:
    """Confine this process, and what it starts, to that many of its cores; yields them, and gives the rest back."""
    allowed = os.sched_getaffinity(0)
    cores = tuple(sorted(allowed)[:num_cores])
    os.sched_setaffinity(0, cores)
    try:
        yield cores
    finally:
        os.sched_setaffinity(0, allowed)


class OtherLoad:
    """Measures, from entering to leaving, how many of `cores` others used: processes not ours, and other guests.

    Ours are this process, which must be confined to `cores`, and all that it started and that has been waited for.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = cores
        self._wall_seconds = self._busy_seconds = self._own_seconds = 0.0
        self.num_cores = 0.0

    def __enter__(self) -> Self:
        self._wall_seconds, self._busy_seconds, self._own_seconds = self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wall_seconds, busy_seconds, own_seconds = self._read()
        others_seconds = (busy_seconds - self._busy_seconds) - (own_seconds - self._own_seconds)
        # A core's time is counted in ticks, a process's exactly: on a quiet machine the difference can fall below 0.
        self.num_cores = round(max(0.0, others_seconds) / (wall_seconds - self._wall_seconds), 3)

    def _read(self) -> tuple[float, float, float]:
        """Seconds so far: (wall, in which `cores` were not idle, that we computed)."""
        per_core = psutil.cpu_times(percpu=True)
        busy_seconds = sum(
            sum(per_core[core][:8]) - per_core[core].idle - per_core[core].iowait for core in self._cores
        )
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.monotonic(), busy_seconds, sum(usage.ru_utime + usage.ru_stime for usage in usages)
