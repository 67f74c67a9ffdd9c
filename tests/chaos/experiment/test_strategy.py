"""What an experiment's strategy fixes of its job, and what a user may not say otherwise."""

import pytest

from chaos.errors import UsageError
from chaos.experiment.experiment import to_yaml
from chaos.experiment.job import Job
from chaos.experiment.reading import from_mapping, from_options
from chaos.language.yaml_lines import parse
from tests.chaos.fake_faults import REGISTRY

pytestmark = pytest.mark.unit


def read(text):
    document = parse(text, "e.yaml")
    return from_mapping(document.values, document.lines, path=document.path, registry=REGISTRY)


def test_a_strategy_fixes_what_it_is_known_by():
    job = from_options("kill-node", {"at": "step=5", "strategy": "mecefo-paper"}, registry=REGISTRY).job
    for found in (job, job.to_config(0, 1.0), Job(strategy="mecefo-paper").to_config(0, 1.0)):
        assert (found.approximation.down_projection, found.takeover) == ("right", "direct")
    ours = from_options("kill-node", {"at": "step=5", "strategy": "ndb"}, registry=REGISTRY).job
    assert ours.approximation.down_projection == "left"


def test_what_is_fixed_stands_in_the_stored_experiment():
    experiment = read("name: x\njob: {strategy: mecefo-paper}\n")
    assert read(to_yaml(experiment)) == experiment


def test_what_contradicts_a_strategy_is_refused_by_its_key():
    text = "name: x\njob:\n  strategy: mecefo-paper\n  takeover: auto\n"
    text += "  approximation:\n    rank: 8\n    down_projection: left\n"
    with pytest.raises(UsageError) as refused:
        read(text)
    expected = "must be 'right' with the strategy mecefo-paper, or left out, not 'left'"
    assert f"e.yaml:7: job.approximation.down_projection: {expected}" in str(refused.value)
    assert "e.yaml:4: job.takeover: must be 'direct' with the strategy mecefo-paper" in str(refused.value)
    assert "rank" not in str(refused.value)


def test_what_agrees_with_a_strategy_may_be_said():
    text = "name: x\njob:\n  strategy: mecefo-paper\n  takeover: direct\n  approximation: {down_projection: right}\n"
    assert read(text) == read("name: x\njob: {strategy: mecefo-paper}\n")


def test_with_a_sharded_optimizer_no_state_moves_in_the_background():
    with pytest.raises(
        UsageError, match=r"e\.yaml:2: job\.takeover: must be auto or direct with job\.sharded_optimizer"
    ):
        read("name: x\njob: {sharded_optimizer: true, takeover: background}\n")
    assert read("name: x\njob: {sharded_optimizer: true}\n").job.to_config(0, 1.0).sharded_optimizer
