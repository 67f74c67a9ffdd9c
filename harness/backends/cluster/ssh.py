"""Hosts that are reached by ssh: by the user's own program, so that its configuration, agents and jump hosts hold."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

# Nobody is there to answer: without a terminal no password is asked for.
_OPTIONS = ("-T", "-x", "-oBatchMode=yes", "-oConnectTimeout=15", "-oServerAliveInterval=5")


class Ssh:
    """The hosts that the user has named, in the order of the nodes."""

    name = reference = "ssh"
    ends_with_stream = True

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = tuple(hosts)

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """See `Engine`. The shell there is replaced, whatever it is."""
        return ["ssh", *_OPTIONS, host, f"exec {shlex.join(words)}"]

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """See `Engine`."""
        return dict(environment)

    def end(self, host: str) -> list[str]:
        """See `Engine`: the end of its stream ends the agent."""
        return []
