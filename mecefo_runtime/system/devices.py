"""Which device a rank computes on, and how tensors there are copied to host memory.

torch is imported only where it is needed: a caller that only asks whether this machine has GPUs need not have it.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mecefo_runtime.system.process import run_apart

if TYPE_CHECKING:
    import torch
    from torch import Tensor

DeviceChoice = Literal["auto", "cpu", "cuda"]
Way = Literal["gloo", "nccl"]

# What of a machine's GPUs a process sees is up to it.
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
# Without one of these there is no NVIDIA driver, native or of WSL 2.
_DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


class DeviceError(ValueError):
    """The requested device does not exist; the text says what to do."""


def device_name(choice: DeviceChoice, local_rank: int, num_devices: int) -> str:
    """`cpu` or `cuda:INDEX`, for the rank that is `local_rank` among those that see the same `num_devices` GPUs.

    Any numbers that count through a node's ranks will do for `local_rank`: the ranks are spread evenly, and share GPUs
    where there are fewer than ranks.

    Raises:
        DeviceError: `cuda` is asked for, and there is none.
    """
    if choice == "cuda" and num_devices == 0:
        raise DeviceError(
            "device is cuda, and there is no GPU that torch can use here: see torch.cuda.is_available(), or leave "
            "device on auto"
        )
    if choice == "cpu" or num_devices == 0:
        return "cpu"
    return f"cuda:{local_rank % num_devices}"


def num_devices() -> int:
    """How many GPUs a process started from this one could use; nothing of CUDA or torch stays behind here.

    Counted in a forked child: a process that has asked CUDA can fork none that use it. The caller has no other threads.
    Counted once: each time, the child has CUDA to initialize, and maybe torch to import.

    Raises:
        RuntimeError: the child failed; why stands in this process's standard error.
    """
    return _count_apart(os.environ.get(VISIBLE_VARIABLE)) if has_driver() else 0


@functools.cache
def _count_apart(visible: str | None) -> int:
    """`visible` is what the child is shown of this machine's GPUs, by its environment."""
    return int(run_apart(lambda: str(num_devices_here())))


def gpu_names(num_gpus: int, visible: str | None) -> tuple[str, ...]:
    """What NVIDIA's tools call the first `num_gpus` GPUs that CUDA shows: their numbers on this machine, or UUIDs.

    `visible` is CUDA_VISIBLE_DEVICES, None where it is not set.
    """
    named = [] if visible is None else [name.strip() for name in visible.split(",")]
    return tuple(named[:num_gpus]) if len(named) >= num_gpus else tuple(map(str, range(num_gpus)))


def has_driver() -> bool:
    """Whether this machine, or this container, has an NVIDIA driver."""
    return any(path.exists() for path in _DRIVER_FILES)


def num_devices_here() -> int:
    """How many GPUs this process can use. Asking may initialize CUDA, and then no child may be forked that uses it."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def require_device(choice: DeviceChoice, count: Callable[[], int] = num_devices) -> None:
    """Refuse a `choice` that this machine cannot serve, before anything is started.

    Raises:
        DeviceError: `cuda` is asked for, and there is none.
    """
    if choice == "cuda":
        device_name(choice, 0, count())


def find_device(choice: DeviceChoice, local_rank: int) -> torch.device:
    """The device of this rank, made the current one of the calling thread.

    Raises:
        DeviceError: `cuda` is asked for, and there is none.
    """
    import torch

    device = torch.device(device_name(choice, local_rank, 0 if choice == "cpu" else num_devices_here()))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def device_name_of(device: torch.device) -> str:
    """The vendor's name of the device; for a CPU, of which a rank uses one thread, its model."""
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return f"one thread of {line.partition(':')[2].strip()}"
    return f"one thread of a {platform.machine()} CPU"


def nccl_device(device: torch.device) -> str | None:
    """A globally unique id of `device` if NCCL can be used on it, otherwise None.

    The UUID alone: containers on one machine have different host names and may share a GPU. Initializes CUDA.
    """
    import torch
    import torch.distributed as dist

    if device.type != "cuda" or not dist.is_nccl_available():
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def choose_way(devices: Mapping[int, str | None]) -> Way:
    """How device tensors travel in an epoch; `devices` is what `nccl_device` says for every member.

    NCCL refuses a communicator with two ranks on one GPU, and needs all ranks to have one. The choice is the
    coordinator's, so that all members make the same.
    """
    known = [device for device in devices.values() if device is not None]
    return "nccl" if len(known) == len(devices) == len(set(known)) >= 2 else "gloo"


def host_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor, in host memory: its own if it lies there, else a copy.

    The copy waits for all work that is queued on the device.
    """
    view: memoryview = tensor.detach().cpu().numpy().data
    return view


def read_numbers(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The elements of each of `tensors` (on one device) as floats, by one transfer for all of them."""
    import torch

    numbers = torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors]).tolist()
    found, first = [], 0
    for tensor in tensors:
        found.append(numbers[first : first + tensor.numel()])
        first += tensor.numel()
    return found
