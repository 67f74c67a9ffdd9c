"""What the benchmark of several hosts reads out of the events, and what it concludes."""

import json

import pytest

from benchmarks import cluster
from benchmarks._machine import Machine
from benchmarks.cluster import APPLIED_LOCAL, APPLIED_REMOTE, READY, ROUND_TRIP, STEP_RATIO, Figures
from mecefo_runtime.system.events import Event

pytestmark = pytest.mark.unit

MACHINE = Machine(num_cores=2, num_cores_used=2, cpu_model="a CPU", python="3.11", torch="2.13")


def event(kind, seconds, **fields):
    return Event(kind, "conductor", 0.0, seconds, 1, fields=fields)


def sampled(host, uncertainty_seconds):
    return event("clock_sampled", 1.0, other_host=host, uncertainty_seconds=uncertainty_seconds)


def figures(**medians):
    made = Figures()
    names = {"ready": READY.format(num=4, kind="ssh"), "ratio": STEP_RATIO}
    names |= {"here": APPLIED_LOCAL, "there": APPLIED_REMOTE, "trip": ROUND_TRIP}
    for name, value in medians.items():
        made.add(names[name], value)
    return made


def test_agents_are_ready_when_the_job_starts():
    assert cluster.ready_seconds([event("run_started", 10.0), event("job_started", 11.5)]) == 1.5
    assert cluster.ready_seconds([event("run_started", 10.0)]) is None


def test_a_fault_is_applied_when_its_effect_is_seen():
    events = [
        event("injected", 1.0, incident=0),
        event("injected", 2.0, incident=1),
        event("verified", 2.25, incident=1),
        event("unverified", 3.0, incident=0),
    ]
    assert cluster.applied_seconds(events) == {1: 0.25}


def test_clocks_of_the_own_host_say_nothing_of_others():
    events = [sampled(["node2", "b"], 1e-5), sampled(None, 1e-6), sampled(["node2", "b"], 2e-5)]
    assert cluster.round_trips(events) == [2e-5, 4e-5]
    assert cluster.num_hosts_of(events) == 2


def test_the_first_steps_are_left_out():
    began = [*range(cluster.NUM_WARM_UP_STEPS), 100.0, 100.5, 101.5]
    assert cluster.steps_of("\n".join(map(str, began))) == [0.5, 1.0]


@pytest.mark.parametrize(
    ("medians", "met"),
    [
        ({"ready": 2.0}, [True]),
        ({"ready": 2.1}, [False]),
        ({"ratio": -0.01}, [True]),
        ({"ratio": 0.01}, [False]),
        ({"here": 0.080, "there": 0.0801, "trip": 0.0002}, [True]),
        ({"here": 0.080, "there": 0.0803, "trip": 0.0002}, [False]),
        ({"here": 0.080, "there": 0.0803}, []),
        ({}, []),
    ],
)
def test_aims_are_judged_by_medians_that_were_measured(medians, met):
    assert [*cluster.verdicts(figures(**medians)).values()] == met


def test_what_failed_is_shown():
    made = figures(ready=0.5)
    made.failures.append("recovery: exit code 5")
    text = cluster.to_text(made, MACHINE)
    assert "500 ms" in text and "ready within 2 s: yes" in text and text.endswith("FAILED: recovery: exit code 5")
    document = json.loads(json.dumps(cluster.to_document(made, MACHINE), allow_nan=False))
    assert document["figures"][READY.format(num=4, kind="ssh")]["median"] == 0.5
