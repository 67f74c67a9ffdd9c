"""Which checkpoints of a job are where, and what an interrupted save left."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
import torch

from harness.checkpoints.findings import EMPTY, GONE, MISSING, MIXED, NO_END, TOO_SHORT, UNFINISHED
from harness.checkpoints.finite import Values
from harness.checkpoints.look import Health, look_at, with_values
from harness.checkpoints.pointers import HIGHEST, read_pointers
from harness.checkpoints.saves import SeenSaves, locate
from harness.checkpoints.whole import Budget
from mecefo_runtime.system.command_records import CheckpointBegun
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import CheckpointWritten
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.records import parse

pytestmark = pytest.mark.unit


class Job:
    """Saves as a script does, and tells of it as its agent does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saves = SeenSaves()

    def begins(self, step: int, path: str, rank: int = 0) -> None:
        self._tell(CheckpointBegun(path=str(self.folder / path)), step, rank)

    def writes(self, path: str, *, seed: int = 0) -> Path:
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"w": torch.full((100,), float(seed))}, place)
        return place

    def has_written(self, step: int, *paths: str, rank: int = 0) -> None:
        saved = []
        for path in paths:
            status = (self.folder / path).stat()
            saved.append((str(self.folder / path), status.st_dev, status.st_ino, status.st_size))
        self._tell(CheckpointWritten(saved=tuple(saved)), step, rank)

    def saves_whole(self, step: int, *paths: str) -> None:
        self.begins(step, paths[0])
        for path in paths:
            self.writes(path, seed=step)
        self.has_written(step, *paths)

    def look(self) -> dict[int, Health]:
        return {one.saved.step: look_at(one, Budget(1 << 30)) for one in locate(self.saves)}

    def _tell(self, record: Record, step: int, rank: int) -> None:
        event = Event(
            record.KIND, "rank", time.time(), time.monotonic(), 1, 1, rank=rank, step=step, fields=record.given()
        )
        self.saves.feed(parse(event))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def cut(path: Path, num_bytes: int) -> None:
    os.truncate(path, num_bytes)


def codes(health: Health) -> list[str]:
    return [one.code for one in health.damage]


def test_whole_checkpoints_with_names_of_their_own(job: Job) -> None:
    job.saves_whole(10, "10.pt")
    job.saves_whole(20, "20.pt")
    found = job.look()
    assert [(step, one.found, one.whole, one.is_finished) for step, one in found.items()] == [
        (20, "there", True, True),
        (10, "there", True, True),
    ]


def test_one_that_is_smaller_than_it_was_saved(job: Job) -> None:
    job.saves_whole(20, "20.pt")
    size = (job.folder / "20.pt").stat().st_size
    cut(job.folder / "20.pt", 100)
    (damage,) = job.look()[20].damage
    assert (damage.code, damage.num_bytes, damage.expected_bytes) == (TOO_SHORT, 100, size)


def test_one_that_was_renamed_is_found_by_its_inode(job: Job) -> None:
    job.begins(10, "new.pt")
    job.writes("new.pt")
    job.has_written(10, "new.pt")
    (job.folder / "new.pt").replace(job.folder / "state.pt")
    found = job.look()[10]
    assert (found.path, found.whole) == (job.folder / "state.pt", True)


def test_a_later_file_with_the_inode_of_one_that_is_gone_is_not_taken_for_it(job: Job) -> None:
    job.saves_whole(10, "10.pt")
    inode = (job.folder / "10.pt").stat().st_ino
    (job.folder / "10.pt").rename(job.folder / "finished")
    (job.folder / "finished").write_text("")
    later = time.time() + 60.0
    os.utime(job.folder / "finished", (later, later))
    assert (job.folder / "finished").stat().st_ino == inode
    assert (job.look()[10].found, job.look()[10].damage) == ("gone", ())


def test_a_save_in_place_that_was_interrupted_took_the_checkpoint_before_away(job: Job) -> None:
    job.saves_whole(10, "state.pt")
    job.begins(20, "state.pt")
    cut(job.folder / "state.pt", 0)
    cut(job.writes("state.pt"), 500)
    found = job.look()
    assert (found[20].is_finished, codes(found[20])) == (False, [NO_END])
    assert found[10].found == "overwritten"


def test_a_save_that_was_interrupted_before_its_first_byte_leaves_the_checkpoint_before(job: Job) -> None:
    job.saves_whole(10, "state.pt")
    os.utime(job.folder / "state.pt", (time.time() - 60, time.time() - 60))
    job.begins(20, "state.pt")
    found = job.look()
    assert (found[20].found, found[20].whole) == ("gone", None)
    assert (found[10].found, found[10].whole) == ("there", True)


def test_an_empty_file_is_what_an_opened_one_leaves(job: Job) -> None:
    job.begins(20, "20.pt")
    (job.folder / "20.pt").touch()
    assert codes(job.look()[20]) == [EMPTY]


def test_an_interrupted_save_lacks_a_file_that_the_one_before_has(job: Job) -> None:
    job.saves_whole(10, "step_10/model.pt", "step_10/optimizer.pt")
    job.begins(20, "step_20/model.pt")
    job.writes("step_20/model.pt")
    (damage,) = job.look()[20].damage
    assert (damage.code, damage.file) == (MISSING, "optimizer.pt")


def test_an_interrupted_save_in_place_has_a_file_of_the_step_before(job: Job) -> None:
    job.saves_whole(10, "model.pt", "optimizer.pt")
    for name in ("model.pt", "optimizer.pt"):
        os.utime(job.folder / name, (time.time() - 60, time.time() - 60))
    job.begins(20, "model.pt")
    job.writes("model.pt", seed=20)
    (damage,) = job.look()[20].damage
    assert (damage.code, damage.file) == (MIXED, "optimizer.pt")


def test_an_interrupted_save_that_has_all_files_of_the_one_before_is_whole(job: Job) -> None:
    job.saves_whole(10, "10.pt")
    job.begins(20, "20.pt")
    job.writes("20.pt")
    found = job.look()[20]
    assert (found.is_finished, found.whole) == (False, True)


def test_of_a_first_save_that_was_interrupted_nothing_says_what_belongs_to_it(job: Job) -> None:
    job.begins(10, "10.pt")
    job.writes("10.pt")
    found = job.look()[10]
    assert (found.whole, found.damage, found.unchecked) == (None, (), (UNFINISHED,))


def test_a_file_that_is_renamed_in_an_interrupted_save_is_of_that_step(job: Job) -> None:
    job.begins(10, "new.pt")
    job.writes("new.pt")
    (job.folder / "new.pt").replace(job.folder / "state.pt")
    job.has_written(10, "state.pt")
    job.begins(20, "new.pt")
    job.writes("new.pt")
    (job.folder / "new.pt").replace(job.folder / "state.pt")
    found = job.look()
    assert (found[20].path, found[20].whole) == (job.folder / "state.pt", True)
    assert found[10].found == "overwritten"


def test_what_was_removed_is_gone_and_not_damaged(job: Job) -> None:
    job.saves_whole(10, "10.pt")
    job.saves_whole(20, "20.pt")
    (job.folder / "10.pt").unlink()
    found = job.look()[10]
    assert (found.found, found.whole, found.unchecked) == ("gone", None, (GONE,))


def test_a_part_that_was_removed_is_missing(job: Job) -> None:
    job.saves_whole(20, "step_20/model.pt", "step_20/optimizer.pt")
    (job.folder / "step_20/optimizer.pt").unlink()
    assert [(one.code, one.file) for one in job.look()[20].damage] == [(MISSING, "optimizer.pt")]


def test_a_folder_that_is_not_on_this_machine(job: Job) -> None:
    job.saves_whole(20, "elsewhere/20.pt")
    shutil.rmtree(job.folder / "elsewhere")
    found = job.look()[20]
    assert (found.found, found.whole) == ("elsewhere", None)


def test_usable_needs_all_three(job: Job) -> None:
    job.saves_whole(20, "20.pt")
    whole = job.look()[20]
    assert (whole.readable, whole.finite) == (None, None)
    seen = with_values(whole, [Values(num_read=1)], 0.1)
    assert (seen.whole, seen.readable, seen.finite) == (True, True, True)
    not_read = with_values(whole, [Values(unchecked="no_time")], 0.1)
    assert (not_read.readable, not_read.finite, not_read.unchecked) == (None, None, ("no_time",))


# ---- pointers ----


def pointers(folder: Path) -> dict[str, tuple[str | None, bool]]:
    found = read_pointers([folder], 0.0)
    return {one.name: (None if one.target is None else one.target.name, one.is_there) for one in found}


def test_pointers_of_deepspeed_megatron_and_a_link(tmp_path: Path) -> None:
    for name in ("global_step10", "iter_0000020"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").write_text("global_step10\n")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    (tmp_path / "last.ckpt").symlink_to("iter_0000020")
    assert pointers(tmp_path) == {
        "latest": ("global_step10", True),
        "latest_checkpointed_iteration.txt": ("iter_0000020", True),
        "last.ckpt": ("iter_0000020", True),
        HIGHEST: ("iter_0000020", True),
    }


def test_a_pointer_to_a_folder_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "step_10").mkdir()
    (tmp_path / "latest").write_text("step_20")
    assert pointers(tmp_path) == {"latest": ("step_20", False)}
    (tmp_path / "latest").write_text("20")
    assert pointers(tmp_path) == {"latest": (None, False)}


@pytest.mark.parametrize("text", ["", "some words", "3", "loss"])
def test_a_file_of_that_name_that_says_something_else_is_no_pointer(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.pt").touch()
    (tmp_path / "latest").write_text(text)
    assert pointers(tmp_path) == {}


def test_a_pointer_of_before_the_run_says_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("step_20")
    assert read_pointers([tmp_path], time.time() + 60) == ()
