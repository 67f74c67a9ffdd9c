"""Checkpoints that are damaged for real, refused by the runtime's own reader, and put back whatever happened."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch

from chaos.errors import EffectNotSeen, HealError, TargetNotFound
from chaos.faults import registry
from chaos.faults.base import FaultContext
from chaos.faults.storage.checkpoint import KEPT_FOLDER, newest_whole
from chaos.faults.watch import Watch
from chaos.language.target import ResolvedTarget
from mecefo_runtime.checkpoint.checkpoint import complete, step_folder, unit_names, verify
from mecefo_runtime.checkpoint.folder import CheckpointFolder
from mecefo_runtime.checkpoint.manifest import CheckpointCorrupt, Identity
from mecefo_runtime.checkpoint.writer import CheckpointWriter
from mecefo_runtime.job.config import JobConfig, ModelConfig
from mecefo_runtime.state.units import UnitState

pytestmark = pytest.mark.unit

KINDS = ("truncate-checkpoint", "flip-checkpoint-bit", "remove-checkpoint-shard", "hide-checkpoint")
FILE_KINDS = KINDS[:3]
each_kind = pytest.mark.parametrize("kind", KINDS)
JOB = JobConfig(model=ModelConfig(8, 8, 2, 2, 2, 16))


def save(root, step, lineage="first"):
    torch.manual_seed(step)
    units = {name: UnitState(name, JOB) for name in unit_names(2)}
    writer = CheckpointWriter(root, Identity.of(JOB, b"text"))
    assert writer.save(step, units, lineage) and writer.close(60.0)
    (result,) = writer.results()
    assert result.error is None


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    for step in (10, 20):
        save(root, step)
    return root


@pytest.fixture
def context(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "checkpoints")
    (tmp_path / "run").mkdir()
    return FaultContext(
        processes=None,
        inside=None,
        watch=Watch(),
        run_folder=tmp_path / "run",
        checkpoint_folder=tmp_path / "checkpoints",
    )


def create(kind, seed=0, **parameters):
    fault = registry()[kind]
    created = fault(fault.Parameters.model_validate(parameters))
    created.seed = seed
    return created


def inject(fault, context):
    act = fault.prepare(ResolvedTarget(), context)
    asyncio.run(fault.apply(act, context))
    return act


def look(fault, act, context):
    return asyncio.run(fault.verify(act, context, 30.0))


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def as_read(act):
    """The record as it stands in the ledger."""
    return json.loads(json.dumps(dict(act.undo_record)))


@each_kind
def test_the_reader_refuses_the_newest_one_by_name_until_it_is_put_back(kind, context):
    before = content(context.checkpoint_folder)
    fault = create(kind)
    act = inject(fault, context)
    evidence = look(fault, act, context)
    assert json.loads(json.dumps(evidence)) == evidence
    assert evidence["step"] == 20
    assert evidence["struck"] in evidence["refused"]
    assert "whole before" in evidence["summary"]
    with pytest.raises(CheckpointCorrupt, match=evidence["struck"]):
        verify(step_folder(context.checkpoint_folder, 20))
    verify(step_folder(context.checkpoint_folder, 10))
    fault.undo(as_read(act))
    assert content(context.checkpoint_folder) == before
    assert list(context.run_folder.iterdir()) == [], "the kept copy was not removed"


@each_kind
def test_not_applied_it_is_not_verified(kind, context):
    fault = create(kind)
    act = fault.prepare(ResolvedTarget(), context)
    with pytest.raises(EffectNotSeen, match=r"still takes .*step-00000020 for whole: 12 files"):
        look(fault, act, context)


@each_kind
def test_undo_harms_nothing_whenever_and_however_often_it_is_called(kind, context):
    before = content(context.checkpoint_folder)
    fault = create(kind)
    act = fault.prepare(ResolvedTarget(), context)
    record = as_read(act)
    never_applied = fault.undo(record)
    assert content(context.checkpoint_folder) == before
    asyncio.run(fault.apply(act, context))
    assert fault.undo(record) == fault.undo(record) == never_applied
    assert content(context.checkpoint_folder) == before


@each_kind
def test_undo_leaves_alone_what_the_job_has_removed(kind, context):
    fault = create(kind)
    act = inject(fault, context)
    for path in context.checkpoint_folder.iterdir():
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    evidence = fault.undo(as_read(act))
    assert ("removed" if kind in FILE_KINDS else "not there") in evidence["undone"]
    assert list(context.checkpoint_folder.iterdir()) == []
    assert list(context.run_folder.iterdir()) == []


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_undo_leaves_alone_what_the_job_has_written_anew(kind, context):
    fault = create(kind)
    act = inject(fault, context)
    save(context.checkpoint_folder, 20, lineage="second")
    anew = content(context.checkpoint_folder)
    assert "anew" in fault.undo(as_read(act))["undone"]
    assert content(context.checkpoint_folder) == anew
    assert verify(step_folder(context.checkpoint_folder, 20)).stamp.lineage == "second"


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_copy_that_was_cut_off_is_never_put_back(kind, context):
    fault = create(kind)
    act = fault.prepare(ResolvedTarget(), context)
    record = as_read(act)
    kept = Path(record["kept"])
    # Killed while it was made: the file itself is still whole.
    kept.parent.mkdir()
    kept.write_bytes(b"half")
    assert "whole" in fault.undo(record)["undone"]
    assert not kept.exists()
    asyncio.run(fault.apply(act, context))
    kept.write_bytes(b"half")
    with pytest.raises(HealError, match="not whole"):
        fault.undo(record)


def test_a_folder_that_is_hidden_half_is_put_back(context):
    before = content(context.checkpoint_folder)
    fault = create("hide-checkpoint")
    act = fault.prepare(ResolvedTarget(), context)
    Path(act.undo_record["folder"]).rename(act.undo_record["hidden"])
    fault.undo(as_read(act))
    assert content(context.checkpoint_folder) == before


def test_hidden_it_cannot_be_read_by_root_either(context):
    fault = create("hide-checkpoint")
    act = inject(fault, context)
    with pytest.raises(OSError, match="symbolic links"):
        list(Path(act.undo_record["struck"]).iterdir())
    assert [checkpoint.step for checkpoint in complete(context.checkpoint_folder)] == [10]


def test_what_took_the_place_of_a_hidden_checkpoint_is_not_overwritten(context):
    fault = create("hide-checkpoint")
    act = inject(fault, context)
    folder = Path(act.undo_record["folder"])
    folder.unlink()
    folder.mkdir()
    with pytest.raises(HealError, match="something else"):
        fault.undo(as_read(act))
    assert Path(act.undo_record["hidden"]).is_dir()


def test_each_of_several_affects_another_one_until_none_is_whole(context):
    faults = [create("flip-checkpoint-bit", seed) for seed in (1, 2)]
    acts = [inject(fault, context) for fault in faults]
    assert [act.undo_record["step"] for act in acts] == [20, 10]
    with pytest.raises(TargetNotFound, match=r"no checkpoint in .* is whole: .*step-00000020"):
        create("flip-checkpoint-bit").prepare(ResolvedTarget(), context)
    for fault, act in zip(faults, acts, strict=True):
        fault.undo(as_read(act))
    assert newest_whole(context).step == 20


@each_kind
def test_before_the_first_checkpoint_there_is_nothing_to_damage(kind, context):
    shutil.rmtree(context.checkpoint_folder)
    with pytest.raises(TargetNotFound, match=r"no complete checkpoint in .* yet"):
        create(kind).prepare(ResolvedTarget(), context)


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_the_seed_draws_the_file_and_a_unit_can_be_named(kind, context):
    def drawn(seed, **parameters):
        record = create(kind, seed, **parameters).prepare(ResolvedTarget(), context).undo_record
        return record["struck"], record["details"]

    assert drawn(3) == drawn(3)
    assert len({drawn(seed)[0] for seed in range(100)}) == 4, "every unit can be struck"
    assert Path(drawn(3, unit="layer.1")[0]).parent.name == "layer.1"
    with pytest.raises(TargetNotFound, match=r"embedding, layer\.0, layer\.1, head"):
        drawn(3, unit="layer.2")


def test_the_details_are_what_was_done(context):
    fault = create("flip-checkpoint-bit", 5)
    act = fault.prepare(ResolvedTarget(), context)
    path, details = Path(act.undo_record["struck"]), act.undo_record["details"]
    before = path.read_bytes()
    asyncio.run(fault.apply(act, context))
    after = path.read_bytes()
    changed = [index for index in range(len(before)) if before[index] != after[index]]
    assert changed == [details["offset"]]
    assert before[changed[0]] ^ after[changed[0]] == 1 << details["bit"]
    fault.undo(as_read(act))
    fault = create("truncate-checkpoint", keep_ratio=0.25)
    act = inject(fault, context)
    size = act.undo_record["details"]["num_bytes_before"]
    assert Path(act.undo_record["struck"]).stat().st_size == size // 4
    assert CheckpointFolder.open(step_folder(context.checkpoint_folder, 10)).step == 10
    assert (context.run_folder / KEPT_FOLDER).is_dir()
