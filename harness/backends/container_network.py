"""The network of a run's containers, in the Docker engine: a bridge without a way out, with an address for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

from chaos.containers import LABEL
from chaos.errors import EnvironmentFailure

if TYPE_CHECKING:
    import docker
    from docker.models.networks import Network

# What the containers cannot name among themselves nobody answers for: by default each such question takes 10 s, and
# torch asks for the name of the loopback, as IPv6 sees it, at each connection to a store there.
NAMES: Mapping[str, Any] = {
    "dns_opt": ["timeout:1", "attempts:1"],
    "extra_hosts": {"localhost4": "::ffff:127.0.0.1"},
}


def make_network(
    client: docker.DockerClient, run: str, plans: Iterable[tuple[IPv4Network, Mapping[str, str]]]
) -> tuple[Network, Mapping[str, str]]:
    """The network of `run`, by the first of `plans` whose range of addresses is free, and that plan's addresses.

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
                f"mecefo-chaos-{run}",
                driver="bridge",
                internal=True,
                ipam=docker.types.IPAMConfig(pool_configs=[pool]),
                labels={LABEL: run},
                check_duplicate=True,
            )
        except docker.errors.APIError as error:
            # Taken by another network, of the engine's or of the machine's.
            if "overlap" not in str(error):
                raise
            refused = str(error.explanation)
            continue
        return network, addresses
    raise EnvironmentFailure(f"there is no free range of addresses for the run's network: {refused}")
