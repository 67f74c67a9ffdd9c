from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.checkpoint.checkpoint import (
    Checkpoint,
    complete,
    named_tensors,
    newest,
    prune,
    step_folder,
    unit_names,
    verify,
)
from mecefo_runtime.checkpoint.folder import passed_over
from mecefo_runtime.checkpoint.manifest import (
    CheckpointCorrupt,
    CheckpointMismatch,
    FileRecord,
    Identity,
    Manifest,
    Stamp,
)
from mecefo_runtime.checkpoint.unit import write_unit
from mecefo_runtime.checkpoint.writer import CheckpointWriter
from mecefo_runtime.job.config import JobConfig, ModelConfig
from mecefo_runtime.state.units import UnitState

pytestmark = pytest.mark.unit

JOB = JobConfig(model=ModelConfig(16, 24, 4, 2, 2, 32))
SMALL = JobConfig(model=ModelConfig(8, 8, 1, 2, 2, 16), nodes=1, gpus_per_node=1, data_parallel=1, pipeline=1, steps=10)
IDENTITY = Identity.of(JOB, b"text")
DEADLINE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def states(job: JobConfig = JOB, names: Iterable[str] = (), seed: int = 0) -> dict[str, UnitState]:
    """Units whose every number is another one: what each contains follows from its name and `seed`."""
    units = {}
    for name in names or unit_names(job.model.num_layers):
        units[name] = UnitState(name, job)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
        units[name].storage.normal_(generator=generator)
    return units


def save(root: Path, step: int, units: dict[str, UnitState], job: JobConfig = JOB, lineage: str = "first") -> None:
    stamp = Stamp(step, lineage, Identity.of(job, b"text"))
    for name, unit in units.items():
        write_unit(step_folder(root, step), name, stamp, named_tensors(unit, unit.storage), unit.checksum())


def saved_steps(root: Path) -> list[int]:
    return [checkpoint.step for checkpoint in complete(root)]


def files_below(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def is_restored(checkpoint: Checkpoint, units: dict[str, UnitState], job: JobConfig = JOB) -> bool:
    for name, unit in units.items():
        restored = UnitState(name, job)
        checkpoint.load_unit(name, restored)
        if not torch.equal(restored.storage, unit.storage):
            return False
    return True


# ---- what comes back ----


def test_every_bit_comes_back(tmp_path: Path) -> None:
    units = states()
    # Numbers that arithmetic would not keep.
    units["head"].storage[:4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    before = {name: unit.storage.numpy().tobytes() for name, unit in units.items()}
    save(tmp_path, 500, units)
    checkpoint = newest(tmp_path, IDENTITY)
    assert checkpoint is not None and (checkpoint.step, checkpoint.identity) == (500, IDENTITY)
    for name, content in before.items():
        restored = UnitState(name, JOB)
        parameters = list(restored.module.parameters())
        checkpoint.load_unit(name, restored)
        assert restored.storage.numpy().tobytes() == content
        assert all(parameter.data_ptr() < restored.first_moments.data_ptr() for parameter in parameters)
        assert all(
            torch.equal(value, parameter.data)
            for value, parameter in zip(checkpoint.load_parameters(name).values(), parameters, strict=True)
            if not value.isnan().any()
        )


def test_ranks_write_their_units_and_other_ranks_load_them(tmp_path: Path) -> None:
    # Two stages, written by two ranks at once; then three stages.
    held = (("embedding", "layer.0", "layer.1"), ("layer.2", "layer.3", "head"))
    writers = [CheckpointWriter(tmp_path, IDENTITY) for _ in held]
    for writer, names in zip(writers, held, strict=True):
        assert writer.save(12, states(names=names), "first")
    for writer in writers:
        assert writer.close(DEADLINE_SECONDS)
        assert [(result.step, result.error) for result in writer.results()] == [(12, None)]
    checkpoint = newest(tmp_path, IDENTITY)
    assert checkpoint is not None
    assert checkpoint.num_bytes == sum(file.stat().st_size for file in files_below(tmp_path) if file.suffix != ".json")
    for names in (("embedding", "layer.0"), ("layer.1", "layer.2"), ("layer.3", "head")):
        assert is_restored(checkpoint, states(names=names))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_alone_can_read_a_unit(tmp_path: Path) -> None:
    unit = states()["layer.1"]
    save(tmp_path, 3, {"layer.1": unit})
    place = step_folder(tmp_path, 3) / "layer.1"
    names = dcp.FileSystemReader(place).read_metadata().state_dict_metadata
    parameters = dict(unit.module.named_parameters())
    assert set(names) == {*parameters} | {
        f"optim.state.{name}.{kind}" for name in parameters for kind in ("exp_avg", "exp_avg_sq", "step")
    }
    found = {"ffn.down.weight": torch.zeros(16, 24), "optim.state.ffn.down.weight.step": torch.zeros(())}
    dcp.load(found, checkpoint_id=place, no_dist=True)
    assert torch.equal(found["ffn.down.weight"], parameters["ffn.down.weight"])
    index = next(i for i, part in enumerate(unit.slices) if part.is_decayed and not part.is_attention)
    assert found["optim.state.ffn.down.weight.step"] == unit.step_counts[index]


def test_the_moments_are_those_of_their_parameter() -> None:
    unit = UnitState("layer.0", JOB)
    tensors = named_tensors(unit, unit.storage)
    covered = torch.zeros_like(unit.storage)
    for name, parameter in unit.module.named_parameters():
        assert tensors[name].data_ptr() == parameter.data_ptr() and tensors[name].shape == parameter.shape
        offset = parameter.storage_offset()
        for kind, moments in (("exp_avg", unit.first_moments), ("exp_avg_sq", unit.second_moments)):
            assert tensors[f"optim.state.{name}.{kind}"].data_ptr() == moments[offset:].data_ptr()
    for tensor in named_tensors(unit, covered).values():
        tensor.fill_(1.0)
    assert covered.all()


# ---- complete or not ----


def test_a_checkpoint_without_all_units_is_none(tmp_path: Path) -> None:
    units = states()
    assert newest(tmp_path) is None and newest(tmp_path / "nowhere") is None
    save(tmp_path, 10, units)
    save(tmp_path, 20, units)
    last = units.pop("layer.2")
    save(tmp_path, 30, units)
    assert saved_steps(tmp_path) == [20, 10]
    with pytest.raises(CheckpointCorrupt, match=r"step-00000030/layer\.2/unit\.json: expected .*, found nothing"):
        Checkpoint.open(step_folder(tmp_path, 30))
    save(tmp_path, 30, {"layer.2": last})
    assert saved_steps(tmp_path) == [30, 20, 10]
    shutil.copytree(step_folder(tmp_path, 30), step_folder(tmp_path, 40))
    (step_folder(tmp_path, 30) / "head" / "__0_0.distcp").unlink()
    assert saved_steps(tmp_path) == [20, 10], "a copy under another step's name is not a checkpoint of that step"


def test_units_of_two_lineages_are_no_checkpoint(tmp_path: Path) -> None:
    before, after = states(seed=1), states(seed=2)
    save(tmp_path, 10, before)
    # The job resumes from an earlier step and comes to this one again, with other numbers; then it dies.
    save(tmp_path, 10, {"layer.0": after["layer.0"]}, lineage="second")
    assert newest(tmp_path) is None
    with pytest.raises(
        CheckpointCorrupt, match="same save as embedding, step 10 of 'first', found step 10 of 'second'"
    ):
        Checkpoint.open(step_folder(tmp_path, 10))
    save(tmp_path, 10, after, lineage="second")
    checkpoint = newest(tmp_path)
    assert checkpoint is not None and is_restored(checkpoint, after)
    assert sorted(path.name for path in checkpoint.path.iterdir()) == sorted(unit_names(4)), "nothing is left over"


def test_holders_of_one_unit_may_all_write_it(tmp_path: Path) -> None:
    unit = states(names=["layer.0"])
    errors: list[Exception] = []

    def write(lineage: str) -> None:
        try:
            save(tmp_path, 5, unit, lineage=lineage)
        except Exception as error:
            errors.append(error)

    for lineage in ("first", "second"):
        threads = [threading.Thread(target=write, args=(lineage,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert [path.name for path in step_folder(tmp_path, 5).iterdir()] == ["layer.0"]
        assert Manifest.read(step_folder(tmp_path, 5) / "layer.0" / "unit.json").stamp.lineage == lineage


def test_a_unit_of_the_same_save_is_not_written_again(tmp_path: Path) -> None:
    units = states(names=["layer.0"])
    save(tmp_path, 5, units)
    file = step_folder(tmp_path, 5) / "layer.0" / "__0_0.distcp"
    inode = file.stat().st_ino
    save(tmp_path, 5, units)
    assert file.stat().st_ino == inode
    os.truncate(file, 100)
    save(tmp_path, 5, units)
    assert file.stat().st_ino != inode


# ---- of whom ----


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": dataclasses.replace(JOB.model, num_layers=6)}, "num_layers is 4, not 6"),
        ({"model": dataclasses.replace(JOB.model, rope_theta=500.0)}, "rope_theta is 10000.0, not 500.0"),
        ({"seed": 3}, "seed is 0, not 3"),
        ({"microbatch_size": 1}, "samples_per_step is 24, not 12"),
        ({"sequence_length": 32}, "sequence_length is 64, not 32"),
    ],
)
def test_another_job_is_refused(tmp_path: Path, change: dict[str, object], words: str) -> None:
    save(tmp_path, 10, states())
    other = Identity.of(dataclasses.replace(JOB, **change), b"text")
    with pytest.raises(CheckpointMismatch, match=words):
        newest(tmp_path, other)
    assert newest(tmp_path, Identity(IDENTITY.model, None)) is not None


def test_another_text_is_refused_and_another_cluster_is_not(tmp_path: Path) -> None:
    save(tmp_path, 10, states())
    with pytest.raises(CheckpointMismatch, match="text_crc32"):
        newest(tmp_path, Identity.of(JOB, b"another text"))
    same = dataclasses.replace(JOB, nodes=2, data_parallel=2, microbatches_per_replica=6, learning_rate=1.0, steps=9)
    assert newest(tmp_path, Identity.of(same, b"text")) is not None


def test_a_unit_of_another_shape_is_refused_and_not_touched(tmp_path: Path) -> None:
    save(tmp_path, 10, states())
    checkpoint = newest(tmp_path)
    assert checkpoint is not None
    wider = states(dataclasses.replace(JOB, model=dataclasses.replace(JOB.model, intermediate_size=32)))["layer.0"]
    before = wider.storage.clone()
    with pytest.raises(CheckpointMismatch, match=r"shape \(32, 16\) here, there shape \(24, 16\)"):
        checkpoint.load_unit("layer.0", wider)
    assert torch.equal(wider.storage, before)
    with pytest.raises(CheckpointMismatch, match=r"no unit layer\.9: its model has 4 layers"):
        checkpoint.load_parameters("layer.9")


# ---- damage ----


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small")
    save(root, 1, states(SMALL), SMALL)
    return step_folder(root, 1)


def refusal_of(path: Path) -> CheckpointCorrupt:
    """Why `path` is refused, by `verify` as well as by loading, which leaves the state alone."""
    with pytest.raises(CheckpointCorrupt) as refusal:
        verify(path)
    try:
        checkpoint = Checkpoint.open(path)
    except CheckpointCorrupt as error:
        assert str(error) == str(refusal.value)
        return error
    refused = 0
    for name, unit in states(SMALL, seed=5).items():
        before = unit.storage.clone()
        try:
            checkpoint.load_unit(name, unit)
        except CheckpointCorrupt as error:
            refused += 1
            assert str(error) == str(refusal.value)
            assert torch.equal(unit.storage, before)
    assert refused == 1
    return refusal.value


@given(data=st.data())
def test_every_flipped_byte_is_refused_by_name(small: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files_below(small)))
    content = path.read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    flipped = data.draw(st.integers(1, 255))
    try:
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes([content[position] ^ flipped]))
        error = refusal_of(small)
        assert error.path == path, error
    finally:
        path.write_bytes(content)
    assert verify(small).step == 1, "the damage was undone"


@given(data=st.data())
def test_every_truncated_grown_or_missing_file_is_refused_by_name(small: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files_below(small)))
    content = path.read_bytes()
    num_bytes = data.draw(st.none() | st.integers(0, len(content) - 1) | st.just(len(content) + 1))
    try:
        if num_bytes is None:
            path.unlink()
        else:
            path.write_bytes(content[:num_bytes].ljust(num_bytes, b"\0"))
        error = refusal_of(small)
        assert error.path == path, error
        if num_bytes is None:
            assert error.found == "nothing"
        elif path.name != "unit.json":
            assert (error.expected, error.found) == (f"{len(content)} bytes", f"{num_bytes} bytes")
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b"{" * 50_000, b"[" * 50_000, b"\xff\xfe", b'{"crc32": 0}']
)
def test_json_garbage_is_refused(small: Path, tmp_path: Path, content: bytes) -> None:
    shutil.copytree(small, tmp_path / "step-00000001")
    path = tmp_path / "step-00000001" / "head" / "unit.json"
    path.write_bytes(content)
    assert refusal_of(path.parents[1]).path == path
    assert newest(tmp_path) is None


def test_a_units_folder_under_another_name_is_refused(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "step-00000001")
    shutil.rmtree(tmp_path / "step-00000001" / "head")
    shutil.copytree(small / "layer.0", tmp_path / "step-00000001" / "head")
    assert "expected unit head, found unit layer.0" in str(refusal_of(tmp_path / "step-00000001"))


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("trapped",)


def test_a_checkpoint_runs_no_code(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever can write the folder can make its checksums right too.
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small, tmp_path / "step-00000001")
    place = tmp_path / "step-00000001" / "head"
    content = pickle.dumps(Trap())
    (place / ".metadata").write_bytes(content)
    manifest = Manifest.read(place / "unit.json")
    record = FileRecord(len(content), zlib.crc32(content))
    changed = dataclasses.replace(manifest, files={**manifest.files, ".metadata": record})
    (place / "unit.json").write_bytes(changed.to_bytes())
    with pytest.raises(CheckpointCorrupt, match=r"found posix\.mkdir"):
        verify(tmp_path / "step-00000001").load_parameters("head")
    assert not Path("trapped").exists()
    pickle.loads(content)
    assert Path("trapped").exists(), "the trap was none"


def test_a_manifest_names_no_file_elsewhere(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "step-00000001")
    place = tmp_path / "step-00000001" / "head"
    manifest = Manifest.read(place / "unit.json")
    changed = dataclasses.replace(manifest, files={**manifest.files, "../layer.0/.metadata": FileRecord(1, 1)})
    (place / "unit.json").write_bytes(changed.to_bytes())
    with pytest.raises(CheckpointCorrupt, match=r"layer\.0/\.metadata"):
        Manifest.read(place / "unit.json")


# ---- removing ----


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_the_oldest_go_and_what_is_being_written_stays(small: Path, tmp_path: Path) -> None:
    units = states(SMALL)
    for step in (10, 20, 30, 40):
        save(tmp_path, step, units, SMALL)
    incomplete = {"head": units["head"]}
    for step in (5, 15, 35, 45, 50):
        save(tmp_path, step, incomplete, SMALL)
    assert sorted(prune(tmp_path, 2)) == [5, 10, 15, 20, 35]
    assert folders(tmp_path) == [f"step-000000{step}" for step in (30, 40, 45, 50)]
    assert prune(tmp_path, 2) == []
    # The newest complete one stays whatever is newer and incomplete.
    assert prune(tmp_path, 1) == [30]
    assert saved_steps(tmp_path) == [40]
    save(tmp_path, 50, units, SMALL)
    assert sorted(prune(tmp_path, 1)) == [40, 45]
    with pytest.raises(ValueError, match="at least 1"):
        prune(tmp_path, 0)


def test_without_a_complete_one_nothing_is_removed(tmp_path: Path) -> None:
    assert prune(tmp_path / "nowhere", 1) == []
    for step in (1, 2):
        save(tmp_path, step, {"head": states(SMALL)["head"]}, SMALL)
    assert prune(tmp_path, 1) == []
    assert folders(tmp_path) == ["step-00000001", "step-00000002"]


def test_other_files_stay_and_an_interrupted_prune_is_finished(tmp_path: Path) -> None:
    save(tmp_path, 1, states(SMALL), SMALL)
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-00000000").touch()
    shutil.copytree(step_folder(tmp_path, 1), tmp_path / ".removed-step-00000000-1")
    assert prune(tmp_path, 1) == []
    assert folders(tmp_path) == ["notes", "step-00000000", "step-00000001"]


def test_the_newest_is_found_though_it_goes_while_a_newer_one_comes(tmp_path, monkeypatch):
    units = states(SMALL)
    save(tmp_path, 1, units, SMALL)
    look_at = Checkpoint.open
    is_first = True

    def overtaken(path: Path) -> Checkpoint:
        nonlocal is_first
        if is_first:
            is_first = False
            save(tmp_path, 2, units, SMALL)
            assert prune(tmp_path, 1) == [1]
        return look_at(path)

    monkeypatch.setattr(Checkpoint, "open", overtaken)
    found = newest(tmp_path)
    assert found is not None and found.step == 2


def test_many_prune_and_read_at_once(tmp_path: Path) -> None:
    units = states(SMALL)
    stop = threading.Event()
    errors: list[BaseException] = []
    num_seen = 0

    def look() -> None:
        nonlocal num_seen
        try:
            while not stop.is_set():
                checkpoint = newest(tmp_path)
                assert checkpoint is not None
                try:
                    checkpoint.load_unit("head", UnitState("head", SMALL))
                except CheckpointCorrupt as error:
                    # Pruned meanwhile: there is a newer one.
                    assert error.found == "nothing"
                    later = newest(tmp_path)
                    assert later is not None and later.step > checkpoint.step
                num_seen += 1
        except BaseException as error:
            errors.append(error)

    def thin_out() -> None:
        try:
            while not stop.is_set():
                prune(tmp_path, 1)
        except BaseException as error:
            errors.append(error)

    save(tmp_path, 1, units, SMALL)
    threads = [threading.Thread(target=target) for target in (look, thin_out, thin_out)]
    for thread in threads:
        thread.start()
    for step in range(2, 8):
        save(tmp_path, step, units, SMALL)
    stop.set()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    assert not errors and num_seen
    prune(tmp_path, 1)
    assert folders(tmp_path) == ["step-00000007"]


def test_what_is_wrong_with_newer_ones_is_said_by_name(tmp_path: Path) -> None:
    assert passed_over(tmp_path / "nowhere", 0) == []
    for step in (1, 2, 3, 4):
        save(tmp_path, step, states(SMALL), SMALL)
    (step_folder(tmp_path, 1) / "head" / "unit.json").unlink()
    (step_folder(tmp_path, 3) / "head" / "unit.json").unlink()
    shutil.rmtree(step_folder(tmp_path, 4))
    step_folder(tmp_path, 4).symlink_to("step-00000004")
    newest_one, next_one = passed_over(tmp_path, 2)
    assert str(step_folder(tmp_path, 4)) in newest_one and "symbolic links" in newest_one
    assert str(step_folder(tmp_path, 3) / "head" / "unit.json") in next_one
    assert len(passed_over(tmp_path, 0)) == 3
