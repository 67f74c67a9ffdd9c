"""The endpoint of a run: where it listens, what it answers, and how long it waits for its reader."""

import http.client
import io
import re
import socket
import threading
from dataclasses import replace

import pytest

from chaos.errors import EnvironmentFailure, UsageError
from harness.exporter import job
from harness.exporter.job import JobExporter, address_of, exported, exporting
from harness.exporter.targets import TARGETS_FILE
from harness.judging.summary import UNKNOWN
from mecefo_runtime.system import metrics_server
from tests.harness.synthetic import run

pytestmark = pytest.mark.unit

OPENMETRICS = "application/openmetrics-text; version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
# Much longer than an answer takes on a busy machine.
TIMEOUT_SECONDS = 120.0


def get(url, path="/metrics", method="GET", **headers):
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read().decode()
    finally:
        connection.close()


class Shown:
    """A view that keeps what it is told."""

    def __init__(self):
        self.events, self.messages = [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def feed(self, event):
        self.events.append(event)

    def message(self, text):
        self.messages.append(text)


def test_a_run_is_shown_exported_and_listed_as_it_goes_on(tmp_path):
    events, view = run(baseline=False), Shown()
    with JobExporter("auto") as exporter:
        with exported(view, exporter, tmp_path, "node-loss") as both:
            assert exporter.url in view.messages[0] and TARGETS_FILE in view.messages[0]
            assert "training_step " not in get(exporter.url)[2]
            for event in events:
                exporter.state.feed(event)
                both.feed(event)
            status, content_type, body = get(exporter.url, Accept=OPENMETRICS)
            assert (status, body.splitlines()[-1]) == (200, "# EOF")
            assert content_type.startswith("application/openmetrics-text; version=1.0.0")
            assert "training_step 60.0" in body
            assert get(exporter.url)[1].startswith("text/plain; version=0.0.4")
        assert view.events == events
        assert (tmp_path / TARGETS_FILE).exists()
    assert not (tmp_path / TARGETS_FILE).exists()
    with pytest.raises(OSError):
        get(exporter.url)


def test_there_are_the_metrics_and_a_page_that_links_to_them_and_nothing_else(tmp_path):
    with JobExporter("auto") as exporter:
        exporter.publish(tmp_path, "e")
        status, content_type, page = get(exporter.url, "/")
        assert (status, content_type) == (200, "text/html; charset=utf-8")
        assert re.findall(r'href="([^"]*)"', page) == ["/metrics"]
        assert get(exporter.url, "/favicon.ico")[0] == 404
        assert get(exporter.url, "/metrics/../secret")[0] == 404
        assert get(exporter.url, "/metrics?name=x")[0] == 200
        assert get(exporter.url, method="POST")[0] == 501
        text = get(exporter.url)[2]
        assert "process_" not in text and "python_" not in text


def test_strangers_and_sleepers_do_not_keep_others_waiting(tmp_path, monkeypatch):
    # Nobody is hung up on before the answer is there: who waits for the sleepers waits for longer than `get` does.
    monkeypatch.setattr(metrics_server._Handler, "timeout", 10 * TIMEOUT_SECONDS)
    with JobExporter("auto") as exporter:
        exporter.publish(tmp_path, "e")
        host, port = exporter.url.split("/")[2].split(":")
        sleepers = [socket.create_connection((host, int(port))) for _ in range(4)]
        sleepers[0].sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
        try:
            assert get(exporter.url)[0] == 200
        finally:
            for sleeper in sleepers:
                sleeper.close()


def test_many_readers_get_whole_answers_while_events_come(tmp_path):
    events = run(baseline=False)
    with JobExporter("auto") as exporter:
        exporter.publish(tmp_path, "e")
        bodies, over = [], threading.Event()

        def read():
            while not over.is_set():
                bodies.append(get(exporter.url, Accept=OPENMETRICS)[2])

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        while len(bodies) < 6:
            for event in events:
                exporter.feed(event)
        over.set()
        for reader in readers:
            reader.join()
    assert all(body.endswith("# EOF\n") for body in bodies)


def test_a_port_in_use_is_refused_by_name():
    with JobExporter("auto") as first:
        port = first.url.split(":")[2].split("/")[0]
        with pytest.raises(EnvironmentFailure, match=f"port {port} is in use: choose another with --metrics"):
            JobExporter(port)
        with pytest.raises(EnvironmentFailure, match="choose another with --port"):
            JobExporter(port, option="--port")
    with JobExporter(port) as second:
        assert second.url == first.url


def test_the_address_of_another_machine_is_refused():
    with pytest.raises(
        EnvironmentFailure, match=r"on 192\.0\.2\.1:9400 \(Cannot assign.*: choose another address with"
    ):
        JobExporter("192.0.2.1:9400")


@pytest.mark.parametrize(
    ("where", "address"),
    [
        ("auto", ("127.0.0.1", 0)),
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::1]:9400", ("::1", 9400)),
        ("node-3:0", ("node-3", 0)),
    ],
)
def test_addresses(where, address):
    assert address_of(where) == address


@pytest.mark.parametrize(
    "where", ["", "on", "70000", "-1", "9400 ", "١", "host", "host:", ":9400", "[::1", "[::1]", "::1", "a:b:1", "1.5"]
)
def test_what_is_no_address_is_refused(where):
    with pytest.raises(UsageError, match="write auto, PORT or HOST:PORT"):
        address_of(where)


def test_off_is_off():
    with exporting("off") as exporter:
        assert exporter is None


class Clock:
    """A clock that moves when somebody sleeps: by so much, and `on_sleep` sees it."""

    def __init__(self):
        self.seconds = 0.0
        self.on_sleep = lambda: None

    def monotonic(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds
        self.on_sleep()


@pytest.fixture
def clock(monkeypatch):
    """What the server and who waits for its readers take for the time, on a machine however busy."""
    clock = Clock()
    monkeypatch.setattr(metrics_server, "time", clock)
    monkeypatch.setattr(job, "time", clock)
    return clock


def read_at_intervals(exporter, clock, interval_seconds):
    for _ in range(3):
        clock.sleep(interval_seconds)
        get(exporter.url)


def judged(exporter):
    exporter.judge(replace(UNKNOWN, verdict="pass"))


def test_who_reads_at_intervals_gets_to_read_the_verdict(tmp_path, clock):
    with JobExporter("auto") as exporter:
        exporter.publish(tmp_path, "e")
        read_at_intervals(exporter, clock, 10.0)
        clock.sleep(4.0)
        judged(exporter)
        last_read, read = clock.seconds - 4.0, []

        def read_when_it_is_time():
            if not read and clock.seconds >= last_read + 10.0:
                read.append(get(exporter.url)[2])

        clock.on_sleep = read_when_it_is_time
        said = io.StringIO()
        exporter.wait_for_last_read(said)
        assert "waiting for Prometheus" in said.getvalue()
        assert 'chaos_verdict{verdict="pass"} 1.0' in read[0]
        assert clock.seconds < last_read + 11.0, "once it was read, nobody is waited for"


def test_who_reads_often_and_comes_late_on_a_busy_machine_is_waited_for(tmp_path, clock):
    with JobExporter("auto") as exporter:
        exporter.publish(tmp_path, "e")
        read_at_intervals(exporter, clock, 0.25)
        last_read, read = clock.seconds, []
        clock.sleep(0.4)
        judged(exporter)

        def read_late():
            if not read and clock.seconds >= last_read + 1.0:
                read.append(get(exporter.url)[2])

        clock.on_sleep = read_late
        exporter.wait_for_last_read(io.StringIO())
        assert 'chaos_verdict{verdict="pass"} 1.0' in read[0]


def test_who_has_interrupted_a_run_does_not_wait(tmp_path, clock):
    with JobExporter("auto") as exporter:
        exporter.publish(tmp_path, "e")
        read_at_intervals(exporter, clock, 10.0)
        exporter.judge(replace(UNKNOWN, verdict="halted", status="interrupted"))
        said, judged_seconds = io.StringIO(), clock.seconds
        exporter.wait_for_last_read(said)
        assert (said.getvalue(), clock.seconds) == ("", judged_seconds)


def test_who_reads_no_more_is_not_waited_for_long(tmp_path, clock):
    with JobExporter("auto") as exporter:
        exporter.publish(tmp_path, "e")
        read_at_intervals(exporter, clock, 10.0)
        last_read = clock.seconds
        clock.sleep(0.5)
        judged(exporter)
        exporter.wait_for_last_read(io.StringIO())
        assert 10.0 < clock.seconds - last_read < 20.0


@pytest.mark.parametrize(("interval_seconds", "is_waited_for"), [(19.0, True), (21.0, False)])
def test_who_reads_seldom_does_not_hold_it_up(tmp_path, clock, interval_seconds, is_waited_for):
    with JobExporter("auto") as exporter:
        exporter.publish(tmp_path, "e")
        read_at_intervals(exporter, clock, interval_seconds)
        clock.sleep(0.5)
        judged(exporter)
        said = io.StringIO()
        exporter.wait_for_last_read(said)
        assert bool(said.getvalue()) == is_waited_for


@pytest.mark.parametrize("num_reads", [0, 1, 2])
def test_nobody_waits_for_a_passer_by(tmp_path, num_reads):
    with JobExporter("auto") as exporter:
        exporter.publish(tmp_path, "e")
        for _ in range(num_reads):
            get(exporter.url)
        judged(exporter)
        said = io.StringIO()
        exporter.wait_for_last_read(said)
        assert said.getvalue() == ""
