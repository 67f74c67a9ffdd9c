"""Which of a script's saves is taken for the newest checkpoint of the run."""

import json
import os
from types import SimpleNamespace

import pytest

from chaos.errors import TargetNotFound
from chaos.faults.storage._saved import newest_saved
from chaos.host.run_files import EVENTS_FILE

pytestmark = pytest.mark.unit

BEGAN_SECONDS = 1_000_000.0


def context(folder, saves):
    """Of a run that began long ago, and whose log was written to just now."""
    (folder / EVENTS_FILE).write_text(json.dumps({"time": BEGAN_SECONDS}) + "\n" + json.dumps({"time": 2e6}) + "\n")
    return SimpleNamespace(run_folder=folder, checkpoint_folder=None, watch=SimpleNamespace(saves=saves))


def saved(path, written_seconds):
    path.write_bytes(b"state")
    os.utime(path, (written_seconds, written_seconds))
    found = path.stat()
    return SimpleNamespace(step=10, saved=[[str(path), found.st_dev, found.st_ino]])


def test_a_checkpoint_is_found_however_much_the_run_has_logged_since(tmp_path):
    record = saved(tmp_path / "checkpoint.pt", BEGAN_SECONDS + 5)
    assert newest_saved(context(tmp_path, [record])).path == tmp_path / "checkpoint.pt"


def test_what_was_written_before_the_run_is_not_its_own(tmp_path):
    record = saved(tmp_path / "checkpoint.pt", BEGAN_SECONDS - 5)
    with pytest.raises(TargetNotFound, match="no existing checkpoint was observed"):
        newest_saved(context(tmp_path, [record]))


def test_what_was_renamed_after_it_was_saved_is_found_by_its_inode(tmp_path):
    record = saved(tmp_path / "new.pt", BEGAN_SECONDS + 5)
    (tmp_path / "new.pt").replace(tmp_path / "checkpoint.pt")
    assert newest_saved(context(tmp_path, [record])).path == tmp_path / "checkpoint.pt"
