"""The network of a run's containers, in the Docker engine: a bridge without a way out, with an address for each.

It is looked at until the run ends: anybody may take it away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

from chaos.errors import EnvironmentFailure

if TYPE_CHECKING:
    import docker
    from docker.models.networks import Network

LOOK_SECONDS = 2.0
# What the containers cannot name among themselves nobody answers for: by default each such question takes 10 s, and
# torch asks for the name of the loopback, as IPv6 sees it, at each connection to a store there.
NAMES: Mapping[str, Any] = {
    "dns_opt": ["timeout:1", "attempts:1"],
    "extra_hosts": {"localhost4": "::ffff:127.0.0.1"},
}


def make_network(
    client: docker.DockerClient,
    name: str,
    labels: Mapping[str, str],
    plans: Iterable[tuple[IPv4Network, Mapping[str, str]]],
) -> tuple[Network, Mapping[str, str]]:
    """A network, by the first of `plans` whose range of addresses is free, and that plan's addresses.

    Raises:
        EnvironmentFailure: no range is free.
        docker.errors.APIError: the engine refuses for another reason.
    """
    import docker

    refused = ""
    for subnet, addresses in plans:
        pool = docker.types.IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
        try:
            network = client.networks.create(
                name,
                driver="bridge",
                internal=True,
                ipam=docker.types.IPAMConfig(pool_configs=[pool]),
                labels=dict(labels),
                check_duplicate=True,
            )
        except docker.errors.APIError as error:
            # Taken by another network, of the engine's or of the machine's.
            if "overlap" not in str(error):
                raise
            refused = str(error.explanation)
            continue
        return network, addresses
    raise EnvironmentFailure(
        f"there is no free range of addresses for the network {name}: {refused}. Remove unused networks "
        "(docker network ls; docker network rm NAME)"
    )


class NetworkWatch:
    """Looks whether the run's containers still have its network.

    `inside` says who is to be in it (id of the container, by name). `on_gone` hears that there is none any more, and
    `on_taken_out` who was taken out of it (its name, and the network's), once each time.
    """

    def __init__(
        self,
        network: Network,
        inside: Callable[[], Mapping[str, str]],
        on_gone: Callable[[EnvironmentFailure], None],
        on_taken_out: Callable[[str, str], None],
    ) -> None:
        self._network = network
        self._inside = inside
        self._on_gone = on_gone
        self._on_taken_out = on_taken_out
        # Outside of it when last looked at, and told of.
        self._host_pids: frozenset[str] = frozenset()
        self._told: frozenset[str] = frozenset()

    async def run(self, call: Callable[[Callable[[], Collection[str]]], Awaitable[Collection[str]]]) -> None:
        """Until this is cancelled; `call` makes a call that blocks."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            running = self._inside()
            try:
                taken_out = await call(partial(self._look, running))
            except EnvironmentFailure as error:
                # Told again at each look: a job may begin after it.
                self._on_gone(error)
                continue
            for name in taken_out:
                self._on_taken_out(name, str(self._network.name))

    def _look(self, running: Mapping[str, str]) -> Collection[str]:
        """Who was taken out of it, each told once: of `running` (id of the container, by name); blocks.

        Seen twice, so that one which is just starting or ending does not count.

        Raises:
            EnvironmentFailure: the network is gone.
        """
        import docker
        import requests

        try:
            self._network.reload()
        except docker.errors.NotFound as error:
            raise EnvironmentFailure(
                f"the run's network {self._network.name} is gone: it was removed from the Docker engine"
            ) from error
        except (docker.errors.DockerException, requests.RequestException, OSError):
            # An engine that does not answer says nothing of the network.
            return ()
        inside = self._network.attrs.get("Containers") or {}
        outside = frozenset(name for name, container in running.items() if container not in inside)
        found = (outside & self._host_pids) - self._told
        self._host_pids, self._told = outside, (self._told & outside) | found
        return sorted(found)
