"""The socket where a run's processes report: where it is, who may say what there, and what becomes of nonsense."""

import asyncio
import io
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.faults.watch import Watch
from chaos.in_process.protocol import At, Holds, to_wire
from harness.analysis.state import RunState
from harness.control import control_server
from harness.control.admission import can_anybody_enter
from harness.control.control_server import MAX_PATH_BYTES, ControlServer
from harness.live.lines import PlainView
from mecefo_runtime.comm import messages
from mecefo_runtime.comm.messages import StopNode
from mecefo_runtime.launch.sinks import connect_sink
from mecefo_runtime.system import strangers
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import RankStarted
from mecefo_runtime.system.strangers import BUFFER_BYTES, read_line
from mecefo_runtime.system.wire import MAX_LINE_BYTES, UNIX, Connection, WireError, decode, encode
from tests.harness.store.test_hostile_files import HOSTILE, put
from tests.harness.synthetic import run

pytestmark = pytest.mark.unit

DEADLINE_SECONDS = 60.0
EVENT = Event("warning", "rank", 1.0, 1.0, 7, fields={"message": "m"})
LINES = [event.to_json() for event in run(steps=4)]
KEYS = sorted({f'"{key}":' for line in LINES for key in re.findall(r'"(\w+)":', line)})


NOBODY = 65534
as_other_user = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv: a process of a second user"
)
# Arguments: the socket, what to send, and perhaps a parent whose end is waited for.
TALK = """
import os, socket, sys, time
while sys.argv[3:] and os.getppid() == int(sys.argv[3]):
    time.sleep(0.01)
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(sys.argv[1])
    print("connected", flush=True)
    try:
        sock.sendall(sys.argv[2].encode())
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1)
    except ConnectionError:
        pass
"""


class Listener:
    """An injector that takes what comes."""

    def __init__(self):
        self.said = []

    def connected(self, session):
        session.send(Holds())

    def on_message(self, session, message):
        self.said.append(message)

    def closed(self, session):
        pass


def played(talk, on_event=lambda event: None, agents=None, **how):
    """What went wrong in the event loop while `talk` talked to a server."""
    broken = []

    async def play():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        server = ControlServer(on_event)
        server.agents = agents
        await server.open(**how)
        try:
            await asyncio.wait_for(talk(server), DEADLINE_SECONDS)
        finally:
            await server.close()

    asyncio.run(play())
    return broken


async def connect(server):
    return await asyncio.open_unix_connection(server.address.removeprefix(UNIX), limit=1 << 26)


async def is_hung_up(reader):
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


def hello(role, **more):
    return encode({"role": role, **more})


class TestStrangers:
    @pytest.mark.parametrize("said", [b"", b'{"token":'])
    def test_who_does_not_say_who_it_is_is_hung_up_on(self, said, monkeypatch):
        monkeypatch.setattr(control_server, "HELLO_TIMEOUT_SECONDS", 0.05)

        async def talk(server):
            reader, writer = await connect(server)
            writer.write(said)
            assert await is_hung_up(reader)
            writer.close()

        assert played(talk) == []

    def test_a_byte_now_and_then_does_not_help(self, monkeypatch):
        monkeypatch.setattr(control_server, "HELLO_TIMEOUT_SECONDS", 0.2)

        async def talk(server):
            reader, writer = await connect(server)
            hung_up = asyncio.create_task(is_hung_up(reader))
            while not hung_up.done():
                with suppress(ConnectionError):
                    writer.write(b"x")
                    await writer.drain()
                await asyncio.sleep(0.01)
            writer.close()

        assert played(talk) == []

    @pytest.mark.parametrize("said", [b"[]\n", b"{}\n", b"null\n", b'{"role": 1e400}\n', b'{"role": "\\ud800"}\n'])
    def test_who_has_no_role_is_hung_up_on(self, said):
        come = []

        async def talk(server):
            reader, writer = await connect(server)
            writer.write(said + EVENT.to_json().encode() + b"\n")
            assert await is_hung_up(reader)
            writer.close()

        assert played(talk, come.append) == [] and come == []

    @as_other_user
    @pytest.mark.parametrize("is_of_run", [True, False])
    def test_another_user_is_heard_only_as_a_process_of_the_run(self, is_of_run, tmp_path):
        """Both have the same user and the same first message, but one does not descend from the server's process."""
        come, refused, answer = [], [], tmp_path / "answer"
        answer.touch()
        answer.chmod(0o666)
        line = (hello("events") + EVENT.to_json().encode() + b"\n").decode()

        async def talk(server):
            server.on_refused = lambda uid, pid: refused.append(uid)
            path = server.address.removeprefix(UNIX)
            shell = f'"$@" {"" if is_of_run else "$$ &"}'
            other = [
                "setpriv",
                f"--reuid={NOBODY}",
                "--clear-groups",
                "/usr/bin/env",
                "python3",
                "-c",
                TALK,
                path,
                line,
            ]
            with answer.open("w") as file:
                await asyncio.to_thread(subprocess.run, ["sh", "-c", shell, "sh", *other], stdout=file, check=True)
            while not answer.read_text():
                await asyncio.sleep(0.01)
            while not (come or refused):
                await asyncio.sleep(0.01)

        assert played(talk, come.append, may_change_user=True) == []
        assert (len(come), refused) == ((1, []) if is_of_run else (0, [NOBODY]))

    @as_other_user
    def test_another_user_cannot_connect_where_the_run_has_no_script(self):
        code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"

        async def talk(server):
            path = server.address.removeprefix(UNIX)
            command = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "/usr/bin/env", "python3", "-c", code, path]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
            assert "PermissionError" in done.stderr

        assert played(talk) == []

    def test_of_too_many_the_oldest_goes_and_a_process_of_the_run_is_heard(self, monkeypatch):
        monkeypatch.setattr(strangers, "MAX_STRANGERS", 3)
        come = []

        async def talk(server):
            silent = [await connect(server) for _ in range(4)]
            assert await is_hung_up(silent[0][0])
            _, writer = await connect(server)
            writer.write(hello("events") + EVENT.to_json().encode() + b"\n")
            while not come:
                await asyncio.sleep(0.001)
            for _, other in (*silent, (None, writer)):
                other.close()

        assert played(talk, come.append) == []


class TestProcessesOfTheRun:
    def test_long_lines_are_read_and_too_long_ones_are_not(self):
        come = []

        async def talk(server):
            reader, writer = await connect(server)
            long = Event("warning", "rank", 1.0, 1.0, 7, fields={"message": "m" * (4 * BUFFER_BYTES)})
            writer.write(hello("events") + long.to_json().encode() + b"\n" + EVENT.to_json().encode() + b"\n")
            while len(come) < 2:
                await asyncio.sleep(0.001)
            with suppress(ConnectionError):
                writer.write(b"x" * (MAX_LINE_BYTES + 2 * BUFFER_BYTES))
                await writer.drain()
            assert await is_hung_up(reader)
            writer.close()

        assert played(talk, come.append) == []
        assert [len(event.fields["message"]) for event in come] == [4 * BUFFER_BYTES, 1]

    def test_a_long_first_message_is_read(self):
        listener = Listener()

        async def talk(server):
            reader, writer = await connect(server)
            first = hello("agent", rank=0, node=0, attempt=1, pid=1, more="m" * (4 * BUFFER_BYTES))
            writer.write(first + encode(to_wire(At(3, "forward"))))
            assert decode(await reader.readline()) == {"holds": []}
            while not listener.said:
                await asyncio.sleep(0.001)
            writer.close()

        assert played(talk, agents=listener) == []
        assert listener.said == [At(3, "forward")]

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(
        number=st.integers(0, len(LINES) - 1),
        key=st.sampled_from(KEYS),
        value=st.sampled_from(HOSTILE),
        rest=st.binary(),
    )
    def test_whatever_their_events_hold_nothing_breaks_down(self, number, key, value, rest, capsys):
        state, watch, view = RunState(), Watch(), PlainView(io.StringIO())
        come = []

        def on_event(event):
            come.append(event)
            assert json.loads(event.to_json())
            state.feed(event)
            watch.feed(event)
            view.feed(event)

        async def talk(server):
            reader, writer = await connect(server)
            line = put(LINES[number], key, value).encode(errors="surrogatepass")
            writer.write(hello("events") + b"\n".join([*(one.encode() for one in LINES[:number]), line, rest]) + b"\n")
            writer.write_eof()
            await is_hung_up(reader)
            writer.close()

        assert played(talk, on_event) == []
        assert len(come) >= number, "what came before is kept"
        assert capsys.readouterr().err == ""

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(
        role=st.sampled_from(["agent", "supervisor", "node", "events"]),
        key=st.sampled_from(["role", "rank", "node", "attempt", "pid", "job", "world_size", "replica", "name"]),
        value=st.sampled_from(HOSTILE),
        then=st.one_of(
            st.sampled_from(HOSTILE),
            st.tuples(
                st.sampled_from(["at", "began", "refused", "report", "lifted", "release"]),
                st.sampled_from(["step", "phase", "handle", "told", "reason", "type"]),
                st.sampled_from(HOSTILE),
            ).map(lambda told: json.dumps({"type": told[0], told[1]: "@@@"}).replace('"@@@"', told[2])),
        ),
    )
    def test_whatever_they_say_of_themselves(self, role, key, value, then, capsys):
        whole = {"role": role, "rank": 0, "node": 0, "attempt": 1, "pid": 1, "job": "main", "name": "n"}
        first = json.dumps({**whole, key: "@@@"}).replace('"@@@"', value)

        async def talk(server):
            reader, writer = await connect(server)
            writer.write(first.encode(errors="surrogatepass") + b"\n" + then.encode(errors="surrogatepass") + b"\n")
            writer.write_eof()
            await is_hung_up(reader) if role != "agent" else await reader.read()
            writer.close()

        assert played(talk, agents=Listener()) == []
        assert capsys.readouterr().err == ""


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A folder whose path is longer than a socket's may be."""
    folder = tmp_path / ("d" * MAX_PATH_BYTES)
    folder.mkdir()
    return folder


def place_in(folder, parent_mode=0o700, **how):
    """Where a server in `folder` listens, and that nothing of it stays."""
    found = []

    async def play():
        server = ControlServer(lambda event: None)
        await server.open(folder, **how)
        path = Path(server.address.removeprefix(UNIX))
        found.append(path)
        assert stat.S_IMODE(path.parent.stat().st_mode) == parent_mode
        reader, writer = await connect(server)
        writer.write_eof()
        assert await is_hung_up(reader)
        writer.close()
        await server.close()
        assert not path.exists() and not path.parent.exists()

    asyncio.run(play())
    return found[0]


class TestPlace:
    @pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of other users")
    @pytest.mark.parametrize("mode", [0o755, 0o700])
    def test_where_a_script_may_change_its_user_every_user_can_reach_it(self, mode, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "closed"))
        with tempfile.TemporaryDirectory(dir="/tmp") as name:
            folder = Path(name) / "run"
            folder.mkdir()
            folder.parent.chmod(0o755)
            folder.chmod(mode)
            path = place_in(folder, parent_mode=0o711, may_be_relative=False, may_change_user=True)
            assert path.is_relative_to(folder) == (mode == 0o755)
            assert can_anybody_enter(path.parent.parent)

    def test_it_is_in_a_folder_of_the_run_that_only_this_user_may_enter(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert place_in(tmp_path).resolve().is_relative_to(tmp_path.resolve())
        assert list(tmp_path.iterdir()) == []

    def test_where_the_path_is_too_long_from_the_root_it_is_taken_from_here(self, deep, monkeypatch):
        monkeypatch.chdir(deep)
        assert not place_in(deep).is_absolute()

    def test_a_path_that_must_hold_from_anywhere_is_not_taken_from_here(self, deep, monkeypatch):
        monkeypatch.chdir(deep)
        path = place_in(deep, may_be_relative=False)
        assert path.is_absolute() and not path.is_relative_to(deep)

    def test_where_the_path_is_too_long_in_any_case_it_is_elsewhere(self, deep, monkeypatch):
        monkeypatch.chdir("/")
        assert len(os.fsencode(place_in(deep))) <= MAX_PATH_BYTES

    def test_who_is_not_there_cannot_be_connected_to(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(FileNotFoundError):
            Connection.open(f"{UNIX}nobody", {}, DEADLINE_SECONDS)


def test_events_and_orders_go_through_it():
    come = []

    async def talk(server):
        sink = await asyncio.to_thread(connect_sink, server.address)
        Emitter(sink, "rank").emit(RankStarted(), step=3)
        role = {"role": "supervisor", "job": "main", "node": 1}
        orders = await asyncio.to_thread(Connection.open, server.address, role, DEADLINE_SECONDS)
        while not server.order("main", 1, StopNode()):
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(orders.receive) == messages.to_wire(StopNode())
        orders.close()
        while not come:
            await asyncio.sleep(0.01)
        sink._connection.close()

    assert played(talk, come.append) == []
    assert [(event.kind, event.step) for event in come] == [("rank_started", 3)]


def test_who_waits_for_the_last_words_of_a_job_does_not_wait_for_its_containers():
    come, is_served = [], asyncio.Event()

    class Nodes:
        async def serve(self, name, pid, reader, writer):
            is_served.set()
            await reader.read()

    async def talk(server):
        server.nodes = Nodes()
        _, container = await connect(server)
        container.write(encode({"role": "node", "name": "node-0"}))
        await is_served.wait()
        sink = await asyncio.to_thread(connect_sink, server.address)
        Emitter(sink, "rank").emit(RankStarted())
        while not come:
            await asyncio.sleep(0.01)
        draining = asyncio.create_task(server.drained(2 * DEADLINE_SECONDS))
        await asyncio.wait({draining}, timeout=0.05)
        assert not draining.done(), "the rank has not hung up"
        sink._connection.close()
        await draining
        container.close()

    assert played(talk, come.append) == []


@given(st.lists(st.binary(max_size=40)), st.integers(1, 30), st.booleans())
def test_lines_are_those_of_the_stream_whatever_its_buffer(lines, limit, is_whole):
    data = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines) + (b"" if is_whole else b"rest")

    async def read():
        reader = asyncio.StreamReader(limit=limit)
        reader.feed_data(data)
        reader.feed_eof()
        found = []
        while line := await read_line(reader, 100):
            found.append(line)
        return found

    assert b"".join(asyncio.run(read())) == data


def test_a_line_longer_than_its_bound_is_none():
    async def read():
        reader = asyncio.StreamReader(limit=4)
        reader.feed_data(b"x" * 50 + b"\n")
        await read_line(reader, 10)

    with pytest.raises(WireError, match="more than 10 bytes"):
        asyncio.run(read())
