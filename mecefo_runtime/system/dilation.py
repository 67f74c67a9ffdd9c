"""Time dilation: every rank behaves like a device of its own, though many share a few cores.

Thread CPU time of a piece of work stays nearly the same under contention while its wall time does not, so every
compute segment is padded by sleep to `ratio x` the CPU time that it really took. With a ratio above ranks per core,
what the wall clock then measures is the method (bubbles, load, degraded layers), not the scheduler.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Below one a segment cannot be padded; above it, every rank owns 1 / ratio of a core.
NO_DILATION = 1.0
# Share of the cores that dilated ranks ask for together at most. The rest is for communication threads and the
# conductor.
MAX_UTILISATION = 0.7
# Ranks sleep most of the time and must run at once when they wake up: with slices this short the scheduler sees to it.
SLICE_SECONDS = 0.0002


def automatic_ratio(num_ranks: int, num_cores: int) -> float:
    """The ratio at which `num_ranks` ranks that compute all at once leave the machine to others.

    They leave a whole core, where there are two or more, and at least `1 - MAX_UTILISATION` of all cores.
    """
    asked_cores = min(MAX_UTILISATION * num_cores, max(num_cores - 1.0, num_cores / 2))
    return max(NO_DILATION, round(num_ranks / asked_cores, 2))


class Pacer:
    """Pads compute segments; use as `with pacer: forward()`. Not re-entrant, one per training thread.

    It keeps account: `compute_seconds` is the CPU time of all segments, `wall_seconds` what they took with their
    padding. Where that is much more than `ratio * compute_seconds`, the machine was too busy for the dilation to hide
    it.

    `slow_factor` makes the device so many times slower than the others; what that adds is not in `wall_seconds`.
    """

    def __init__(self, ratio: float) -> None:
        if ratio < NO_DILATION:
            raise ValueError(f"dilation must be at least 1, not {ratio}")
        self.ratio = ratio
        self.slow_factor = 1.0
        self.compute_seconds = 0.0
        self.wall_seconds = 0.0
        self._began_wall = 0.0
        self._began_cpu = 0.0

    def __enter__(self) -> None:
        self._began_wall = time.monotonic()
        self._began_cpu = time.thread_time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        cpu_seconds = time.thread_time() - self._began_cpu
        self.compute_seconds += cpu_seconds
        ratio = self.ratio * self.slow_factor
        if ratio > NO_DILATION:
            remaining = self._began_wall + ratio * cpu_seconds - time.monotonic()
            if remaining > 0:
                time.sleep(remaining)
        added_seconds = (ratio - self.ratio) * cpu_seconds
        self.wall_seconds += time.monotonic() - self._began_wall - added_seconds

    def settle(self) -> None:
        """Bring the account up to date, however long that takes."""


class DevicePacer(Pacer):
    """The account of a GPU's compute segments, which are not padded: the GPU is the rank's own, or it is shared.

    By events of the CUDA stream, looked at when they are over: nothing waits for the GPU but `settle`. Both sums are
    the GPU's seconds.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(NO_DILATION)
        self._device = device
        self._segments: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def __enter__(self) -> None:
        self._segments.append((self._event(), self._event()))
        self._segments[-1][0].record(self._stream())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._segments[-1][1].record(self._stream())
        while self._segments and self._segments[0][1].query():  # type: ignore[no-untyped-call]
            self._add(*self._segments.popleft())

    def settle(self) -> None:
        """Wait for the GPU, and count what it has done."""
        while self._segments:
            begin, end = self._segments.popleft()
            end.synchronize()
            self._add(begin, end)

    def _add(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> None:
        seconds = begin.elapsed_time(end) / 1000
        self.compute_seconds += seconds
        self.wall_seconds += seconds

    def _event(self) -> torch.cuda.Event:
        import torch

        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def _stream(self) -> torch.cuda.Stream:
        import torch

        return torch.cuda.current_stream(self._device)


def pacer_for(device: torch.device, ratio: float) -> Pacer:
    """The pacer of a rank that computes on `device`; `ratio` counts on a CPU only."""
    return Pacer(ratio) if device.type == "cpu" else DevicePacer(device)
