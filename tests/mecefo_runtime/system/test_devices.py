"""Which device a rank gets, and what leaves it: decided and read without one."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.launch.torchrun import LauncherEnvironment, LaunchError, job_of
from mecefo_runtime.system import devices
from mecefo_runtime.system.devices import (
    DeviceError,
    device_name,
    find_device,
    host_bytes,
    nccl_device,
    read_numbers,
    require_device,
)
from mecefo_runtime.system.dilation import DevicePacer, Pacer, pacer_for
from mecefo_runtime.system.json_values import from_json, to_json

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")


@given(st.integers(0, 1000), st.integers(0, 16))
def test_auto_is_a_gpu_exactly_where_there_is_one(local_rank: int, num_devices: int) -> None:
    name = device_name("auto", local_rank, num_devices)
    assert name.startswith("cuda:") == (num_devices > 0)
    assert device_name("cpu", local_rank, num_devices) == "cpu"


@given(st.integers(0, 100), st.integers(1, 32), st.integers(1, 16))
def test_the_ranks_of_a_node_share_its_gpus_evenly_wherever_their_numbers_begin(
    first: int, num_ranks: int, num_devices: int
) -> None:
    names = [device_name("cuda", rank, num_devices) for rank in range(first, first + num_ranks)]
    counts = [names.count(f"cuda:{index}") for index in range(num_devices)]
    assert sum(counts) == num_ranks
    assert max(counts) - min(counts) <= 1


def test_cuda_where_there_is_none_is_refused_in_words():
    with pytest.raises(DeviceError, match="no GPU that torch can use"):
        require_device("cuda", lambda: 0)
    require_device("cuda", lambda: 1)
    for choice in ("auto", "cpu"):
        require_device(choice, lambda: pytest.fail("nobody needs to know"))


def test_gpus_are_not_even_counted_without_a_driver(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "_DRIVER_FILES", (tmp_path / "nvidiactl",))
    monkeypatch.setattr(devices, "run_apart", lambda compute: pytest.fail("there is no driver"))
    assert devices.num_devices() == 0


@pytest.fixture
def counted_anew():
    devices._count_apart.cache_clear()
    yield
    devices._count_apart.cache_clear()


def test_with_a_driver_they_are_counted_apart_and_once(monkeypatch, tmp_path, counted_anew):
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(devices, "_DRIVER_FILES", (tmp_path / "nvidiactl",))
    answers = ["4", "1"]
    monkeypatch.setattr(devices, "run_apart", lambda compute: answers.pop(0))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.num_devices() == devices.num_devices() == 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert devices.num_devices() == devices.num_devices() == 1


@pytest.mark.parametrize(
    ("num_gpus", "visible", "names"),
    [
        (2, None, ("0", "1")),
        (2, "2, 3", ("2", "3")),
        # CUDA stops at the first that is not there.
        (1, "3,9", ("3",)),
        (2, "GPU-a,GPU-b", ("GPU-a", "GPU-b")),
        (0, "", ()),
    ],
)
def test_gpus_are_called_what_they_are_outside_of_the_process(num_gpus, visible, names):
    assert devices.gpu_names(num_gpus, visible) == names


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_rank_without_gpu_computes_on_its_cpu_or_says_that_it_cannot():
    assert find_device("auto", 3) == find_device("cpu", 3) == CPU
    with pytest.raises(DeviceError):
        find_device("cuda", 3)


def test_a_cpu_is_no_device_of_nccl_and_is_paced():
    assert nccl_device(CPU) is None
    pacer = pacer_for(CPU, 2.0)
    assert type(pacer) is Pacer and pacer.ratio == 2.0


def test_the_bytes_of_a_tensor_in_host_memory_are_its_own():
    tensor = torch.arange(5, dtype=torch.float32, requires_grad=True)
    view = host_bytes(tensor)
    assert zlib.crc32(view) == zlib.crc32(tensor.detach().numpy().tobytes())
    with torch.no_grad():
        tensor[0] = 7.0
    assert view[0] == 7.0


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False), max_size=4), min_size=1, max_size=5))
def test_numbers_are_read_as_they_are(values: list[list[float]]) -> None:
    tensors = [torch.tensor(numbers, dtype=torch.float32) for numbers in values]
    assert read_numbers([*tensors, torch.tensor(True)]) == [*values, [1.0]]


def test_a_job_remembers_its_device():
    job = JobConfig(device="cuda")
    assert from_json(JobConfig, to_json(job)) == job


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_launcher_refuses_before_anything_is_started():
    place = LauncherEnvironment(0, 2, 2, 1, "127.0.0.1", 1, is_store_ours=False, has_agent=False)

    with pytest.raises(LaunchError, match="no GPU that torch can use"):
        job_of(place, {"device": "cuda"})
    assert job_of(place, {"device": "cpu", "precision": "bf16"}).precision == "bf16"
    assert job_of(place, {"strategy": "mecefo-paper"}).approximation.down_projection == "right"


class Event:
    """An event of a stream that has got as far as `clock`, in milliseconds."""

    clock = 0.0

    def __init__(self) -> None:
        self._milliseconds = 0.0

    def record(self, stream: float) -> None:
        self._milliseconds = stream

    def query(self) -> bool:
        return Event.clock >= self._milliseconds

    def synchronize(self) -> None:
        Event.clock = max(Event.clock, self._milliseconds)

    def elapsed_time(self, end: Event) -> float:
        assert self.query() and end.query(), "torch would raise"
        return end._milliseconds - self._milliseconds


class Stream(DevicePacer):
    """A pacer on a stream whose end is at `asked` milliseconds."""

    asked = 0.0

    def _event(self) -> Any:
        return Event()

    def _stream(self) -> Any:
        return self.asked


def test_a_gpus_compute_is_counted_when_it_is_over_and_nothing_waits_for_it():
    pacer = Stream(torch.device("cuda:0"))
    for milliseconds in (30.0, 50.0):
        with pacer:
            pacer.asked += milliseconds
        pacer.asked += 5.0
    assert (pacer.compute_seconds, Event.clock) == (0.0, 0.0)
    Event.clock = 31.0
    with pacer:
        pacer.asked += 20.0
    assert pacer.compute_seconds == pytest.approx(0.03)
    pacer.settle()
    assert pacer.compute_seconds == pacer.wall_seconds == pytest.approx(0.1)
