"""torch and its devices, examined in a separate process, because importing it takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Self

from chaos.host import runtime_extra
from harness.doctor.finding import Check, Finding
from mecefo_runtime.system.devices import has_driver

# Ten times what it takes on a busy machine with cold disks.
TIMEOUT_SECONDS = 120.0
OLDEST_TORCH = (2, 11)

# No backend needs it: a script has its own, which ranks import from the environment of the script.
TORCH = Check("torch", "the built-in job; your own script uses the torch of its environment")
DEVICES = Check("GPUs", "used by ranks where there are any (device: cuda)")

_INSTALL = runtime_extra.INSTALL
_LOOK = """
import json, torch, torch.distributed as dist
found = {"version": torch.__version__, "cuda": torch.version.cuda, "distributed": dist.is_available()}
found["gloo"] = dist.is_available() and dist.is_gloo_available()
found["nccl"] = dist.is_available() and dist.is_nccl_available()
found["devices"] = []
if torch.cuda.is_available():
    found["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps(found))
"""


class TorchLook:
    """The look under way: other things can be looked at meanwhile. A context, at whose end its process is gone."""

    def __init__(self) -> None:
        # Not what stands in the working directory: that is not what the job imports.
        words = [sys.executable, "-P", "-c", _LOOK]
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exit_info: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()

    def findings(self) -> tuple[Finding, ...]:
        """Wait for it, and judge."""
        try:
            said, violation = self._process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            found = f"importing it takes more than {TIMEOUT_SECONDS:g} s"
            return (TORCH.wrong(found, "look at the disk that it is on"),)
        return judge(self._process.returncode, said, violation, has_driver())


def judge(code: int, said: str, violation: str, driver_is_here: bool) -> tuple[Finding, ...]:
    """What it says of torch, and of devices where torch can be asked for them."""
    if code:
        last = (violation.strip().splitlines() or [f"exit code {code}"])[-1]
        if last.startswith("ModuleNotFoundError: No module named 'torch'"):
            return (TORCH.missing("not installed", _INSTALL),)
        return (TORCH.wrong(f"cannot be imported: {last}", _INSTALL),)
    found: Mapping[str, Any] = json.loads(said.splitlines()[-1])
    return _judge_torch(found), _judge_devices(found, driver_is_here)


def _judge_torch(found: Mapping[str, Any]) -> Finding:
    version = str(found["version"])
    build = f"CUDA {found['cuda']}" if found["cuda"] else "CPU"
    ways = [way for way in ("gloo", "nccl") if found[way]]
    told = f"{version}, {build} build, {' and '.join(ways) or 'no communication backend'}"
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        return TORCH.wrong(told, f"needs {'.'.join(map(str, OLDEST_TORCH))} or newer: {_INSTALL}")
    if "gloo" not in ways:
        return TORCH.wrong(told, f"needs a build with gloo: {_INSTALL}")
    return TORCH.ok(told)


def _judge_devices(found: Mapping[str, Any], driver_is_here: bool) -> Finding:
    names: list[str] = found["devices"]
    if names:
        kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        return DEVICES.ok(kinds)
    if not driver_is_here:
        return DEVICES.ok("none: ranks compute on the CPU")
    if found["cuda"] is None:
        return DEVICES.wrong("there is an NVIDIA driver, but torch is a CPU build", "install torch's CUDA build")
    return DEVICES.wrong(
        f"there is an NVIDIA driver, but torch (CUDA {found['cuda']}) can use no GPU",
        "see `nvidia-smi` (is the driver new enough for this CUDA?) and CUDA_VISIBLE_DEVICES",
    )
