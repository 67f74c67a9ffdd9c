"""The settings of a run's containers: addresses, limits, devices and mounts. Values only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from harness.backends.base import AnyConfig
from harness.backends.docker.container import COORDINATOR
from harness.backends.docker.containers import Containers
from harness.node.node import ThisMachine
from mecefo_runtime.job.config import JobConfig
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.job.traits import OF_RUNTIME, JobTraits
from mecefo_runtime.system.devices import VISIBLE_VARIABLE, gpu_names, num_devices

# A container whose network that of a part is.
HOLDER_PREFIX = "links-of-"
# Private addresses that neither the engine's own networks nor most companies use.
ADDRESSES = IPv4Network("10.96.0.0/12")
PREFIX_LENGTH = 20
_FIRST_NODE = 16
# Long quotas are uneven: of 100 ms, a rank would run for the first ones and then stand still.
_PERIOD_MICROSECONDS = 10_000
_MIN_QUOTA_MICROSECONDS = 1_000
_MAX_PROCESSES = 16_384
_SHARED_MEMORY_BYTES = 1 << 30
_TEMPORARY = "/tmp"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What the containers of a run are made of.

    `cpus` (of a core's time, None: no limit) and `memory_bytes` limit a node; `gpus` are this machine's that all nodes
    share out, as NVIDIA's tools call them; `folders` may be written to, `data` is only read, all of them whole paths.
    With `has_links` each container's network is held by another one, from which it can be changed. `traits`
    are those of the job: ranks without a layout have no coordinator.
    """

    image: str
    cluster: Cluster
    folders: Sequence[Path]
    data: str | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    gpus: Sequence[str] = ()
    has_links: bool = False
    traits: JobTraits = OF_RUNTIME

    def mounts(self) -> list[tuple[Path, str, bool]]:
        """Folders and files of this machine: (which, where inside, whether it may be written to)."""
        read_only = [] if not self.data else [(Path(self.data), self.data, False)]
        return [*((folder, str(folder), True) for folder in self.folders), *read_only]

    def settings(self, part: str, mounts: Sequence[tuple[Path, str, bool]]) -> dict[str, Any]:
        """What the SDK's `containers.create` is told of the container of `part`, beside its name and its network."""
        import docker

        is_node = self.has_ranks(part)
        settings: dict[str, Any] = {
            "user": f"{os.geteuid()}:{os.getegid()}",
            "working_dir": "/tmp",
            "read_only": True,
            "tmpfs": {_TEMPORARY: f"rw,nosuid,nodev,mode=1777{',exec' if self.traits.is_user_script else ''}"},
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "pids_limit": _MAX_PROCESSES,
            "shm_size": _SHARED_MEMORY_BYTES,
            "auto_remove": True,
            "mounts": [
                docker.types.Mount(
                    inside,
                    str(outside),
                    type="bind",
                    read_only=not may_write,
                    # What a fault mounts there later is to be seen inside.
                    propagation="rslave" if ThisMachine().shows_mounts(outside) else "rprivate",
                )
                for outside, inside, may_write in mounts
            ],
        }
        if any(inside == _TEMPORARY for _, inside, _ in mounts):
            # It is the command's own folder.
            del settings["tmpfs"]
        if part.startswith(HOLDER_PREFIX):
            # Only root's processes can hold a capability that no file gives them. DAC_OVERRIDE: the run's socket and
            # folder are its user's.
            settings |= {"user": "0:0", "cap_add": ["NET_ADMIN", "DAC_OVERRIDE"]}
        if is_node and self.cpus is not None:
            quota = max(_MIN_QUOTA_MICROSECONDS, round(self.cpus * _PERIOD_MICROSECONDS))
            settings |= {"cpu_period": _PERIOD_MICROSECONDS, "cpu_quota": quota}
        if is_node and self.memory_bytes is not None:
            settings |= {"mem_limit": self.memory_bytes, "memswap_limit": self.memory_bytes}
        if is_node and (names := self.gpus_of(int(part.removeprefix("node-")))):
            request = docker.types.DeviceRequest(device_ids=list(names), capabilities=[["gpu"]])
            settings["device_requests"] = [request]
        return settings

    def has_ranks(self, part: str) -> bool:
        """Whether ranks run in the container of `part`."""
        return part != COORDINATOR and not part.startswith(HOLDER_PREFIX)

    def gpus_of(self, node: int) -> tuple[str, ...]:
        """The GPUs of this machine that the containers of `node` see: in turn, and shared where there are too few."""
        if not self.gpus:
            return ()
        indices = sorted({rank % len(self.gpus) for rank in self.cluster.ranks_of(node)})
        return tuple(self.gpus[index] for index in indices)


def container_spec(
    containers: Containers, job: AnyConfig, folders: Sequence[Path], *, has_links: bool
) -> ContainerSpec:
    """What the containers of `job` are made of; the run and its nodes write to `folders`, whole paths."""
    # One inside another is there already.
    outermost = [one for one in folders if not any(one != other and one.is_relative_to(other) for other in folders)]
    return ContainerSpec(
        containers.image,
        job.cluster(),
        outermost,
        job.data and str(Path(job.data).resolve()),
        containers.cpus,
        containers.memory,
        _gpus() if job.device != "cpu" else (),
        has_links,
        job.traits,
    )


def plan_addresses(
    num_nodes: int, run: str, *, has_coordinator: bool = True
) -> Iterator[tuple[IPv4Network, Mapping[str, str]]]:
    """Ranges of addresses that a run may take, the first one drawn from its name, with each container's address."""
    subnets = list(ADDRESSES.subnets(new_prefix=PREFIX_LENGTH))
    first = int(run[:8], 16) % len(subnets)
    for subnet in (*subnets[first:], *subnets[:first]):
        nodes = {f"node-{node}": str(subnet[_FIRST_NODE + node]) for node in range(num_nodes)}
        yield subnet, {COORDINATOR: str(subnet[2]), **nodes} if has_coordinator else nodes


def with_whole_paths(job: JobConfig) -> JobConfig:
    """The containers see the caller's folders at the same places, and work in another."""
    checkpoint = job.checkpoint and replace(job.checkpoint, folder=str(Path(job.checkpoint.folder).resolve()))
    return replace(job, data=job.data and str(Path(job.data).resolve()), checkpoint=checkpoint)


def _gpus() -> tuple[str, ...]:
    return gpu_names(num_devices(), os.environ.get(VISIBLE_VARIABLE))
