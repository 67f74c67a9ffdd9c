"""The one question to an engine: which hosts are there, and how is a program started on one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

NOISE = "lacks support for cpu binding"
"""What srun prints on every cluster that binds no tasks to CPUs."""


class Engine(Protocol):
    """A way to the hosts of a cluster. A stream to a program is the standard input and output of what starts it.

    Whoever may start a program on a host has been authenticated by the engine: no port is opened, and no token needed.
    """

    name: str
    ends_with_stream: bool
    """Whether whoever starts commands by it is their only supervisor: they end where the tool is lost."""

    @property
    def reference(self) -> str:
        """What another process can find the engine by later: its name, and where needed a job of it (`slurm:1234`)."""
        ...

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the run, in the order of its nodes.

        Raises:
            chaos.errors.EnvironmentFailure: the engine does not say.
        """
        ...

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """What is started here so that `words` run on `host`, with their input and output here."""
        ...

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of that command, of which `environment` is the present one."""
        ...

    def end(self, host: str) -> list[str]:
        """What ends a program on `host` whose command here was killed; none where that ends it."""
        ...


def is_same_host(one: str, other: str) -> bool:
    """Whether two names are of one host, whole or up to the first dot."""
    return one == other or (one.partition(".")[0] == other.partition(".")[0] and not ("." in one and "." in other))
