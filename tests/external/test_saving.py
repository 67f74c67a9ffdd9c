"""What is reported of a script's saves: whole ones, failed ones, and those that a later call made good."""

import errno
import os
from concurrent.futures import Future

import pytest

from chaos.external.saving import SaveFailure, Saves

pytestmark = pytest.mark.unit


class Reports:
    """What a training's saves report."""

    def __init__(self):
        self.written, self.failed = [], []
        self.saves = Saves(
            lambda step, *_: self.written.append(step), lambda step, why: self.failed.append((step, why))
        )

    def save(self, path, error=None, *, step=10, result=None):
        self.saves.begin(step)
        if error is None:
            self.saves.called(0.0, result, path)
        else:
            self.saves.failed(error, path)

    def end_step(self):
        self.saves.next_step()
        return self.written, [(step, why.path) for step, why in self.failed]


def full(path="x"):
    return OSError(errno.ENOSPC, "No space left on device", path)


class DistributedError(BaseException):
    """As torch.distributed.checkpoint.api.CheckpointException, which is no Exception."""

    def __init__(self, failures):
        super().__init__("failed")
        self.failures = failures


def chained(error, cause):
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("calls", "written", "failed"),
    [
        ([("a.pt", None)], [10], []),
        ([("a.pt", full())], [], ["a.pt"]),
        ([("a.pt", full()), ("a.pt", None)], [10], []),
        ([("out/a.pt", full()), ("spare/a.pt", None)], [10], []),
        ([("a.pt", full()), ("b.pt", None)], [], ["a.pt"]),
        ([("b.pt", None), ("a.pt", full())], [], ["a.pt"]),
        ([("a.pt", None), ("a.pt", full())], [], ["a.pt"]),
        ([("a.pt", DistributedError({0: (full(), None)}))], [], ["a.pt"]),
        ([(None, full())], [], [None]),
        ([("a.pt", full()), (None, None)], [], ["a.pt"]),
        ([("a.pt", KeyboardInterrupt())], [], []),
    ],
    ids=[
        "saved",
        "failed",
        "tried again",
        "saved in another folder",
        "another file was saved",
        "after another file",
        "the second save of a file",
        "a distributed save",
        "to an unknown place",
        "another, to an unknown place",
        "interrupted",
    ],
)
def test_a_checkpoint_is_written_or_failed(calls, written, failed):
    reports = Reports()
    for path, error in calls:
        reports.save(path, error)
    assert reports.end_step() == (written, [(10, path) for path in failed])


def test_a_save_that_fails_in_the_background_is_a_failed_one():
    reports, future = Reports(), Future()
    reports.save("a", result=future)
    assert reports.end_step() == ([], [])
    future.set_exception(full())
    assert reports.end_step() == ([], [(10, "a")])


def test_of_calls_within_a_call_the_outer_one_decides():
    reports = Reports()
    reports.saves.begin(10)
    reports.save("inner", full())
    reports.saves.called(0.0, None, "outer")
    assert reports.end_step() == ([10], [])


@pytest.mark.parametrize(
    ("error", "reason", "number"),
    [
        (full(), "OSError: [Errno 28] No space left on device: 'x'", errno.ENOSPC),
        (RuntimeError("unexpected pos 576 vs 534"), "RuntimeError: unexpected pos 576 vs 534", None),
        (
            chained(RuntimeError("unexpected pos"), full()),
            "RuntimeError: unexpected pos (caused by OSError: [Errno 28] No space left on device: 'x')",
            errno.ENOSPC,
        ),
        (ValueError("I/O error (os error 28)"), "ValueError: I/O error (os error 28)", errno.ENOSPC),
        (
            DistributedError({1: (chained(RuntimeError("write"), full()), None)}),
            "RuntimeError: write (caused by OSError: [Errno 28] No space left on device: 'x')",
            errno.ENOSPC,
        ),
    ],
    ids=["os", "torch", "torch to an open file", "safetensors", "distributed"],
)
def test_the_errno_is_that_of_the_system_call_that_failed(error, reason, number):
    assert SaveFailure.of(error, "p") == SaveFailure(reason, number, "p")


def test_a_reason_is_bounded_and_causes_may_be_circular():
    error = RuntimeError("x" * 10_000)
    error.__context__ = chained(ValueError("y" * 10_000), error)
    assert len(SaveFailure.of(error, None).reason) <= 300


def test_what_is_reported_names_the_file_that_was_written(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"x")
    places = []
    saves = Saves(lambda *told: places.append(told[3]), lambda *_: None)
    saves.begin(3)
    saves.called(0.0, None, os.fspath(tmp_path / "a.pt"))
    saves.next_step()
    status = (tmp_path / "a.pt").stat()
    assert places == [[[str(tmp_path / "a.pt"), status.st_dev, status.st_ino, status.st_size]]]


class TestRenames:
    """What was saved keeps its step under another name."""

    @pytest.fixture
    def saved(self, tmp_path):
        found = []
        saves = Saves(lambda *told: found.append(told), lambda *_: None)

        def save(path):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(b"12345")
            saves.begin(10)
            saves.called(0.0, None, str(tmp_path / path))

        return saves, save, found

    def rename(self, saves, folder, source, target, within=None):
        (folder / source).replace(folder / target)
        return saves.renamed(str(folder / source), str(folder / target), within)

    def test_a_file_and_its_size(self, tmp_path, saved):
        saves, save, found = saved
        save("new.pt")
        assert self.rename(saves, tmp_path, "new.pt", "state.pt") == 10
        saves.next_step()
        ((step, _, _, files),) = found
        status = (tmp_path / "state.pt").stat()
        assert (step, files) == (10, [[str(tmp_path / "state.pt"), status.st_dev, status.st_ino, 5]])

    def test_its_folder(self, tmp_path, saved):
        saves, save, found = saved
        save("tmp/a.pt")
        assert self.rename(saves, tmp_path, "tmp", "step_10") == 10
        saves.next_step()
        assert [path for path, *_ in found[0][3]] == [str(tmp_path / "step_10" / "a.pt")]

    def test_another_file_and_one_of_an_earlier_step_are_none(self, tmp_path, saved):
        saves, save, _ = saved
        (tmp_path / "latest.new").touch()
        save("tmp.pt")
        assert self.rename(saves, tmp_path, "latest.new", "latest") is None
        saves.next_step()
        assert self.rename(saves, tmp_path, "tmp.pt", "10.pt") is None

    def test_a_file_within_what_is_being_saved(self, tmp_path, saved):
        saves, _, _ = saved
        (tmp_path / ".metadata.tmp").touch()
        saves.begin(10)
        assert self.rename(saves, tmp_path, ".metadata.tmp", ".metadata", within=str(tmp_path)) == 10


def test_a_save_is_in_flight_until_its_future_is_done(tmp_path):
    reports, future = Reports(), Future()
    reports.save(str(tmp_path / "a"), result=future)
    assert reports.saves.are_in_flight
    reports.end_step()
    assert reports.saves.are_in_flight
    future.set_result(None)
    assert not reports.saves.are_in_flight
    assert reports.written == [10]
