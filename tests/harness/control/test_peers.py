"""Processes with another clock, or of another host, at the door of a run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from harness.control.control_server import ControlServer
from mecefo_runtime.system.clocks import CLOCK_VARIABLE, Moment, this_clock, uncertainty_between
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.host import ForeignPid, Host, this_host
from mecefo_runtime.system.process import ProcessId
from mecefo_runtime.system.wire import CLOCK_ASKED, CLOCK_KNOWN, encode
from tests.harness.control.test_control_server import Listener, connect, hello, is_hung_up, played

pytestmark = pytest.mark.unit

SHIFT_SECONDS = 3.0
NODE2 = Host("node2", "another-boot")
SAME_KERNEL = {"clock": f"{this_host().boot} time:[1]", "host": this_host().to_json()}
FAR = {"clock": "another-boot time:[1]", "host": NODE2.to_json()}


async def meet(server, role, **more):
    """A connection of a process whose clock is `SHIFT_SECONDS` ahead, after its clock was sampled."""
    reader, writer = await connect(server)
    writer.write(hello(role, **more))
    while (asked := await reader.readline()) == CLOCK_ASKED:
        writer.write(f"{time.monotonic() + SHIFT_SECONDS:.9f}\n".encode())
    assert asked == CLOCK_KNOWN
    return reader, writer


def reported(event, who, role="events", **more):
    come = []

    async def talk(server):
        reader, writer = await meet(server, role, **who, **more)
        writer.write(event.to_json().encode() + b"\n")
        writer.write_eof()
        assert await is_hung_up(reader)
        writer.close()

    assert played(talk, come.append) == []
    return come


def committed(at, pid=None):
    fields = {"began_monotonic": at - 0.5, "committed_monotonic": at, "loss": 1.0}
    return Event("step_committed", "rank", 1.0, at, pid or os.getpid(), rank=1, step=3, fields=fields)


@pytest.mark.parametrize("who", [SAME_KERNEL, FAR])
def test_all_times_of_another_clock_are_times_of_ours_within_their_uncertainty(who):
    at = time.monotonic()
    sampled, event = reported(committed(at + SHIFT_SECONDS), who)
    assert sampled.kind == "clock_sampled" and sampled.fields["other_clock"] == who["clock"]
    assert abs(sampled.fields["offset_seconds"] + SHIFT_SECONDS) <= sampled.fields["uncertainty_seconds"]
    assert abs(event.monotonic_seconds - at) <= event.origin.uncertainty_seconds + 1e-6
    assert abs(event.fields["began_monotonic"] - (at - 0.5)) <= event.origin.uncertainty_seconds + 1e-6
    assert isinstance(event.fields["committed_monotonic"], Moment) and event.fields["loss"] == 1.0
    assert uncertainty_between(event.fields["began_monotonic"], event.monotonic_seconds) == 0.0
    assert event.origin.raw["monotonic"] == round(at + SHIFT_SECONDS, 6)
    assert Event.from_json(event.to_json()) == event, "what is stored is what the run has acted on"


def test_pids_of_another_host_are_marked_and_those_of_another_time_namespace_are_ours():
    (_, far), (_, near) = reported(committed(5.0, 7), FAR), reported(committed(5.0, 7), SAME_KERNEL)
    assert far.pid == ForeignPid(7, NODE2) and far.host == NODE2
    assert near.pid == os.getpid() and near.host is None, "as the kernel says"


def test_who_shares_the_clock_is_not_asked():
    come = []

    async def talk(server):
        reader, writer = await connect(server)
        writer.write(hello("events") + committed(5.0).to_json().encode() + b"\n")
        writer.write_eof()
        assert await is_hung_up(reader)
        writer.close()

    assert played(talk, come.append) == [] and come == [committed(5.0)]


def test_an_agent_of_another_host_is_that_hosts_process():
    sessions = []

    class Injector(Listener):
        def connected(self, session):
            sessions.append(session)
            super().connected(session)

    async def talk(server):
        us = {"pid": os.getpid(), "start_ticks": 5, "node": 0, "attempt": 1, "rank": 1}
        reader, writer = await meet(server, "agent", **FAR, **us)
        assert json.loads(await reader.readline())
        writer.write(encode({"report": {"woke_monotonic": 1.0}, "handle": 1}))
        writer.close()

    assert played(talk, agents=Injector()) == []
    assert [session.process for session in sessions] == [ProcessId(os.getpid(), 5, NODE2)]


@pytest.mark.parametrize("answer", [b"nan\n", b"1e300\n", b"soon\n", b"\n"])
def test_a_clock_that_says_no_time_is_hung_up_on(answer):
    come = []

    async def talk(server):
        reader, writer = await connect(server)
        writer.write(hello("events", **FAR))
        assert await reader.readline() == CLOCK_ASKED
        writer.write(answer)
        assert await is_hung_up(reader)
        writer.close()

    assert played(talk, come.append) == [] and come == []


@pytest.mark.parametrize("wrong", [{"clock": 1}, {"clock": "x" * 1000}, {"host": None}, {"host": ["a"]}])
def test_a_clock_that_is_none_is_hung_up_on(wrong):
    async def talk(server):
        reader, writer = await connect(server)
        writer.write(hello("events", **(FAR | wrong)))
        assert await is_hung_up(reader)
        writer.close()

    assert played(talk) == []


IN_ANOTHER_NAMESPACE = """
import os, time
from mecefo_runtime.launch.sinks import connect_sink
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.job_records import ProcessStarted, StepCommitted
from mecefo_runtime.system.process import ProcessId

now = time.monotonic()
emitter = Emitter(connect_sink(os.environ["ADDRESS"]), "supervisor", node=0)
us = ProcessId.of(os.getpid())
emitter.emit(ProcessStarted(role="rank", started_pid=us.pid, start_ticks=us.start_ticks))
emitter.emit(StepCommitted(began_monotonic=now, committed_monotonic=time.monotonic()), step=1)
input()
"""
UNSHARE = ["unshare", "--time", "--monotonic", "86400", "--boottime", "86400"]


def test_a_process_in_a_real_time_namespace_reports_as_any_other():
    if (
        shutil.which("unshare") is None
        or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not make time namespaces here")
    come = []

    async def play():
        server = ControlServer(come.append)
        await server.open()
        assert os.environ[CLOCK_VARIABLE] == this_clock()
        environment = {**os.environ, "ADDRESS": server.address}
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *UNSHARE, sys.executable, "-c", IN_ANOTHER_NAMESPACE, env=environment, stdin=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(60.0):
                while len(come) < 3:
                    await asyncio.sleep(0.01)
            # As this host counts: in there it was started a day later.
            started = come[1].fields
            assert started["start_ticks"] == ProcessId.of(started["started_pid"]).start_ticks
        finally:
            process.stdin.close()
            await process.wait()
            await server.close()
        return began, time.monotonic()

    began, ended = asyncio.run(play())
    sampled, started, step = come
    assert sampled.fields["other_host"] is None and round(sampled.fields["offset_seconds"]) == -86400
    slack = step.origin.uncertainty_seconds
    assert sampled.fields["uncertainty_seconds"] < 0.1 and slack < 0.1
    for moment in (started.monotonic_seconds, step.monotonic_seconds, step.fields["began_monotonic"]):
        assert began - slack <= moment <= ended + slack
    assert CLOCK_VARIABLE not in os.environ


def test_a_clock_that_cannot_drift_is_mapped_once_and_one_that_can_at_each_connection():
    come = []

    async def talk(server):
        for who in (SAME_KERNEL, SAME_KERNEL, FAR, FAR):
            _, writer = await meet(server, "events", **who)
            writer.close()

    assert played(talk, come.append) == []
    assert [event.fields["other_host"] for event in come] == [None, NODE2.to_json(), NODE2.to_json()]
