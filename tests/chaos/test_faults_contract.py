"""What every fault keeps to, tried on real processes. A new fault is tried by being there."""

import asyncio
import json
import os
import re
import signal
import subprocess
from dataclasses import replace

import pytest
from pydantic import BaseModel, ValidationError

from chaos.errors import EffectNotSeen, NotOurs, TargetNotFound
from chaos.faults import registry
from chaos.faults.base import Act, Fault, Host, OwnedProcess
from chaos.target import ResolvedTarget
from chaos.watch import Watch
from mecefo_runtime.process import ProcessId

pytestmark = pytest.mark.unit

FAULTS = list(registry().values())
TIMEOUT_SECONDS = 5.0
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=[fault.kind for fault in FAULTS])


class OneNode:
    """A host of one node: a supervisor, rank 0 and rank 1; and a coordinator."""

    def __init__(self, supervisor, ranks, coordinator):
        self.supervisor = OwnedProcess("supervisor", supervisor, node=0)
        self.ranks = tuple(OwnedProcess("rank", process, rank=rank, node=0) for rank, process in enumerate(ranks))
        self.coordinator = OwnedProcess("coordinator", coordinator)

    def rank_processes(self, ranks):
        return tuple(self.ranks[rank] for rank in ranks)

    def node_processes(self, nodes):
        return (self.supervisor, *self.ranks) if 0 in nodes else ()

    def role_processes(self, role):
        return (self.coordinator,) if role == "coordinator" else ()

    def all(self):
        return (self.supervisor, *self.ranks, self.coordinator)


@pytest.fixture
def children():
    started = [subprocess.Popen(["sleep", "300"]) for _ in range(4)]
    yield started
    for child in started:
        child.kill()
        child.wait()


@pytest.fixture
def host(children):
    supervisor, *ranks, coordinator = (ProcessId.of(child.pid) for child in children)
    return Host(processes=OneNode(supervisor, ranks, coordinator), inside=None, watch=Watch(), run_folder=None)


def targets(fault):
    """Every sort of target that the fault can be given."""
    struck = ResolvedTarget(ranks=(0, 1), nodes=(0,)) if fault.scope == "node" else ResolvedTarget(ranks=(0,))
    return (struck, ResolvedTarget(role="coordinator"))


def create(fault):
    return fault(fault.Parameters())


def verify(fault, act, timeout_seconds=TIMEOUT_SECONDS):
    return asyncio.run(fault.verify(act, None, timeout_seconds))


def apply(fault, act):
    asyncio.run(fault.apply(act, None))


async def _do_nothing(self, act, host):
    pass


def test_the_registry_is_sorted_and_holds_the_kills():
    assert list(registry()) == sorted(registry())
    assert {"kill-node", "kill-process"} <= set(registry())


@each_fault
def test_metadata(fault):
    assert registry()[fault.kind] is fault
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", fault.kind), "verb-noun"
    assert fault.__name__ == "".join(word.capitalize() for word in fault.kind.split("-"))
    assert issubclass(fault, Fault)
    assert fault.scope in ("node", "rank", "link", "checkpoint")
    assert fault.fidelity in ("real", "shaped", "telemetry")
    assert fault.undo_summary.strip()
    assert all(isinstance(need, str) and need for need in fault.needs)
    first_line = fault.__doc__.splitlines()[0]
    assert first_line.endswith((".", ":")) or ";" in first_line
    assert len(first_line) > 20, "the list of faults shows it"


@each_fault
def test_parameters_are_checked(fault):
    assert issubclass(fault.Parameters, BaseModel)
    with pytest.raises(ValidationError):
        fault.Parameters.model_validate({"no_such_parameter": 1})
    assert json.loads(json.dumps(fault.Parameters().model_dump(mode="json"))) is not None


@each_fault
def test_prepare_changes_nothing_and_says_what_it_will_touch(fault, host):
    before = [owned.process.state() for owned in host.processes.all()]
    for target in targets(fault):
        act = create(fault).prepare(target, host)
        assert act.processes
        assert set(act.processes) <= set(host.processes.all())
        assert json.loads(json.dumps(dict(act.undo_record))) == act.undo_record
        if target.role == "coordinator":
            assert act.processes == (host.processes.coordinator,)
        elif fault.scope == "node":
            assert set(act.processes) == {host.processes.supervisor, *host.processes.ranks}
        else:
            assert act.processes == host.processes.ranks[:1], "the neighbour on the node is not the target"
    after = [owned.process.state() for owned in host.processes.all()]
    assert set(before) | set(after) <= {"S", "R", "D"}


@each_fault
def test_prepare_refuses_what_is_not_there(fault, host, children):
    for child in children:
        child.kill()
        child.wait()
    for target in targets(fault):
        with pytest.raises(TargetNotFound):
            create(fault).prepare(target, host)


@each_fault
def test_applied_it_is_verified_with_evidence(fault, host):
    for target in targets(fault):
        wanted = create(fault)
        act = wanted.prepare(target, host)
        apply(wanted, act)
        evidence = verify(wanted, act)
        assert json.loads(json.dumps(evidence)) == evidence
        assert evidence["summary"].strip()
        for owned in act.processes:
            assert str(owned.process.pid) in json.dumps(evidence)
        untouched = set(host.processes.all()) - {
            owned for done in targets(fault) for owned in _touched(fault, done, host.processes)
        }
        assert all(owned.process.is_running() for owned in untouched)
        fault.undo(act.undo_record)


def _touched(fault, target, processes):
    if target.role == "coordinator":
        return (processes.coordinator,)
    return processes.node_processes(target.nodes) if fault.scope == "node" else processes.rank_processes(target.ranks)


@each_fault
def test_not_applied_it_is_not_verified(fault, host):
    idle = type("Idle", (fault,), {"apply": _do_nothing})
    for target in targets(fault):
        wanted = create(idle)
        act = wanted.prepare(target, host)
        apply(wanted, act)
        with pytest.raises(EffectNotSeen, match=r"\d"):
            verify(wanted, act, 0.05)
        assert all(owned.process.is_running() for owned in act.processes)


@each_fault
def test_partly_applied_it_is_not_verified(fault, host):
    target = ResolvedTarget(ranks=(0, 1), nodes=(0,) if fault.scope == "node" else ())
    wanted = create(fault)
    act = wanted.prepare(target, host)
    apply(wanted, Act(act.processes[:-1], act.undo_record))
    with pytest.raises(EffectNotSeen):
        verify(wanted, act, 0.05)
    fault.undo(act.undo_record)


@each_fault
def test_undo_needs_the_record_alone_and_can_be_repeated(fault, host):
    for target in targets(fault):
        wanted = create(fault)
        act = wanted.prepare(target, host)
        record = json.loads(json.dumps(dict(act.undo_record)))
        # Written before the fault is applied: the undo of what was never done must do no harm either.
        fault.undo(record)
        assert all(owned.process.is_running() for owned in act.processes)
        apply(wanted, act)
        verify(wanted, act)
        first = fault.undo(record)
        assert json.loads(json.dumps(first)) == first
        assert fault.undo(record) == first


@each_fault
def test_a_recycled_pid_is_never_touched(fault, host, children):
    recycled = replace(host, processes=OneNode(*_recycled(host)))
    for target in targets(fault):
        wanted = create(fault)
        with pytest.raises(TargetNotFound):
            wanted.prepare(target, recycled)
        # Recycled between the two: the record of what was there is that of a dead process.
        act = wanted.prepare(target, host)
        late = tuple(OwnedProcess(o.role, _older(o.process), rank=o.rank, node=o.node) for o in act.processes)
        apply(wanted, Act(late, act.undo_record))
        fault.undo({"processes": [owned.to_dict() for owned in late]})
    assert all(child.poll() is None for child in children)
    assert {owned.process.state() for owned in host.processes.all()} <= {"S", "R", "D"}


def _older(process):
    return ProcessId(process.pid, process.start_ticks - 1)


def _recycled(host):
    return (
        _older(host.processes.supervisor.process),
        [_older(owned.process) for owned in host.processes.ranks],
        _older(host.processes.coordinator.process),
    )


@each_fault
def test_the_injector_itself_is_no_target(fault):
    # With another start time: even a fault that forgets to look does no harm here.
    ourselves = OwnedProcess("rank", _older(ProcessId.of(os.getpid())), rank=0, node=0)
    with pytest.raises(NotOurs):
        apply(create(fault), Act((ourselves,), {}))


def test_a_signal_goes_to_the_very_process_only(children):
    process = ProcessId.of(children[0].pid)
    assert _older(process).signal(signal.SIGKILL) is False
    assert children[0].poll() is None
    assert process.signal(signal.SIGKILL) is True
    children[0].wait()
    assert process.signal(signal.SIGKILL) is False
