"""What tests ask the Docker engine: what there is of runs, by the label that all of it carries."""

from __future__ import annotations

import json
import time

import docker

from chaos.containers import LABEL, PART_LABEL

POLL_SECONDS = 0.1


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


def run_of(state_folder) -> str:
    """The name of the only run that is registered in `state_folder`."""
    (entry,) = state_folder.glob("*.json")
    return json.loads(entry.read_text())["run"]
