"""The paper's failure processes, in steps: `kill-process` at a rate, repaired, on whom the seed draws."""

from __future__ import annotations

from collections import Counter

import pytest

from chaos.experiment.reading import from_options
from chaos.plan.schedule import make_plan

pytestmark = pytest.mark.unit

STEPS = 1000
# One failure every F hours, repaired after R: R/F ranks are down on average (arXiv 2510.16415).
PROCESSES = {"low": 2, "mid": 3, "high": 4}
F_STEPS = 10


def down_by_step(seed: int, mean_down: int) -> list[int]:
    options = {"rate": f"1/{F_STEPS}steps", "repair": f"{mean_down * F_STEPS}steps", "on": "random", "seed": seed}
    shape = {"nodes": 4, "gpus_per_node": 8, "pipeline": 8, "device_model": "a100-7b", "time_scale": "1"}
    experiment = from_options("kill-process", {**options, **shape, "steps": STEPS})
    incidents = make_plan(experiment, experiment.cluster()).incidents
    down: list[set[int]] = [set() for _ in range(STEPS + 1)]
    for incident in incidents:
        first, (rank,) = incident.trigger.step, incident.target.ranks
        assert first is not None and incident.repair is not None and incident.repair.steps == mean_down * F_STEPS
        for step in range(first, min(STEPS + 1, first + mean_down * F_STEPS)):
            # Never one that is down already.
            assert rank not in down[step]
            down[step].add(rank)
    struck = Counter(incident.target.ranks[0] for incident in incidents)
    assert len(struck) > 16, "on many different ranks"
    # The first are down after a repair's length only.
    return [len(ranks) for ranks in down[mean_down * F_STEPS :]]


@pytest.mark.parametrize("name", PROCESSES)
def test_as_many_ranks_are_down_on_average_as_in_the_paper(name: str):
    mean_down = PROCESSES[name]
    means = [sum(down) / len(down) for seed in range(5) for down in [down_by_step(seed, mean_down)]]
    # About 500 failures: the mean's spread is some 5%. Some cannot be, since a replica would be left with nobody.
    assert sum(means) / len(means) == pytest.approx(mean_down, rel=0.15)
    assert max(means) < 1.4 * mean_down


def test_the_same_seed_gives_the_same_failures():
    assert down_by_step(7, 4) == down_by_step(7, 4) != down_by_step(8, 4)
