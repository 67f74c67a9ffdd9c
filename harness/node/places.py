"""Hosts as texts, for the keys of messages."""

from __future__ import annotations

from mecefo_runtime.system.host import Host


def place_text(host: Host) -> str:
    """The name and the boot of a host, with a blank between them."""
    return f"{host.name} {host.boot}"
