"""Whether this machine allows a run to have its own networks, and what would have to change if not."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable

from chaos.experiment.experiment import Experiment
from chaos.host.links.firewall import environment, find_tool

TRY_TIMEOUT_SECONDS = 60.0


def wants_networks(experiment: Experiment, needs: Iterable[tuple[str, ...]]) -> bool:
    """Whether a run gets networks of its own; `needs` are those of each of its incidents' faults."""
    match experiment.network:
        case "namespaces":
            return True
        case "loopback":
            return False
        case "auto":
            return any("links" in words for words in needs)


@functools.cache
def why_no_networks() -> str | None:
    """Why ranks cannot have networks of their own on this machine, and what would help; None: they can.

    Tried out, with a user namespace and a firewall of our own that are gone when this returns.
    """
    try:
        words = [find_tool("unshare"), "--user", "--map-root-user", "--net", find_tool("iptables"), "--list-rules"]
        find_tool("nsenter")
    except FileNotFoundError as missing:
        return f"{missing}: install the packages util-linux and iptables"
    try:
        tried = subprocess.run(
            words,
            env=environment(),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TRY_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{words[0]} cannot be run: {error}"
    if tried.returncode == 0:
        return None
    said = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    return (
        f"users may not make network namespaces with a firewall here ({said}): allow it with the sysctls "
        "user.max_user_namespaces and, where there are such, kernel.unprivileged_userns_clone=1 and "
        "kernel.apparmor_restrict_unprivileged_userns=0"
    )
