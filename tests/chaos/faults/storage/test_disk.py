"""A small disk that is really mounted and really full; and that no other one is ever filled."""

import asyncio
import errno
import json
import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.errors import EffectNotSeen, HealError, InjectionError, TargetNotFound, UsageError, in_terms
from chaos.experiment.terms import terms
from chaos.faults.base import FaultContext, OwnedProcess, RunContext
from chaos.faults.storage.disk import FillDisk, FillParameters
from chaos.faults.watch import Watch
from chaos.host import small_disk
from chaos.language.sizes import bytes_text
from chaos.language.target import ResolvedTarget
from mecefo_runtime.job.layout import Cluster
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId
from tests.chaos.faults.storage.test_checkpoint import content, save
from tests.chaos.faults.storage.test_checkpoint import create as create_damage

pytestmark = pytest.mark.unit

MEGABYTE = 2**20
# What is not seen by then is not there.
TIMEOUT_SECONDS = 60.0
CLUSTER = Cluster(nodes=2, gpus_per_node=2, data_parallel=2, pipeline=2, num_layers=4, num_microbatches=8)
needs_mounts = pytest.mark.skipif(not small_disk.may_mount(), reason="takes the right to mount (CAP_SYS_ADMIN)")


@pytest.fixture
def context(tmp_path):
    root = tmp_path / "check points"
    save(root, 10)
    (tmp_path / "run").mkdir()
    yield FaultContext(processes=None, inside=None, watch=Watch(), run_folder=tmp_path / "run", checkpoint_folder=root)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        assert str(tmp_path) not in line, "left mounted"


@contextmanager
def own_filesystem(folder, num_bytes):
    """A small filesystem of the user's at `folder`."""
    place = folder.with_name(f"{folder.name}-disk")
    disk = small_disk.SmallDisk(
        name=f"users-{os.getpid()}", folder=str(folder.resolve()), place=str(place.resolve()), num_bytes=num_bytes
    )
    small_disk.put_over(disk)
    try:
        yield
    finally:
        small_disk.take_away(disk)


def create(**parameters):
    return FillDisk(FillParameters(**{"size": bytes_text(MEGABYTE), **parameters}))


def as_read(act):
    return json.loads(json.dumps(dict(act.undo_record)))


def run(*works):
    async def all_of():
        return [await work for work in works]

    return asyncio.run(all_of())


def write(folder):
    (folder / "more").write_bytes(b"x")


def checkpoint_failed(reason, *, was_skipped=False):
    fields = {"reason": reason, "was_skipped": was_skipped}
    return Event("checkpoint_failed", "rank", 0.0, 0.0, 1, step=20, rank=1, fields=fields)


async def live(context, fault, act, *events, timeout_seconds=TIMEOUT_SECONDS):
    """Verify while the job does `events`."""
    verification = asyncio.ensure_future(fault.verify(act, context, timeout_seconds))
    for event in events:
        await asyncio.sleep(0.01)
        context.watch.feed(event)
    return await verification


FAILED = checkpoint_failed("layer.3: OSError: [Errno 28] No space left on device")
STEP = Event("step_committed", "rank", 0.0, 0.0, 1, step=21)


@needs_mounts
def test_the_small_disk_is_full_and_the_machines_is_not(context):
    folder, before = context.checkpoint_folder, content(context.checkpoint_folder)
    free = shutil.disk_usage(context.run_folder).free
    fault = create()
    act = fault.prepare(ResolvedTarget(), context)
    assert act.undo_record["disk"] is not None
    run(fault.apply(act, context))
    try:
        assert content(folder).keys() > before.keys(), "what was there is there"
        with pytest.raises(OSError, match="No space left"):
            write(folder)
        (context.run_folder / "log").write_bytes(b"the run goes on")
        assert shutil.disk_usage(context.run_folder).free > free - 100 * MEGABYTE
        evidence = asyncio.run(live(context, fault, act, FAILED, STEP))
        assert json.loads(json.dumps(evidence)) == evidence
        assert evidence["total_bytes"] == MEGABYTE
        assert evidence["free_bytes"] == 0
        assert evidence["checkpoint_failed"] == {"step": 20, "rank": 1, "reason": FAILED.fields["reason"]}
        assert evidence["step_committed_after"] == 21
    finally:
        fault.undo(as_read(act))
    write(folder)
    (folder / "more").unlink()
    assert content(folder) == before
    assert fault.undo(as_read(act))["returned"] == []


@needs_mounts
def test_a_step_that_comes_with_the_failed_checkpoint_is_seen_too(context):
    # As where the loop was kept waiting, and finds both at once; there need not be a step after it.
    fault = create()
    act = fault.prepare(ResolvedTarget(), context)
    run(fault.apply(act, context))

    async def both():
        verification = asyncio.ensure_future(fault.verify(act, context, TIMEOUT_SECONDS))
        await asyncio.sleep(0.01)
        for event in (FAILED, STEP):
            context.watch.feed(event)
        return await verification

    try:
        assert asyncio.run(both())["step_committed_after"] == 21
    finally:
        fault.undo(as_read(act))


@needs_mounts
def test_undone_by_another_meanwhile_it_is_not_verified(context, monkeypatch):
    fault = create()
    act = fault.prepare(ResolvedTarget(), context)
    run(fault.apply(act, context))

    async def stand_still(step, timeout_seconds):
        fault.undo(as_read(act))

    monkeypatch.setattr(context.watch, "wait_for_step", stand_still)
    with pytest.raises(EffectNotSeen, match="undone before its effect was seen"):
        asyncio.run(live(context, fault, act, FAILED, STEP))


@needs_mounts
def test_not_applied_it_is_not_verified(context):
    fault = create()
    act = fault.prepare(ResolvedTarget(), context)
    with pytest.raises(EffectNotSeen, match=r"a write of 1 byte to .* succeeded"):
        asyncio.run(live(context, fault, act, FAILED, STEP))
    assert fault.undo(as_read(act))["undone"]


@needs_mounts
@pytest.mark.parametrize(
    "events",
    [
        [STEP],
        [FAILED],
        [checkpoint_failed("the one before is still being written", was_skipped=True), STEP],
        [replace(FAILED, step=19), STEP],
    ],
    ids=["no checkpoint failed", "the job stood still", "a checkpoint was skipped", "it was under way before"],
)
def test_a_full_disk_that_the_job_does_not_notice_is_not_verified(context, events):
    context.watch.feed(replace(STEP, step=19))
    fault = create()
    act = fault.prepare(ResolvedTarget(), context)
    run(fault.apply(act, context))
    try:
        with pytest.raises(EffectNotSeen, match="the disk is full, but"):
            asyncio.run(live(context, fault, act, *events, timeout_seconds=0.2))
    finally:
        fault.undo(as_read(act))


@needs_mounts
def test_what_was_written_to_the_small_disk_comes_to_the_folder(context):
    fault = create(size=bytes_text(4 * MEGABYTE))
    act = fault.prepare(ResolvedTarget(), context)
    run(fault.apply(act, context))
    Path(act.undo_record["ballast"]).unlink()
    save(context.checkpoint_folder, 20)
    save(context.checkpoint_folder, 10, lineage="second")
    shutil.copytree(context.checkpoint_folder / "step-00000020", context.checkpoint_folder / "step-00000030")
    wanted = content(context.checkpoint_folder)
    (context.checkpoint_folder / "step-00000030" / "head" / "unit.json").unlink()
    assert fault.undo(as_read(act))["returned"] == ["step-00000010", "step-00000020"]
    found = content(context.checkpoint_folder)
    assert found == {name: data for name, data in wanted.items() if "step-00000030" not in name}


@needs_mounts
def test_undo_takes_away_whatever_there_is_of_a_disk_that_was_put_in_place_half(context, monkeypatch):
    before = content(context.checkpoint_folder)
    fault = create()
    act = fault.prepare(ResolvedTarget(), context)
    assert fault.undo(as_read(act))["undone"]
    mount = small_disk._mount

    def no_bind(source, target, kind, flags, options):
        if kind:
            mount(source, target, kind, flags, options)
        else:
            raise OSError(1, "killed here")

    monkeypatch.setattr(small_disk, "_mount", no_bind)
    with pytest.raises(InjectionError, match="killed here"):
        run(fault.apply(act, context))
    for _ in range(2):
        fault.undo(as_read(act))
    assert content(context.checkpoint_folder) == before


@needs_mounts
def test_checkpoints_that_do_not_fit_are_said_and_nothing_is_left(context):
    fault = create(size=bytes_text(16 * 1024))
    act = fault.prepare(ResolvedTarget(), context)
    with pytest.raises(InjectionError, match="do not fit into size 16KiB"):
        run(fault.apply(act, context))
    fault.undo(as_read(act))
    assert not list(context.run_folder.iterdir())


@needs_mounts
def test_a_small_filesystem_of_the_jobs_own_is_filled_itself(context, monkeypatch):
    folder = context.checkpoint_folder
    with own_filesystem(folder, MEGABYTE):
        monkeypatch.setattr(small_disk, "may_mount", lambda: False)
        fault = create()
        # Also one in it that the job is yet to make.
        for place in (folder, folder / "not" / "yet"):
            fault.check(ResolvedTarget(), RunContext(CLUSTER, place, sees_mounts=False))
        act = fault.prepare(ResolvedTarget(), context)
        assert act.undo_record["disk"] is None
        run(fault.apply(act, context))
        with pytest.raises(OSError, match="No space left"):
            write(folder)
        fault.undo(as_read(act))
        write(folder)
        too_large = create(max_filesystem=bytes_text(MEGABYTE - 1))
        with pytest.raises(UsageError, match="no filesystem of its own of at most"):
            too_large.check(ResolvedTarget(), RunContext(CLUSTER, folder))


def test_without_the_right_to_mount_the_machines_disk_is_refused_before_the_start(context, monkeypatch):
    monkeypatch.setattr(small_disk, "may_mount", lambda: False)
    for folder in (context.checkpoint_folder, None):
        with pytest.raises(UsageError, match="run as root, or make one"):
            create(max_filesystem=bytes_text(2**50)).check(ResolvedTarget(), RunContext(CLUSTER, folder))
    with pytest.raises(InjectionError, match="run as root"):
        create(max_filesystem=bytes_text(2**50)).prepare(ResolvedTarget(), context)


def test_a_folder_that_is_not_there_yet_is_said(context):
    with suppress(FileNotFoundError):
        shutil.rmtree(context.checkpoint_folder)
    with pytest.raises(TargetNotFound, match="choose a step after the first checkpoint"):
        create().prepare(ResolvedTarget(), context)


@needs_mounts
@pytest.mark.parametrize("kind", ["flip-checkpoint-bit", "truncate-checkpoint"])
def test_a_checkpoint_that_was_damaged_on_the_full_disk_is_whole_when_both_are_undone(context, kind):
    before = content(context.checkpoint_folder)
    disk, damage = create(), create_damage(kind)
    disk_act = disk.prepare(ResolvedTarget(), context)
    run(disk.apply(disk_act, context))
    act = damage.prepare(ResolvedTarget(), context)
    run(damage.apply(act, context))
    try:
        if kind == "flip-checkpoint-bit":
            assert "whole" in damage.undo(as_read(act))["undone"], "it takes no room"
        else:
            # Whoever undoes comes back to it.
            with suppress(HealError):
                damage.undo(as_read(act))
    finally:
        disk.undo(as_read(disk_act))
    assert "whole" in damage.undo(as_read(act))["undone"]
    assert content(context.checkpoint_folder) == before
    assert not list(context.run_folder.iterdir())


# ---- over the folder of a script ----


@pytest.fixture
def script(tmp_path):
    """A script that saves over its last checkpoint, in a folder that nobody named."""
    (tmp_path / "out, its").mkdir()
    (tmp_path / "run").mkdir()
    checkpoint = tmp_path / "out, its" / "ckpt.pt"
    checkpoint.write_bytes(b"old" * MEGABYTE)
    watch = Watch()
    watch.feed(script_saved(20, checkpoint))
    processes = SimpleNamespace(rank_processes=lambda ranks: ())
    context = FaultContext(
        processes=processes, inside=None, watch=watch, run_folder=tmp_path / "run", has_foreign_checkpoints=True
    )
    yield context, checkpoint
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        assert str(tmp_path.name) not in line, "left mounted"
    assert not list(context.run_folder.iterdir())


def script_saved(step, path):
    fields = {"saved": [[str(path), 1, 2]], "blocking_seconds": 0.1}
    return Event("checkpoint_written", "rank", 0.0, 0.0, 1, step=step, rank=0, fields=fields)


def script_failed(path, *, number=None, step=40):
    fields = {"reason": "RuntimeError: unexpected pos", "errno": number, "path": str(path)}
    return Event("checkpoint_failed", "rank", 0.0, 0.0, 1, step=step, rank=0, fields=fields)


LATER_STEP = replace(STEP, step=41)


@needs_mounts
def test_a_script_cannot_save_over_its_old_checkpoint_which_is_there_afterwards(script):
    context, checkpoint = script
    before = checkpoint.stat()
    # Smaller than what is in the folder: that takes no room.
    fault = create()
    act = fault.prepare(ResolvedTarget(), context)
    run(fault.apply(act, context))
    try:
        assert checkpoint.read_bytes() == b"old" * MEGABYTE
        for path in (checkpoint, checkpoint.with_suffix(".new")):
            with pytest.raises(OSError, match="No space left"):
                path.write_bytes(b"new" * MEGABYTE)
        evidence = asyncio.run(live(context, fault, act, script_failed(checkpoint), LATER_STEP))
        assert evidence["checkpoint_failed"] == {"step": 40, "rank": 0, "reason": "RuntimeError: unexpected pos"}
    finally:
        fault.undo(as_read(act))
    assert checkpoint.read_bytes() == b"old" * MEGABYTE
    after = checkpoint.stat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert [entry.name for entry in checkpoint.parent.iterdir()] == ["ckpt.pt"]
    checkpoint.with_suffix(".new").write_bytes(b"new")
    assert fault.undo(as_read(act))["undone"]


@needs_mounts
@pytest.mark.parametrize(
    ("failed", "is_seen"),
    [
        ({}, True),
        ({"number": errno.ENOSPC}, True),
        ({"number": errno.EACCES}, False),
        ({"path": "/elsewhere/ckpt.pt", "number": errno.ENOSPC}, False),
    ],
    ids=["no errno", "disk full", "no permission", "in another folder"],
)
def test_a_failed_save_is_the_faults_where_it_is_of_this_folder_and_of_its_disk(script, failed, is_seen):
    context, checkpoint = script
    fault = create()
    act = fault.prepare(ResolvedTarget(), context)
    run(fault.apply(act, context))
    event = script_failed(**{"path": checkpoint, **failed})
    try:
        if is_seen:
            assert asyncio.run(live(context, fault, act, event, LATER_STEP))["step_committed_after"] == 41
        else:
            with pytest.raises(EffectNotSeen, match="the disk is full, but"):
                asyncio.run(live(context, fault, act, event, LATER_STEP, timeout_seconds=0.2))
    finally:
        fault.undo(as_read(act))


@needs_mounts
def test_why_no_save_of_a_script_failed(script, tmp_path):
    context, _ = script
    context.watch.feed(replace(STEP, step=25))
    fault = create()
    act = fault.prepare(ResolvedTarget(), context)
    run(fault.apply(act, context))
    try:
        assert fault.why_unseen(act, context) == "no save was seen after step 25, when it was full"
        context.watch.feed(script_saved(40, tmp_path / "other/a.pt"))
        advised = f"the script saved in {tmp_path / 'other'}: write --checkpoint-folder {tmp_path / 'other'}"
        assert fault.why_unseen(act, context) == advised
    finally:
        fault.undo(as_read(act))
    (tmp_path / "other").mkdir()
    named = create().prepare(ResolvedTarget(), replace(context, checkpoint_folder=tmp_path / "other"))
    assert named.undo_record["disk"]["folder"] == str(tmp_path / "other")


@needs_mounts
def test_over_the_folder_that_a_rank_works_in_no_disk_is_put(script):
    context, _ = script
    # This process, which is in a folder of the machine, for a rank.
    rank = OwnedProcess("rank", ProcessId.of(os.getpid()), rank=3)
    processes = SimpleNamespace(rank_processes=lambda ranks: (rank,))
    context = replace(context, processes=processes, cluster=CLUSTER, checkpoint_folder=Path.cwd())
    with pytest.raises(
        InjectionError, match=r"rank 3 works in it.*let the script save in a folder of its own"
    ) as refused:
        create().prepare(ResolvedTarget(), context)
    assert refused.value.code == "working_folder"
    with pytest.raises(InjectionError, match="holds more than checkpoints"):
        create().prepare(ResolvedTarget(), replace(context, checkpoint_folder=context.run_folder.parent, cluster=None))


def test_without_the_right_to_mount_a_script_is_advised_the_option_that_is_then_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(small_disk, "may_mount", lambda: False)
    with pytest.raises(UsageError) as refused:
        create().check(ResolvedTarget(), RunContext(CLUSTER, keeps_own_checkpoints=True))
    text = in_terms(refused.value.message, terms().get)
    assert text.startswith("the folder that the script saves in is on no filesystem of its own")
    assert text.endswith("name it with --checkpoint-folder FOLDER")
    fault = create()
    monkeypatch.setattr(fault, "_is_small", lambda folder, *_: folder == tmp_path)
    fault.check(ResolvedTarget(), RunContext(CLUSTER, tmp_path, keeps_own_checkpoints=True))
