"""What is read is the record that was emitted."""

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mecefo_runtime.system.emitter import Emitter
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.job_records import Detected
from mecefo_runtime.system.reason import Reason
from mecefo_runtime.system.record import HEADER, Record, keys_of
from mecefo_runtime.system.records import RECORDS, parse
from mecefo_runtime.system.run_records import (
    Aborted,
    Halted,
    IncidentsPlanned,
    Injected,
    PlannedIncident,
    Telemetry,
    Verified,
)
from tests.harness.synthetic import Fault, run

pytestmark = pytest.mark.unit


def values_of(hint):
    """Whatever a field of that type may be."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return st.one_of([st.none() if one is NoneType else values_of(one) for one in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is Mapping:
        return st.dictionaries(*map(values_of, arguments), max_size=3)
    if hint is PlannedIncident:
        return st.builds(hint, **{name: values_of(one) for name, one in get_type_hints(hint).items()})
    return {
        int: st.integers(-(2**53), 2**53),
        float: st.floats(),
        str: st.text(max_size=5),
        bool: st.booleans(),
        Reason: st.builds(Reason, st.text(max_size=5), sentence=st.text(max_size=5)),
        Any: st.one_of(st.none(), st.integers(0, 9), st.text(max_size=5)),
    }[hint]


@cache
def given_records(record):
    """Records of the class in which some of the fields are given that may be missing, and all others."""
    hints = {name: values_of(hint) for name, hint in get_type_hints(record).items() if name in record.FIELDS}
    required = {name: values for name, values in hints.items() if name in record.REQUIRED}
    optional = {name: values for name, values in hints.items() if name not in required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: record(**fields))


def event(kind, **fields):
    return Event(kind, "injector", 1.5, 2.5, 7, rank=1, step=3, fields=fields)


@given(st.sampled_from(sorted(RECORDS)).flatmap(lambda kind: given_records(RECORDS[kind])))
def test_what_is_read_is_what_was_emitted(record):
    emitted = Emitter(lambda event: None, "rank", rank=1).emit(record, step=3)
    read = parse(Event.from_json(emitted.to_json()))
    names = record.FIELDS
    # As text, in which NaN is equal to itself.
    assert repr([getattr(read, name) for name in names]) == repr([getattr(record, name) for name in names])
    assert set(emitted.fields) <= set(keys_of(type(record)))
    assert (read.kind, read.rank, read.step, read.pid) == (record.KIND, 1, 3, emitted.pid)


def test_fields_are_written_if_they_are_given_unless_the_class_says_otherwise():
    assert Aborted(gate="x", incident=None).to_fields() == {"gate": "x", "incident": None}
    assert Detected(lost=(1,), cut_links=()).to_fields() == {"lost": [1]}
    assert Detected(lost=(1,), cut_links=((0, 1),)).to_fields() == {"lost": [1], "cut_links": [[0, 1]]}
    assert Telemetry(of_rank=3, xid=79, ecc_sbe=5, ecc_dbe=1).to_fields()["rank"] == 3


@pytest.mark.parametrize(
    ("record", "fields"), [(Verified, {}), (Verified, {"incident": 1, "rank": 3}), (Halted, {"x": 1})]
)
def test_a_field_that_is_missing_or_unknown_is_refused(record, fields):
    with pytest.raises(TypeError, match=record.__name__):
        record(**fields)


def test_a_record_is_one_with_the_same_fields_and_cannot_be_changed():
    record = Detected(lost=(1,))
    assert record == Detected(lost=(1,), how=None) != Detected(lost=(2,))
    assert parse(event("detected", lost=[1])) == parse(event("detected", lost=[1])) != record
    with pytest.raises(AttributeError):
        record.lost = ()


def test_a_record_has_what_the_event_says():
    told = event("injected", incident=4, fault="kill-node", is_loss=True, target="node=1", ranks=[2, 3], links=[[0, 1]])
    record = parse(told)
    assert isinstance(record, Injected)
    assert (record.incident, record.ranks, record.links, record.is_loss) == (4, (2, 3), ((0, 1),), True)
    assert {name: getattr(record, name) for name in HEADER} == {name: getattr(told, name) for name in HEADER}


def test_what_an_older_log_lacks_has_its_default_and_what_a_newer_one_adds_is_left_out():
    record = parse(event("injected", incident=0, colour="green"))
    assert isinstance(record, Injected)
    assert (record.goes_on, record.ranks, record.fault) == (False, (), None)


def test_an_unknown_kind_is_a_plain_record():
    record = parse(event("eclipse", of="the sun"))
    assert type(record) is Record and record.kind == "eclipse"


def test_a_field_of_the_name_of_a_header_s_is_kept_apart():
    record = parse(event("telemetry", rank=3, xid=79, ecc_sbe=5, ecc_dbe=1))
    assert isinstance(record, Telemetry)
    assert (record.rank, record.of_rank) == (1, 3)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("verified", {}),
        ("verified", {"incident": "x"}),
        ("step_committed", {"epoch": "x"}),
        ("step_committed", {"epoch": float("inf")}),
        ("step_committed", {"tokens": "many"}),
        ("step_committed", {"loss": {}}),
        ("detected", {"lost": [1, "x"]}),
        ("detected", {"lost": 3}),
        ("layout", {"layout": []}),
        ("incidents_planned", {"incidents": [3]}),
        ("rank_finished", {"checksums": {"layer.0": "x"}}),
    ],
)
def test_what_makes_no_sense_is_refused(kind, fields):
    with pytest.raises(ValueError, match=kind):
        parse(event(kind, **fields))


def test_a_loss_that_is_not_finite_is_read():
    assert parse(event("step_committed", loss=float("inf"))).loss == float("inf")


def test_a_whole_run_is_read():
    events = run(faults=(Fault(), Fault(step=45, role="coordinator")))
    records = [parse(one) for one in events]
    assert all(type(record) is RECORDS[record.kind] for record in records)
    (planned,) = [record for record in records if isinstance(record, IncidentsPlanned)]
    assert [(one.fault, one.target, one.step) for one in planned.incidents] == [
        ("kill-node", "node=1", 20),
        ("kill-node", "role=coordinator", 45),
    ]
    fields = {(one.kind, key) for one in events for key in one.fields}
    # The builder tells whose processes it holds in an older way.
    assert not {(kind, key) for kind, key in fields if key not in keys_of(RECORDS[kind])} - {("held", "rank")}
