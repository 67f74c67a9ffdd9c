"""Faults that would undo each other are refused before the run, as far as that is known then."""

import pytest

from chaos.errors import UsageError
from chaos.experiment.reading import from_mapping
from chaos.faults import registry
from chaos.plan.schedule import make_plan

pytestmark = pytest.mark.unit


def plan(*faults, **more):
    experiment = from_mapping(
        {"name": "x", "faults": list(faults), **more}, registry=registry(), strategies=("mecefo",)
    )
    return make_plan(experiment, experiment.cluster(), registry=registry())


def fault(kind, on, step, lasts=None, **parameters):
    found = {"kind": kind, "at": f"step={step}" if isinstance(step, int) else step, **parameters}
    found |= {} if on is None else {"on": on}
    return found if lasts is None else {**found, "for": lasts}


@pytest.mark.parametrize(
    ("first", "second", "where"),
    [
        (("pause-process", "rank=3", 20, "30steps"), ("pause-process", "rank=3", 40, "30steps"), "rank 3"),
        (("pause-node", "node=1", 20, "30steps"), ("pause-process", "rank=3", 40, "1s"), "rank 3"),
        (("slow-rank", "rank=3", 20), ("pause-process", "rank=3", 400, "1s"), "rank 3"),
        (("slow-link", "link=0-2", 20, "30steps"), ("slow-link", "link=0-2", 49, "5steps"), "link 0-2"),
        (("slow-link", "link=0-2", "time=2s", "9s"), ("slow-link", "link=0-2", "time=10s", "9s"), "link 0-2"),
        (("pause-process", "rank=3", 20, "3s"), ("pause-node", "node=1", 20, "3s"), "rank 3"),
    ],
)
def test_what_one_undo_would_end_for_both_is_refused(first, second, where):
    with pytest.raises(UsageError) as refused:
        plan(fault(*first), fault(*second))
    assert refused.value.key == "faults[1]"
    assert f"faults[0] ({first[0]}) is active on {where} from " in refused.value.message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("pause-process", "rank=3", 20, "20steps"), ("pause-process", "rank=3", 40, "20steps")),
        (("pause-process", "rank=3", 20, "30steps"), ("pause-process", "rank=2", 40, "30steps")),
        (("slow-rank", "rank=3", 20), ("pause-process", "rank=2", 40, "1s")),
        (("slow-link", "link=0-2", 20, "30steps"), ("slow-link", "link=1-3", 40, "30steps")),
        (("slow-link", "link=0-2", 20, "30steps"), ("drop-link", "link=0-2", 40, "5steps")),
        # How long a step takes is known only when it is over.
        (("pause-process", "rank=3", 20, "9s"), ("pause-process", "rank=3", 40, "9s")),
        (("slow-data", "rank=3", 20), ("slow-rank", "rank=3", 40)),
        (("slow-link", "link=0-2", "time=2s", "8s"), ("slow-link", "link=0-2", "time=10s", "9s")),
    ],
)
def test_what_can_be_told_apart_is_planned(first, second):
    assert len(plan(fault(*first), fault(*second)).incidents) == 2


@pytest.mark.parametrize("seed", range(8))
def test_draws_avoid_ranks_that_another_fault_has_to_itself(seed):
    paused = [fault("pause-process", "random", 20 + i, "100steps") for i in range(4)]
    targets = [incident.target.ranks for incident in plan(*paused, seed=seed).incidents]
    assert len(set(targets)) == 4


@pytest.mark.parametrize(
    ("kind", "on", "parameters", "key"),
    [
        ("slow-link", "link=0-2", {"delay": "0.001ms"}, "delay"),
        ("slow-link", "link=0-2", {"loss": 0.0001}, "loss"),
        ("slow-data", "rank=1", {"delay": "0.000001ms"}, "delay"),
    ],
)
def test_effects_below_what_can_be_measured_are_refused(kind, on, parameters, key):
    with pytest.raises(UsageError) as refused:
        plan(fault(kind, on, 20, **parameters))
    assert refused.value.key.endswith(key)
    assert "choose" in refused.value.message
