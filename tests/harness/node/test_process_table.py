"""Processes of this host and those that agents of others report."""

import asyncio
import os
import subprocess
import sys

import pytest

from harness.node.process_table import ProcessesOfHosts, ProcessTable, ReportedProcess
from mecefo_runtime.system.host import Host
from mecefo_runtime.system.json_values import JsonTypeError
from mecefo_runtime.system.process import ProcessId

pytestmark = pytest.mark.unit

BETA, GAMMA = Host("beta", "boot-b"), Host("gamma", "boot-c")
SECRETS = {"AWS_SECRET_ACCESS_KEY": "s", "HF_TOKEN": "s", "WANDB_API_KEY": "s", "MASTER_ADDRESS_BOOK": "s"}
TOLD = {"RANK": "3", "MASTER_PORT": "29500", "CHAOS_RUN": "r", "TORCHELASTIC_RUN_ID": "t", "LOCAL_RANK": "1"}
TIMEOUT_SECONDS = 60.0


@pytest.fixture
def child():
    environment = {**os.environ, **SECRETS, **TOLD}
    command = [sys.executable, "-S", "-c", "import sys; print('ready', flush=True); sys.exit(int(input()))"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        one.stdout.readline()
        yield one
        if one.poll() is None:
            one.communicate("0\n")


def reported(pid=7, ticks=1, **environment):
    return ReportedProcess(pid, ticks, environment, ((5, 1), (1, 0)))


def test_an_agent_reports_what_a_launcher_sets_and_no_secret(child):
    told = ReportedProcess.of(ProcessId.of(child.pid))
    assert TOLD.items() <= told.environment.items()
    assert not SECRETS.keys() & told.environment.keys()
    assert not {"PATH", "HOME", "USER"} & told.environment.keys()
    assert told.ancestors[0] == (os.getpid(), ProcessId.of(os.getpid()).start_ticks)
    assert ReportedProcess.from_json(told.to_json()) == told


@pytest.mark.parametrize("said", [None, [], {}, {"pid": "7", "start_ticks": 1}, {"pid": 7, "start_ticks": 1, "x": 1}])
def test_what_is_no_process_is_refused(said):
    with pytest.raises(JsonTypeError):
        ReportedProcess.from_json(said)


@pytest.mark.parametrize("kind", [ProcessTable, ProcessesOfHosts])
def test_a_process_of_this_host_is_looked_at(kind, child):
    async def story():
        table, process = kind(), ProcessId.of(child.pid)
        assert table.environment(process)["HF_TOKEN"] == "s", "it goes nowhere"
        assert table.parent(process) == table.ancestors(process)[0] == ProcessId.of(os.getpid())
        assert table.is_running(process)
        following = asyncio.create_task(table.exit(process))
        await asyncio.sleep(0)
        child.stdin.write("7\n")
        child.stdin.flush()
        assert await asyncio.wait_for(following, TIMEOUT_SECONDS) == 7
        assert not table.is_running(process)

    asyncio.run(story())


def test_of_another_host_is_known_what_its_agent_says():
    async def story():
        table = ProcessesOfHosts()
        process = table.learn(BETA, reported(RANK="3"))
        assert process == ProcessId(7, 1, BETA) and table.is_running(process)
        assert table.environment(process) == {"RANK": "3"}
        assert table.ancestors(process) == (ProcessId(5, 1, BETA), ProcessId(1, 0, BETA))
        assert table.parent(process) == ProcessId(5, 1, BETA)
        following = [asyncio.create_task(table.exit(process)) for _ in range(2)]
        await asyncio.sleep(0)
        # Nobody's waiting ends that of others.
        following[0].cancel()
        await asyncio.sleep(0)
        table.has_ended(process, -9)
        table.has_ended(process, 0)
        assert await following[1] == await table.exit(process) == -9
        assert not table.is_running(process)
        # Its connection may come after its end.
        assert table.learn(BETA, reported(RANK="3")) == process and not table.is_running(process)

    asyncio.run(story())


def test_a_process_that_nobody_has_reported_does_not_run():
    async def story():
        table, stranger = ProcessesOfHosts(), ProcessId(os.getpid(), 1, BETA)
        table.has_ended(stranger, 0)
        assert (table.environment(stranger), table.ancestors(stranger), table.parent(stranger)) == ({}, (), None)
        assert not table.is_running(stranger) and await table.exit(stranger) is None

    asyncio.run(story())


def test_of_a_lost_host_no_process_runs_as_far_as_is_known():
    async def story():
        table = ProcessesOfHosts()
        ended, lost = table.learn(BETA, reported(7)), table.learn(BETA, reported(8))
        other = table.learn(GAMMA, reported(8))
        later = table.learn(Host("beta", "another boot"), reported(8))
        table.has_ended(ended, 3)
        waiting = asyncio.create_task(table.exit(lost))
        await asyncio.sleep(0)
        table.lose(BETA)
        # Nobody is told of an end: who waits for it is cancelled.
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert await table.exit(ended) == 3
        assert [table.is_running(one) for one in (ended, lost, other, later)] == [False, False, True, True]

    asyncio.run(story())
