"""The machine that a benchmark ran on, and what else it was doing: figures without it cannot be compared."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

LOAD_WINDOW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """`num_cores_used` of `num_cores` were used; before the start, others used `load_before_cores` of them all."""

    num_cores: int
    num_cores_used: int
    cpu_model: str
    python: str
    torch: str
    load_before_cores: float

    def __str__(self) -> str:
        used = "" if self.num_cores_used == self.num_cores else f", {self.num_cores_used} of them used"
        return (
            f"{self.num_cores} cores{used} ({self.cpu_model}), Python {self.python}, torch {self.torch}; "
            f"before the start others used {self.load_before_cores:.2f} cores"
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def describe_machine() -> Machine:
    """Look at the machine; takes `LOAD_WINDOW_SECONDS`, in which this process does nothing."""
    num_cores = os.cpu_count() or 1
    return Machine(
        num_cores=num_cores,
        num_cores_used=len(os.sched_getaffinity(0)),
        cpu_model=read_cpu_model(Path("/proc/cpuinfo")),
        python=platform.python_version(),
        torch=version("torch"),
        load_before_cores=round(psutil.cpu_percent(LOAD_WINDOW_SECONDS) / 100 * num_cores, 3),
    )


def read_cpu_model(cpuinfo: Path) -> str:
    """The first processor's model; its architecture where the kernel does not name one (as on ARM)."""
    try:
        lines = cpuinfo.read_text().splitlines()
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


@contextmanager
def stolen_share() -> Iterator[list[float]]:
    """Fills the yielded list, on leaving, with the share of all CPU time that the hypervisor gave to other guests."""
    before = psutil.cpu_times()
    share: list[float] = []
    try:
        yield share
    finally:
        after = psutil.cpu_times()
        passed = sum(after) - sum(before)
        share.append(round((after.steal - before.steal) / passed, 6) if passed > 0 else 0.0)
