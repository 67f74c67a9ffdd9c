"""Times of other clocks: where they map to, and by how much that can be wrong."""

from __future__ import annotations

import copy
import json
import pickle
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.system import clocks
from mecefo_runtime.system.clocks import (
    CLOCK_VARIABLE,
    MAX_DRIFT_RATIO,
    ClockMapping,
    ClockSample,
    Moment,
    greeting,
    this_clock,
    uncertainty_between,
)
from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event, Origin
from mecefo_runtime.system.host import ForeignPid, Host, pid_of, this_host
from mecefo_runtime.system.job_records import ProcessExited, StepCommitted
from mecefo_runtime.system.records import parse
from mecefo_runtime.system.run_records import Verified

pytestmark = pytest.mark.unit

OTHER = "another-boot time:[1]"
OF_THIS_KERNEL = f"{this_host().boot} time:[1]"
# The rounding of times to microseconds, both ways.
ROUNDING = 2e-6

seconds = st.floats(0.0, 1e6)
trips = st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.floats(0.0, 100.0)), min_size=1, max_size=20)


@given(
    offset=st.floats(-1e6, 1e6),
    drift=st.floats(-MAX_DRIFT_RATIO, MAX_DRIFT_RATIO),
    trips=trips,
    at=st.floats(0.0, 1e4),
    is_same_kernel=st.booleans(),
)
def test_the_true_time_is_within_the_uncertainty_whatever_the_way_there_and_back_took(
    offset, drift, trips, at, is_same_kernel
):
    rate = 1.0 if is_same_kernel else 1.0 + drift

    def there(ours: float) -> float:
        return ours * rate - offset

    samples = [ClockSample(sent, there(sent + out), sent + out + back) for out, back, sent in trips]
    mapping = ClockMapping.of(OF_THIS_KERNEL if is_same_kernel else OTHER, samples)
    moment = mapping.moment(there(at))
    # A drift is known by our own clock here, by the other one in the product.
    slack = ROUNDING + 2 * MAX_DRIFT_RATIO**2 * (at + 200.0) + 1e-9 * abs(offset)
    assert abs(moment - at) <= moment.uncertainty_seconds + slack
    assert moment.uncertainty_seconds >= min(sample.uncertainty_seconds for sample in samples)


@given(st.floats(1e-6, 0.1), st.floats(0.0, 1e5), st.floats(0.0, 1e5))
def test_what_follows_the_samples_stays_in_order(trip, one, other):
    mapping = ClockMapping.of(OTHER, [ClockSample(0.0, -3.0, trip), ClockSample(1.0, -2.0, 1.0 + 2 * trip)])
    earlier, later = sorted((one, other))
    assert mapping.moment(earlier) <= mapping.moment(later)
    assert mapping.moment(earlier).uncertainty_seconds <= mapping.moment(later).uncertainty_seconds


def test_the_quickest_look_decides_and_clocks_of_one_kernel_do_not_drift():
    slow, quick = ClockSample(10.0, 7.4, 11.0), ClockSample(20.0, 17.001, 20.002)
    mapping = ClockMapping.of(OF_THIS_KERNEL, [slow, quick])
    moment = mapping.moment(100.0)
    assert isclose(moment, 103.0, abs_tol=1e-6) and isclose(moment.uncertainty_seconds, 0.001, abs_tol=2e-6)
    assert ClockMapping.of(OTHER, [slow, quick]).moment(100.0).uncertainty_seconds > 0.017
    with pytest.raises(ValueError, match="without samples"):
        ClockMapping.of(OTHER, [])


def test_only_differences_between_clocks_are_uncertain():
    one, other = Moment(5.0, 2.0, 0.25, OTHER), Moment(9.0, 6.0, 0.25, OTHER)
    third = Moment(7.0, 1.0, 0.5, "third time:[1]")
    assert uncertainty_between(1.0, 2.0) == uncertainty_between(one, other) == 0.0
    assert uncertainty_between(1.0, other) == uncertainty_between(other, 1.0) == 0.25
    assert uncertainty_between(one, third) == 0.75
    remapped = Moment(9.5, 6.0, 0.25, OTHER)
    assert uncertainty_between(one, remapped) == 0.5, "the clock was looked at again in between"


def test_a_moment_is_the_number_that_it_maps_to():
    moment = Moment(5.0, 2.0, 0.25, OTHER)
    assert moment == 5.0 and json.dumps(moment) == "5.0" and sorted([6.0, moment, 4.0]) == [4.0, 5.0, 6.0]
    for same in (copy.deepcopy(moment), pickle.loads(pickle.dumps(moment))):
        assert (same, same.raw_seconds, same.uncertainty_seconds, same.clock) == (5.0, 2.0, 0.25, OTHER)


NODE2 = Host("node2", "another-boot")
FAR = Event(
    "step_committed",
    "rank",
    1.0,
    Moment(103.0, 100.0, 0.001, OTHER),
    ForeignPid(7, NODE2),
    rank=1,
    step=3,
    fields={"committed_monotonic": Moment(102.5, 99.5, 0.001, OTHER), "loss": 1.0},
    origin=Origin(NODE2, OTHER, 0.001, {"monotonic": 100.0, "committed_monotonic": 99.5}),
)


def test_an_event_of_another_clock_is_read_as_it_was_written():
    read = Event.from_json(FAR.to_json())
    assert read == FAR and read.host == NODE2
    record = parse(read)
    assert isinstance(record, StepCommitted)
    assert uncertainty_between(0.0, record.monotonic_seconds) == uncertainty_between(0.0, record.committed_seconds)
    assert uncertainty_between(record.committed_seconds, record.monotonic_seconds) == 0.0
    assert json.loads(FAR.to_json())["monotonic"] == 103.0 and json.loads(FAR.to_json())["raw"]["monotonic"] == 100.0


def test_an_event_of_the_runs_own_clock_has_no_byte_more():
    line = json.loads(Event("warning", "rank", 1.0, 2.0, 7).to_json())
    assert line.keys() == json.loads(FAR.to_json()).keys() - {"host", "clock", "raw", "uncertainty"}


def test_a_time_of_another_clock_that_an_event_repeats_stays_one():
    told: list[Event] = []
    event = Emitter(told.append, "injector").emit(
        Verified(incident=1, took_effect_monotonic=Moment(5.0, 2.0, 0.25, OTHER))
    )
    read = Event.from_json(event.to_json())
    assert type(read.monotonic_seconds) is float and read.host is None
    for one in (event, read):
        took_effect = parse(one).took_effect_monotonic
        assert took_effect == 5.0 and uncertainty_between(0.0, took_effect) == 0.25


@pytest.mark.parametrize(
    "wrong",
    [
        {"clock": 1},
        {"raw": []},
        {"raw": {"monotonic": "x"}},
        {"raw": {"monotonic": 1e300}},
        {"uncertainty": None},
        {"uncertainty": float("nan")},
        {"host": "node2"},
        {"host": ["node2", None]},
    ],
)
def test_a_line_whose_clock_is_none_is_no_event(wrong):
    with pytest.raises(ValueError, match="not an event"):
        Event.from_json(json.dumps(json.loads(FAR.to_json()) | wrong))


def test_a_pid_of_another_host_is_never_one_of_here():
    exited = Event("process_exited", "supervisor", 1.0, 2.0, 1, fields={"exited_pid": 7}, origin=FAR.origin)
    record = parse(Event.from_json(exited.to_json()))
    assert isinstance(record, ProcessExited) and record.exited_pid == ForeignPid(7, NODE2)
    assert record.exited_pid != 7 and 7 not in {record.exited_pid: 1} and f"{record.exited_pid}" == "7"
    assert record.exited_pid != ForeignPid(7, Host("node2", "a third boot"))
    assert {ForeignPid(7, NODE2): 1}[pickle.loads(pickle.dumps(ForeignPid(7, NODE2)))] == 1
    assert pid_of({"pid": 7, "host": NODE2.to_json()}) == ForeignPid(7, NODE2)
    assert pid_of({"pid": 7}) == pid_of([7, 1]) == pid_of(7) == 7 and pid_of("x") is pid_of({}) is None


def test_only_who_has_another_clock_says_so():
    assert greeting({}) == greeting({CLOCK_VARIABLE: this_clock()}) == {}
    assert greeting({CLOCK_VARIABLE: OTHER}) == {"clock": this_clock(), "host": this_host().to_json()}


def test_times_in_messages_are_mapped_by_the_names_of_their_keys():
    mapping = ClockMapping.of(OF_THIS_KERNEL, [ClockSample(3.0, 0.0, 3.0)])
    message = {"report": {"step": 4, "woke_monotonic": 1.0, "more": [{"since_monotonic": 2}]}, "is_monotonic": True}
    assert mapping.moments(message) == {
        "report": {"step": 4, "woke_monotonic": 4.0, "more": [{"since_monotonic": 5.0}]},
        "is_monotonic": True,
    }
    assert clocks.MOMENT_SUFFIX == "_monotonic"
