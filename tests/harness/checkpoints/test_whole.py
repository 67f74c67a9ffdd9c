"""Damage to checkpoints that the standard library sees: every kind of it, and none in what is whole."""

from __future__ import annotations

import json
import os
import pickle
import struct
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from harness.checkpoints.findings import (
    BAD_CHECKSUM,
    BAD_HEADER,
    BAD_METADATA,
    EMPTY,
    MISSING,
    NO_CHECKSUMS,
    NO_END,
    TOO_MANY_BYTES,
    TOO_SHORT,
    UNKNOWN_FORMAT,
)
from harness.checkpoints.metadata import read_pieces
from harness.checkpoints.whole import Budget, Wholeness, check

pytestmark = pytest.mark.unit


def checked(path: Path, num_bytes: int = 1 << 30) -> Wholeness:
    return check(path, Budget(num_bytes), (path,))


def codes(path: Path) -> set[str]:
    return {one.code for one in checked(path).damage}


def saved(folder: Path, name: str = "step_10.pt") -> Path:
    path = folder / name
    torch.save({"model": {"w": torch.arange(64.0), "b": torch.zeros(8)}, "step": 10}, path)
    return path


def distributed(folder: Path) -> Path:
    path = folder / "step_10"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_distributed(
            {"w": torch.arange(64.0), "n": 3, "half": torch.ones(5, dtype=torch.bfloat16)}, checkpoint_id=path
        )
    return path


def safetensors(folder: Path, name: str = "model.safetensors") -> Path:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    }
    raw = json.dumps(header).encode()
    path = folder / name
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(32))
    return path


def flip(path: Path, offset: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1 << bit
    path.write_bytes(raw)


def test_a_whole_file_of_torch(tmp_path: Path) -> None:
    found = checked(saved(tmp_path))
    assert (found.is_whole, found.damage, found.num_files) == (True, [], 1)


@given(share=st.floats(min_value=0, max_value=1, exclude_max=True))
def test_a_file_of_torch_is_not_whole_however_little_is_cut_off(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    path = saved(tmp_path_factory.mktemp("cut"))
    whole = path.read_bytes()
    kept = int(share * len(whole))
    path.write_bytes(whole[:kept])
    found = checked(path)
    assert found.is_whole is False
    assert {one.code for one in found.damage} <= {NO_END, EMPTY}
    assert found.damage[0].num_bytes == kept


@given(share=st.floats(min_value=0, max_value=1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_or_changes_nothing_that_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, share: float, bit: int
) -> None:
    path = saved(tmp_path_factory.mktemp("flip"))
    flip(path, int(share * path.stat().st_size), bit)
    if checked(path).is_whole:
        try:
            loaded = torch.load(path, weights_only=True)
        except RuntimeError:
            # Of the archive's own fields; whoever reads it is told.
            return
        assert torch.equal(loaded["model"]["w"], torch.arange(64.0))
        assert torch.equal(loaded["model"]["b"], torch.zeros(8))


def test_a_flipped_bit_that_torch_load_reads_without_a_word(tmp_path: Path) -> None:
    path = saved(tmp_path)
    at = path.read_bytes().index(struct.pack("<f", 63.0))
    flip(path, at)
    assert not torch.equal(torch.load(path, weights_only=True)["model"]["w"], torch.arange(64.0))
    found = checked(path)
    assert [(one.code, one.part) for one in found.damage] == [(BAD_CHECKSUM, "data/0")]


def test_without_checksums_it_is_not_known_whether_a_file_is_whole(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(tmp_path)
    finally:
        torch.serialization.set_crc32_options(True)
    found = checked(path)
    assert (found.is_whole, found.damage, found.unchecked) == (None, [], {NO_CHECKSUMS})


def test_the_old_format_of_torch_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    found = checked(path)
    assert (found.is_whole, found.damage, found.unchecked) == (None, [], {UNKNOWN_FORMAT})


def test_a_file_beyond_the_limit_is_not_judged(tmp_path: Path) -> None:
    found = checked(saved(tmp_path), 10)
    assert (found.is_whole, found.unchecked) == (None, {TOO_MANY_BYTES})


def test_safetensors(tmp_path: Path) -> None:
    path = safetensors(tmp_path)
    assert checked(path).is_whole is True
    whole = path.read_bytes()
    for kept in (len(whole) - 1, 100, 5):
        path.write_bytes(whole[:kept])
        (damage,) = checked(path).damage
        assert (damage.code, damage.num_bytes) == (TOO_SHORT, kept)
    path.write_bytes(whole + b"more")
    assert codes(path) == {BAD_HEADER}
    path.write_bytes(whole)
    flip(path, whole.index(b"F32") + 1)
    assert checked(path).is_whole in (True, False)
    path.write_bytes(whole.replace(b"[2, 3]", b"[2, 4]"))
    assert codes(path) == {BAD_HEADER}


def test_an_index_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    safetensors(tmp_path, "model-1.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "c": "model-2.safetensors"}}))
    assert [(one.code, one.file) for one in checked(tmp_path).damage] == [(MISSING, "model-2.safetensors")]


def test_a_distributed_checkpoint(tmp_path: Path) -> None:
    path = distributed(tmp_path)
    assert checked(path).is_whole is True
    (data,) = path.glob("*.distcp")
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    (damage,) = checked(path).damage
    assert (damage.code, damage.num_bytes, damage.expected_bytes) == (TOO_SHORT, len(whole) - 1, len(whole))
    data.write_bytes(whole)
    flip(data, whole.index(struct.pack("<f", 63.0)))
    assert codes(path) == {BAD_CHECKSUM}
    data.unlink()
    assert [(one.code, one.file) for one in checked(path).damage] == [(MISSING, data.name)]


def test_the_metadata_of_a_distributed_checkpoint_is_cut_off(tmp_path: Path) -> None:
    path = distributed(tmp_path)
    metadata = path / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:-20])
    assert codes(path) == {BAD_METADATA}


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {os.environ['RAN']}",)


def test_code_in_metadata_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    monkeypatch.setenv("RAN", str(ran))
    path = tmp_path / ".metadata"
    path.write_bytes(pickle.dumps(_Runs()))
    with pytest.raises(ValueError, match="names no files"):
        read_pieces(path)
    assert not ran.exists()
    pickle.loads(path.read_bytes())
    assert ran.exists()
