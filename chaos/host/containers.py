"""A run's containers and networks in a Docker engine: known by the run's name in a label, and removed by it.

Whatever the run makes there carries the label from the moment it is made, so that what is ours can be found again by
anybody: at the end of the run, by the watchdog, by `chaos heal`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

from chaos.errors import EnvironmentFailure, HealError
from chaos.host.run_processes import is_name, undone_run
from mecefo_runtime.system.reason import Reason

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container
    from docker.models.networks import Network

LABEL = "mecefo-chaos.run"
# What a container or network is for: node-3, coordinator, links-of-node-3.
PART_LABEL = "mecefo-chaos.part"
UNIX = "unix://"
DEFAULT_URL = f"{UNIX}/var/run/docker.sock"
KNOCK_TIMEOUT_SECONDS = 5.0
REQUEST_TIMEOUT_SECONDS = 30
# An engine that makes or removes several containers on a busy machine takes many times what it takes on a quiet one.
REMOVE_TIMEOUT_SECONDS = 60.0
# How long after the death of whoever asked for it the engine may still be making a container.
SETTLE_SECONDS = 10.0
_ENGINE_POLL_SECONDS = 0.1
_MAX_REMOVED_AT_ONCE = 8


@contextmanager
def engine(url: str | None = None, timeout_seconds: int = REQUEST_TIMEOUT_SECONDS) -> Iterator[docker.DockerClient]:
    """A client of the engine at `url`; without one, of the engine that the environment names (DOCKER_HOST).

    Raises:
        EnvironmentFailure: it does not answer, or may not be asked; what to do is said.
    """
    client = connect(url, timeout_seconds)
    try:
        yield client
    finally:
        client.close()


def connect(url: str | None = None, timeout_seconds: int = REQUEST_TIMEOUT_SECONDS) -> docker.DockerClient:
    """As `engine`, for whoever closes it."""
    # A third of a second, which only those pay who want containers.
    import docker
    import requests

    client = None
    try:
        if url is None:
            _knock(os.environ.get("DOCKER_HOST") or DEFAULT_URL)
            client = docker.from_env(timeout=timeout_seconds)
        else:
            _knock(url)
            client = docker.DockerClient(base_url=url, timeout=timeout_seconds)
        client.ping()
    except (docker.errors.DockerException, requests.RequestException, OSError, ValueError) as error:
        # ValueError: an address that is none.
        if client is not None:
            client.close()
        raise EnvironmentFailure(why_no_engine(error)) from error
    return client


def _knock(url: str) -> None:
    """See whether somebody listens on a Unix socket; the SDK's own way to find out wraps the reason twice.

    Raises:
        OSError: nobody does, or we may not ask.
    """
    if url.startswith(UNIX):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(KNOCK_TIMEOUT_SECONDS)
            sock.connect(url.removeprefix(UNIX))


def url_of(client: docker.DockerClient) -> str:
    """Where its engine is, as `engine` takes it."""
    url = str(client.api.base_url)
    # The SDK's own name for a Unix socket is no address.
    adapter = client.api.get_adapter(url) if url.startswith("http+docker") else None
    path = getattr(adapter, "socket_path", None)
    return f"{UNIX}{path}" if path else url


def why_no_engine(error: BaseException) -> str:
    """What is in the way of an engine, and what to do about it."""
    text = str(error)
    if "Permission denied" in text or "PermissionError" in text:
        return (
            "no permission for the Docker engine: add it to the group docker (`sudo usermod -aG docker $USER`, "
            "then log in again), or use --backend local"
        )
    if "No such file" in text or "Connection refused" in text or "ConnectionRefused" in text:
        return (
            "there is no Docker engine that answers: start it (`sudo systemctl start docker`, or dockerd), name "
            "another one with DOCKER_HOST, or use --backend local"
        )
    return f"the Docker engine does not answer: {text}. `chaos doctor --backend docker` looks further"


def parts_of(client: docker.DockerClient, run: str) -> tuple[list[Container], list[Network]]:
    """The containers, in whatever state, and the networks of a run.

    Raises:
        EnvironmentFailure: the engine does not say.
    """
    import docker
    import requests

    if not is_name(run):
        # The engine takes a label without a value for every value.
        return [], []
    wanted: dict[str, str | list[str] | bool] = {"label": f"{LABEL}={run}"}
    try:
        containers = client.containers.list(all=True, filters=wanted, ignore_removed=True)
        return containers, client.networks.list(filters=wanted)
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise EnvironmentFailure(why_no_engine(error)) from error


def describe(client: docker.DockerClient, run: str) -> list[str]:
    """What there is of a run in the engine, each as a phrase that lets a person find it."""
    containers, networks = parts_of(client, run)
    return [
        *(f"container {container.name} ({container.status})" for container in containers),
        *(f"network {network.name}" for network in networks),
    ]


def remove(
    client: docker.DockerClient,
    run: str,
    timeout_seconds: float = REMOVE_TIMEOUT_SECONDS,
    *,
    settle_seconds: float = 0.0,
) -> list[str]:
    """Remove all that a run has in the engine, running or not; returns what that was.

    With `settle_seconds` there must be nothing for so long: the engine completes the requests of a client that was
    killed.

    Raises:
        HealError: something is still there after the time.
    """
    import docker
    import requests

    removed: list[str] = []
    deadline = time.monotonic() + timeout_seconds
    seen = time.monotonic()
    while True:
        try:
            containers, networks = parts_of(client, run)
            if containers or networks:
                seen = time.monotonic()
            elif time.monotonic() - seen >= settle_seconds:
                return sorted(set(removed))
            removed += [f"container {container.name}" for container in containers]
            _remove_all(containers)
            for network in networks:
                removed.append(f"network {network.name}")
                _remove_part(network.remove)
        except (EnvironmentFailure, docker.errors.DockerException, requests.RequestException) as error:
            if time.monotonic() > deadline:
                raise HealError(Reason("engine_not_cleaned", error=error)) from error
        if time.monotonic() > deadline and (left := ", ".join(describe(client, run))):
            raise HealError(Reason("left_in_engine", seconds=timeout_seconds, left=left))
        time.sleep(_ENGINE_POLL_SECONDS)


def _remove_all(containers: Sequence[Container]) -> None:
    # At once: an engine takes a second for each, more where the machine is busy, and nothing depends on the order.
    with ThreadPoolExecutor(max_workers=_MAX_REMOVED_AT_ONCE) as removals:
        asked = [removals.submit(_remove_part, partial(one.remove, force=True, v=True)) for one in containers]
    for removal in asked:
        removal.result()


def _remove_part(remove_it: Callable[[], object]) -> None:
    import docker

    try:
        remove_it()
    except docker.errors.NotFound:
        # The engine removes by itself what has ended.
        return
    except docker.errors.APIError as error:
        # 409: it is being removed. 403: a network whose last container is still going. Both are looked at again.
        if error.status_code not in (403, 409):
            raise


def is_container_running(url: str, container: str) -> bool:
    """Whether the container `container` (its id) runs; an engine that does not answer may run it.

    Raises:
        HealError: the engine does not answer.
    """
    import docker
    import requests

    try:
        with engine(url) as client:
            found = client.containers.get(container)
            run = undone_run()
            if run and found.labels.get(LABEL) != run:
                raise HealError(Reason("container_of_another_run", container=container[:12], run=run))
            return bool(found.attrs["State"]["Running"])
    except docker.errors.NotFound:
        return False
    except (EnvironmentFailure, docker.errors.DockerException, requests.RequestException) as error:
        raise HealError(Reason("container_state_unknown", container=container[:12], error=error)) from error


def run_in_container(url: str, container: str, command: Sequence[str], text: str = "") -> str:
    """Run `command` in a container, with `text` as its input; returns what it prints.

    Raises:
        OSError: it failed, and what it said; or the engine could not run it.
    """
    import docker
    import requests

    # The engine's own way to hand over an input is a connection of its own making; a shell does as well.
    words = ["sh", "-c", 'printf %s "$0" | "$@"', text, *command] if text else list(command)
    try:
        with engine(url) as client:
            result = client.containers.get(container).exec_run(words, demux=True)
            code, (out, err) = cast(tuple[int, tuple[bytes | None, bytes | None]], result)
    except (EnvironmentFailure, docker.errors.DockerException, requests.RequestException) as error:
        raise OSError(f"{command[0]}: {error}") from error
    if code:
        raise OSError(f"{command[0]}: {(err or b'').decode().strip() or f'exit code {code}'}")
    return (out or b"").decode()
