"""Events of processes on other hosts, emitted here: their pids are valid there, and stay so in the log."""

import os

import pytest

from mecefo_runtime.system.clocks import Moment, this_clock
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.host import ForeignPid, Host, this_host
from mecefo_runtime.system.job_records import ProcessStarted
from mecefo_runtime.system.records import parse

pytestmark = pytest.mark.unit

BETA = Host("beta", "the boot of beta")
STARTED = ProcessStarted(role="rank", started_pid=4711, start_ticks=9, started_rank=2, parent_pid=4000)


def emitted(emitter_of, **how):
    """The event, and the same read from its line."""
    told = []
    emitter_of(Emitter(told.append, "conductor")).emit(STARTED, **how)
    (event,) = told
    again = Event.from_json(event.to_json())
    assert (again.pid, again.fields, again.origin) == (event.pid, event.fields, event.origin)
    return event, again


def test_the_pids_of_another_host_stay_there():
    for event in emitted(lambda emitter: emitter.of_host(BETA)):
        assert event.fields["started_pid"] == ForeignPid(4711, BETA) != 4711
        assert event.fields["parent_pid"] == ForeignPid(4000, BETA)
        assert (event.fields["start_ticks"], event.pid, event.origin.host) == (9, ForeignPid(0, BETA), BETA)
        assert parse(event).started_pid == ForeignPid(4711, BETA)


def test_its_time_is_the_one_of_the_run():
    for event in emitted(lambda emitter: emitter.of_host(BETA), monotonic_seconds=7.0):
        assert event.monotonic_seconds == 7.0 and event.origin.raw == {}
        assert (event.origin.clock, event.origin.uncertainty_seconds) == (this_clock(), 0.0)


def test_a_time_that_was_mapped_keeps_its_uncertainty():
    moment = Moment(7.0, 3.0, 0.5, "another clock")
    for event in emitted(lambda emitter: emitter.of_host(BETA), monotonic_seconds=moment):
        assert (event.monotonic_seconds, event.origin.host) == (7.0, BETA)
        assert event.origin.raw == {"monotonic": 3.0} and event.origin.uncertainty_seconds == 0.5
        assert event.fields["started_pid"] == ForeignPid(4711, BETA)


def test_of_this_host_nothing_is_said():
    for event in emitted(lambda emitter: emitter.of_host(this_host())):
        assert (event.fields["started_pid"], event.pid, event.origin) == (4711, os.getpid(), None)


def test_the_host_is_kept_with_the_job_and_the_rank():
    event, _ = emitted(lambda emitter: emitter.of_host(BETA).of_job("j").of_rank(3))
    assert (event.job, event.rank, event.origin.host) == ("j", 3, BETA)
    event, _ = emitted(lambda emitter: emitter.of_job("j").of_rank(3).of_host(BETA))
    assert (event.job, event.rank, event.origin.host) == ("j", 3, BETA)
