"""The server that ranks and runs share, and a rank's own figures on it."""

import http.client

import pytest
from prometheus_client.core import GaugeMetricFamily

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
