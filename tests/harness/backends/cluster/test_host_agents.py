"""The tool's end of the agents of hosts: how they start, break, are lost, return and end."""

import asyncio
import json
import math
import signal
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chaos.errors import EnvironmentFailure
from chaos.experiment.reading import from_mapping
from chaos.host.run_processes import RUN_VARIABLE
from chaos.injection.orders import Applied, Apply, Look, Looked, Prepare, Record, Refused
from chaos.injection.stream import Open
from chaos.language.target import ResolvedTarget
from harness.backends.base import BackendSetup
from harness.backends.cluster import host_agent
from harness.backends.cluster.host_agent import HostAgent, RunOfHosts
from harness.backends.cluster.hosts import HostsOfRun
from harness.control.control_server import ControlServer
from harness.node.facts import tool_version
from harness.node.process_table import ProcessesOfHosts
from harness.node.socket_folder import RANK_SOCKET
from harness.run.preparation import prepare_anywhere
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.host import ForeignPid, Host, this_host
from mecefo_runtime.system.wire import UNIX
from tests.harness.backends.cluster.fake_hosts import FakeHosts
from tests.harness.node.agents import TIMEOUT_SECONDS, Worker, until

pytestmark = pytest.mark.unit

BETA = Host("beta", "boot of beta")
NODE = ResolvedTarget(nodes=(1,))
LOOK = Look(1, 0, "pause-node", NODE)
# Less than any lease or time-out by which an agent would leave anyway.
LEAVING_SECONDS = 8.0
DENIED = ["sh", "-c", "echo Permission denied, please try again. >&2; exit 255"]


@pytest.fixture
def folder():
    """The path of a Unix socket in it is not too long."""
    with tempfile.TemporaryDirectory(prefix="chaos-test-") as path:
        yield Path(path)


@pytest.fixture
def engine(folder, monkeypatch):
    monkeypatch.setattr(host_agent, "RETRY_SECONDS", 0.05)
    return FakeHosts(folder, "beta")


@dataclass
class Told:
    """What a run has heard."""

    events: list[Event] = field(default_factory=list)
    ended: list[tuple[int, int]] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)

    def of(self, kind):
        return [event.fields for event in self.events if event.kind == kind]


@asynccontextmanager
async def agent_of(engine, told, lease_seconds=TIMEOUT_SECONDS):
    """The agent of the only host, not started yet."""
    logs = engine.place("beta").parent / "logs"
    logs.mkdir()
    control = ControlServer(told.events.append)
    shared = RunOfHosts(
        engine.run,
        engine,
        control,
        ProcessesOfHosts(),
        logs.parent / "the run",
        logs,
        Emitter(told.events.append, "conductor"),
        Open(engine.run, "", "", "", ends_processes=False, has_watchdog=False),
        on_command_ended=lambda process, code: told.ended.append((process.pid, code)),
        on_command_lost=lambda process: told.lost.append(process.pid),
        on_return=lambda: None,
        on_refused=lambda uid: None,
        lease_seconds=lease_seconds,
    )
    agent = HostAgent("beta", 1, shared)
    try:
        yield agent, shared
    finally:
        await agent.close()
        await control.close()
        await nothing_is_left(engine)


async def nothing_is_left(engine):
    """Who lost the tool leaves by itself."""
    try:
        async with asyncio.timeout(LEAVING_SECONDS):
            for host in engine.hosts:
                await until(lambda host=host: not engine.processes(host))
    finally:
        for host in engine.hosts:
            engine.kill(host)


def play(engine, story, **how):
    """Run it with an agent that was started; returns what was told."""
    told = Told()

    async def run():
        async with agent_of(engine, told, **how) as (agent, shared):
            await agent.start()
            await story(agent, shared, told)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))
    return told


# ---- start ----


def test_a_host_is_reached_and_left(engine):
    async def story(agent, shared, told):
        assert agent.lost is None and agent.name == BETA and agent.silent_seconds < TIMEOUT_SECONDS
        assert await agent.obey(LOOK) == Looked()
        farewell = await agent.close()
        assert farewell.is_clean and not engine.processes("beta")

    told = play(engine, story)
    (reached,) = told.of("host_reached")
    assert (reached["reached"], reached["of_node"], reached["engine"]) == (["beta", "boot of beta"], 1, "fake")
    assert reached["num_starts"] == 1 and not reached["healed"] and not told.of("host_lost")
    assert [path.name for path in engine.place("beta").iterdir() if path.name.startswith("chaos-")] == []


def start(engine):
    """Why the agent cannot be started; its end is clean all the same, and leaves nothing."""

    async def run():
        told = Told()
        async with agent_of(engine, told) as (agent, _):
            with pytest.raises(EnvironmentFailure) as refused:
                await agent.start()
            farewell = await agent.close()
            assert farewell.is_clean, "nothing can be there"
        assert not told.of("host_reached")
        return str(refused.value)

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


def test_another_version_is_refused_with_what_to_install(engine):
    engine.versions["beta"] = "0.0.7"
    text = start(engine)
    assert text.startswith("beta: version 0.0.7") and f"pip install mecefo-chaos=={tool_version()}" in text


def test_a_host_whose_state_cannot_be_kept_is_refused(engine):
    (engine.place("beta") / "state").write_text("a file")
    text = start(engine)
    assert text.startswith("beta: ") and str(engine.place("beta") / "state") in text


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (DENIED, "Permission denied, please try again. (exit code 255"),
        (["no-such-engine"], "no-such-engine cannot be started: No such file or directory"),
        (["sh", "-c", "echo Welcome to beta; exit 3"], "it ended before it said anything (exit code 3)"),
        (["printf", r"\036\n{}\n"], "the agent cannot be started"),
    ],
)
def test_a_host_on_which_nothing_can_be_started_says_why(engine, command, why):
    engine.broken["beta"] = command
    text = start(engine)
    assert text.startswith("beta: ") and why in text


# ---- what it reports ----


def test_what_a_rank_there_reports_is_of_that_host_and_node(engine):
    async def story(agent, shared, told):
        path = engine.place("beta") / f"chaos-{engine.run}" / RANK_SOCKET
        worker = await asyncio.to_thread(lambda: Worker(engine.run, str(path), RANK="3"))
        try:
            worker.do(f"say {json.dumps({'role': 'events'})}")
            event = Event("warning", "rank", 0.0, 1.0, worker.process.pid, node=0, fields={"message": "m"})
            worker.do(f"say {event.to_json()}")
            (heard,) = await until(lambda: [one for one in told.events if one.kind == "warning"])
            assert (heard.pid, heard.node) == (ForeignPid(worker.process.pid, BETA), 1)
            assert heard.origin.host == BETA
            (process,) = (one for one in shared.table._reported if one.pid == worker.process.pid)
            assert process.host == BETA and shared.table.environment(process)["RANK"] == "3"
            worker.do("end 4")
            assert await shared.table.exit(process) == 4
        finally:
            worker.close()

    play(engine, story)


def test_its_clock_is_that_of_the_run_in_what_is_told(engine):
    engine.offsets_seconds["beta"] = 1000.0

    async def story(agent, shared, told):
        worker = Worker(engine.run)
        try:
            for order in (LOOK, Prepare(2, 0), Record(3, 0)):
                await agent.obey(order)
            before = asyncio.get_running_loop().time()
            applied = await agent.obey(Apply(4, 0))
            assert isinstance(applied, Applied)
            # The estimate of the offset is off by less than half a round trip.
            assert before - 1 < applied.at_seconds < asyncio.get_running_loop().time() + 1
            assert await until(worker.is_stopped)
        finally:
            worker.close()

    told = play(engine, story)
    (sampled,) = told.of("clock_sampled")
    assert abs(sampled["offset_seconds"] + 1000.0) < 1


# ---- it breaks, is lost, and returns ----


def test_a_stream_that_breaks_is_replaced_and_nothing_is_lost(engine):
    async def story(agent, shared, told):
        log = shared.logs / "rank.log"
        script = "for n in $(seq 200); do echo $n; sleep 0.005; done"
        await agent.start_command(["sh", "-c", script], "/", {}, log)
        for number in range(2):
            await until(lambda number=number: log.exists() and len(log.read_text().split()) > 50 * number + 10)
            engine.cut("beta")
            assert await agent.obey(Look(number + 1, number, "pause-node", NODE)) == Looked()
        await until(lambda: told.ended)
        await until(lambda: len(log.read_text().split()) >= 200)
        assert log.read_text().split() == [str(number) for number in range(1, 201)]
        assert told.ended[0][1] == 0

    told = play(engine, story)
    assert len(told.of("host_reached")) == 1 and not told.of("host_lost")


def test_a_host_whose_agent_was_killed_is_lost_until_another_one_is_there(engine):
    async def story(agent, shared, told):
        process = await agent.start_command(["sleep", "1000"], "/", {}, shared.logs / "log")
        assert shared.table.is_running(process)
        engine.broken["beta"] = DENIED
        engine.kill("beta")
        engine.broken.pop("beta")
        await until(lambda: told.of("host_lost"))
        assert (told.lost, told.ended) == ([process.pid], []) and not shared.table.is_running(process)
        await until(lambda: len(told.of("host_reached")) == 2)
        assert agent.lost is None and await agent.obey(LOOK) == Looked()

    told = play(engine, story)
    assert told.of("host_reached")[1]["num_starts"] > 1
    (lost,) = told.of("host_lost")
    assert (lost["lost"], lost["of_node"]) == (["beta", "boot of beta"], 1) and lost["message"]


def test_a_host_that_is_not_reached_again_is_residue_with_what_cleans_it(engine):
    async def story(agent, shared, told):
        engine.broken["beta"] = DENIED
        engine.kill("beta")
        await until(lambda: told.of("host_lost"))
        assert agent.lost is not None and agent.silent_seconds == math.inf
        refused = await agent.obey(LOOK)
        assert isinstance(refused, Refused) and (refused.kind, refused.code) == ("silent", "host_silent")
        assert await agent.end_processes() == ()
        farewell = await agent.close()
        (left,) = farewell.left
        assert left["kind"] == "host" and left["what"].startswith("beta: ")
        assert f"`chaos heal '{shared.folder.resolve()}'`" in left["what"]

    play(engine, story, lease_seconds=0.2)


def test_an_order_that_waits_is_refused_when_its_host_is_lost(engine):
    async def story(agent, shared, told):
        (there,) = engine.processes("beta", Path(sys.executable).name)
        there.signal(signal.SIGSTOP)
        engine.broken["beta"] = DENIED
        order = asyncio.create_task(agent.obey(LOOK))
        await asyncio.sleep(0)
        engine.kill("beta")
        refused = await order
        assert isinstance(refused, Refused) and refused.kind == "silent"

    play(engine, story, lease_seconds=0.2)


def test_the_end_comes_while_it_is_being_reached_again(engine):
    async def story(agent, shared, told):
        engine.hang("beta")
        engine.kill("beta")
        await until(lambda: engine.processes("beta", "cat") and told.of("host_lost"))
        assert not (await agent.close()).processes

    play(engine, story, lease_seconds=0.2)


# ---- commands ----


def test_commands_there_are_started_signalled_and_ended(engine):
    async def story(agent, shared, told):
        log = shared.logs / "log"
        environment = {RUN_VARIABLE: engine.run, "GREETING": "hello"}
        first = await agent.start_command(["sh", "-c", "echo $GREETING; exec sleep 1000"], "/", environment, log)
        second = await agent.start_command(["sleep", "1000"], "/", environment, log)
        assert (first.host, shared.table.environment(first)[RUN_VARIABLE]) == (BETA, engine.run)
        await until(lambda: log.exists() and log.read_text() == "hello\n")
        agent.signal(first, signal.SIGTERM)
        assert await shared.table.exit(first) == -signal.SIGTERM
        assert await agent.end_processes() == (second.pid,)
        assert await shared.table.exit(second) == -signal.SIGKILL
        with pytest.raises(EnvironmentFailure, match="cannot be started on beta: No such file"):
            await agent.start_command(["no-such-program"], "/", {}, log)

    told = play(engine, story)
    assert [code for _, code in told.ended] == [-signal.SIGTERM, -signal.SIGKILL]


# ---- all hosts of a run ----


@asynccontextmanager
async def hosts_of_run(engine, folder, monkeypatch, told):
    monkeypatch.setenv(RUN_VARIABLE, engine.run)
    job = {"runtime": "command", "command": ["true"], "nodes": len(engine.hosts)}
    experiment = from_mapping({"name": "n", "job": job})
    control = ControlServer(told.events.append)
    emitter = Emitter(told.events.append, "conductor")
    logs = folder / "logs"
    logs.mkdir()
    prepared = prepare_anywhere(experiment)
    hosts = HostsOfRun(engine, BackendSetup(experiment, prepared.job, [], folder, logs, control, "token", emitter))
    try:
        yield hosts
    finally:
        await asyncio.gather(*(agent.close() for agent in hosts.agents))
        hosts.close()
        await control.close()
        await nothing_is_left(engine)


def test_each_host_but_the_own_one_has_an_agent(folder, monkeypatch):
    own = this_host().name
    engine, told = FakeHosts(folder, "beta", own, "gamma"), Told()

    async def run():
        async with hosts_of_run(engine, folder, monkeypatch, told) as hosts:
            await hosts.open()
            assert (hosts.own, [agent.host for agent in hosts.agents]) == (1, ["beta", "gamma"])
            assert hosts.agent_of(1) is None and hosts.agent_of(2) is hosts.agents[1]
            assert [hosts.name_of(node) for node in (0, 1, 2, 7)] == ["beta", own, "gamma", "gamma"]
            assert hosts.reach == (["beta", "gamma"], "fake:1")
            socket = hosts.address.removeprefix(UNIX)
            assert Path(socket).is_socket() and Path(socket).parent.name == f"chaos-{engine.run}"
        assert not Path(socket).parent.exists()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))
    assert sorted(one["reached"][0] for one in told.of("host_reached")) == ["beta", "gamma"]


def test_when_one_cannot_be_started_none_is_left(folder, monkeypatch):
    engine = FakeHosts(folder, "beta", "gamma")
    engine.broken["gamma"] = DENIED

    async def run():
        async with hosts_of_run(engine, folder, monkeypatch, Told()) as hosts:
            with pytest.raises(EnvironmentFailure, match=r"gamma: .*Permission denied"):
                await hosts.open()
            assert hosts.own is None

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))
