"""The digest over our sources: the same wherever they lie, another one when anything in them changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import harness
from harness.backends.docker.image import PACKAGES, source_digest

pytestmark = pytest.mark.unit

ROOT = Path(harness.__file__).parents[1]
TEMPLATE = "harness/report/report.html.j2"


@pytest.fixture
def copied(tmp_path):
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def digest_at(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # As in an image: what is compiled is not written, and nothing but the folder has our packages.
    command = [sys.executable, "-P", "-B", "-S", "-m", "harness.backends.docker.image", *words]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)


def test_a_copy_has_the_same_digest(copied):
    assert digest_at(copied).stdout.strip() == source_digest()


def test_what_python_compiled_and_hidden_files_do_not_count(copied):
    (copied / "chaos" / "__pycache__").mkdir()
    (copied / "chaos" / "__pycache__" / "cli.cpython-311.pyc").write_bytes(b"x")
    (copied / "harness" / ".cli.py.swp").write_bytes(b"x")
    assert digest_at(copied).stdout.strip() == source_digest()


@pytest.mark.parametrize("name", ["mecefo_chaos/cli/main.py", TEMPLATE, "mecefo_chaos/module.py"])
def test_every_byte_counts(copied, name):
    (copied / name).write_bytes((copied / name).read_bytes() + b"\n")
    assert digest_at(copied).stdout.strip() != source_digest()


@pytest.mark.parametrize("name", ["chaos/new.py", "mecefo_runtime/presets/new.yaml"])
def test_a_new_file_counts_even_an_empty_one(copied, name):
    (copied / name).parent.mkdir(exist_ok=True)
    (copied / name).touch()
    assert digest_at(copied).stdout.strip() != source_digest()


def test_a_renamed_file_counts(copied):
    (copied / TEMPLATE).rename(copied / f"{TEMPLATE}2")
    assert digest_at(copied).stdout.strip() != source_digest()


def test_a_build_is_refused_when_the_digest_it_was_given_is_not_so(copied):
    assert digest_at(copied, source_digest()).returncode == 0
    refused = digest_at(copied, "0" * 32)
    assert refused.returncode == 1
    assert source_digest() in refused.stderr


@pytest.mark.parametrize(
    ("words", "tags"),
    [
        ([], ["mecefo-chaos"]),
        (["--build-arg", "BASE=x"], ["mecefo-chaos"]),
        (["--tag", "mine", "--no-cache"], ["mine"]),
        (["--build-arg", "BASE=x", "--tag", "mine"], ["mine"]),
        (["-t", "mine"], ["mine"]),
        (["--tag=mine:2"], ["mine:2"]),
    ],
)
def test_a_build_with_a_name_of_its_own_leaves_the_usual_one_alone(tmp_path, words, tags):
    docker = tmp_path / "docker"
    # An engine that answers, and a base that lacks nothing.
    docker.write_text('#!/bin/sh\n[ "$1" = build ] && printf "%s\\n" "$@"\nexit 0\n')
    docker.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable}
    build = [ROOT / "docker" / "build", *words]
    said = subprocess.run(build, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    named = [word.removeprefix("--tag=") for word in said if word.startswith("--tag=")]
    assert named + [said[at + 1] for at, word in enumerate(said) if word in ("--tag", "-t")] == tags
    assert f"SOURCE_DIGEST={source_digest()}" in said and set(words) <= set(said)
