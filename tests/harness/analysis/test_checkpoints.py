"""What the events of a run say of its checkpoints, and of what each attempt loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from harness.analysis.command.attempts import Attempt
from harness.analysis.command.checkpoints import Checkpoints, Damaged, read_checkpoints
from mecefo_runtime.system.command_records import CheckpointChecked, CheckpointPointed, StateLoaded
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import CheckpointWritten, ProcessStarted
from mecefo_runtime.system.record import Record
from mecefo_runtime.system.records import parse

pytestmark = pytest.mark.unit

GOOD: dict[str, Any] = {"whole": True, "readable": True, "finite": True}
TORN: dict[str, Any] = {"whole": False, "damage": ({"code": "no_end", "file": "state.pt", "num_bytes": 9},)}


def at(seconds: float, record: Record, *, step: int | None = None, pid: int = 1, rank: int | None = None) -> Any:
    fields = record.given()
    return parse(Event(record.KIND, "rank", seconds, seconds, pid, 1, rank=rank, step=step, fields=fields))


def written(seconds: float, step: int, path: str, inode: int) -> Any:
    return at(seconds, CheckpointWritten(saved=((path, 1, inode, 100),)), step=step, rank=0)


def checked(seconds: float, step: int, path: str | None, **found: Any) -> Any:
    return at(seconds, CheckpointChecked(path=path, **found), step=step)


def loaded(seconds: float, path: str, inode: int, *, pid: int = 2, rank: int = 0, error: str | None = None) -> Any:
    record = StateLoaded(path=path, by="torch", began_monotonic=seconds, device=1, inode=inode, error=error)
    return at(seconds, record, pid=pid, rank=rank)


def started(seconds: float, pid: int, attempt: int, rank: int = 0) -> Any:
    return at(seconds, ProcessStarted(role="rank", started_pid=pid, started_rank=rank, rank_attempt=attempt))


def attempts(*starts: float) -> tuple[Attempt, ...]:
    return tuple(Attempt(number, seconds, None, None, None, None) for number, seconds in enumerate(starts, start=1))


def read(
    records: Iterable[Any], *, damaged: tuple[Damaged, ...] = (), starts: tuple[float, ...] = (0.0, 30.0)
) -> Checkpoints:
    every = sorted(records, key=lambda record: record.monotonic_seconds)
    saves = [one for one in every if isinstance(one, CheckpointWritten)]
    return read_checkpoints(every, saves, attempts(0.0, 30.0), damaged)


def test_nothing_is_known_of_a_log_without_looks() -> None:
    found = read([written(1, 10, "a/10.pt", 7)])
    assert (found.saved, found.unusable, found.fallbacks, found.newest_usable_step) == (1, None, None, None)


def test_usable_is_whole_readable_and_finite() -> None:
    records = [
        checked(50, 30, "a/30.pt", whole=True, readable=True, finite=False),
        checked(50.1, 20, "a/20.pt", whole=True, unchecked=("no_time",)),
        checked(50.2, 10, "a/10.pt", **GOOD),
    ]
    found = read(records)
    assert [(one.step, one.usable) for one in found.health] == [(10, True), (20, None), (30, False)]
    assert (found.unusable, found.newest_usable_step) == (1, 20)


def test_the_newest_usable_one_after_an_incident_is_that_of_the_next_look() -> None:
    torn = {**TORN, "moment": "attempt_ended", "of_attempt": 1}
    records = [
        checked(20, 20, "a/20.pt", is_finished=False, **torn),
        checked(20.1, 10, "a/10.pt", whole=True, moment="attempt_ended", of_attempt=1),
        checked(60, 40, "a/40.pt", **GOOD),
    ]
    found = read(records)
    assert (found.usable_after(15), found.usable_after(30), found.usable_after(61)) == (10, 40, None)


@pytest.mark.parametrize(("before", "number"), [("overwritten", 1), ("there", 0)], ids=["in place", "beside it"])
def test_an_interrupted_save_counts_where_it_took_the_place_of_the_one_before(before: str, number: int) -> None:
    records = [
        checked(50, 20, "state.pt", is_finished=False, **TORN),
        checked(50.1, 10, "state.pt", found=before, **({} if before == "overwritten" else GOOD)),
    ]
    assert read(records).unusable == number


def test_an_interrupted_save_counts_where_a_pointer_names_it() -> None:
    records = [
        checked(50, 20, "a/20", is_finished=False, **TORN),
        checked(50.1, 10, "a/10", **GOOD),
        at(51, CheckpointPointed(folder="a", name="highest_number", says="20", target="a/20")),
    ]
    assert read(records).unusable == 1
    # A loader goes by the file, where there is one.
    records.append(at(51, CheckpointPointed(folder="a", name="latest", says="10", target="a/10")))
    found = read(records)
    assert (found.unusable, [(one.path, one.step, one.usable) for one in found.pointers]) == (
        0,
        [("a/latest", 10, True)],
    )


def test_an_attempt_loads_the_newest() -> None:
    records = [
        written(1, 10, "a/10.pt", 7),
        written(2, 20, "a/20.pt", 8),
        started(30, 2, 2),
        loaded(31, "a/20.pt", 8),
        loaded(31.1, "/pretrained/base.pt", 99),
    ]
    (load,) = read(records).loads
    assert (load.attempt, load.step, load.path, load.is_fallback) == (2, 20, "a/20.pt", False)


def test_an_attempt_falls_back_because_the_newest_cannot_be_read() -> None:
    records = [
        written(1, 10, "a/10.pt", 7),
        written(2, 20, "a/20.pt", 8),
        started(30, 2, 2),
        loaded(31, "a/20.pt", 8, error="EOFError: "),
        loaded(32, "a/10.pt", 7),
    ]
    found = read(records)
    (load,) = found.loads
    assert (load.step, load.newest_step, load.is_fallback, found.fallbacks) == (10, 20, True, 1)
    assert [(one.path, one.step, one.error) for one in load.failed] == [("a/20.pt", 20, "EOFError: ")]


def test_a_renamed_file_is_known_by_its_inode() -> None:
    records = [written(1, 10, "new.pt", 7), started(30, 2, 2), loaded(31, "state.pt", 7)]
    (load,) = read(records).loads
    assert load.step == 10


def test_another_file_of_the_name_is_not_the_one_that_was_saved() -> None:
    records = [written(1, 10, "state.pt", 7), started(30, 2, 2), loaded(31, "state.pt", 8)]
    (load,) = read(records).loads
    assert (load.step, load.is_fallback) == (None, None)


def test_ranks_that_load_different_steps() -> None:
    records = [
        written(1, 10, "a/10.pt", 7),
        written(2, 20, "a/20.pt", 8),
        started(30, 2, 2),
        started(30, 3, 2, rank=1),
        loaded(31, "a/20.pt", 8),
        loaded(31, "a/10.pt", 7, pid=3, rank=1),
    ]
    (load,) = read(records).loads
    assert load.differs == (10, 20)


@pytest.mark.parametrize(
    ("saved_again", "incident"), [((), 4), ((written(25, 30, "state.pt", 7),), None)], ids=["damaged", "saved again"]
)
def test_what_an_incident_damaged_is_loaded(saved_again: tuple[Any, ...], incident: int | None) -> None:
    records = [written(1, 20, "state.pt", 7), *saved_again, started(30, 2, 2), loaded(31, "state.pt", 7)]
    (load,) = read(records, damaged=(Damaged(4, "state.pt", since=20),)).loads
    assert load.damaged_by == incident
