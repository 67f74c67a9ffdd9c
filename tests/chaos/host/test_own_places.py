"""What is kept of a user's files is for that user alone, and what is put back goes through no link."""

import os
import stat
import zlib
from contextlib import contextmanager
from dataclasses import replace

import pytest

from chaos.errors import HealError
from chaos.host import small_disk
from chaos.host.kept_file import SavedFile, keep, put_back
from chaos.host.own_folder import opened, parent_of, single_name
from chaos.undo.ledger import Ledger
from harness.store.runs import new_run_folder

pytestmark = pytest.mark.unit

WHOLE, DAMAGED = b"whole", b"half"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes root: files of a second user")


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def saved(tmp_path):
    """A file of a script's checkpoint, and what is known of it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "model.pt").write_bytes(WHOLE)
    (folder / "model.pt").chmod(0o640)
    return SavedFile(
        folder=str(folder),
        name="model.pt",
        num_bytes=len(WHOLE),
        crc32=zlib.crc32(WHOLE),
        unit_crc32=None,
        kept=str(tmp_path / "run" / "kept" / "model.pt-1"),
        mode=0o640,
        damaged_num_bytes=len(DAMAGED),
        damaged_crc32=zlib.crc32(DAMAGED),
    )


@pytest.fixture
def damaged(saved, tmp_path):
    with umask(0):
        (tmp_path / "run").mkdir()
        keep(saved)
    (tmp_path / "scratch" / "model.pt").write_bytes(DAMAGED)
    return saved


def test_nobody_else_may_read_the_copy_whatever_the_umask(damaged, tmp_path):
    assert mode(tmp_path / "run" / "kept") == 0o700
    assert mode(tmp_path / "run" / "kept" / "model.pt-1") == 0o600


@pytest.mark.parametrize("is_removed", [False, True])
def test_what_is_put_back_may_be_read_by_whom_it_was(damaged, tmp_path, is_removed):
    path = tmp_path / "scratch" / "model.pt"
    if is_removed:
        damaged = replace(damaged, damaged_num_bytes=None, damaged_crc32=None)
        path.unlink()
    assert put_back(damaged)["undone"] == put_back(damaged)["undone"] == "whole, by size and CRC-32"
    assert path.read_bytes() == WHOLE and mode(path) == 0o640
    assert not (tmp_path / "run" / "kept").exists()


@as_root
def test_and_belongs_to_whom_it_did(damaged, tmp_path):
    path = tmp_path / "scratch" / "model.pt"
    os.chown(path, 65534, 65534)
    put_back(damaged)
    assert (path.read_bytes(), path.stat().st_uid, path.stat().st_gid) == (WHOLE, 65534, 65534)


def test_an_older_record_has_no_mode(damaged, tmp_path):
    told = damaged.to_json()
    del told["mode"]
    put_back(SavedFile.from_json(told))
    assert mode(tmp_path / "scratch" / "model.pt") == 0o640, "as the damaged one"


class TestLinks:
    """Another user of the same folder has exchanged something for a link."""

    @pytest.mark.parametrize("where", ["folder", "parent", "file", "copy", "place of the copy"])
    def test_none_is_followed(self, damaged, tmp_path, where):
        victims = tmp_path / "victims"
        victims.mkdir()
        (victims / "model.pt").write_bytes(DAMAGED)
        (victims / "model.pt-1").write_bytes(WHOLE)
        place = {
            "folder": tmp_path / "scratch",
            "parent": tmp_path / "scratch",
            "file": tmp_path / "scratch" / "model.pt",
            "copy": tmp_path / "run" / "kept" / "model.pt-1",
            "place of the copy": tmp_path / "run" / "kept",
        }[where]
        if where == "parent":
            damaged = replace(damaged, folder=str(tmp_path / "scratch" / "inner"))
            (victims / "inner").mkdir()
            (victims / "inner" / "model.pt").write_bytes(DAMAGED)
        place.rename(tmp_path / "aside")
        place.symlink_to(victims / place.name if where in ("file", "copy") else victims)
        with pytest.raises(HealError):
            put_back(damaged)
        assert (victims / "model.pt").read_bytes() == DAMAGED
        assert (victims / "model.pt-1").read_bytes() == WHOLE, "nor was it removed"

    def test_what_lies_in_the_way_of_the_restoration_is_not_written_into(self, damaged, tmp_path):
        victim = tmp_path / "victim"
        victim.write_bytes(b"victim")
        (tmp_path / "scratch" / ".restoring-model.pt").symlink_to(victim)
        put_back(damaged)
        assert (tmp_path / "scratch" / "model.pt").read_bytes() == WHOLE and victim.read_bytes() == b"victim"

    def test_a_folder_is_opened_only_by_its_whole_path(self, tmp_path):
        (tmp_path / "link").symlink_to(tmp_path)
        with opened(tmp_path) as folder:
            assert os.fstat(folder).st_ino == tmp_path.stat().st_ino
        for path in (tmp_path / "link", tmp_path / "link" / "x", tmp_path / "..", tmp_path.relative_to("/")):
            with pytest.raises(HealError, match="left alone"), opened(path):
                pass
        with pytest.raises(FileNotFoundError), opened(tmp_path / "missing"):
            pass

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b"])
    def test_a_name_is_one_entry(self, name, tmp_path):
        with pytest.raises(HealError):
            single_name(name)

    def test_an_entry_of_a_folder(self, tmp_path):
        with parent_of(tmp_path / "x") as (folder, name):
            assert (os.fstat(folder).st_ino, name) == (tmp_path.stat().st_ino, "x")


@pytest.mark.skipif(not small_disk.may_mount(), reason="takes the right to mount (CAP_SYS_ADMIN)")
class TestSmallDisk:
    def disk(self, tmp_path, name):
        (tmp_path / "folder").mkdir(exist_ok=True)
        place = tmp_path / "kept" / "disk-1"
        return small_disk.SmallDisk(name=name, folder=str(tmp_path / "folder"), place=str(place), num_bytes=1 << 20)

    def test_nobody_else_reads_through_its_own_place(self, tmp_path):
        disk = self.disk(tmp_path, f"chaos-disk-{os.getpid()}")
        with umask(0):
            small_disk.put_over(disk)
        try:
            assert mode(tmp_path / "kept") == 0o700
        finally:
            small_disk.take_away(disk)
        assert not (tmp_path / "kept").exists()

    def test_a_disk_of_another_name_stays(self, tmp_path):
        ours, theirs = self.disk(tmp_path, "chaos-disk-none"), self.disk(tmp_path, f"theirs-{os.getpid()}")
        small_disk.put_over(theirs)
        try:
            small_disk.take_away(replace(ours, place=str(tmp_path / "elsewhere")))
            small_disk.take_away(replace(ours, name="", place=str(tmp_path / "elsewhere")))
            assert small_disk.is_over(theirs)
        finally:
            small_disk.take_away(theirs)

    def test_a_link_on_it_is_not_followed(self, tmp_path):
        secret = tmp_path / "secret"
        secret.mkdir()
        (secret / "x").write_text("secret")
        disk = self.disk(tmp_path, f"chaos-disk-{os.getpid()}")
        small_disk.put_over(disk)
        (tmp_path / "folder" / "step-1").symlink_to(secret)
        assert small_disk.take_away(disk) == []
        assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o022])
def test_the_folder_of_a_run_follows_the_umask(tmp_path, mask):
    with umask(mask):
        folder = new_run_folder(tmp_path / "out", "job")
        with Ledger(folder / "ledger.jsonl", "ab12"):
            pass
    assert mode(folder) == 0o777 & ~mask
    assert mode(folder / "ledger.jsonl") == 0o644 & ~mask
