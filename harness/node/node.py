"""The questions to a machine on which nodes run, and the answers of this one."""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from chaos.host.memory_limit import usable_bytes
from harness.doctor import ground
from harness.doctor.finding import Finding
from harness.doctor.ground import Needs, Shortage
from harness.network import machine
from mecefo_runtime.system import devices
from mecefo_runtime.system.devices import DeviceChoice, DeviceError, require_device


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Cores, memory and rights of a machine: all that is known without trying anything."""

    num_cores: int
    memory_bytes: int
    is_root: bool

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Capabilities:
        """The capabilities that another machine has sent."""
        return cls(**values)


class Node(Protocol):
    """A machine on which nodes of a job run. A question whose answer takes time is a separate method."""

    def capabilities(self) -> Capabilities:
        """What it has; answered at once."""
        ...

    def num_gpus(self) -> int:
        """How many GPUs a rank could use."""
        ...

    def why_no_device(self, device: DeviceChoice) -> str | None:
        """Why ranks cannot compute on `device`; None: they can."""
        ...

    def why_no_networks(self) -> str | None:
        """Why ranks cannot have network namespaces with a firewall; None: they can. Tried out."""
        ...

    def shows_mounts(self, path: Path) -> bool:
        """Whether what is mounted on `path` later can be seen by nodes that have their own files."""
        ...

    def make_room(self, needs: Needs) -> Shortage | None:
        """Raise limits as far as a run needs it; returns the limit that stays too low."""
        ...

    def findings(self, out: Path) -> Generator[Finding, None, bool]:
        """What it has and lacks of all that runs need, with files in `out`; returns False where that ended early."""
        ...


class ThisMachine:
    """The machine that this process runs on."""

    def capabilities(self) -> Capabilities:
        """What this process may use."""
        return Capabilities(len(os.sched_getaffinity(0)), usable_bytes(), os.geteuid() == 0)

    def num_gpus(self) -> int:
        """Counted once, in a process that is forked for it."""
        return devices.num_devices()

    def why_no_device(self, device: DeviceChoice) -> str | None:
        """See `require_device`."""
        try:
            require_device(device)
        except DeviceError as error:
            return str(error)
        return None

    def why_no_networks(self) -> str | None:
        """Tried out once."""
        return machine.why_no_networks()

    def shows_mounts(self, path: Path) -> bool:
        """By mount propagation (proc_pid_mountinfo(5))."""
        place, best, is_shared = path.resolve(), -1, False
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            words = line.split(" - ")[0].split()
            point = Path(words[4].replace("\\040", " "))
            if place.is_relative_to(point) and len(point.parts) >= best:
                best, is_shared = len(point.parts), any(word.startswith("shared:") for word in words[6:])
        return is_shared

    def make_room(self, needs: Needs) -> Shortage | None:
        """Raises the limits of this process, which what it starts inherits."""
        return ground.make_room(needs)

    def findings(self, out: Path) -> Generator[Finding, None, bool]:
        """See `harness.doctor`."""
        from harness.doctor.examine import examine

        return (yield from examine(out))
