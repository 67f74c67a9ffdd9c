"""Pauses, tried on real processes: stopped in every thread, and running again whatever happened."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from chaos.errors import EffectNotSeen, HealError, TargetNotFound
from chaos.faults.base import Act
from chaos.faults.process.pause import PauseNode, PauseProcess, resume
from chaos.host.process_table import cpu_seconds, is_stopped, resident_bytes, thread_names, thread_states
from mecefo_runtime.system.process import ProcessId
from tests.chaos.one_node import create_context, do_nothing, older, sleepers, targets

pytestmark = pytest.mark.unit

each_pause = pytest.mark.parametrize("fault", [PauseNode, PauseProcess], ids=["pause-node", "pause-process"])
# Three threads, of which two compute.
BUSY = """
import threading
for _ in range(2):
    threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(int, 1)]).start()
print("ready", flush=True)
"""


@pytest.fixture
def children():
    with sleepers() as started:
        yield started


@pytest.fixture
def context(children):
    return create_context(children)


@pytest.fixture
def busy():
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    child.stdout.readline()
    yield ProcessId.of(child.pid)
    child.kill()
    child.wait()
    child.stdout.close()


def create(fault):
    return fault(fault.Parameters())


def verify(fault, act, context, timeout_seconds=5.0):
    return asyncio.run(fault.verify(act, context, timeout_seconds))


@each_pause
def test_it_is_stopped_and_then_runs_again(fault, context):
    for target in targets(fault):
        wanted = create(fault)
        act = wanted.prepare(target, context)
        record = json.loads(json.dumps(dict(act.undo_record)))
        asyncio.run(wanted.apply(act, context))
        evidence = verify(wanted, act, context)
        assert json.loads(json.dumps(evidence)) == evidence
        assert {process["state"] for process in evidence["processes"]} == {"T"}
        others = set(context.processes.all()) - set(act.processes)
        assert not any(is_stopped(owned.process) for owned in others)
        first = fault.undo(record)
        assert not any(is_stopped(owned.process) for owned in context.processes.all())
        assert fault.undo(record) == first


@each_pause
def test_not_applied_it_is_not_verified(fault, context):
    idle = type("Idle", (fault,), {"apply": do_nothing})
    for target in targets(fault):
        wanted = create(idle)
        act = wanted.prepare(target, context)
        asyncio.run(wanted.apply(act, context))
        with pytest.raises(EffectNotSeen, match=r"not stopped 0.05 s after"):
            verify(wanted, act, context, 0.05)


def test_partly_applied_it_is_not_verified(context):
    wanted = create(PauseNode)
    act = wanted.prepare(targets(PauseNode)[0], context)
    asyncio.run(wanted.apply(Act(act.processes[:-1]), context))
    with pytest.raises(EffectNotSeen, match=str(act.processes[-1].process.pid)):
        verify(wanted, act, context, 0.05)
    PauseNode.undo(act.undo_record)
    assert not any(is_stopped(owned.process) for owned in act.processes)


def test_resumed_by_somebody_else_it_is_not_verified(context):
    wanted = create(PauseProcess)
    act = wanted.prepare(targets(PauseProcess)[0], context)

    async def meddle():
        await wanted.apply(act, context)
        seen = asyncio.create_task(wanted.verify(act, context, 5.0))
        await asyncio.sleep(0.1)
        act.processes[0].process.signal(signal.SIGCONT)
        return await seen

    with pytest.raises(EffectNotSeen):
        asyncio.run(meddle())


@each_pause
def test_a_recycled_pid_is_never_touched(fault, context):
    recycled = replace(context, processes=context.processes.recycled())
    for target in targets(fault):
        wanted = create(fault)
        with pytest.raises(TargetNotFound):
            wanted.prepare(target, recycled)
        act = wanted.prepare(target, context)
        late = tuple(replace(owned, process=older(owned.process)) for owned in act.processes)
        asyncio.run(wanted.apply(Act(late), context))
        assert not any(is_stopped(owned.process) for owned in context.processes.all())
        # And one that another has stopped stays so.
        for owned in act.processes:
            owned.process.signal(signal.SIGSTOP)
            while not is_stopped(owned.process):
                pass
        fault.undo({"processes": [owned.to_dict() for owned in late]})
        assert all(is_stopped(owned.process) for owned in act.processes)
        fault.undo(act.undo_record)


@each_pause
def test_the_undo_of_the_dead_is_done(fault, context, children):
    act = create(fault).prepare(targets(fault)[0], context)
    for child in children:
        child.kill()
        child.wait()
    fault.undo(act.undo_record)


def test_what_is_stopped_again_and_again_is_not_healed(context, monkeypatch):
    monkeypatch.setattr("chaos.faults.process.pause.RESUMED_WITHIN_SECONDS", 0.1)
    process = context.processes.ranks[0].process
    monkeypatch.setattr(ProcessId, "signal", lambda *_: True)
    os.kill(process.pid, signal.SIGSTOP)
    # It takes a moment to stop on a busy machine.
    while process.state() != "T":
        time.sleep(0.001)
    with pytest.raises(HealError, match=str(process.pid)):
        resume((process,))


class TestProcessTable:
    def test_every_thread_is_seen(self, busy):
        states = thread_states(busy)
        assert len(states) == 3
        assert set(thread_names(busy)) == set(states)
        assert not is_stopped(busy)
        busy.signal(signal.SIGSTOP)
        while not is_stopped(busy):
            pass
        used = cpu_seconds(busy)
        assert used is not None and used > 0
        assert cpu_seconds(busy) == used, "a stopped process uses nothing"
        busy.signal(signal.SIGCONT)
        while cpu_seconds(busy) == used:
            pass

    def test_memory_is_seen(self, busy):
        assert 2**20 < resident_bytes(busy) < 2**30

    def test_a_recycled_pid_is_nobody(self, busy):
        gone = older(busy)
        assert (thread_states(gone), thread_names(gone), is_stopped(gone)) == ({}, {}, False)
        assert (cpu_seconds(gone), resident_bytes(gone)) == (None, None)
