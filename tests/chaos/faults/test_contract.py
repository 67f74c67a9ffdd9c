"""What every fault keeps to, whatever it does. A new fault is tried by being there."""

import json
import re

import pytest
from pydantic import BaseModel, ValidationError

from chaos.faults import registry
from chaos.faults.base import MAX_BRIEF, Fault
from chaos.language.trigger import Duration

pytestmark = pytest.mark.unit

FAULTS = list(registry().values())
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=[fault.kind for fault in FAULTS])


def test_the_registry_is_sorted():
    assert list(registry()) == sorted(registry())
    assert {"kill-node", "kill-process", "pause-node", "slow-rank"} <= set(registry())


@each_fault
def test_metadata(fault):
    assert registry()[fault.kind] is fault
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", fault.kind)
    assert fault.__name__.lower() == fault.kind.replace("-", "")
    assert issubclass(fault, Fault)
    assert fault.scope in ("node", "rank", "all-ranks", "link", "checkpoint", "job")
    assert fault.fidelity in ("real", "shaped", "telemetry")
    assert fault.undo_summary.strip()
    assert 0 < len(fault.brief) <= MAX_BRIEF, "the table of faults shows it"
    assert all(isinstance(need, str) and need for need in fault.needs)
    first_line = fault.__doc__.splitlines()[0]
    assert first_line.endswith((".", ":")) or ";" in first_line
    assert len(first_line) > 20, "the list of faults shows it"


@each_fault
def test_how_long_it_lasts_and_when_it_shows(fault):
    assert fault.default_lifetime is None or (fault.has_lifetime and isinstance(fault.default_lifetime, Duration))
    assert not (fault.is_loss and fault.has_lifetime), "the dead are repaired, not undone"
    assert fault.verify_timeout_seconds > 0


@each_fault
def test_parameters_are_checked(fault):
    assert issubclass(fault.Parameters, BaseModel)
    assert fault.Parameters.model_config["extra"] == "forbid"
    assert fault.Parameters.model_config["frozen"]
    with pytest.raises(ValidationError):
        fault.Parameters.model_validate({"no_such_parameter": 1})
    schema = fault.Parameters.model_json_schema()
    assert json.loads(json.dumps(schema)) == schema


@each_fault
def test_parameters_that_were_written_are_read_as_the_same(fault):
    try:
        parameters = fault.Parameters()
    except ValidationError as error:
        assert {problem["type"] for problem in error.errors()} == {"missing"}, "a default that is refused"
        return
    written = json.loads(json.dumps(parameters.model_dump(mode="json")))
    assert fault.Parameters.model_validate(written) == parameters


@each_fault
def test_the_undo_of_nothing_does_no_harm(fault):
    first = fault.undo({})
    assert json.loads(json.dumps(first)) == first
    assert fault.undo({}) == first
