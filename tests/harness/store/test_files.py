"""Files that are written whole, or not at all."""

import os

import pytest

from chaos.errors import EnvironmentFailure
from harness.store.files import write_whole

pytestmark = pytest.mark.unit


def test_pipe_that_nobody_reads(tmp_path, monkeypatch):
    monkeypatch.setattr("chaos.user_files.MAX_WAIT_FOR_READER_SECONDS", 0.0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EnvironmentFailure, match="a pipe that nobody reads"):
        write_whole(tmp_path / "pipe", "text")
