"""Kills, tried on real processes: gone is what the process table says is gone, and nothing else was touched."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from chaos.errors import EffectNotSeen, NotOurs, TargetNotFound, UsageError
from chaos.faults.base import Act, OwnedProcess
from chaos.faults.process.kill import GraceParameters, KillNode, KillProcess, SignalParameters, parse_signal
from chaos.language.target import ResolvedTarget
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.process import ProcessId
from tests.chaos.one_node import create_context, do_nothing, older, sleepers, targets

pytestmark = pytest.mark.unit

# What is not gone by then stays.
TIMEOUT_SECONDS = 60.0
each_kill = pytest.mark.parametrize("fault", [KillNode, KillProcess], ids=["kill-node", "kill-process"])
# Says when it listens; on SIGTERM it goes in order, with an exit code of its own.
POLITE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
signal.pause()
"""
STUBBORN = POLITE.replace("lambda *_: sys.exit(7)", "signal.SIG_IGN") + "signal.pause()\n" * 3


@pytest.fixture
def children():
    with sleepers() as started:
        yield started


@pytest.fixture
def context(children):
    return create_context(children)


@pytest.fixture
def start():
    """Starts a Python program of one line of output, and waits for that."""
    started = []

    def start_program(program):
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout.readline() == "ready\n"
        return child

    yield start_program
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.fixture(autouse=True)
def _be_patient(monkeypatch):
    # However busy the machine is: whoever reaps them tells.
    monkeypatch.setattr("chaos.faults.process.kill.ENDING_SECONDS", TIMEOUT_SECONDS)


def create(fault, **parameters):
    return fault(fault.Parameters(**parameters))


def verify(fault, act, context, timeout_seconds=TIMEOUT_SECONDS):
    return asyncio.run(fault.verify(act, context, timeout_seconds))


def apply(fault, act, context=None):
    asyncio.run(fault.apply(act, context))


async def inject(fault, act, context, reaped=()):
    """Apply and verify, with those who reap `reaped` telling how they ended."""

    async def tell(child):
        code = await asyncio.to_thread(child.wait)
        fields = {"exited_pid": child.pid, "exit": code}
        context.watch.feed(Event("process_exited", "supervisor", 0.0, 0.0, 1, fields=fields))

    told = [asyncio.create_task(tell(child)) for child in reaped]
    await fault.apply(act, context)
    try:
        evidence = await fault.verify(act, context, TIMEOUT_SECONDS)
    finally:
        await fault.lift(act, context)
    await asyncio.gather(*told)
    return evidence


@each_kill
def test_prepare_changes_nothing_and_says_what_it_will_touch(fault, context):
    before = [owned.process.state() for owned in context.processes.all()]
    for target in targets(fault):
        act = create(fault).prepare(target, context)
        assert json.loads(json.dumps(dict(act.undo_record))) == act.undo_record
        if target.role == "coordinator":
            assert act.processes == (context.processes.coordinator,)
        elif fault.scope == "node":
            assert set(act.processes) == {context.processes.supervisor, *context.processes.ranks}
        else:
            assert act.processes == context.processes.ranks[:1], "the neighbour on the node is not the target"
    after = [owned.process.state() for owned in context.processes.all()]
    assert set(before) | set(after) <= {"S", "R", "D"}


@each_kill
def test_prepare_refuses_what_is_not_there(fault, context, children):
    for child in children:
        child.kill()
        child.wait()
    for target in targets(fault):
        with pytest.raises(TargetNotFound):
            create(fault).prepare(target, context)


@each_kill
def test_applied_it_is_verified_with_evidence(fault, context):
    done = set()
    for target in targets(fault):
        wanted = create(fault)
        act = wanted.prepare(target, context)
        done |= set(act.processes)
        apply(wanted, act)
        evidence = verify(wanted, act, context)
        assert json.loads(json.dumps(evidence)) == evidence
        assert "SIGKILL; process exit confirmed" in evidence["summary"]
        assert {p["pid"] for p in evidence["processes"]} == {owned.process.pid for owned in act.processes}
        assert all(owned.process.is_running() for owned in set(context.processes.all()) - done)
        fault.undo(act.undo_record)


@each_kill
def test_not_applied_it_is_not_verified(fault, context):
    idle = type("Idle", (fault,), {"apply": do_nothing})
    for target in targets(fault):
        wanted = create(idle)
        act = wanted.prepare(target, context)
        apply(wanted, act)
        with pytest.raises(EffectNotSeen, match=r"still running after 0.05 s"):
            verify(wanted, act, context, 0.05)
        assert all(owned.process.is_running() for owned in act.processes)


@each_kill
def test_partly_applied_it_is_not_verified(fault, context):
    wanted = create(fault)
    act = wanted.prepare(ResolvedTarget(ranks=(0, 1), nodes=(0,) if fault.scope == "node" else ()), context)
    apply(wanted, Act(act.processes[:-1], act.undo_record))
    with pytest.raises(EffectNotSeen, match=str(act.processes[-1].process.pid)):
        verify(wanted, act, context, 0.05)


@each_kill
def test_undo_needs_the_record_alone_and_can_be_repeated(fault, context):
    for target in targets(fault):
        wanted = create(fault)
        act = wanted.prepare(target, context)
        record = json.loads(json.dumps(dict(act.undo_record)))
        fault.undo(record)
        assert all(owned.process.is_running() for owned in act.processes), "undone before it was done"
        apply(wanted, act)
        verify(wanted, act, context)
        assert fault.undo(record) == fault.undo(record)


@each_kill
def test_a_recycled_pid_is_never_touched(fault, context, children):
    recycled = replace(context, processes=context.processes.recycled())
    for target in targets(fault):
        wanted = create(fault)
        with pytest.raises(TargetNotFound):
            wanted.prepare(target, recycled)
        # Recycled between the two: the record of what was there is that of a dead process.
        act = wanted.prepare(target, context)
        late = tuple(replace(owned, process=older(owned.process)) for owned in act.processes)
        apply(wanted, Act(late, act.undo_record))
        fault.undo({"processes": [owned.to_dict() for owned in late]})
    assert all(child.poll() is None for child in children)
    assert {owned.process.state() for owned in context.processes.all()} <= {"S", "R", "D"}


@each_kill
def test_the_injector_itself_is_no_target(fault):
    # With another start time: even a fault that forgets to look does no harm here.
    ourselves = OwnedProcess("rank", older(ProcessId.of(os.getpid())), rank=0, node=0)
    with pytest.raises(NotOurs):
        apply(create(fault), Act((ourselves,), {}))


def test_a_signal_goes_to_the_very_process_only(children):
    process = ProcessId.of(children[0].pid)
    assert older(process).signal(signal.SIGKILL) is False
    assert children[0].poll() is None
    assert process.signal(signal.SIGKILL) is True
    children[0].wait()
    assert process.signal(signal.SIGKILL) is False


class TestSignals:
    def test_it_says_by_which_signal_it_ended(self, context, children):
        wanted = create(KillProcess, signal="SIGUSR1")
        act = wanted.prepare(ResolvedTarget(ranks=(0,)), context)
        evidence = asyncio.run(inject(wanted, act, context, reaped=[children[1]]))
        assert evidence["signal"] == "SIGUSR1"
        assert "ended by SIGUSR1" in evidence["summary"]
        assert [process["exit"] for process in evidence["processes"]] == [-signal.SIGUSR1]

    def test_it_says_with_which_code_a_process_went_that_handles_it(self, start):
        child = start(POLITE)
        context = create_context([child] * 4)
        wanted = create(KillProcess, signal="term")
        act = wanted.prepare(ResolvedTarget(ranks=(0,)), context)
        evidence = asyncio.run(inject(wanted, act, context, reaped=[child]))
        assert "exit code 7" in evidence["summary"]

    @pytest.mark.parametrize(
        ("program", "why"),
        [
            (STUBBORN, "ignores SIGTERM"),
            (POLITE.replace("sys.exit(7)", "0") + "signal.pause()\n", "handler of its own"),
        ],
    )
    def test_a_process_that_lives_on_was_not_killed(self, start, program, why):
        context = create_context([start(program)] * 4)
        wanted = create(KillProcess, signal="SIGTERM")
        act = wanted.prepare(ResolvedTarget(ranks=(0,)), context)
        apply(wanted, act)
        with pytest.raises(EffectNotSeen, match=why):
            verify(wanted, act, context, 0.3)

    @pytest.mark.parametrize("text", ["SIGTERM", "sigterm", "TERM", "15", 15])
    def test_a_signal_has_many_names(self, text):
        assert SignalParameters(signal=text).signal is signal.SIGTERM

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("SIGSTOP", "pause-process"),
            ("20", "pause-process"),
            ("SIGCHLD", "ends no process"),
            ("SIGFOO", "no signal"),
        ],
    )
    def test_what_ends_no_process_is_refused(self, text, why):
        with pytest.raises(ValidationError, match=why):
            SignalParameters(signal=text)

    @given(st.one_of(st.text(max_size=12), st.integers(), st.none(), st.booleans(), st.floats()))
    def test_whatever_is_said_is_a_signal_or_a_mistake(self, text):
        try:
            assert isinstance(parse_signal(text), signal.Signals)
        except UsageError as error:
            assert str(error)


class TestGrace:
    def node(self, start, *programs):
        return create_context([start(program) for program in programs])

    def inject(self, context, children, grace):
        wanted = create(KillNode, grace=grace)
        act = wanted.prepare(ResolvedTarget(ranks=(0, 1), nodes=(0,)), context)
        return act, asyncio.run(inject(wanted, act, context, reaped=children))

    def test_it_says_who_went_and_who_had_to_be_killed(self, start):
        children = [start(program) for program in (POLITE, POLITE, STUBBORN, POLITE)]
        context = create_context(children)
        _, evidence = self.inject(context, children[:3], "3s")
        supervisor, polite, stubborn, coordinator = children
        assert evidence["went_by_themselves"] == [polite.pid]
        # There was no time left to ask the supervisor.
        assert sorted(evidence["had_to_be_killed"]) == sorted([supervisor.pid, stubborn.pid])
        codes = {process["pid"]: process["exit"] for process in evidence["processes"]}
        assert (codes[polite.pid], codes[stubborn.pid]) == (7, -signal.SIGKILL)
        assert coordinator.poll() is None

    def test_nobody_is_killed_who_goes_in_time(self, start):
        children = [start(POLITE) for _ in range(4)]
        _, evidence = self.inject(create_context(children), children[:3], "60s")
        assert evidence["had_to_be_killed"] == []
        assert {process["exit"] for process in evidence["processes"]} == {7}

    def test_held_ranks_are_let_go_to_end_in_order(self):
        assert create(KillNode, grace="1s").shows_when_released
        assert not create(KillNode).shows_when_released

    def test_no_time_is_no_grace(self):
        with pytest.raises(ValidationError, match="more than 0s"):
            GraceParameters(grace="0s")
