from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch

from mecefo_runtime.checkpoint import writer as checkpoint_writer
from mecefo_runtime.checkpoint.checkpoint import newest, unit_names, verify
from mecefo_runtime.checkpoint.manifest import Identity
from mecefo_runtime.checkpoint.writer import CheckpointWriter
from mecefo_runtime.job.config import JobConfig, ModelConfig
from mecefo_runtime.state.units import UnitState

pytestmark = pytest.mark.unit

JOB = JobConfig(model=ModelConfig(32, 48, 2, 2, 2, 64))
IDENTITY = Identity.of(JOB, b"text")
DEADLINE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def open_writer() -> Iterator[Callable[[Path], CheckpointWriter]]:
    writers: list[CheckpointWriter] = []

    def start(root: Path) -> CheckpointWriter:
        writers.append(CheckpointWriter(root, IDENTITY))
        return writers[-1]

    yield start
    for writer in writers:
        assert writer.close(DEADLINE_SECONDS)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is written before this is set."""
    event = threading.Event()
    write_unit = checkpoint_writer.write_unit

    def wait_and_write(*arguments: object) -> object:
        assert event.wait(DEADLINE_SECONDS)
        return write_unit(*arguments)

    monkeypatch.setattr(checkpoint_writer, "write_unit", wait_and_write)
    return event


def states(names: Iterable[str] = unit_names(2)) -> dict[str, UnitState]:
    units = {name: UnitState(name, JOB) for name in names}
    for unit in units.values():
        unit.storage.normal_()
    return units


def saved(root: Path, name: str) -> torch.Tensor:
    checkpoint = newest(root, IDENTITY)
    assert checkpoint is not None
    state = UnitState(name, JOB)
    checkpoint.load_unit(name, state)
    return state.storage


def test_training_goes_on_with_the_units_at_once(tmp_path, open_writer, gate):
    writer = open_writer(tmp_path)
    units = states()
    before = {name: unit.storage.clone() for name, unit in units.items()}
    assert writer.save(1, units, "first")
    for unit in units.values():
        unit.storage.fill_(7.0)
    assert writer.is_busy and not writer.wait(0.0)
    gate.set()
    assert writer.wait(DEADLINE_SECONDS) and not writer.is_busy
    assert all(torch.equal(saved(tmp_path, name), storage) for name, storage in before.items())
    (result,) = writer.results()
    assert (result.step, result.units, result.error, result.was_skipped) == (1, unit_names(2), None, False)
    assert result.num_bytes > sum(storage.nbytes for storage in before.values())
    assert min(result.blocking_seconds, result.writing_seconds) > 0
    # The buffers of the first save serve the second, which must not read what the first one left there.
    assert writer.save(2, units, "first") and writer.wait(DEADLINE_SECONDS)
    assert all(bool((saved(tmp_path, name) == 7.0).all()) for name in before)


def test_a_save_during_a_save_is_skipped_and_said_to_be(tmp_path, open_writer, gate):
    writer = open_writer(tmp_path)
    units = states()
    assert writer.save(1, units, "first")
    for unit in units.values():
        unit.storage.zero_()
    assert not writer.save(2, units, "first")
    assert [(result.step, result.was_skipped) for result in writer.results()] == [(2, True)]
    gate.set()
    assert writer.wait(DEADLINE_SECONDS)
    assert [(result.step, result.was_skipped) for result in writer.results()] == [(1, False)]
    assert saved(tmp_path, "head").any(), "the skipped save changed what the first one wrote"
    assert writer.save(3, units, "first") and writer.wait(DEADLINE_SECONDS)
    assert not saved(tmp_path, "head").any()


def test_a_rank_that_took_over_saves_what_it_holds_then(tmp_path, open_writer):
    writer = open_writer(tmp_path)
    units = states()
    held = {name: units[name] for name in ("embedding", "layer.0")}
    assert writer.save(1, held, "first") and writer.wait(DEADLINE_SECONDS)
    assert newest(tmp_path) is None
    assert writer.save(2, units, "first") and writer.wait(DEADLINE_SECONDS)
    assert [result.units for result in writer.results()] == [tuple(held), tuple(units)]
    assert all(torch.equal(saved(tmp_path, name), unit.storage) for name, unit in units.items())


def test_closing_finishes_what_is_under_way_or_says_that_it_did_not(tmp_path, gate):
    writer = CheckpointWriter(tmp_path, IDENTITY)
    assert writer.save(1, states(), "first")
    assert not writer.close(0.01)
    gate.set()
    assert writer.close(DEADLINE_SECONDS)
    assert [result.error for result in writer.results()] == [None]
    assert verify(tmp_path / "step-00000001").step == 1


@pytest.mark.parametrize("place", ["root", "root/step-00000001", "root/step-00000001/layer.1"])
def test_something_in_the_way_is_reported_and_nothing_else(tmp_path, open_writer, place):
    root = tmp_path / "root"
    obstacle = tmp_path / place
    obstacle.parent.mkdir(parents=True, exist_ok=True)
    obstacle.touch()
    writer = open_writer(root)
    units = states()
    assert writer.save(1, units, "first") and writer.wait(DEADLINE_SECONDS)
    (result,) = writer.results()
    assert result.error is not None and str(obstacle) in result.error
    assert not list(tmp_path.rglob(".writing*"))
    obstacle.unlink()
    assert writer.save(1, units, "first") and writer.wait(DEADLINE_SECONDS)
    assert [result.error for result in writer.results()] == [None]
    assert verify(root / "step-00000001").step == 1


def test_a_disk_that_takes_no_more_is_reported_and_nothing_of_the_unit_is_left(tmp_path, open_writer):
    writer = open_writer(tmp_path)
    units = states()
    largest = max(unit.storage.nbytes for unit in units.values())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # As on a full disk: the write fails half-way through a file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest // 2, limits[1]))
    try:
        assert writer.save(1, units, "first") and writer.wait(DEADLINE_SECONDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (result,) = writer.results()
    assert result.error is not None and "File too large" in result.error, result.error
    assert newest(tmp_path) is None and not list(tmp_path.rglob(".writing*"))
    assert writer.save(2, units, "first") and writer.wait(DEADLINE_SECONDS)
    assert newest(tmp_path) == verify(tmp_path / "step-00000002")
