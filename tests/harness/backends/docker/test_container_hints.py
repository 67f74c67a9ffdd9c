"""What is said of a command that misses in a container what it has on its user's machine."""

from pathlib import Path

import pytest

from harness.backends.command.start import NOT_FOUND
from harness.backends.docker.backend import hint

pytestmark = pytest.mark.unit
FOLDER = Path("/home/me/training")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ModuleNotFoundError: No module named 'datasets'\nChildFailedError",
            "where the image has no module 'datasets'",
        ),
        ("OSError: [Errno 30] Read-only file system: '/etc/own'", "may write only to /home/me/training and /tmp"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'", "sees only /home/me/training"),
        ("gaierror: [Errno -3] Temporary failure in name resolution", "reaches only the other nodes"),
    ],
)
def test_what_is_missed_is_told(tmp_path, text, said):
    (tmp_path / "job.log").write_text("epoch 1 of 3\n" * 10_000 + f"Traceback\n{text}\n")
    found = hint(tmp_path / "job.log", FOLDER, 1)
    assert found is not None and said in found


@pytest.mark.parametrize("text", ["", "ValueError: loss is nan", "FileNotFoundError: 'checkpoint.pt'"])
def test_of_all_else_nothing_is_guessed(tmp_path, text):
    (tmp_path / "job.log").write_text(text)
    assert hint(tmp_path / "job.log", FOLDER, 1) is None


def test_a_program_that_is_not_found_is_missing_in_the_image(tmp_path):
    assert "where its image has no such program" in str(hint(tmp_path / "job.log", FOLDER, NOT_FOUND))


def test_where_nothing_was_written_nothing_is_known(tmp_path):
    assert hint(tmp_path / "job.log", FOLDER, 1) is None
