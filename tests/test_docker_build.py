"""`docker/build` and `docker/make_base.py` say what is missing before anything is built."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[1]
ALL = ("ip", "iptables", "nft", "nsenter", "ps", "apt-get", "python")
# Answers for an engine; `docker run` looks for the programs of the base as that would, in a folder of ours.
DOCKER = """#!/bin/bash
echo "$*" >>"$LOG"
case $1 in
    version) exit "$ENGINE" ;;
    run) [ "$BASE_RUNS" = 0 ] || exit 125; PATH=$PROGRAMS exec /bin/sh -c "${@: -1}" ;;
esac
"""


@pytest.fixture
def build(tmp_path):
    """Runs docker/build beside a base that has these programs; returns (exit code, standard error, calls)."""
    tools, programs, log = tmp_path / "tools", tmp_path / "programs", tmp_path / "log"
    tools.mkdir()
    (tools / "docker").write_text(DOCKER)
    (tools / "docker").chmod(0o755)

    def run(*arguments, has=ALL, engine=0, base_runs=0):
        programs.mkdir(exist_ok=True)
        for name in has:
            (programs / name).write_text("#!/bin/sh\n")
            (programs / name).chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            # Only the checks: the digest of the sources is another test's.
            "PYTHON": "/bin/true",
            "LOG": str(log),
            "PROGRAMS": str(programs),
            "ENGINE": str(engine),
            "BASE_RUNS": str(base_runs),
        }
        done = subprocess.run(
            [ROOT / "docker" / "build", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr, log.read_text().splitlines()

    return run


def bases(calls):
    """The images that were run, and the commands that were built."""
    return [call.split("/bin/sh ")[1].split(" ")[0] for call in calls if call.startswith("run ")]


@pytest.mark.parametrize(
    ("arguments", "base"),
    [
        ((), "python:3.11-slim"),
        (("--build-arg", "BASE=alpine:3"), "alpine:3"),
        (("--build-arg=BASE=alpine:3", "--quiet"), "alpine:3"),
        (("--label", "BASE=no-base"), "python:3.11-slim"),
    ],
)
def test_a_base_that_has_everything_is_built_on(build, arguments, base):
    code, error, calls = build(*arguments)
    assert (code, error) == (0, "")
    assert bases(calls) == [base]
    assert calls[-1].startswith("build --file docker/Dockerfile ") and calls[-1].endswith(" ".join([*arguments, "."]))


def test_what_apt_can_install_is_left_to_it(build):
    code, error, calls = build(has=("apt-get", "python"))
    assert (code, error) == (0, "") and calls[-1].startswith("build ")


def test_a_base_without_nft_and_apt_is_refused_with_what_to_install(build):
    code, error, calls = build("--build-arg", "BASE=alpine:3", has=set(ALL) - {"nft", "apt-get", "ps"})
    assert code == 1 and not any(call.startswith("build ") for call in calls)
    assert len(error.splitlines()) == 1
    assert "alpine:3 lacks nftables procps and has no apt-get" in error
    assert "apt-get install nftables procps on this machine" in error


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"has": set(ALL) - {"python"}}, "has no python"),
        ({"engine": 1}, "no Docker engine answers: chaos doctor --backend docker"),
        ({"base_runs": 1}, "cannot be pulled, or has no /bin/sh"),
    ],
)
def test_other_reasons_have_one_sentence_each(build, settings, words):
    code, error, calls = build(**settings)
    assert code == 1 and words in error and len(error.splitlines()) == 1
    assert not any(call.startswith("build ") for call in calls)


def test_a_base_is_not_made_on_a_machine_without_what_the_image_needs(tmp_path):
    for name, script in {
        "dpkg": "echo \"dpkg-query: package 'nftables' is not installed\" >&2\nexit 1",
        "docker": f"touch {tmp_path}/called",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    words = [sys.executable, ROOT / "docker" / "make_base.py", "--bare"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "this machine lacks nftables: apt-get install nftables\n")
    assert not (tmp_path / "called").exists(), "no import was begun"
