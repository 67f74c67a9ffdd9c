"""What is built for package indexes: metadata that stands by itself, and what a workflow publishes."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from email import message_from_bytes
from pathlib import Path

import pytest

from hatch_build import described, urls

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SOURCE = "https://example.org/somebody/chaos/blob/v1.2.3"
TARGETS = re.compile(r"\]\(([^)\s]+)\)")

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("source", ["", SOURCE])
def test_the_description_has_no_relative_link(source):
    targets = TARGETS.findall(described(README, source))
    assert targets
    assert all(target.startswith(("https://", "#")) for target in targets)
    assert [target for target in TARGETS.findall(README) if target.startswith("https://")] == [
        target for target in targets if target.startswith("https://") and not target.startswith("https://example.org/")
    ]


def test_links_lead_to_pages_and_pictures_to_files():
    text = "[the docs](docs/a.md#b) ![it](docs/p.svg) [![it](p.png)](docs/a.md)"
    page, raw = SOURCE, "https://example.org/somebody/chaos/raw/v1.2.3"
    assert described(text, SOURCE) == (
        f"[the docs]({page}/docs/a.md#b) ![it]({raw}/docs/p.svg) [![it]({raw}/p.png)]({page}/docs/a.md)"
    )
    assert described(text, "").split() == ["the", "docs"]


def test_pictures_in_html_too():
    text = 'a <picture><source srcset="docs/dark.png"><img alt="it" src="docs/p.png"></picture> b'
    raw = "https://example.org/somebody/chaos/raw/v1.2.3"
    assert described(text, SOURCE) == text.replace('"docs/', f'"{raw}/docs/')
    assert described(text, "").split() == ["a", "b"]


def test_the_addresses_are_those_of_the_repository_that_builds_it():
    assert urls("") == {}
    assert urls(SOURCE)["Changelog"] == f"{SOURCE}/CHANGELOG.md"
    with pytest.raises(ValueError, match="not https://"):
        urls("somewhere")


def test_the_sdist_holds_what_is_told_of_it(tmp_path):
    environment = {**os.environ, "MECEFO_CHAOS_SOURCE": SOURCE}
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    (path,) = tmp_path.iterdir()
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        (about,) = [name for name in sdist.getnames() if name.endswith("/PKG-INFO")]
        metadata = message_from_bytes(sdist.extractfile(about).read())
    # The hook itself, too: a wheel is built from this.
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "mecefo_chaos/cli/main.py"} <= names
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert f"{SOURCE}/docs/" in metadata.get_payload()
    assert len(metadata.get_all("Project-URL")) == 4


def test_torch_is_not_pinned():
    (torch,) = [
        line
        for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["runtime"]
        if line.startswith("torch")
    ]
    assert "==" not in torch


def test_ci_builds_checks_and_runs_both_packages():
    script = (ROOT / ".ci/run").read_text()
    for line in (
        "hatchling build --target sdist",
        "pip wheel",
        "twine check --strict",
        'install --quiet --no-deps "$work"',
    ):
        assert line in script
