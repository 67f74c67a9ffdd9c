"""The server that ranks and runs share, and a rank's own figures on it."""

import errno
import http.client
import socket
import threading
from contextlib import suppress

import pytest
from prometheus_client.core import GaugeMetricFamily

from mecefo_runtime.system import metrics_server
from mecefo_runtime.system.dilation import Pacer
from mecefo_runtime.system.metrics_server import MetricsServer, split_address
from mecefo_runtime.training.exporter import RankFigures
from tests.ports import reserved_port

pytestmark = pytest.mark.unit


def get(address, accept=""):
    connection = http.client.HTTPConnection(address, timeout=60.0)
    try:
        connection.request("GET", "/metrics", headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class One:
    def collect(self):
        yield GaugeMetricFamily("one", "One.", value=1)


class Broken:
    def collect(self):
        raise RuntimeError("no figures today")


@pytest.fixture
def serve():
    servers = []

    def start(collector):
        server = MetricsServer(collector, "127.0.0.1")
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()


def test_what_is_collected_is_served(serve):
    server = serve(One())
    assert get(server.address) == (200, "# HELP one One.\n# TYPE one gauge\none 1.0\n")
    assert get(server.address, "application/openmetrics-text;version=1.0.0")[1].endswith("# EOF\n")


@pytest.mark.parametrize("accept", ["*/*", "application/openmetrics-text; version=bananas", "\x01", ",;,=;"])
def test_whatever_is_accepted_there_is_an_answer(serve, accept):
    assert get(serve(One()).address, accept)[0] in (200, 500)


def test_a_collector_that_breaks_down_breaks_the_answer_only(serve):
    server = serve(Broken())
    assert get(server.address) == (500, "RuntimeError: no figures today\n")
    assert get(server.address)[0] == 500


def test_it_is_known_how_often_it_is_read(serve):
    server = serve(One())
    for _ in range(2):
        assert server.interval_seconds is None
        get(server.address)
    get(server.address)
    assert 0 < server.interval_seconds < 60.0


def test_closing_is_final_and_may_be_said_twice(serve):
    server = serve(One())
    server.close()
    server.close()
    with pytest.raises(OSError):
        get(server.address)


@pytest.mark.parametrize(
    ("text", "address"),
    [("0.0.0.0", ("0.0.0.0", 0)), ("host:1", ("host", 1)), ("[::1]:9400", ("::1", 9400)), ("[::]", ("::", 0))],
)
def test_addresses(text, address):
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["host:x", "host:65536", "host:-1", "[::1]:1x", "host:²"])
def test_ports_that_are_none(text):
    with pytest.raises(ValueError, match="is no port"):
        split_address(text)


def figures():
    return RankFigures(0, 0, "cpu", Pacer(1.0))


def test_a_rank_serves_where_it_is_told():
    assert figures().serve("", "127.0.0.1", 0) is None
    for where in ("auto", "127.0.0.1"):
        address = figures().serve(where, "127.0.0.1", 3)
        assert 'training_rank_steps_total{node="0",rank="0"} 0.0' in get(address)[1]


def test_ranks_of_a_host_share_a_port_range():
    with reserved_port() as port:
        assert figures().serve(f"127.0.0.1:{port - 2}", "0.0.0.0", 2) == f"127.0.0.1:{port}"


@pytest.mark.parametrize("where", ["127.0.0.1:x", "192.0.2.1", "no such host", "127.0.0.1:65535"])
def test_a_rank_that_cannot_serve_trains_on(where, capsys):
    assert figures().serve(where, "127.0.0.1", 1) is None
    assert "no metrics of this rank" in capsys.readouterr().err


def connect(server):
    connection = socket.create_connection((server.host, server.port), timeout=60.0)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Dribble:
    """Clients that send a byte at a time, for ever, until they are hung up on."""

    def __init__(self, server, number):
        self._is_over = threading.Event()
        self._connections = [connect(server) for _ in range(number)]
        self._thread = threading.Thread(target=self._send)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()
        for connection in self._connections:
            connection.close()

    def _send(self):
        while not self._is_over.wait(0.02):
            for connection in self._connections:
                with suppress(OSError):
                    connection.send(b"X")


class TestSlowClients:
    def test_a_request_has_one_deadline_not_one_for_each_byte(self, serve, monkeypatch):
        monkeypatch.setattr(metrics_server, "REQUEST_TIMEOUT_SECONDS", 0.3)
        server = serve(One())
        with Dribble(server, 1) as dribble:
            (connection,) = dribble._connections
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b"", "it is hung up on, while it still sends"

    def test_ending_does_not_wait_for_them(self, monkeypatch):
        # A minute for each, were they waited for.
        monkeypatch.setattr(metrics_server, "REQUEST_TIMEOUT_SECONDS", 60.0)
        server = MetricsServer(One(), "127.0.0.1")
        server.start()
        with Dribble(server, metrics_server.MAX_REQUESTS + 4):
            ending = threading.Thread(target=server.close)
            ending.start()
            ending.join(20.0)
            assert not ending.is_alive()

    def test_nor_for_one_that_does_not_read_its_answer(self, monkeypatch):
        monkeypatch.setattr(metrics_server, "REQUEST_TIMEOUT_SECONDS", 60.0)

        class Large:
            def collect(self):
                yield GaugeMetricFamily("large", "x" * (1 << 25), value=1)

        server = MetricsServer(Large(), "127.0.0.1")
        server.start()
        with connect(server) as reader:
            reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert reader.recv(1), "it is being answered"
            ending = threading.Thread(target=server.close)
            ending.start()
            ending.join(20.0)
            assert not ending.is_alive()

    def test_others_are_served_beside_them(self, serve, monkeypatch):
        monkeypatch.setattr(metrics_server, "REQUEST_TIMEOUT_SECONDS", 60.0)
        server = serve(One())
        with Dribble(server, metrics_server.MAX_REQUESTS + 8):
            for _ in range(3):
                assert get(server.address)[0] == 200
            assert len(server._open) <= metrics_server.MAX_REQUESTS

    def test_a_request_without_an_end_is_not_kept(self, serve):
        server = serve(One())
        with connect(server) as client, suppress(OSError):
            for _ in range(64):
                client.sendall(b"x" * 4096)
            assert client.recv(1) == b""
        assert get(server.address)[0] == 200

    def test_an_accept_that_fails_is_not_the_end(self, serve):
        server = serve(One())
        real, failures = server._socket, [errno.EMFILE, errno.ECONNABORTED]

        class Failing:
            def __getattr__(self, name):
                return getattr(real, name)

            def accept(self):
                if failures:
                    raise OSError(failures.pop(), "no more descriptors")
                return real.accept()

        server._socket = Failing()
        # The one that waits already has the real one: it is served, and those that follow fail first.
        for _ in range(2):
            assert get(server.address)[0] == 200
        assert not failures

    def test_who_sends_no_more_can_still_read(self, serve):
        server = serve(One())
        for sent, is_answered in ((b"GET /metrics HTTP/1.0\r\n", True), (b"", False)):
            with connect(server) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                assert bool(client.recv(1)) == is_answered

    def test_a_request_in_pieces_is_answered(self, serve):
        with connect(serve(One())) as client:
            for piece in (b"GET /met", b"rics HTTP/1.1\r\nAccept: */*\r", b"\n\r\n"):
                client.sendall(piece)
            assert client.makefile("rb").readline() == b"HTTP/1.0 200 OK\r\n"
