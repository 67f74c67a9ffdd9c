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

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose on this machine"),
]

COMPOSE = Path(__file__).resolve().parents[2] / "docker" / "compose.yaml"
IMAGE = os.environ.get("CHAOS_TEST_IMAGE", "mecefo-chaos:latest")
RUN = "kill-node --at step=10 --repair none --steps 20 --nodes 2 --gpus-per-node 2 --dilation off --no-twin"
# Much longer than any of it takes on a busy machine.
TIMEOUT_SECONDS = 600.0
STOP_TIMEOUT_SECONDS = 300
ANSWER_TIMEOUT_SECONDS = 60.0
POLL_SECONDS = 0.5
# What an engine says of a container that took no notice of SIGTERM.
KILLED = 137

Compose = Callable[..., str]


@pytest.fixture
def compose() -> Iterator[Compose]:
    """docker-compose for a stack of its own, of which nothing is left afterwards."""
    name = f"stack{uuid.uuid4().hex[:8]}"
    # A port that the engine finds free at the moment it takes it.
    environment = {**os.environ, "CHAOS_IMAGE": IMAGE, "CHAOS_RUN": RUN, "TRAINING_PORT": "0"}

    def call(*arguments: str) -> str:
        done = subprocess.run(
            ["docker-compose", "-p", name, "-f", str(COMPOSE), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    yield call
    call("down", "-v")


def served(port: int) -> str:
    """What the job serves; nothing while it does not."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_TIMEOUT_SECONDS) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def exit_code(container: str) -> int:
    """That of a container that has ended, by its id."""
    client = docker.from_env()
    try:
        return int(client.containers.get(container).attrs["State"]["ExitCode"])
    finally:
        client.close()


def until(is_so: Callable[[], bool], compose: Compose) -> None:
    """Wait until `is_so`."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, compose("logs", "training")
        time.sleep(POLL_SECONDS)


def test_the_job_is_broken_judged_and_served_and_ends_when_it_is_told_to(compose: Compose) -> None:
    compose("up", "-d", "--no-build", "training")
    container = compose("ps", "-q", "training").split()[-1]
    port = int(compose("port", "training", "9400").rpartition(":")[2])
    until(lambda: "\nchaos_verdict{" in served(port), compose)
    # When the run has gone, it is served from its log, and listed again for Prometheus.
    list_targets = ("exec", "-T", "training", "cat", "/work/prometheus.json")
    until(lambda: bool(re.search(r"/work/kill-node/\S+: metrics: ", compose("logs", "training"))), compose)
    assert '"training:9400"' in compose(*list_targets)
    text = served(port)
    assert 'chaos_verdict{verdict="pass"} 1.0' in text, compose("logs", "training")
    assert 'chaos_faults_total{fault="kill-node",outcome="verified"} 1.0' in text
    compose("stop", "--timeout", str(STOP_TIMEOUT_SECONDS), "training")
    assert exit_code(container) != KILLED, "it had to be killed"
    logs = compose("logs", "training")
    assert re.search(r"chaos run /work/kill-node/\S+/experiment.yaml", logs), logs
    assert "Traceback" not in logs, logs
