"""Effects on a GPU, with what torch does there in other hands: what they ask for, and what they make of the answers."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import chaos.in_process.cuda as inside
from chaos.in_process.base import InProcessFaultRefused
from chaos.in_process.cuda import FailAssertion, FillMemory, Spin

pytestmark = pytest.mark.unit

GPU = torch.device("cuda:0")
SUBJECT: Any = SimpleNamespace(tensors=lambda kind: {"weight": SimpleNamespace(is_cuda=True, device=GPU)})


def effect(kind: Any, **arguments: Any) -> tuple[Any, list[Any]]:
    told: list[Any] = []
    return kind(arguments, SUBJECT, told.append), told


class Clock:
    """Stands for torch.cuda: a stream whose first kernels are slow. `seconds` is how far it is, at once."""

    def __init__(self, cycles_per_second: float, num_slow: int) -> None:
        self.seconds = 0.0
        self.asked: list[int] = []
        self._cycles_per_second = cycles_per_second
        self._num_slow = num_slow

    def _sleep(self, cycles: int) -> None:
        self.asked.append(cycles)
        self.seconds += (20 if len(self.asked) <= self._num_slow else 1) * cycles / self._cycles_per_second

    def Event(self, enable_timing: bool = False) -> Any:  # noqa: N802
        event = SimpleNamespace(at=0.0, synchronize=lambda: None, query=lambda: False)
        event.record = lambda: setattr(event, "at", self.seconds)
        event.elapsed_time = lambda end: 1e3 * (end.at - event.at)
        return event


def test_a_slow_first_kernel_does_not_make_the_hang_shorter(monkeypatch):
    clock = Clock(1.7e9, num_slow=3)
    monkeypatch.setattr(inside, "_cuda", clock)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    spin, told = effect(Spin, seconds=2.5)
    began = spin.begin(7, "forward")
    assert began["cycles_per_second"] == pytest.approx(1.7e9)
    before = clock.seconds
    spin.released()
    assert clock.seconds - before == pytest.approx(2.5, rel=1e-6)
    assert told[0]["is_busy"] and told[0]["seconds"] == 2.5


class Memory:
    """Stands for a GPU's memory."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes

    def empty(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Any:
        assert (dtype, device) == (torch.uint8, GPU)
        if size > self.free_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore of it")
        self.free_bytes -= size
        return SimpleNamespace(numel=lambda: size)


def test_all_memory_is_taken_to_the_last_block_that_could_be_had(monkeypatch):
    memory = Memory(free_bytes := 5 * (1 << 30) + 3 * (1 << 20) + 700_000)
    monkeypatch.setattr(torch, "empty", memory.empty)
    fill, told = effect(FillMemory)
    began = fill.begin(7, "forward")
    # A small model's tensors would fit into what is left of a block that only large ones are asked for.
    assert memory.free_bytes < 512
    assert began["taken_bytes"] == free_bytes - memory.free_bytes
    assert began["error"] == "CUDA out of memory."
    fill.released()
    assert told == [{"taken_bytes": began["taken_bytes"], "error": began["error"]}]
    assert fill.lift() == {"given_back_bytes": began["taken_bytes"]}


@pytest.mark.parametrize("num_errors", [0, 1, 2])
def test_only_an_error_that_stays_is_one_of_the_context(monkeypatch, num_errors):
    fail, told = effect(FailAssertion)
    assert fail.begin(7, "forward")["device"] == "cuda:0"

    def attempt() -> None:
        nonlocal num_errors
        num_errors -= 1
        if num_errors >= 0:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered\nmore of it")

    expected = num_errors
    monkeypatch.setattr(fail, "_fail", attempt)
    monkeypatch.setattr(fail, "_allocate", attempt)
    fail.released()
    assert told == [
        {"errors": ["CUDA error: device-side assert triggered"] * expected, "is_sticky": expected == 2},
    ]


def test_a_rank_on_a_cpu_has_none_of_it():
    subject: Any = SimpleNamespace(tensors=lambda kind: {"weight": torch.zeros(1)})
    for kind in (FailAssertion, Spin, FillMemory):
        with pytest.raises(InProcessFaultRefused, match="no GPU"):
            kind({}, subject, pytest.fail).begin(7, "forward")
        with pytest.raises(InProcessFaultRefused, match="no GPU"):
            kind({}, None, pytest.fail).begin(7, "forward")
