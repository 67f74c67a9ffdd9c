"""Which of a script's saves is taken for the newest checkpoint of the run."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.errors import TargetNotFound
from chaos.faults.storage._saved import newest_saved
from chaos.host.run_files import EVENTS_FILE

pytestmark = pytest.mark.unit

BEGAN_SECONDS = 1_000_000.0


def context(folder, saves, named=None):
    """Of a run that began long ago, and whose log was written to just now."""
    (folder / EVENTS_FILE).write_text(json.dumps({"time": BEGAN_SECONDS}) + "\n" + json.dumps({"time": 2e6}) + "\n")
    return SimpleNamespace(run_folder=folder, checkpoint_folder=named, watch=SimpleNamespace(saves=saves))


def saved(path, written_seconds):
    path.write_bytes(b"state")
    os.utime(path, (written_seconds, written_seconds))
    found = path.stat()
    saved = [[str(path), found.st_dev, found.st_ino]]
    return SimpleNamespace(step=10, rank=0, time_seconds=written_seconds, saved=saved)


def test_a_checkpoint_is_found_however_much_the_run_has_logged_since(tmp_path):
    record = saved(tmp_path / "checkpoint.pt", BEGAN_SECONDS + 5)
    assert newest_saved(context(tmp_path, [record])).path == tmp_path / "checkpoint.pt"


def test_what_was_written_before_the_run_is_not_its_own(tmp_path):
    record = saved(tmp_path / "checkpoint.pt", BEGAN_SECONDS - 5)
    with pytest.raises(TargetNotFound) as refused:
        newest_saved(context(tmp_path, [record]))
    assert refused.value.code == "files_gone"
    assert str(refused.value).startswith(f"saves by rank 0 were seen in {tmp_path} (step 10), but no regular file")


def test_a_script_that_saved_nothing_is_no_job_of_ours(tmp_path):
    with pytest.raises(TargetNotFound) as refused:
        newest_saved(context(tmp_path, []))
    assert refused.value.code == "nothing_saved" and "--checkpoint-every" not in str(refused.value)


def test_where_nothing_is_in_the_named_folder_the_folder_of_the_saves_is_advised_and_taken(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "wrong").mkdir()
    record = saved(tmp_path / "out" / "checkpoint.pt", BEGAN_SECONDS + 5)
    with pytest.raises(TargetNotFound) as refused:
        newest_saved(context(tmp_path, [record], tmp_path / "wrong"))
    assert refused.value.code == "not_in_folder"
    advised = str(refused.value).partition(": write --checkpoint-folder ")[2]
    assert newest_saved(context(tmp_path, [record], Path(advised))).path == tmp_path / "out" / "checkpoint.pt"


def test_what_was_renamed_after_it_was_saved_is_found_by_its_inode(tmp_path):
    record = saved(tmp_path / "new.pt", BEGAN_SECONDS + 5)
    (tmp_path / "new.pt").replace(tmp_path / "checkpoint.pt")
    assert newest_saved(context(tmp_path, [record])).path == tmp_path / "checkpoint.pt"
