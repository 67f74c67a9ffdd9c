"""Shared memory that is really full, in a mount of a process's own; and that what others need is left to them."""

import asyncio
import errno
import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.errors import EffectNotSeen, HealError, InjectionError
from chaos.faults.base import FaultContext, OwnedProcess
from chaos.faults.storage import shm
from chaos.faults.storage.shm import FillShm, FillShmParameters
from chaos.faults.watch import Watch
from chaos.host import memory_limit, shared_memory
from chaos.language.target import ResolvedTarget
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

MEGABYTE = 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")
TIMEOUT_SECONDS = 60.0
TMPFS = "mount -t tmpfs -o size=4m tmpfs /dev/shm"
UNSHARE = ("unshare", "--map-root-user", "--mount")
may_unshare = pytest.mark.skipif(
    subprocess.run([*UNSHARE, "sh", "-c", TMPFS], capture_output=True, check=False).returncode != 0,
    reason="takes the right to make a mount namespace",
)


@contextmanager
def process(*before, wrapper=UNSHARE):
    """A process that stands for a rank, after these commands of the shell."""
    script = " && ".join([*before, "echo ready && exec cat"])
    keeper = subprocess.Popen(
        [*wrapper, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert keeper.stdout.readline() == "ready\n"
        yield keeper
    finally:
        keeper.stdin.close()
        keeper.kill()
        keeper.wait()
        keeper.stdout.close()


class Ranks:
    def __init__(self, pids):
        self._pids = pids

    def rank_processes(self, ranks):
        return tuple(OwnedProcess("rank", ProcessId.of(pid), rank=rank, node=0) for rank, pid in self._pids.items())


def context_of(*pids):
    processes = Ranks(dict(enumerate(pids)))
    return FaultContext(processes=processes, inside=None, watch=Watch(), run_folder=None)


def shm_of(keeper):
    return Path(f"/proc/{keeper.pid}/root/dev/shm")


def ours(folder):
    return [entry for entry in folder.iterdir() if entry.name.startswith(shared_memory.NAME_PREFIX)]


def free_bytes(folder):
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def prepared(context, **parameters):
    fault = FillShm(FillShmParameters.model_validate(parameters))
    act = fault.prepare(ResolvedTarget(ranks=(0,)), context)
    return fault, act, json.loads(json.dumps(dict(act.undo_record)))


async def until(is_so):
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not is_so():
            await asyncio.sleep(0.005)


@may_unshare
def test_it_is_full_takes_what_is_freed_and_is_undone_from_the_record_alone():
    async def play(keeper):
        folder = shm_of(keeper)
        (folder / "batch").write_bytes(bytes(MEGABYTE))
        context = context_of(keeper.pid)
        fault, act, record = prepared(context)
        assert ours(folder) == []
        await fault.apply(act, context)
        evidence = await fault.verify(act, context, TIMEOUT_SECONDS)
        (place,) = evidence["places"]
        assert (place["ranks"], place["write"], place["is_shared"]) == ([0], "ENOSPC", False)
        assert (place["free_bytes"], place["taken_bytes"]) == (0, 3 * MEGABYTE)
        (folder / "batch").unlink()
        await until(lambda: ours(folder)[0].stat().st_blocks * 512 == 4 * MEGABYTE)
        with pytest.raises(OSError, match="No space left") as refused:
            (folder / "more").write_bytes(b"x")
        assert refused.value.errno == errno.ENOSPC
        await fault.lift(act, context)
        assert FillShm.undo(record)["files"] == ["removed"]
        assert FillShm.undo(record)["files"] == ["absent"]
        (folder / "more").write_bytes(b"x")
        assert ours(folder) == []

    with process(TMPFS) as keeper:
        asyncio.run(play(keeper))


@may_unshare
def test_one_that_does_nothing_is_not_seen(monkeypatch):
    async def play(keeper):
        context = context_of(keeper.pid)
        fault, act, record = prepared(context)
        monkeypatch.setattr(shared_memory, "grow", lambda *_, **__: 0)
        await fault.apply(act, context)
        with pytest.raises(EffectNotSeen) as unseen:
            await fault.verify(act, context, 0.05)
        assert unseen.value.code == "shm_not_full"
        await fault.lift(act, context)
        FillShm.undo(record)

    with process(TMPFS) as keeper:
        asyncio.run(play(keeper))


@may_unshare
def test_what_is_to_stay_free_stays_and_no_more_than_the_size_is_taken():
    async def taken(keeper, **parameters):
        context = context_of(keeper.pid)
        fault, act, record = prepared(context, **parameters)
        await fault.apply(act, context)
        (place,) = (await fault.verify(act, context, TIMEOUT_SECONDS))["places"]
        await fault.lift(act, context)
        FillShm.undo(record)
        return place["taken_bytes"], place["free_bytes"], place["write"]

    with process(TMPFS) as keeper:
        assert asyncio.run(taken(keeper, leave="1MiB")) == (3 * MEGABYTE, MEGABYTE, None)
        assert asyncio.run(taken(keeper, size="1MiB")) == (MEGABYTE, 3 * MEGABYTE, None)
        assert free_bytes(shm_of(keeper)) == 4 * MEGABYTE


@may_unshare
def test_the_undo_finds_the_mount_when_the_rank_has_ended_and_says_when_it_is_gone():
    async def play(keeper, rank):
        context = context_of(rank.pid)
        fault, act, record = prepared(context)
        await fault.apply(act, context)
        rank.kill()
        rank.wait()
        await fault.lift(act, context)
        assert len(ours(shm_of(keeper))) == 1
        assert FillShm.undo(record)["files"] == ["removed"]
        assert ours(shm_of(keeper)) == []
        return record

    enter = ("nsenter", "-U", "-m", "--preserve-credentials", "-t")
    with process(TMPFS) as keeper, process(wrapper=(*enter, str(keeper.pid))) as rank:
        record = asyncio.run(play(keeper, rank))
    record["files"][0]["device"] = -1
    assert FillShm.undo(record)["files"] == ["gone"]


def test_the_machines_own_is_filled_only_up_to_a_size_that_is_named():
    context = context_of(os.getpid())
    with pytest.raises(InjectionError) as refused:
        prepared(context)
    assert refused.value.code == "shm_is_shared"
    with pytest.raises(InjectionError) as refused:
        prepared(context, leave="1MiB")
    assert refused.value.code == "shm_is_shared"
    with pytest.raises(InjectionError) as refused:
        prepared(context, size="1MiB", leave="1000000GiB")
    assert refused.value.code == "shm_no_room"

    async def play():
        fault, act, record = prepared(context, size="1MiB")
        await fault.apply(act, context)
        (place,) = (await fault.verify(act, context, TIMEOUT_SECONDS))["places"]
        await fault.lift(act, context)
        FillShm.undo(record)
        return place, record

    place, record = asyncio.run(play())
    assert (place["taken_bytes"], place["is_shared"]) == (MEGABYTE, True)
    assert not (Path("/dev/shm") / record["files"][0]["name"]).exists()


@may_unshare
def test_the_last_memory_is_left_to_others(monkeypatch):
    with process(TMPFS) as keeper:
        monkeypatch.setattr(memory_limit, "available_bytes", lambda: shm.SPARE_BYTES + 4 * MEGABYTE - PAGE)
        with pytest.raises(InjectionError) as refused:
            prepared(context_of(keeper.pid))
        assert refused.value.code == "shm_too_little_memory"
        monkeypatch.setattr(memory_limit, "available_bytes", lambda: shm.SPARE_BYTES + 4 * MEGABYTE)
        prepared(context_of(keeper.pid))


@may_unshare
def test_a_disk_is_not_filled_and_a_link_is_not_followed(tmp_path):
    with process("mount --bind $PWD /dev/shm") as keeper:
        if shm_of(keeper).stat().st_dev != tmp_path.stat().st_dev:
            pytest.skip("this folder is not on the disk")
        with pytest.raises(InjectionError) as refused:
            prepared(context_of(keeper.pid))
        assert refused.value.code == "shm_no_tmpfs"
    link = "mount -t tmpfs tmpfs /dev && ln -s /tmp /dev/shm"
    with process(link) as keeper, pytest.raises(InjectionError) as refused:
        prepared(context_of(keeper.pid))
    assert refused.value.code == "shm_unreachable"


def test_two_ranks_with_one_shared_memory_have_one_file():
    _, _, record = prepared(context_of(os.getpid(), os.getppid()), size="1MiB")
    assert (len(record["files"]), len(record["processes"])) == (1, 2)


@pytest.mark.parametrize(
    ("name", "code"), [("someones", "not_our_shm_file"), ("../x", "not_a_file_name"), ("", "not_a_file_name")]
)
def test_another_file_is_left_alone(name, code):
    with pytest.raises(HealError) as refused:
        FillShm.undo({"processes": [], "files": [{"device": 1, "name": name}]})
    assert refused.value.code == code
