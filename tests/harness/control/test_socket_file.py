"""A Unix socket in a run's folder, and the control server behind it."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from harness.control.control_server import ControlServer
from harness.control.socket_file import MAX_PATH_BYTES, SocketFile
from mecefo_runtime.comm.messages import StopNode, to_wire
from mecefo_runtime.launch.sinks import connect_sink
from mecefo_runtime.system.events import Emitter, Event
from mecefo_runtime.system.wire import UNIX, Connection, connect

pytestmark = pytest.mark.unit
# Much longer than any of it takes on a busy machine.
TIMEOUT_SECONDS = 60.0


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A folder whose path is longer than a socket's may be."""
    folder = tmp_path / ("d" * MAX_PATH_BYTES)
    folder.mkdir()
    return folder


def test_it_is_in_the_folder_and_open_to_this_user_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    made = SocketFile(tmp_path / "run")
    assert Path(made.path).resolve() == tmp_path.resolve() / "run" / "control.socket"
    assert stat.S_IMODE(Path(made.path).stat().st_mode) == 0o600
    made.socket.close()
    made.remove()
    assert list((tmp_path / "run").iterdir()) == []


def test_where_the_path_is_too_long_from_the_root_it_is_taken_from_here(deep, monkeypatch):
    monkeypatch.chdir(deep)
    made = SocketFile(deep)
    assert made.path == "control.socket"
    made.socket.close()
    made.remove()


def test_a_path_that_must_hold_from_anywhere_is_not_taken_from_here(deep, monkeypatch):
    monkeypatch.chdir(deep)
    made = SocketFile(deep, may_be_relative=False)
    assert Path(made.path).is_absolute() and not Path(made.path).is_relative_to(deep)
    made.socket.close()
    made.remove()
    assert not Path(made.path).parent.exists()


def test_where_the_path_is_too_long_in_any_case_it_is_elsewhere_and_nothing_of_it_stays(deep, monkeypatch):
    monkeypatch.chdir("/")
    made = SocketFile(deep)
    assert len(os.fsencode(made.path)) <= MAX_PATH_BYTES
    elsewhere = Path(made.path).parent
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o700
    with connect(f"{UNIX}{made.path}", TIMEOUT_SECONDS):
        pass
    made.socket.close()
    made.remove()
    assert not elsewhere.exists()


def test_who_is_not_there_cannot_be_connected_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        Connection.open(f"{UNIX}nobody", {}, TIMEOUT_SECONDS)


def test_events_and_orders_go_through_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    come: list[Event] = []

    async def talk() -> None:
        control = ControlServer("secret", come.append)
        await control.open(tmp_path)
        environment = {"MECEFO_EVENTS": control.address, "MECEFO_TOKEN": "secret"}
        sink = await asyncio.to_thread(connect_sink, environment)
        Emitter(sink, "rank").emit("rank_started", step=3)
        hello = {"token": "secret", "role": "supervisor", "job": "main", "node": 1}
        orders = await asyncio.to_thread(Connection.open, control.address, hello, TIMEOUT_SECONDS)
        while not control.order("main", 1, StopNode()):
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(orders.receive) == to_wire(StopNode())
        orders.close()
        while not come:
            await asyncio.sleep(0.01)
        connection = sink._connection  # type: ignore[attr-defined]
        assert isinstance(connection, socket.socket)
        connection.close()
        await control.close()

    asyncio.run(asyncio.wait_for(talk(), 2 * TIMEOUT_SECONDS))
    assert [(event.kind, event.step) for event in come] == [("rank_started", 3)]
    assert list(tmp_path.iterdir()) == []
