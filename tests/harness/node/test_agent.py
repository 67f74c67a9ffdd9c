"""The agent of a host as a real process: what it relays, what it does on order, and how it leaves."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.injection.orders import Apply, Look, Prepare, Prepared, Record, Refused, Verified, Verify
from chaos.language.target import ResolvedTarget
from chaos.undo.run_registry import STATE_VARIABLE, find
from harness.control.admission import ROOT
from harness.node.facts import tool_version
from harness.node.messages import (
    FILE,
    LOG,
    AskTime,
    CommandEnded,
    CommandStarted,
    EndProcesses,
    ProcessEnded,
    ProcessesEnded,
    Signal,
    StartCommand,
    Time,
)
from harness.node.messages import Refused as RefusedProcess
from harness.node.socket_folder import RANK_SOCKET
from mecefo_runtime.system.clocks import this_clock
from mecefo_runtime.system.host import this_host
from tests.harness.node.agents import Worker, play, until

pytestmark = pytest.mark.unit

NODE = ResolvedTarget(nodes=(1,))
LEASE_SECONDS = 0.4
NOBODY = 65534
as_other_user = pytest.mark.skipif(
    os.geteuid() != ROOT or shutil.which("setpriv") is None, reason="needs root and setpriv: a process of a second user"
)


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path))
    return tmp_path


async def inject(executor, fault):
    """The answers up to what is seen of it."""
    orders = (Look(1, 0, fault, NODE), Prepare(2, 0), Record(3, 0), Apply(4, 0), Verify(5, 0))
    return [await executor.obey(order) for order in orders]


def is_left(tool):
    """What is there of the run but its log."""
    return tool.folder.folder.exists() or [path for path in tool.state.iterdir() if path != tool.log]


def test_it_says_who_it_is_tells_the_time_and_leaves_nothing(state):
    async def story(tool):
        stream = await tool.start()
        greeting, here = stream.greeting, this_host()
        assert (greeting.version, greeting.host) == (tool_version(), (here.name, here.boot))
        assert (greeting.clock, greeting.uid) == (this_clock(), os.geteuid())
        assert (greeting.is_new, greeting.num_received, greeting.problem, greeting.healed) == (True, 0, "", ())
        assert greeting.folder.startswith(f"{state}/") and "127.0.0.1" not in greeting.addresses
        assert tool.folder.folder.stat().st_mode & 0o777 == 0o700
        await tool.attach(stream)
        before = time.monotonic()
        tool.send(AskTime(7))
        told = await tool.message(Time)
        assert told.id == 7 and before <= told.seconds <= time.monotonic()
        assert await tool.leave(stream) == 0
        shutil.rmtree(greeting.folder)
        assert not is_left(tool)

    play(state, story)


def test_a_process_of_the_job_is_relayed_with_who_it_is_and_how_it_ends(state):
    async def story(tool):
        await tool.ready()
        worker, what, (reader, writer) = await tool.rank(RANK="3", HF_TOKEN="secret")
        told = what["process"]
        assert (what["uid"], told["pid"], told["start_ticks"]) == (
            os.geteuid(),
            worker.process.pid,
            worker.process.start_ticks,
        )
        assert told["environment"]["RANK"] == "3" and "secret" not in str(what)
        assert told["ancestors"][0][0] == os.getpid()
        worker.do("say hello")
        assert await reader.readline() == b"hello\n"
        writer.write(b"order\n")
        assert await worker.hears() == "order"
        worker.do("end 7")
        ended = await tool.message(ProcessEnded)
        assert (ended.pid, ended.start_ticks) == (worker.process.pid, worker.process.start_ticks)
        assert ended.exit == 7 and await reader.read() == b""

    play(state, story)


def test_what_the_tool_hangs_up_on_is_released(state):
    async def story(tool):
        await tool.ready()
        worker, _, (_, writer) = await tool.rank()
        writer.close()
        assert await worker.hears() == "released"

    play(state, story)


def test_it_acts_on_the_marked_processes_of_its_host_and_leaves_its_ledger_to_the_run(state):
    async def story(tool):
        stream = await tool.ready()
        victim, stranger = tool.worker(), Worker("of-another-run")
        try:
            executor = await tool.executor()
            _, prepared, *_, seen = await inject(executor, "kill-node")
            assert isinstance(prepared, Prepared) and isinstance(seen, Verified)
            assert [one.process.pid for one in prepared.processes] == [victim.process.pid]
            assert victim.child.wait() == -signal.SIGKILL and stranger.child.poll() is None
            assert not (await executor.close()).left
            what, (reader, _) = await tool.channel(FILE)
            assert what["name"] == "ledger.jsonl" and b"kill-node" in await reader.read()
            assert await tool.leave(stream) == 0
            assert not is_left(tool)
        finally:
            stranger.close()

    play(state, story)


def test_a_host_that_is_another_node_has_no_part_in_it(state):
    async def story(tool):
        await tool.ready(node=0)
        worker = tool.worker()
        answers = await inject(await tool.executor(), "kill-node")
        assert isinstance(answers[1], Refused) and worker.child.poll() is None

    play(state, story)


# ---- it loses the tool ----


async def paused(tool, **how):
    """A process of the job that a fault has stopped, and one that reports."""
    worker = tool.worker()
    executor = await tool.executor(**how)
    assert isinstance((await inject(executor, "pause-node"))[-1], Verified) and worker.is_stopped()
    rank, *_ = await tool.rank()
    return worker, rank


@pytest.mark.parametrize("ends_processes", [False, True])
def test_when_the_tool_is_silent_for_the_lease_it_undoes_releases_and_leaves(state, ends_processes):
    """Its stream stays open: whoever kills `srun` tells nobody."""

    async def story(tool):
        stream = await tool.ready(lease_seconds=LEASE_SECONDS)
        worker, rank = await paused(tool, lease_seconds=LEASE_SECONDS, ends_processes=ends_processes)
        stream.carrying.cancel()
        # Not even its end is said.
        tool.frames._writer = None
        assert await stream.process.wait() == 1
        if ends_processes:
            assert [one.child.wait() for one in (worker, rank)] == [-signal.SIGKILL] * 2
        else:
            assert await rank.hears() == "released"
            assert not worker.is_stopped() and worker.child.poll() is rank.child.poll() is None
        assert find(tool.run) is None and not tool.folder.folder.exists()

    play(state, story)


def test_sigterm_undoes_and_leaves_the_job_alone(state):
    async def story(tool):
        stream = await tool.ready()
        worker, rank = await paused(tool, ends_processes=False)
        stream.process.terminate()
        assert await stream.process.wait() == 1
        assert await rank.hears() == "released" and not worker.is_stopped()
        assert worker.child.poll() is rank.child.poll() is None
        assert find(tool.run) is None and not tool.folder.folder.exists()

    play(state, story)


def test_when_it_is_killed_its_watchdog_undoes_and_another_one_takes_its_place(state):
    async def story(tool):
        stream = await tool.ready()
        worker, rank = await paused(tool, ends_processes=False)
        stream.process.kill()
        assert await rank.hears() == "released"
        await until(lambda: find(tool.run) is None)
        assert not worker.is_stopped()
        assert worker.child.poll() is rank.child.poll() is None
        again = await tool.ready()
        assert again.greeting.is_new and again.greeting.num_received == 0
        # What the first one has left of its sockets is in nobody's way.
        _, what, _ = await tool.rank()
        assert what["process"]["environment"]["CHAOS_RUN"] == tool.run
        executor = await tool.executor(ends_processes=False)
        await executor.close()
        assert await tool.leave(again) == 0

    play(state, story)


def test_where_nobody_was_left_to_undo_the_next_one_does_so_first(state):
    async def story(tool):
        stream = await tool.ready()
        worker, _ = await paused(tool, ends_processes=False)
        watchdog = find(tool.run).watchdog
        watchdog.signal(signal.SIGSTOP)
        stream.process.kill()
        await stream.process.wait()
        watchdog.signal(signal.SIGKILL)
        await until(lambda: not watchdog.is_running())
        assert await until(worker.is_stopped)
        again = await tool.start()
        assert again.greeting.healed == ("pause-node",)
        assert not worker.is_stopped() and worker.child.poll() is None

    play(state, story)


def test_nothing_is_lost_or_doubled_when_another_stream_takes_over(state):
    async def story(tool):
        stream = await tool.ready()
        rank, _, (reader, writer) = await tool.rank()
        worker = tool.worker()
        executor = await tool.executor()
        expected = list(range(30_000))
        pouring = asyncio.create_task(asyncio.to_thread(rank.do, f"pour {len(expected)}"))
        got = []
        for number in range(3):
            while len(got) < (number + 1) * 5_000:
                got.append(int(await reader.readline()))
            await stream.end()
            order = asyncio.create_task(executor.obey(Look(number + 1, number, "kill-node", NODE)))
            writer.write(b"%d\n" % number)
            stream = await tool.start()
            assert not stream.greeting.is_new and stream.greeting.host[0] == this_host().name
            await tool.attach(stream)
            await order
        while len(got) < len(expected):
            got.append(int(await reader.readline()))
        await pouring
        assert got == expected
        assert [await rank.hears() for _ in range(3)] == ["0", "1", "2"]
        assert worker.child.poll() is None
        await executor.close()
        assert await tool.leave(stream) == 0

    play(state, story)


# ---- what it starts ----


def test_a_command_prints_into_the_log_and_its_end_is_told(state):
    async def story(tool):
        await tool.ready()
        # Over before anybody can have looked at it.
        script = "echo $GREETING in $(pwd); echo again >&2; exit 5"
        tool.send(StartCommand(4, ("sh", "-c", script), "/", {"GREETING": "hello"}))
        started, ended = await tool.message(CommandStarted), await tool.message(CommandEnded)
        assert (started.id, started.problem, ended.id, ended.exit) == (4, "", 4, 5)
        what, (reader, _) = await tool.channel(LOG)
        assert (what["command"], await reader.read()) == (4, b"hello in /\nagain\n")

    play(state, story)


@pytest.mark.parametrize(("words", "folder"), [(("no-such-program",), "/"), (("true",), "/no/such/folder")])
def test_a_command_that_cannot_be_started_says_why(state, words, folder):
    async def story(tool):
        await tool.ready()
        tool.send(StartCommand(4, words, folder))
        started = await tool.message(CommandStarted)
        assert started.process is None and "o such file or directory" in started.problem

    play(state, story)


def test_a_command_takes_signals_and_all_of_the_job_can_be_ended(state):
    async def story(tool):
        await tool.ready()
        for number in (1, 2):
            tool.send(StartCommand(number, ("sleep", "1000"), "/", {"CHAOS_RUN": tool.run}))
        first = (await tool.message(CommandStarted)).process
        second = (await tool.message(CommandStarted)).process
        assert first.environment["CHAOS_RUN"] == tool.run
        os.kill(first.pid, signal.SIGSTOP)
        tool.send(Signal(1, signal.SIGTERM))
        # Of one that has ended, and of one that never was.
        tool.send(Signal(9, signal.SIGTERM))
        ended = await tool.message(CommandEnded)
        assert (ended.id, ended.exit) == (1, -signal.SIGTERM)
        tool.send(EndProcesses(5))
        told, ended = await tool.message(ProcessesEnded), await tool.message(CommandEnded)
        assert (told.id, told.pids) == (5, (second.pid,))
        assert (ended.id, ended.exit) == (2, -signal.SIGKILL)

    play(state, story)


def test_commands_end_with_an_agent_that_has_lost_its_tool(state):
    async def story(tool):
        stream = await tool.ready(lease_seconds=LEASE_SECONDS)
        tool.send(StartCommand(1, ("sleep", "1000"), "/"))
        started = (await tool.message(CommandStarted)).process
        stream.carrying.cancel()
        tool.frames._writer = None
        assert await stream.process.wait() == 1
        await until(lambda: not Path(f"/proc/{started.pid}").exists())

    play(state, story)


# ---- who may ----


@as_other_user
def test_a_process_of_another_user_is_refused_and_told_of(state):
    async def story(tool):
        await tool.ready()
        path = tool.folder.path(RANK_SOCKET)
        script = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({path!r}); print(s.recv(1))"
        command = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", sys.executable, "-S", "-c", script]
        refused = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert "Permission denied" in refused.stderr or "PermissionError" in refused.stderr
        # As if it had found a way in.
        tool.folder.folder.chmod(0o711)
        Path(path).chmod(0o777)
        hung_up = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert hung_up.stdout == "b''\n", hung_up.stderr
        told = await tool.message(RefusedProcess)
        assert told.uid == NOBODY and not tool.opened

    play(state, story)


def test_a_folder_that_is_not_for_this_user_alone_is_not_used(state):
    async def story(tool):
        tool.folder.folder.mkdir()
        tool.folder.folder.chmod(0o755)
        with pytest.raises(ConnectionError):
            await tool.start()
        assert "is not for this user alone" in tool.log.read_text()

    play(state, story)


def test_a_state_folder_that_cannot_be_used_is_a_problem_that_it_tells(state):
    async def story(tool):
        stream = await tool.start(**{STATE_VARIABLE: "/proc/no/such/folder"})
        assert "/proc/no/such/folder" in stream.greeting.problem and STATE_VARIABLE in stream.greeting.problem

    play(state, story)
