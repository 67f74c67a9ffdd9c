"""The JSON Schema beside the reader: what the one takes, the other takes."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from chaos.errors import UsageError
from chaos.experiment.experiment import to_yaml
from chaos.experiment.reading import from_mapping
from chaos.experiment.schema import json_schema
from chaos.language.yaml_lines import parse
from tests.chaos.damage import SOUND
from tests.chaos.fake_faults import REGISTRY, STRATEGIES

pytestmark = pytest.mark.unit

KNOWN = {"registry": REGISTRY, "strategies": STRATEGIES}
SCHEMA = Draft202012Validator(json_schema(**KNOWN))
DOCUMENTED = re.findall(
    r"```yaml\n(.*?)```", (Path(__file__).parents[3] / "docs/reference/experiments.md").read_text(), re.DOTALL
)


def values_of(experiment):
    return parse(to_yaml(experiment)).values


def test_is_a_schema():
    for schema in (json_schema(), json_schema(**KNOWN)):
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("text", [*SOUND, *DOCUMENTED])
def test_takes_the_examples_and_what_is_written_of_them(text):
    installed = Draft202012Validator(json_schema())
    installed.validate(parse(text).values)
    installed.validate(values_of(from_mapping(parse(text).values)))


def test_the_documents_have_examples():
    assert len(DOCUMENTED) >= 2


FAULTS = [
    {"kind": "kill-node", "at": "step=5"},
    {"kind": "kill-node", "at": {"step": 5, "phase": "regroup"}, "on": "node=1+2", "repair": "none"},
    {"kind": "kill-process", "at": {"phase": "transfer"}, "retrigger": 3},
    {"kind": "kill-process", "rate": "0.5/min", "within": "5min", "count": 3, "retrigger": "every-attempt"},
    {"kind": "slow-rank", "every": "50steps", "for": "10steps"},
    {"kind": "drop-link", "on": "link=1-4", "at": {"time": "3s"}, "for": "3s"},
    {"kind": "slow-link", "at": "step=5", "delay": "5ms", "loss_ratio": 0.5},
    {"kind": "tear-checkpoint", "at": "step=6"},
]


@given(
    st.fixed_dictionaries(
        {"name": st.just("x")},
        optional={
            "faults": st.lists(st.sampled_from(FAULTS), max_size=3),
            "profile": st.sampled_from(["llama3", "llama3:5", {"name": "failslow"}, {"name": "llama3", "failures": 3}]),
            "limits": st.sampled_from(
                [{}, {"max_nodes": 2, "max_ranks": 3, "min_healthy": "50%"}, {"min_healthy": 0.5}]
            ),
            "job": st.sampled_from([{"nodes_per_rack": 2}, {"dilation": 2.5}, {"checkpoint": {"every_steps": 5}}]),
        },
    )
)
def test_takes_what_the_reader_takes_and_what_it_writes(raw):
    experiment = from_mapping(raw, **KNOWN)
    SCHEMA.validate(raw)
    SCHEMA.validate(values_of(experiment))


@pytest.mark.parametrize(
    "raw",
    [
        {"faults": []},
        {"name": "x", "fault": []},
        {"name": "x", "faults": [{"kind": "kill-node"}]},
        {"name": "x", "faults": [{"kind": "kill-nod", "at": "step=5"}]},
        {"name": "x", "faults": [{"kind": "kill-node", "at": "step=5", "for": "3s"}]},
        {"name": "x", "faults": [{"kind": "kill-node", "at": {"phase": "bakward"}}]},
        {"name": "x", "faults": [{"kind": "kill-node", "at": "step=5", "retrigger": "twice"}]},
        {"name": "x", "faults": [{"kind": "kill-node", "every": "5steps", "count": 0}]},
        {"name": "x", "faults": [{"kind": "slow-link", "at": "step=5"}]},
        {"name": "x", "faults": [{"kind": "tear-checkpoint", "on": "rank=1", "at": "step=5"}]},
        {"name": "x", "profile": {"failures": 3}},
        {"name": "x", "profile": {"name": "lama3"}},
        {"name": "x", "limits": {"max_nodes": 0}},
        {"name": "x", "limits": {"max_racks": 1}},
        {"name": "x", "limits": {"min_healthy": 2}},
        {"name": "x", "job": {"nodes_per_rack": 0}},
    ],
)
def test_refuses_what_the_reader_refuses(raw):
    assert not SCHEMA.is_valid(raw)
    with pytest.raises(UsageError):
        from_mapping(raw, **KNOWN)
