"""Whether a fault recognises what ended ranks before its own effect was verified: only what names it."""

import asyncio
import errno
import json
import os
from contextlib import contextmanager

import pytest

from chaos.errors import EffectNotSeen
from chaos.faults.base import Act, FaultContext, OwnedProcess
from chaos.faults.endings import Endings
from chaos.faults.process.crash import Raise, RaiseParameters
from chaos.faults.process.slow import DelayParameters, DelayRecord, SlowCheckpoint
from chaos.faults.storage.disk import FillDisk, FillParameters, FullDiskRecord
from chaos.faults.watch import Watch
from mecefo_runtime.system.command_records import RankRaised
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import CheckpointFailed, ProcessExited
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

ACT = Act((OwnedProcess("rank", ProcessId(11, 1), rank=1, node=0),), {})


def raised(rank, exception, message, *, at=12.0, failure="own", is_injected=False, causes=()):
    fields = {
        "exception": exception,
        "message": message,
        "failure": failure,
        "is_injected": is_injected,
        "causes": list(causes),
    }
    return Event("rank_raised", "rank", at, at, 10 + rank, step=35, rank=rank, fields=fields)


def ended(rank, code, *, at=12.5):
    fields = {"role": "rank", "exited_pid": 10 + rank, "exit": code, "exited_rank": rank, "rank_attempt": 1}
    return Event("process_exited", "conductor", at, at, 1, fields=fields)


def unsaved(rank, *, number, at=12.0):
    fields = {"reason": "OSError: x", "errno": number}
    return Event("checkpoint_failed", "rank", at, at, 10 + rank, step=20, rank=rank, fields=fields)


def context_of(*events, **more):
    watch = Watch()
    for event in events:
        watch.feed(event)
    return FaultContext(processes=None, inside=more.get("inside"), watch=watch, run_folder=None)


def recognised(fault, *events, act=ACT, since=10.0):
    context = context_of(*events)
    return evidence_of(fault.recognises(act, context, Endings.since(since, context.watch.endings)))


def evidence_of(found):
    """The evidence, as it is in the log, and when the effect came."""
    return None if found is None else json.loads(json.dumps({**found.evidence, "at": found.at_seconds}))


def test_only_what_came_after_the_fault_counts():
    events = (raised(1, "E", "a", at=9.0), raised(0, "E", "b"), ended(0, 1), ended(1, 0, at=9.5), unsaved(0, number=1))
    endings = Endings.since(10.0, context_of(*events).watch.endings)
    assert [(type(one), one.rank) for one in endings.raised] == [(RankRaised, 0)]
    assert [type(one) for one in (*endings.exits, *endings.unsaved)] == [ProcessExited, CheckpointFailed]
    assert endings.end_of(0).exit == 1 and endings.end_of(1) is None


# ---- an exception ----


def raising():
    return Raise(RaiseParameters(exception="RuntimeError", message="injected"))


def test_an_exception_that_was_raised_counts_however_its_rank_ended():
    evidence = recognised(raising(), raised(1, "RuntimeError", "injected", is_injected=True), ended(1, -15))
    assert evidence["summary"] == ("RuntimeError('injected') raised on the training thread: rank 1, ended by SIGTERM")
    assert evidence["exits"] == {"1": -15}
    assert recognised(raising(), raised(1, "RuntimeError", "injected", is_injected=True))["exits"] == {"1": None}


@pytest.mark.parametrize(
    "events",
    [
        (ended(1, -15),),
        (raised(1, "RuntimeError", "shapes differ"), ended(1, 1)),
        (raised(1, "RuntimeError", "injected"), ended(1, 1)),
        (raised(1, "ValueError", "injected", is_injected=True), ended(1, 1)),
        (raised(0, "RuntimeError", "injected", is_injected=True), ended(1, 1)),
        (raised(1, "RuntimeError", "injected", is_injected=True, at=9.0), ended(1, 1)),
    ],
    ids=["nothing raised", "its own", "not by chaos", "another class", "another rank", "before"],
)
def test_any_other_end_is_not_recognised_as_the_exception(events):
    assert recognised(raising(), *events) is None


# ---- a slow save ----

TIMED_OUT = {"failure": "collective_timeout"}


class Inside:
    """A rank that says that it sleeps, and is gone then."""

    def __init__(self, *reports):
        self._reports = list(reports)

    async def begin(self, rank, effect, arguments):
        return 7, {}

    async def report(self, rank, handle, timeout_seconds):
        if not self._reports:
            raise EffectNotSeen(f"rank {rank} has ended and reported nothing")
        return self._reports.pop(0)


def slow(*events, asleep=True, asked=8.0):
    """What a slow save of rank 1, asleep from 10.5 on, recognises after its verification has failed."""
    told = ({"asleep_in": 20, "asked_seconds": asked, "since_monotonic": 10.5},) if asleep else ()
    context = context_of(*events, inside=Inside(*told))
    fault = SlowCheckpoint(DelayParameters(delay=f"{asked}s"))
    act = Act(ACT.processes, DelayRecord(ranks=(1,)).to_json())

    async def play():
        await fault.apply(act, context)
        with pytest.raises(EffectNotSeen):
            await fault.verify(act, context, 1.0)

    asyncio.run(play())
    return evidence_of(fault.recognises(act, context, Endings.since(10.0, context.watch.endings)))


def test_who_timed_out_waiting_for_the_slow_save_verifies_it():
    evidence = slow(raised(0, "RuntimeError", "gloo: timed out", at=14.5, **TIMED_OUT), ended(1, -15, at=14.8))
    assert evidence["summary"] == (
        "rank 1 slept 8 s before checkpoint of step 20, and rank 0 timed out waiting for it after 4 s (RuntimeError); "
        "rank 1 was ended 4.3 s into it"
    )
    assert evidence["at"] == 10.5, "when it fell asleep"
    assert evidence["timed_out"]["rank"] == 0 and evidence["asleep"]["1"]["asleep_in"] == 20


@pytest.mark.parametrize(
    ("events", "knobs"),
    [
        ((ended(1, -15),), {}),
        ((raised(0, "ValueError", "bad data"), ended(1, -15)), {}),
        ((raised(1, "RuntimeError", "gloo: timed out", **TIMED_OUT), ended(1, 1)), {}),
        ((raised(0, "RuntimeError", "gloo: timed out", at=40.0, **TIMED_OUT),), {}),
        ((raised(0, "RuntimeError", "gloo: timed out", at=14.5, **TIMED_OUT),), {"asleep": False}),
    ],
    ids=["nobody waited", "another reason", "the sleeper itself", "long after", "it did not sleep"],
)
def test_a_rank_that_ended_of_something_else_verifies_no_slow_save(events, knobs):
    assert slow(*events, **knobs) is None


# ---- a full disk ----


@contextmanager
def disk(folder, *, is_full=False, monkeypatch=None):
    fault = FillDisk(FillParameters())
    act = Act(undo_record=FullDiskRecord(ballast=str(folder / ".ballast"), disk=None).to_json())
    monkeypatch.setattr("chaos.faults.storage.disk._refusal", lambda _: errno.ENOSPC if is_full else None)
    yield lambda *events: recognised(fault, *events, act=act)


NO_SPACE = f"[Errno 28] {os.strerror(errno.ENOSPC)}: 'ckpt/state.pt'"
WRITER = "[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/0: file write failed"


def test_a_rank_that_ended_of_a_full_disk_verifies_it(tmp_path, monkeypatch):
    with disk(tmp_path, is_full=True, monkeypatch=monkeypatch) as found:
        evidence = found(raised(0, "OSError", NO_SPACE), ended(0, 1))
        assert evidence["summary"].startswith("disk full: rank 0 ended of OSError: [Errno 28]")
        nested = raised(0, "RuntimeError", "Caught in worker", causes=[{"exception": "OSError", "message": NO_SPACE}])
        assert found(nested) is not None
        assert found(raised(0, "RuntimeError", WRITER)) is not None
        assert found(unsaved(0, number=errno.ENOSPC), ended(0, 1))["checkpoint_failed"]["step"] == 20


def test_a_rank_that_ended_of_something_else_verifies_no_full_disk(tmp_path, monkeypatch):
    with disk(tmp_path, monkeypatch=monkeypatch) as found:
        assert found(ended(0, 1)) is None
        assert found(raised(0, "ValueError", "bad data"), ended(0, 1)) is None
        assert found(raised(0, "RuntimeError", WRITER), ended(0, 1)) is None, "nothing is full"
        assert found(raised(0, "OSError", NO_SPACE, is_injected=True)) is None, "raised by chaos"
        assert found(unsaved(0, number=errno.EACCES), ended(0, 1)) is None
        assert found(unsaved(0, number=errno.ENOSPC)) is None, "it lives"
