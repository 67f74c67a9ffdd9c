import pytest

from chaos.errors import UsageError
from chaos.experiment.experiment import Experiment, experiment_hash, to_yaml
from chaos.experiment.gate_spec import AbortingGate, parse
from chaos.experiment.reading import from_mapping, from_options
from chaos.experiment.schema import json_schema
from chaos.language.yaml_lines import parse as parse_yaml

pytestmark = pytest.mark.unit

FAULT = {"kind": "kill-node", "at": "step=5"}


def with_gates(*gates: object) -> Experiment:
    return from_mapping({"name": "x", "faults": [FAULT], "gates": list(gates)})


def test_a_gate_that_ends_nothing_is_its_expression():
    assert parse("recovery < 5") == "recovery < 5"
    assert parse({"gate": "recovery < 5"}) == "recovery < 5"
    assert parse({"gate": "recovery < 5", "abort_on_fail": False}) == "recovery < 5"
    assert parse({"gate": "recovery < 5", "abort_on_fail": True}) == AbortingGate("recovery < 5")
    assert str(AbortingGate("recovery < 5")) == "recovery < 5"


@pytest.mark.parametrize(
    ("gate", "where", "message"),
    [
        ({"gates": "recovery < 5"}, "gates[0].gates", "unknown key (did you mean 'gate'?)"),
        ({"abort_on_fail": True}, "gates[0].gate", "is missing: say what must hold"),
        ({"gate": "recovery < 5", "abort_on_fail": "yes"}, "gates[0].abort_on_fail", "must be true or false"),
        ({"gate": 3}, "gates[0]", "must be text"),
        ({"gate": ""}, "gates[0]", "not empty"),
        ("x" * 201, "gates[0]", "at most 200 characters"),
        ("a\nb", "gates[0]", "control characters"),
        (None, "gates[0]", "must be text"),
        ([], "gates[0]", "must be text"),
    ],
)
def test_what_is_no_gate_is_refused_where_it_stands(gate, where, message):
    with pytest.raises(UsageError) as refused:
        with_gates(gate)
    assert refused.value.key == where
    assert message in str(refused.value)


def test_it_comes_back_from_a_file_and_is_a_part_of_the_identity():
    experiment = with_gates("steps_lost == 0", {"gate": "recovery < 5", "abort_on_fail": True})
    document = parse_yaml(to_yaml(experiment))
    assert document.values["gates"] == ["steps_lost == 0", {"gate": "recovery < 5", "abort_on_fail": True}]
    assert from_mapping(document.values) == experiment
    assert from_mapping(experiment.model_dump(mode="json")) == experiment
    same = with_gates({"gate": "steps_lost == 0"}, {"gate": "recovery < 5", "abort_on_fail": True})
    assert experiment_hash(same) == experiment_hash(experiment)
    assert experiment_hash(with_gates("steps_lost == 0", "recovery < 5")) != experiment_hash(experiment)


def test_the_option_is_of_all_gates():
    options = {"at": "step=5", "gates": ("recovery < 5", "steps_lost == 0")}
    assert from_options("kill-node", options).gates == ["recovery < 5", "steps_lost == 0"]
    aborting = from_options("kill-node", {"abort_on_fail": True, **options}).gates
    assert aborting == [AbortingGate("recovery < 5"), AbortingGate("steps_lost == 0")]


def test_one_gate_of_several_may_end_the_run(tmp_path):
    options = {"gates": ("steps_lost == 0",), "abort_unless": ("recovery < 5", "wall_clock < 60")}
    own = [AbortingGate("recovery < 5"), AbortingGate("wall_clock < 60")]
    assert from_options("kill-node", {"at": "step=5", **options}).gates == ["steps_lost == 0", *own]
    file = tmp_path / "x.yaml"
    file.write_text("name: x\nfaults: [{kind: kill-node, at: step=5}]\ngates: [goodput > 1%]\n")
    assert from_options(str(file), options).gates == ["goodput > 1%", "steps_lost == 0", *own]
    with pytest.raises(UsageError, match=r"--abort-unless: must be a text that is not empty"):
        from_options("kill-node", {"at": "step=5", "abort_unless": ("recovery < 5", "")})


def test_the_option_is_of_those_of_the_file_too(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(
        "name: x\nfaults: [{kind: kill-node, at: step=5}]\ngates: [steps_lost == 0, {gate: recovery < 5}]\n"
    )
    aborting = from_options(str(file), {"abort_on_fail": True, "gates": ("detection < 1",)}).gates
    assert aborting == [AbortingGate(text) for text in ("steps_lost == 0", "recovery < 5", "detection < 1")]
    file.write_text("name: x\nfaults: [{kind: kill-node, at: step=5}]\ngates: [3]\n")
    with pytest.raises(UsageError, match=r"gates\[0\]: must be text"):
        from_options(str(file), {"abort_on_fail": True})


def test_without_a_gate_the_option_is_refused():
    with pytest.raises(UsageError, match="--abort-on-fail: there is no gate"):
        from_options("kill-node", {"at": "step=5", "abort_on_fail": True})


def test_the_schema_knows_both_forms():
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema())
    both = {"name": "x", "gates": ["recovery < 5", {"gate": "recovery < 5", "abort_on_fail": True}]}
    assert validator.is_valid(both)
    for wrong in (3, "", {"abort_on_fail": True}, {"gate": "x", "abort_on_fail": 1}, {"gate": "x", "other": 1}):
        assert not validator.is_valid({"name": "x", "gates": [wrong]})
