import errno
import socket
import time

import pytest

from mecefo_runtime.comm.probe import NUM_LOST_IN_A_ROW, ProbeServer, find_unreachable, find_unsteady, was_gone
from tests.ports import reserved_port

pytestmark = pytest.mark.unit


@pytest.fixture
def server():
    server = ProbeServer("127.0.0.1")
    yield server
    server.close()


def test_a_server_can_be_reached_again_and_again(server):
    for _ in range(3):
        assert find_unreachable({0: server.address, 1: server.address}) == []


def test_nobody_behind_the_port_is_unreachable_and_named(server):
    with reserved_port() as free_port:
        assert find_unreachable({3: server.address, 5: f"127.0.0.1:{free_port}"}) == [5]


def test_a_peer_that_does_not_answer_is_unreachable_within_the_time(server):
    # A full backlog drops what comes after it: the nearest thing to a blocked link that needs no root.
    silent = socket.create_server(("127.0.0.1", 0), backlog=0)
    address = silent.getsockname()
    fillers = []
    for _ in range(8):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(address)
        fillers.append(filler)
    try:
        assert find_unreachable({1: server.address, 2: f"127.0.0.1:{address[1]}"}, timeout_seconds=0.2) == [2]
    finally:
        for sock in (silent, *fillers):
            sock.close()


def test_a_connection_that_ends_before_it_is_taken_does_not_end_the_server(monkeypatch):
    real, failures = socket.socket, [ConnectionAbortedError(), OSError(errno.EMFILE, "too many")]

    class Flaky(real):
        def accept(self):
            if failures:
                raise failures.pop()
            return super().accept()

    monkeypatch.setattr("socket.socket", Flaky)
    server = ProbeServer("127.0.0.1")
    try:
        host, _, port = server.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=120.0) as connection:
            assert connection.recv(1) == b"", "nobody took it"
        assert not failures
    finally:
        server.close()


def test_a_closed_server_is_unreachable(server):
    server.close()
    assert find_unreachable({7: server.address}) == [7]


def test_who_answered_while_this_process_did_not_run_is_not_unreachable(server, monkeypatch):
    class Stopped(socket.socket):
        def connect_ex(self, address):
            answer = super().connect_ex(address)
            time.sleep(0.1)
            return answer

    monkeypatch.setattr("socket.socket", Stopped)
    assert find_unreachable({1: server.address}, timeout_seconds=0.05) == []


def test_no_peers_are_all_reached():
    assert find_unreachable({}) == []


def test_a_first_packet_that_is_lost_does_not_make_a_peer_unreachable(monkeypatch):
    # The kernel would send it again only after a second.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setattr("socket.socket", _losing_first_connection())
        assert find_unreachable({1: address}, timeout_seconds=60.0) == []


def _losing_first_connection():
    real, num_made = socket.socket, 0

    class Lossy(real):
        def connect_ex(self, address):
            nonlocal num_made
            num_made += 1
            return errno.EINPROGRESS if num_made == 1 else super().connect_ex(address)

        def getsockopt(self, *arguments):
            return super().getsockopt(*arguments)

    return Lossy


def test_nobody_is_looked_for_when_nobody_wants_to_know(silent):
    assert find_unreachable({2: silent}, timeout_seconds=60.0, is_over=lambda: True) == []


def test_a_link_is_steady_while_connections_are_taken_and_unsteady_when_several_in_a_row_are_not(server, silent):
    addresses = {5: silent, 3: server.address}
    # Long enough for several tries on a busy machine.
    assert find_unsteady(addresses, seconds=1.5, timeout_seconds=0.5) == [5]
    server.close()
    assert find_unsteady(addresses, seconds=1.5, timeout_seconds=0.5) == [3, 5]


def test_whether_a_link_is_steady_is_not_looked_for_when_nobody_wants_to_know(silent):
    assert find_unsteady({2: silent}, seconds=60.0, is_over=lambda: True) == []


def test_connections_that_are_lost_here_and_there_are_chance_and_a_row_of_them_is_not():
    lost, row = [False], [False] * NUM_LOST_IN_A_ROW
    assert not was_gone([])
    assert not was_gone([True, *row[1:], True, *lost, True, *row[1:]])
    assert was_gone([True, *row])
    assert was_gone([*row, True])
    assert was_gone([True, *row, *lost, True])


@pytest.fixture
def silent():
    """An address that takes no connection and refuses none."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    fillers = []
    for _ in range(8):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    for sock in (listener, *fillers):
        sock.close()
