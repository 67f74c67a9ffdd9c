"""What a process reads is reported from its start: once, of the outermost call, and whatever fails."""

import threading

import pytest
import torch

from chaos.external import early
from chaos.external.call_paths import path_in_call
from chaos.external.early import watched

pytestmark = pytest.mark.unit


@pytest.fixture
def told(monkeypatch):
    channel = early.Channel()
    records = []
    channel.emit = records.append
    monkeypatch.setattr(early, "_channel", channel)
    return records


def load(path, **kwargs):
    with watched("torch", (path,), kwargs) as call:
        call.returned(torch.load(path, **kwargs))


def test_a_file_that_is_read(tmp_path, told):
    path = tmp_path / "state.pt"
    torch.save({"a": torch.ones(2)}, path)
    load(path)
    (record,) = told
    status = path.stat()
    assert (record.path, record.by, record.error) == (str(path), "torch", None)
    assert (record.device, record.inode, record.num_bytes) == (status.st_dev, status.st_ino, status.st_size)
    assert record.seconds >= 0.0 and record.began_monotonic > 0.0


def test_a_folder_is_as_large_as_its_files(tmp_path, told):
    for name, text in [("a", "12"), ("b", "345")]:
        (tmp_path / name).write_text(text)
    with watched("distributed_checkpoint", ({},), {"checkpoint_id": tmp_path}) as call:
        call.returned(None)
    assert (told[0].path, told[0].num_bytes) == (str(tmp_path), 5)


@pytest.mark.parametrize("text", ["", "no archive"])
def test_one_that_cannot_be_read_is_told_and_raises(tmp_path, told, text):
    path = tmp_path / "state.pt"
    path.write_text(text)
    with pytest.raises(Exception) as raised:
        load(path)
    assert told[0].error == f"{type(raised.value).__name__}: {raised.value}"[:300]
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing")
    assert (told[1].path, told[1].inode) == (str(tmp_path / "missing"), None)


def test_calls_within_a_call_are_part_of_it(tmp_path, told):
    path = tmp_path / "state.pt"
    torch.save(1, path)
    with watched("distributed_checkpoint", (), {"checkpoint_id": tmp_path}) as call:
        load(path)
        other = threading.Thread(target=load, args=(path,))
        other.start()
        other.join()
        call.returned(None)
    assert [record.by for record in told] == ["torch", "distributed_checkpoint"]


def test_a_data_set_that_loads_each_sample_is_not_told_for_ever(tmp_path, told):
    path = tmp_path / "state.pt"
    torch.save(1, path)
    for _ in range(early.MAX_LOADS + 10):
        with watched("torch", (path,), {}) as call:
            call.returned(None)
    assert len(told) == early.MAX_LOADS


def path_of(args, kwargs):
    return path_in_call(args, kwargs, "storage_reader", 0)


def test_where_a_call_reads_from(tmp_path):
    class Reader:
        path = tmp_path

    with (tmp_path / "file").open("w") as file:
        assert path_of((file,), {}) == path_of((tmp_path / "file",), {}) == file.name
    assert path_of((), {"filename": "a.safetensors"}) == "a.safetensors"
    assert (
        path_of(({},), {"storage_reader": Reader()})
        == path_of(({},), {"checkpoint_id": str(tmp_path)})
        == str(tmp_path)
    )
    assert path_of((object(),), {}) is None


def test_a_process_that_does_not_know_its_rank_keeps_what_happened(monkeypatch):
    for name in ("RANK", "CHAOS_RANK_PID"):
        monkeypatch.delenv(name, raising=False)
    channel = early.Channel()
    for number in range(300):
        channel.emit(early.StateLoaded(by=str(number)))
    assert [record.by for record, _ in channel._kept] == [str(number) for number in range(256)]
    channel.abandon()
    assert channel._kept == []
