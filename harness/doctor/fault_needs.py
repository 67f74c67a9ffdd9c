"""What single faults need beyond what every run does: networks, queues, control groups, mounts."""

from __future__ import annotations

import os
import shlex
import subprocess

from chaos.host import memory_limit, python_module, small_disk
from chaos.host.links.firewall import environment, find_tool
from harness.doctor.finding import Check, Finding
from harness.network.machine import TRY_TIMEOUT_SECONDS, why_no_networks
from mecefo_runtime.system.process import ProcessId

NETWORKS = Check("networks", "link faults of the local backend: a separate network for every rank")
QUEUES = Check("packet queue", "slow-link: delay, jitter, loss and rate of packets (NFQUEUE)")
MEMORY_GROUPS = Check("memory control group", "leak-memory by cgroup: ended by the kernel's out-of-memory killer")
MOUNTS = Check("right to mount", "fill-disk: a small disk over the checkpoints' folder")

_TRIED_SHAPER = "harness.doctor.packet_queue"


def networks() -> Finding:
    """Whether ranks can have networks of their own, with a firewall."""
    why_not = why_no_networks()
    if why_not is None:
        return NETWORKS.ok("user namespaces, and iptables in them")
    # What is wrong, what the system said of it in parentheses, and what to do.
    reason, is_refusal, remedy = why_not.rpartition("): ")
    if is_refusal:
        return NETWORKS.wrong(
            f"{reason})", f"{remedy}. In a container: --security-opt seccomp=unconfined, at its start"
        )
    reason, _, remedy = why_not.partition(": ")
    return NETWORKS.missing(reason, remedy)


def packet_queue() -> Finding:
    """Whether packets can be queued to a process of ours; tried in a network of its own that is gone afterwards."""
    if why_no_networks() is not None:
        return QUEUES.missing("needs networks, which are missing", "see there")
    rule = [find_tool("iptables"), "-A", "OUTPUT", "-j", "NFQUEUE", "--queue-num", "1", "--queue-bypass"]
    serve = python_module.command(_TRIED_SHAPER)
    script = f"{shlex.join(rule)} && exec {shlex.join(serve)}"
    tried = subprocess.run(
        [find_tool("unshare"), "--user", "--map-root-user", "--net", "sh", "-c", script],
        env=environment(),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=TRY_TIMEOUT_SECONDS,
        check=False,
    )
    if tried.returncode == 0:
        return QUEUES.ok("works")
    said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    return QUEUES.missing(
        f"packets cannot be queued: {said}",
        "a kernel with CONFIG_NETFILTER_NETLINK_QUEUE and NETFILTER_XT_TARGET_NFQUEUE",
    )


def memory_groups() -> Finding:
    """By what means a rank's memory would be limited."""
    record = memory_limit.plan(ProcessId.of(os.getpid()), 1 << 30, may_group=True)
    if record.by == "cgroup":
        return MEMORY_GROUPS.ok(f"beside {record.home}")
    return MEMORY_GROUPS.missing(
        "no control group can be made: leak-memory limits by rlimit, and allocations fail instead",
        "as root it can; as a user under systemd: systemd-run --user --scope -p Delegate=yes chaos run ...",
    )


def mounts() -> Finding:
    """CAP_SYS_ADMIN."""
    if small_disk.may_mount():
        return MOUNTS.ok("CAP_SYS_ADMIN")
    return MOUNTS.missing(
        "this process may not mount", "run as root, or give fill-disk a --checkpoint-folder on a small disk of its own"
    )
