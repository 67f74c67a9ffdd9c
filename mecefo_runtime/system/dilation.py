"""Time dilation: every rank behaves like a separate device, though many share a few cores.

A compute segment is done, and then padded by sleep to the time that the device takes for it. That is

- rated: what such a segment costs by ratings that all ranks agreed on at the start, so that one device is as fast as
  the next, in every minute and in every run;
- measured: `ratio x` the thread CPU time that this execution took. It stays nearly the same under contention while
  wall time does not, but it drifts with caches, hyper-threads and other guests of the machine.

With a ratio above ranks per core, what the wall clock then measures is the method (bubbles, load, degraded layers), not
the scheduler.
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
# What a rank is late by, because the scheduler woke it up late or the cores were busy, it makes up for while it pads.
# Where ranks do not tell each other how late they are, no more than that; where they do, as much as the longest segment
# and a commit take, if that is more. What a fault or an overloaded machine takes beyond is to show.
MAX_CARRIED_SECONDS = 0.005


def usable_cores(num_cores: int) -> float:
    """The cores that ranks may use: all but one, where there are two or more, and at most `MAX_UTILISATION` of all."""
    return min(MAX_UTILISATION * num_cores, max(num_cores - 1.0, num_cores / 2))


def automatic_ratio(num_ranks: int, num_cores: int) -> float:
    """The ratio at which `num_ranks` ranks that compute all at once take no more than the usable cores."""
    return max(NO_DILATION, round(num_ranks / usable_cores(num_cores), 2))


class Steady:
    """The recent minimum time of an exchange between ranks: a busy machine delays some of them, a slow link all."""

    def __init__(self, num_recent: int) -> None:
        self._recent: deque[float] = deque(maxlen=num_recent)

    def add(self, seconds: float) -> None:
        """Add one measurement."""
        self._recent.append(seconds)

    @property
    def seconds(self) -> float:
        """The minimum of the last measurements; 0.0 while there are too few."""
        return min(self._recent) if len(self._recent) == self._recent.maxlen else 0.0


class Pacer:
    """Pads compute segments; use as `with pacer.segment(rated_seconds): forward()`. Not re-entrant, one per thread.

    It keeps account of `num_segments`. `compute_seconds` is their CPU time, `wall_seconds` what they took with their
    padding, `slot_seconds` what they were to take: rated, or `ratio` times the CPU time. A segment that takes longer
    than its slot is an overrun: there were `num_overruns` of `overrun_seconds` together, `worst_overrun_seconds` at
    most. Where they are many, the machine was too busy for the dilation to hide it.

    `is_rated` pads to rated times without dilation too: what is rated then is another device. Such ranks tell each
    other what time it is on their devices, `now_seconds`: the clock's, but for what they are late by. So a rank that
    was late makes those late that wait for it by the clock alone; on the device everything begins when it should have.

    `slow_factor` makes the device so many times slower than the others; what that adds is in none of the sums.
    """

    def __init__(self, ratio: float, *, is_rated: bool = False) -> None:
        if ratio < NO_DILATION:
            raise ValueError(f"dilation must be at least 1, not {ratio}")
        self.ratio = ratio
        self.pads = ratio > NO_DILATION or is_rated
        self.slow_factor = 1.0
        self.num_segments = 0
        self.num_overruns = 0
        self.compute_seconds = 0.0
        self.wall_seconds = 0.0
        self.slot_seconds = 0.0
        self.overrun_seconds = 0.0
        self.worst_overrun_seconds = 0.0
        self._keeps_time = is_rated
        self._device_seconds = time.monotonic()
        self._longest_segment_seconds = 0.0
        self._longest_meeting_seconds = 0.0
        self._late_seconds = 0.0
        self._rated_seconds: float | None = None
        self._ready_seconds = 0.0
        self._began_device_seconds = 0.0
        self._began_seconds = 0.0
        self._began_cpu_seconds = 0.0

    @property
    def now_seconds(self) -> float:
        """The monotonic clock's time; on a rated device that of the device, which is late by little."""
        now_seconds = time.monotonic()
        if not self._keeps_time:
            return now_seconds
        carried_seconds = max(MAX_CARRIED_SECONDS, self._longest_segment_seconds + self._longest_meeting_seconds)
        return max(self._device_seconds, now_seconds - carried_seconds)

    def set_now(self, device_seconds: float, rated_seconds: float = 0.0) -> None:
        """Set the device's clock: something that all ranks waited for, rated at `rated_seconds`, has ended."""
        self._device_seconds = device_seconds
        self._longest_meeting_seconds = max(self._longest_meeting_seconds, rated_seconds)

    def segment(self, rated_seconds: float | None, ready_seconds: float = 0.0) -> Pacer:
        """The context of a segment that takes `rated_seconds`; None, or without padding: as long as it takes.

        On a rated device it begins when the last one has ended, and not before what it needs is there, `ready_seconds`.
        """
        self._rated_seconds = rated_seconds if self.pads else None
        self._ready_seconds = ready_seconds
        return self

    def __enter__(self) -> None:
        self._began_seconds = time.monotonic()
        self._began_device_seconds = (
            max(self.now_seconds, self._ready_seconds) if self._keeps_time else self._began_seconds - self._late_seconds
        )
        self._began_cpu_seconds = time.thread_time()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        cpu_seconds = time.thread_time() - self._began_cpu_seconds
        slot_seconds = self.ratio * cpu_seconds if self._rated_seconds is None else self._rated_seconds
        is_rated, self._rated_seconds = self._rated_seconds is not None, None
        self.num_segments += 1
        self.compute_seconds += cpu_seconds
        self.slot_seconds += slot_seconds
        if self.pads or self.slow_factor > 1:
            self._count_overrun(time.monotonic() - self._began_seconds - slot_seconds * self.slow_factor)
            self._pad(self._began_device_seconds + slot_seconds * self.slow_factor)
            if self._keeps_time and is_rated:
                self._longest_segment_seconds = max(self._longest_segment_seconds, slot_seconds)
        # One that had to wait for something has begun no sooner than that was there.
        began_seconds = max(self._began_seconds, self._began_device_seconds)
        self.wall_seconds += time.monotonic() - began_seconds - (self.slow_factor - 1) * slot_seconds

    def _pad(self, until_seconds: float) -> None:
        remaining_seconds = until_seconds - time.monotonic()
        if remaining_seconds > 0:
            time.sleep(remaining_seconds)
        late_seconds = max(0.0, time.monotonic() - until_seconds)
        self._device_seconds = until_seconds
        self._late_seconds = min(late_seconds, MAX_CARRIED_SECONDS)

    def _count_overrun(self, seconds: float) -> None:
        if seconds > 0:
            self.num_overruns += 1
            self.overrun_seconds += seconds
            self.worst_overrun_seconds = max(self.worst_overrun_seconds, seconds)

    def settle(self) -> None:
        """Complete the account, however long that takes."""


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


def pacer_for(device: torch.device, ratio: float, *, is_rated: bool = False) -> Pacer:
    """The pacer of a rank that computes on `device`; `ratio` and `is_rated` count on a CPU only."""
    return Pacer(ratio, is_rated=is_rated) if device.type == "cpu" else DevicePacer(device)
