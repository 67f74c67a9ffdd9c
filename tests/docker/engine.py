"""What tests ask the Docker engine: what there is of runs, by their label; and what is patched in containers."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import docker

from chaos.host.containers import DEFAULT_URL, LABEL, PART_LABEL
from tests.integration.runs import IN_RANKS, SLOW_UNTIL_BACK

POLL_SECONDS = 0.1

# A patch of the command: the first processes of its containers execute the same patches.
_ALSO_IN_CONTAINERS = """
import os
import sys

if sys.orig_argv[1] == "-c":
    import docker
    from docker.models.containers import ContainerCollection

    site, create = os.path.dirname(__file__), ContainerCollection.create

    def create_with_patches(self, image, command=None, **settings):
        settings["environment"]["PYTHONPATH"] = site
        settings["mounts"].append(docker.types.Mount(site, site, type="bind", read_only=True))
        return create(self, image, command, **settings)

    ContainerCollection.create = create_with_patches
"""
# As in `tests.integration.runs`, where the ranks are forked in containers.
_IN_NODES = """import sys
if any(word.startswith("node-") for word in sys.orig_argv):
"""
# A container takes longer to start than a process: its steps are slower, too.
SLOW_UNTIL_BACK_IN_CONTAINERS = _ALSO_IN_CONTAINERS + SLOW_UNTIL_BACK.replace(IN_RANKS, _IN_NODES).replace("0.2", "0.5")


def parts(run: str | None = None) -> dict[str, list[str]]:
    """The names of the containers and networks of a run, or of all runs."""
    wanted = {"label": LABEL if run is None else f"{LABEL}={run}"}
    client = docker.from_env()
    try:
        return {
            "containers": [one.name for one in client.containers.list(all=True, filters=wanted, ignore_removed=True)],
            "networks": [one.name for one in client.networks.list(filters=wanted)],
        }
    finally:
        client.close()


def assert_gone(run: str, timeout_seconds: float) -> None:
    """That within the time nothing of the run is in the engine any more."""
    deadline = time.monotonic() + timeout_seconds
    while any(left := parts(run).values()):
        assert time.monotonic() < deadline, f"still in the engine after {timeout_seconds} s: {list(left)}"
        time.sleep(POLL_SECONDS)


def container_of(run: str, part: str) -> docker.models.containers.Container:
    """The running container of `part` (node-1, coordinator)."""
    client = docker.from_env()
    (found,) = client.containers.list(filters={"label": [f"{LABEL}={run}", f"{PART_LABEL}={part}"]})
    return found


def network_of(run: str) -> docker.models.networks.Network:
    """The network of a run, with the containers that are in it."""
    client = docker.from_env()
    (found,) = client.networks.list(filters={"label": f"{LABEL}={run}"}, greedy=True)
    return found


def remove_network(run: str) -> None:
    """Take all containers of a run out of its network, and remove that."""
    network = network_of(run)
    for container in network.attrs["Containers"]:
        network.disconnect(container, force=True)
    network.remove()


def run_of(state_folder) -> str:
    """The name of the only run that is registered in `state_folder`."""
    (entry,) = state_folder.glob("*.json")
    return json.loads(entry.read_text())["run"]


class SlowEngine:
    """An address at which the engine answers as it does on a busy machine; a context.

    `address` is for DOCKER_HOST. Requests that make a container reach the engine after `seconds`, also of somebody who
    has died meanwhile; `asked` is set when the first of them comes.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.address = f"unix://{folder / 'slow.sock'}"
        self.asked = threading.Event()
        self._seconds = seconds
        self._engine = os.environ.get("DOCKER_HOST") or DEFAULT_URL
        self._serving: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address.removeprefix("unix://"))

    def __enter__(self) -> SlowEngine:
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Wakes up whoever accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def join(self, timeout_seconds: float) -> None:
        """Wait until the engine has answered all that it was asked, also by those who are dead."""
        deadline = time.monotonic() + timeout_seconds
        for serving in self._serving:
            serving.join(max(0.0, deadline - time.monotonic()))
            assert not serving.is_alive(), f"the engine has not answered within {timeout_seconds} s"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                asker, _ = self._listener.accept()
                serving = threading.Thread(target=self._serve, args=(asker,), daemon=True)
                serving.start()
                self._serving.append(serving)

    def _serve(self, asker: socket.socket) -> None:
        with asker, socket.socket(socket.AF_UNIX) as answerer:
            answerer.connect(self._engine.removeprefix("unix://"))
            answers = threading.Thread(target=self._forward, args=(answerer, asker), daemon=True)
            answers.start()
            self._forward(asker, answerer)
            answers.join()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if b"/containers/create" in data:
                    self.asked.set()
                    time.sleep(self._seconds)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
