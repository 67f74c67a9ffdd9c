"""The training job of docker/compose.yaml in its container: broken, judged, served, and ended when it is told to."""

import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import docker
import pytest
from docker.models.containers import Container

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose on this machine"),
]

COMPOSE = Path(__file__).resolve().parents[2] / "docker" / "compose.yaml"
IMAGE = os.environ.get("CHAOS_TEST_IMAGE", "mecefo-chaos:latest")
RUN = "kill-node --at step=10 --repair none --steps 20 --nodes 2 --gpus-per-node 1 --dilation off --no-twin"
# Much longer than any of it takes on a busy machine.
TIMEOUT_SECONDS = 600.0
STOP_TIMEOUT_SECONDS = 300
ANSWER_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.1
# What an engine says of a container that took no notice of SIGTERM.
KILLED = 137


@pytest.fixture
def training() -> Iterator[Container]:
    """The container of the training job in a stack of its own, of which nothing is left afterwards."""
    name = f"stack{uuid.uuid4().hex[:8]}"
    # A port that the engine finds free at the moment it takes it.
    environment = {**os.environ, "CHAOS_IMAGE": IMAGE, "CHAOS_RUN": RUN, "TRAINING_PORT": "0"}

    def compose(*arguments: str) -> None:
        done = subprocess.run(
            ["docker-compose", "-p", name, "-f", str(COMPOSE), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        assert done.returncode == 0, done.stdout

    client = docker.from_env()
    try:
        compose("up", "-d", "--no-build", "training")
        (container,) = client.containers.list(filters={"label": f"com.docker.compose.project={name}"})
        yield container
    finally:
        client.close()
        compose("down", "-v")


def served(port: int) -> str:
    """What the job serves; nothing while it does not."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_TIMEOUT_SECONDS) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def until(is_so: Callable[[], bool], training: Container) -> None:
    """Wait until `is_so`."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, training.logs().decode()
        time.sleep(POLL_SECONDS)


def test_the_job_is_broken_judged_and_served_and_ends_when_it_is_told_to(training: Container) -> None:
    (published,) = training.ports["9400/tcp"]
    port = int(published["HostPort"])
    until(lambda: "\nchaos_verdict{" in served(port), training)
    # When the run has gone, it is served from its log, and listed again for Prometheus.
    until(lambda: bool(re.search(rb"/work/kill-node/\S+: metrics: ", training.logs())), training)
    assert '"training:9400"' in training.exec_run(["cat", "/work/prometheus.json"]).output.decode()
    text = served(port)
    assert 'chaos_verdict{verdict="pass"} 1.0' in text, training.logs().decode()
    assert 'chaos_faults_total{fault="kill-node",outcome="verified"} 1.0' in text
    training.stop(timeout=STOP_TIMEOUT_SECONDS)
    training.reload()
    assert training.attrs["State"]["ExitCode"] != KILLED, "it had to be killed"
    logs = training.logs().decode()
    assert re.search(r"chaos run /work/kill-node/\S+/experiment.yaml", logs), logs
    assert "Traceback" not in logs, logs
