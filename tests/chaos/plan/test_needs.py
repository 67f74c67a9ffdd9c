import pytest

from chaos.experiment.experiment import Experiment
from chaos.experiment.job import Checkpoint, Job, Snapshots
from chaos.faults import registry
from chaos.plan.needs import NEEDS, capabilities_of, check_needs

pytestmark = pytest.mark.unit


def test_what_is_there_is_enough():
    assert check_needs({"drop-link": ("links", "root"), "kill-node": ()}, frozenset({"links", "root", "cuda"})) == []


def test_what_is_missing_is_said_once_for_each_kind():
    violations = check_needs({"drop-link": ("links", "root"), "kill-node": (), "spoil": ("cuda",)}, {"root"})
    assert [str(violation) for violation in violations] == [
        "drop-link needs ranks with networks of their own",
        "spoil needs a job whose ranks run on CUDA devices",
    ]
    assert {violation.exit_code for violation in violations} == {4}


def test_all_that_is_missing_is_in_one_sentence():
    (violation,) = check_needs({"drop-link": ("links", "root")}, ())
    assert NEEDS["links"] in str(violation)
    assert NEEDS["root"] in str(violation)


def test_an_unknown_need_is_our_mistake():
    with pytest.raises(ValueError, match=r"needs 'lynks'.*links\?"):
        check_needs({"drop-link": ("lynks",)}, ())


def test_every_need_of_an_installed_fault_has_words():
    check_needs({kind: fault.needs for kind, fault in registry().items()}, NEEDS)


def test_what_an_experiment_offers():
    checkpoint, snapshots = Checkpoint(every_steps=5), Snapshots()
    command = {"runtime": "command", "command": ["train"]}
    for offered, settings in (
        ({"own-runtime"}, {}),
        ({"own-runtime", "checkpoints", "checkpoint-phase"}, {"job": Job(checkpoint=checkpoint)}),
        ({"own-runtime", "snapshots"}, {"job": Job(snapshots=snapshots)}),
        ({"own-runtime", "links"}, {"backend": "docker"}),
        (
            {"links", "checkpoints", "checkpoint-phase", "command", "data-workers", "lookups"},
            {"backend": "docker", "job": command},
        ),
    ):
        assert capabilities_of(Experiment(name="offers", **settings)) == offered


def test_links_that_are_connections_are_links(monkeypatch):
    experiment = Experiment(name="offers")
    monkeypatch.setattr(type(experiment.nodes_on), "links_are_connections", True)
    assert "links" in capabilities_of(experiment)
