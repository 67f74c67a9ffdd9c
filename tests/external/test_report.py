"""The events of an external rank: a step's line, which is put together by hand, is what the typed record becomes."""

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.external.identity import Identity
from chaos.external.report import Report
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import StepCommitted
from mecefo_runtime.system.records import parse

pytestmark = pytest.mark.unit

IDENTITY = Identity(rank=3, node=1, local_rank=1, world_size=8, attempt=2)
NUMBERS = st.integers(-(2**53), 2**53)
FIGURES = st.fixed_dictionaries(
    {"epoch": NUMBERS, "optimizers": NUMBERS, "began_monotonic": st.floats(), "committed_monotonic": st.floats()},
    optional={"loss": st.floats(), "tokens": NUMBERS, "samples": NUMBERS, "replica": NUMBERS},
)


@pytest.fixture(scope="module")
def reported():
    """(report, the lines that it sends)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        report = Report(f"{host}:{port}", IDENTITY, "twin")
        with server.accept()[0] as connection, connection.makefile("rb") as lines:
            assert json.loads(lines.readline())["role"] == "events"
            yield report, lines
            report.abandon()


@given(step=st.integers(1, 2**53 - 1), now_seconds=st.floats(0.0, 1e9), figures=FIGURES)
def test_the_line_of_a_step_is_what_its_record_becomes(reported, step, now_seconds, figures):
    report, lines = reported
    report.step_committed(step, now_seconds, figures)
    report.flush()
    line = lines.readline()
    emitter = Emitter(lambda event: None, "rank", job="twin", rank=3, node=1, attempt=2)
    typed = emitter.emit(StepCommitted(**figures), step=step, monotonic_seconds=now_seconds)
    assert without_times(line) == without_times(typed.to_json())
    read = Event.from_json(line)
    assert read.monotonic_seconds == Event.from_json(typed.to_json()).monotonic_seconds
    record = parse(read)
    assert repr({name: getattr(record, name) for name in figures}) == repr(figures)


def without_times(line):
    said = json.loads(line)
    del said["time"], said["monotonic"]
    # As text, in which NaN is equal to itself, and keys have their order.
    return json.dumps(said)
