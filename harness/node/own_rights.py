"""What can be done on this host, and by which right: for the table of `chaos doctor --hosts`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from chaos.refusals import refusal_text
from harness.doctor.finding import Check, Finding
from harness.doctor.machine import STATE, state_folder
from harness.network.connection_links import why_no_connections
from harness.node.facts import addresses
from harness.node.node import ThisMachine
from mecefo_runtime.system.host import this_host

_NET_ADMIN = 12
HOST = Check("host", "its ranks, its faults and its clock")
PROCESSES = Check("same user", "kill, pause, stragglers, tensors, checkpoints and data workers", ("slurm", "ssh"))
CONNECTIONS = Check("links by connections", "drop-link, reset-link, partition, flap-link and slow-link bandwidth")
FIREWALL = Check("CAP_NET_ADMIN", "link faults by delay and loss between hosts: not supported over hosts yet")
MEMORY = Check("shared memory", "the sockets of ranks and agents", ("slurm", "ssh"))


def examine_here() -> Iterator[Finding]:
    """One finding after the other."""
    machine, here = ThisMachine(), this_host()
    capabilities = machine.capabilities()
    cores, memory = capabilities.num_cores, capabilities.memory_bytes / 2**30
    where = ", ".join(addresses()) or "loopback alone"
    yield HOST.ok(f"{here.name}: {cores} cores, {memory:.1f} GiB, {machine.num_gpus()} GPUs, {where}")
    yield PROCESSES.ok(f"uid {os.geteuid()}: all of your own processes")
    yield MEMORY.looked(_shared_memory)
    yield STATE.looked(state_folder)
    yield CONNECTIONS.looked(_connections)
    yield FIREWALL.looked(_firewall)


def _shared_memory() -> Finding:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else "/tmp") as folder:
        return MEMORY.ok(f"{Path(folder).parent} can be written to")


def _connections() -> Finding:
    why = why_no_connections()
    if why is None:
        return CONNECTIONS.ok("TCP connections of your own processes can be changed, without any right")
    return CONNECTIONS.missing(refusal_text(why), "ask for kernel.yama.ptrace_scope=0, or run link faults elsewhere")


def _firewall() -> Finding:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    if effective >> _NET_ADMIN & 1:
        return FIREWALL.ok("this user may change the network")
    return FIREWALL.missing("this user may not change the network", "nothing: no fault over hosts uses it")
