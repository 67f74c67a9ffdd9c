"""The image: whoever it is run as, with whatever few rights, it does what the sources here do."""

from __future__ import annotations

import io
import json
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any

import docker
import pytest

from harness.backends.docker.examination import docker_findings
from harness.backends.docker.image import DEFAULT_IMAGE, DIGEST_LABEL, PURPOSE_LABEL, image_digest, source_digest

pytestmark = pytest.mark.docker

IMAGE = os.environ.get("CHAOS_TEST_IMAGE", DEFAULT_IMAGE)
# Nobody whom the image's /etc/passwd knows.
STRANGER = "4321:4321"
LITTLE: dict[str, Any] = {
    "user": STRANGER,
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "tmpfs": {"/tmp": "rw,nosuid,nodev,mode=1777"},
    "network_mode": "none",
}
JOB = "--nodes 2 --gpus-per-node 1 --steps 6 --no-twin"
RUN = f"chaos run kill-node --at step=3 --repair none {JOB} --out /tmp/runs --json"
# Longer than anybody looks at an image or tries a network.
GONE_WITHIN_SECONDS = 120.0
POLL_SECONDS = 0.1


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture
def tag(engine: docker.DockerClient) -> Iterator[str]:
    """A name for an image that is gone after the test."""
    name = f"mecefo-chaos-test:{uuid.uuid4().hex[:12]}"
    yield name
    for image in engine.images.list(name):
        engine.images.remove(image.id, force=True)


def said(engine: docker.DockerClient, words: list[str], image: str = IMAGE, **settings: Any) -> str:
    """What a container writes to standard output; it is gone afterwards."""
    return engine.containers.run(image, words, remove=True, **settings).decode()


def test_a_stranger_with_no_rights_can_use_it(engine):
    assert said(engine, ["chaos", "--version"], **LITTLE).startswith("chaos, version ")
    assert said(engine, ["id", "-u"], **LITTLE).strip() == "4321"


def test_it_says_what_it_can_do(engine):
    assert "kill-node" in said(engine, ["chaos", "faults"], **LITTLE)
    assert "chaos run" in said(engine, [], **LITTLE), "by default it shows its help"


def test_nobody_is_root_by_default(engine):
    assert said(engine, ["id", "-u"]).strip() != "0"


def test_a_whole_run_passes_in_it(engine):
    summary = json.loads(said(engine, RUN.split(), init=True, **LITTLE))
    assert (summary["verdict"], summary["steps_committed"]) == ("pass", 6), summary["reasons"]
    assert summary["incidents"][0]["verified"]


def test_nothing_but_the_folders_for_that_can_be_written_to(engine):
    script = "find / -xdev -writable -not -type l 2>/dev/null || true"
    rights = {key: value for key, value in LITTLE.items() if key not in ("read_only", "tmpfs")}
    # Debian lets everybody write to the folders for temporary files and for locks too.
    allowed = {"/tmp", "/work", "/var/tmp", "/var/lock", "/run/lock"}
    found = set(said(engine, ["sh", "-c", script], **rights).split())
    places = ("/proc/", "/sys/", "/dev/")
    assert "/work" in found
    assert not {path for path in found if not path.startswith(places)} - allowed


def test_what_python_compiled_is_there(engine):
    # Without, torch takes three times as long to import, in every container of a run.
    script = (
        "import importlib.util as u, pathlib\n"
        "names = ['torch', 'torch.nn.modules.module', 'harness.backends.forkserver', 'mecefo_chaos.cli.main']\n"
        "paths = [u.cache_from_source(u.find_spec(name).origin) for name in names]\n"
        "print([path for path in paths if not pathlib.Path(path).is_file()])"
    )
    assert said(engine, ["python", "-P", "-c", script], **LITTLE).strip() == "[]"


def test_link_faults_find_their_programs(engine):
    script = "for tool in ip iptables nft nsenter unshare ps; do command -v $tool >/dev/null || echo $tool; done"
    assert said(engine, ["sh", "-c", script], **LITTLE) == ""


def test_it_has_the_sources_of_here_and_says_so(engine):
    assert image_digest(engine, IMAGE) == source_digest()
    assert said(engine, ["python", "-P", "-m", "harness.backends.docker.image"], **LITTLE).strip() == source_digest()


def test_an_image_with_other_sources_is_told_apart(engine, tag):
    lines = [
        f"FROM {IMAGE}",
        "USER 0",
        "RUN echo >> $(python -P -c 'import mecefo_chaos; print(mecefo_chaos.__file__)')",
    ]
    build(engine, tag, [*lines, f'LABEL {DIGEST_LABEL}=""'])
    theirs = image_digest(engine, tag)
    assert theirs is not None and theirs != source_digest()
    assert finding(tag).outcome == "wrong"
    assert "other sources" in finding(tag).found


def test_an_image_of_somebody_elses_is_told_apart(engine, tag):
    build(engine, tag, [f"FROM {IMAGE}", "USER 0", "RUN rm -r /usr/local/lib/python3*/site-packages/harness"])
    # What the label says was so before.
    build(engine, tag, [f"FROM {tag}", f'LABEL {DIGEST_LABEL}=""'])
    assert image_digest(engine, tag) is None
    assert "does not contain" in finding(tag).found


def test_an_image_without_programs_is_told_apart(engine, tag):
    name, version = tag.split(":")
    engine.api.import_image_from_data(empty_tar(), repository=name, tag=version)
    before = left(engine)
    assert image_digest(engine, tag) is None
    # A container that never started is removed too.
    assert_nothing_new_stays(engine, before)


def test_no_image_is_told_with_what_to_do(engine):
    missing = finding("mecefo-chaos-test:none")
    assert missing.outcome == "missing" and missing.stops("docker") and not missing.stops("local")
    assert "docker/build" in missing.remedy


def test_looking_leaves_nothing_behind(engine):
    before = left(engine)
    found = list(docker_findings(IMAGE))
    assert not [one for one in found if one.stops("docker")], found
    assert_nothing_new_stays(engine, before)


def assert_nothing_new_stays(engine: docker.DockerClient, before: set[str]) -> None:
    """That all that was not there `before` goes: others who look at this engine just now remove what is theirs."""
    deadline = time.monotonic() + GONE_WITHIN_SECONDS
    new = left(engine) - before
    while new := new & left(engine):
        assert time.monotonic() < deadline, f"still in the engine: {new}"
        time.sleep(POLL_SECONDS)


def left(engine: docker.DockerClient) -> set[str]:
    labelled = {"label": PURPOSE_LABEL}
    networks = engine.networks.list(filters=labelled)
    containers = engine.containers.list(all=True, filters=labelled, ignore_removed=True)
    return {part.id for part in (*networks, *containers)}


def finding(image: str) -> Any:
    return next(one for one in docker_findings(image) if one.name == "image")


def build(engine: docker.DockerClient, tag: str, lines: list[str]) -> None:
    engine.images.build(fileobj=io.BytesIO("\n".join(lines).encode()), tag=tag, rm=True, forcerm=True)


def empty_tar() -> bytes:
    return bytes(10240)
