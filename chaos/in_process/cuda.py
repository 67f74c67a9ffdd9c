"""What goes wrong on a GPU: a device-side assertion fails, a kernel does not end, there is no memory left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chaos.in_process.base import InProcessFault, InProcessFaultRefused, Subject

# Parts of it have no types.
_cuda: Any = torch.cuda
# A kernel is given so long at most: several of them in a row are as good, and the counter of cycles does not overflow.
_KERNEL_SECONDS = 1.0
_CALIBRATION_CYCLES = 10_000_000
_WARM_UP_KERNELS = 10
# How long a stream that spins is watched before it is said that it does not end.
_WATCH_SECONDS = 0.2
_LARGEST_BLOCK_BYTES = 1 << 30
# The least that torch's allocator gives out: what is left in its own blocks is taken too.
SMALLEST_BLOCK_BYTES = 512


def device_of(subject: Subject | None) -> torch.device:
    """The GPU that the rank trains on.

    Raises:
        InProcessFaultRefused: it trains on the CPU, or not yet.
    """
    for tensor in subject.tensors("parameters").values() if subject is not None else ():
        if tensor.is_cuda:
            return tensor.device
    raise InProcessFaultRefused("this rank trains on no GPU")


class FailAssertion(InProcessFault):
    """A kernel's assertion fails: from then on every CUDA call of the process raises."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Nothing yet: the rank may have to answer before its context is gone."""
        self._device = device_of(self.subject)
        return {"device": str(self._device), "step": step, "phase": phase}

    def released(self) -> None:
        """Fail it, and try two calls: the error of a context does not go away."""
        errors = []
        for attempt in (self._fail, self._allocate):
            try:
                attempt()
            except RuntimeError as error:
                errors.append(str(error).splitlines()[0])
        self.report({"errors": errors, "is_sticky": len(errors) == 2})

    def _fail(self) -> None:
        torch._assert_async(torch.zeros((), device=self._device))
        torch.cuda.synchronize(self._device)

    def _allocate(self) -> None:
        torch.ones(1, device=self._device).add_(1)
        torch.cuda.synchronize(self._device)


class Spin(InProcessFault):
    """Kernels that do nothing for `seconds` on the stream that the training thread uses."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Measure how many cycles a second has."""
        self._device = device_of(self.subject)
        with torch.cuda.device(self._device):
            first, last = _cuda.Event(enable_timing=True), _cuda.Event(enable_timing=True)
            # The first one of a process is loaded first, and an idle GPU's clock is slow: either would make a second
            # seem to have fewer cycles.
            for _ in range(_WARM_UP_KERNELS):
                _cuda._sleep(_CALIBRATION_CYCLES)
            first.record()
            _cuda._sleep(_CALIBRATION_CYCLES)
            last.record()
            last.synchronize()
            self._cycles_per_second = _CALIBRATION_CYCLES / (first.elapsed_time(last) / 1e3)
        return {"device": str(self._device), "cycles_per_second": self._cycles_per_second, "step": step, "phase": phase}

    def released(self) -> None:
        """Start them, and see that the stream does not come to their end."""
        seconds = float(self.arguments["seconds"])
        with torch.cuda.device(self._device):
            remaining = seconds
            while remaining > 0:
                _cuda._sleep(int(min(remaining, _KERNEL_SECONDS) * self._cycles_per_second))
                remaining -= _KERNEL_SECONDS
            end = _cuda.Event()
            end.record()
            began = time.monotonic()
            while not end.query() and time.monotonic() - began < min(_WATCH_SECONDS, seconds / 2):
                time.sleep(0.01)
            is_busy = not end.query()
        self.report({"is_busy": is_busy, "watched_seconds": time.monotonic() - began, "seconds": seconds})


class FillMemory(InProcessFault):
    """Takes all memory of the GPU that is free, cached or not, until it is lifted."""

    def begin(self, step: int, phase: str) -> dict[str, Any]:
        """Take it, in ever smaller blocks, until not even the smallest one can be had."""
        device = device_of(self.subject)
        # What the allocator keeps for the training would be given to it without asking the device.
        torch.cuda.empty_cache()
        self._blocks: list[Tensor] = []
        size, reason = _LARGEST_BLOCK_BYTES, ""
        while size >= SMALLEST_BLOCK_BYTES:
            try:
                self._blocks.append(torch.empty(size, dtype=torch.uint8, device=device))
            except torch.OutOfMemoryError as error:
                reason = str(error).splitlines()[0]
                size //= 2
        told = {"device": str(device), "step": step, "phase": phase}
        self._told: Mapping[str, Any] = {"taken_bytes": sum(block.numel() for block in self._blocks), "error": reason}
        return {**told, **self._told}

    def released(self) -> None:
        """Tell what was taken, and with what error it ended."""
        self.report(self._told)

    def lift(self) -> dict[str, Any]:
        """Give it back."""
        self._blocks.clear()
        torch.cuda.empty_cache()
        return {"given_back_bytes": self._told["taken_bytes"]}
