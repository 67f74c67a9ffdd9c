"""Pictures are taken of real runs, and of nothing else."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest

from manual import pictures
from manual.examples import EXAMPLES

pytestmark = pytest.mark.integration

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def a_state_of_our_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAOS_STATE", str(tmp_path / "state"))


@pytest.mark.nightly
def test_a_picture_is_taken(tmp_path):
    root = ElementTree.fromstring(pictures.take("kill-process", tmp_path))
    assert "signal" in root.findtext(f"{SVG}desc") or "SIGKILL" in root.findtext(f"{SVG}desc")
    states = [rect.get("class") for rect in root.iter(f"{SVG}rect")]
    assert states.count("gone") == 2, "the killed rank's stretch, and the legend's"


def test_without_a_run_there_is_no_picture(tmp_path, monkeypatch, capsys):
    refused = dataclasses.replace(EXAMPLES["kill-process"], arguments="kill-process --on rank=99 --at step=1")
    monkeypatch.setattr(pictures, "EXAMPLES", {"kill-process": refused})
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    assert pictures.main([]) == 1
    assert "rank=99" in capsys.readouterr().err
    assert list(tmp_path.glob("*.svg")) == []
