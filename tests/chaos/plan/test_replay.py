"""A log -> an experiment in which nothing is drawn any more."""

import pytest

from chaos.errors import UsageError
from chaos.experiment.reading import from_mapping
from chaos.plan.replay import Recorded, explicit, explicit_faults, without_late_repairs
from chaos.plan.schedule import make_plan
from mecefo_runtime.system.events import Event
from mecefo_runtime.system.json_values import to_json

pytestmark = pytest.mark.unit


def event(kind, step=None, **fields):
    return Event(kind, "injector", 0.0, 0.0, 1, step=step, fields=fields)


def recorded(*faults, injected=(), **more):
    """The log of a run of `faults` on the default job."""
    experiment = from_mapping({"name": "x", "seed": 3, "faults": list(faults), **more})
    incidents = make_plan(experiment, experiment.cluster()).incidents
    return Recorded.of(
        [
            event("run_started", experiment=experiment.model_dump(mode="json")),
            event("incidents_planned", incidents=[to_json(incident.planned()) for incident in incidents]),
            *injected,
        ]
    ), incidents


def replayed(recording, only=()):
    experiment = from_mapping(explicit(recording, explicit_faults(recording, only), "again"))
    return experiment, make_plan(experiment, experiment.cluster()).incidents


def core(incident):
    plan = to_json(incident.planned())
    del plan["incident"], plan["target"]
    return plan


def test_what_was_drawn_is_named():
    recording, planned = recorded(
        {"kind": "kill-node", "at": "step=100,phase=backward"},
        {"kind": "kill-process", "on": "random:2", "at": "step=200", "repair": "none"},
        {"kind": "kill-process", "on": "role=coordinator", "at": "step=300"},
    )
    experiment, again = replayed(recording)
    assert [core(incident) for incident in again] == [core(incident) for incident in planned]
    assert all(fault.on is not None and fault.on.random is None for fault in experiment.faults)
    assert (experiment.seed, experiment.job) == (3, recorded()[0] and experiment.job)
    other_seed = experiment.model_copy(update={"seed": 99})
    assert [core(i) for i in make_plan(other_seed, other_seed.cluster()).incidents] == [core(i) for i in planned]


def test_a_fault_at_a_time_comes_at_the_step_at_which_it_was_injected():
    recording, _ = recorded(
        {"kind": "kill-node", "on": "node=1", "at": "time=10s"}, injected=[event("injected", step=42, incident=0)]
    )
    _, (incident,) = replayed(recording)
    assert (incident.trigger.step, incident.trigger.at_seconds) == (42, None)


def test_a_single_incident():
    recording, planned = recorded(
        {"kind": "kill-process", "at": "step=100"}, {"kind": "kill-process", "at": "step=300"}
    )
    _, (incident,) = replayed(recording, only=[1])
    assert core(incident) == core(planned[1])
    with pytest.raises(UsageError, match="no incident 7: it has 0, 1"):
        explicit_faults(recording, [7])


def test_what_the_fault_draws_itself_is_drawn_again():
    recording, planned = recorded({"kind": "kill-process", "at": "step=100"}, {"kind": "bit-flip", "at": "step=200"})
    _, (only,) = replayed(recording, only=[1])
    assert (only.incident, only.rng_stream) == (0, planned[1].rng_stream)
    # Also of a replay of the replay.
    again, _ = recorded({**explicit_faults(recording, [1])[0]})
    assert explicit_faults(again)[0]["draw"] == 1


def test_a_log_without_a_plan_cannot_be_replayed():
    with pytest.raises(UsageError, match="does not say what was planned"):
        Recorded.of([event("run_started", experiment={})])


@pytest.mark.parametrize(("folder", "where"), [(None, "/work"), ("training", "/work/training"), ("/other", "/other")])
def test_a_command_is_run_where_it_was_and_is_not_repaired(folder, where):
    job = {"runtime": "command", "command": ["python", "train.py"], "gpus_per_node": 2, "folder": folder}
    recording, planned = recorded(
        {"kind": "kill-process", "at": "step=10"}, job=job, injected=[event("job_started", started_in="/work")]
    )
    experiment, again = replayed(recording)
    assert [core(incident) for incident in again] == [core(incident) for incident in planned]
    assert experiment.job.folder == where
    assert experiment.job.command == job["command"]


@pytest.mark.parametrize(
    ("repair", "replayed"), [("5steps", "5steps"), ("40steps", None), ("30steps", None), ("none", "none"), ("9s", "9s")]
)
def test_a_repair_that_came_to_nothing_is_left_unsaid(repair, replayed):
    (fault,) = without_late_repairs([{"kind": "kill-node", "at": "step=80,phase=backward", "repair": repair}], 100)
    assert fault.get("repair") == replayed


def test_a_late_repair_does_not_become_an_early_one():
    (fault,) = without_late_repairs([{"kind": "kill-node", "at": "step=50", "repair": "60steps"}], 100)
    assert fault["repair"] == "none"
