"""The typed records are what the table of events says, and what the code emits."""

import ast
import re
from pathlib import Path

import pytest

from mecefo_runtime.system.events import Event
from mecefo_runtime.system.record import HEADER, Record, keys_of
from mecefo_runtime.system.records import RECORDS, parse
from mecefo_runtime.system.run_records import IncidentsPlanned, Injected, Telemetry
from tests.harness.synthetic import Fault, run

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
PACKAGES = ("mecefo_runtime", "chaos", "harness")


def rows():
    """Kind -> (sources, the words of the third column that stand in code)."""
    text = (ROOT / "docs/reference/events.md").read_text()
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (.*) \|$", text, re.MULTILINE)
    return {
        kind: (sources, set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", said)))))
        for kind, sources, said in found
    }


def event(kind, **fields):
    return Event(kind, "injector", 1.5, 2.5, 7, rank=1, step=3, fields=fields)


def test_every_kind_of_the_table_has_a_record_and_no_other():
    assert RECORDS.keys() == rows().keys()


@pytest.mark.parametrize("kind", RECORDS)
def test_every_field_of_a_record_stands_in_the_table(kind):
    assert set(keys_of(RECORDS[kind])) <= rows()[kind][1]


def test_whatever_is_emitted_is_a_field_of_its_record():
    unknown, num_seen = {}, 0
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                    continue
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                kind = node.args[0].value
                if name not in ("emit", "_emit") or kind not in RECORDS:
                    continue
                num_seen += 1
                given = {keyword.arg for keyword in node.keywords if keyword.arg} - {"step", "monotonic_seconds"}
                if given - set(keys_of(RECORDS[kind])):
                    unknown[path.name, kind] = given - set(keys_of(RECORDS[kind]))
    assert num_seen > 50
    assert not unknown


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
